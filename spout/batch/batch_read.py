"""`spark.read.format("kinesis-trident")`: reads the records between two positions once, without ZooKeeper.

The positions are fixed when the frame is loaded, so each action on it reads the same records while the stream has them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kinesis_trident.common.worker_garbage import exempt_from_collections
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS, PushedFilters, ShardRange
from kinesis_trident.spout.batch.range_read import Loaded, read_range
from kinesis_trident.spout.data_loss import DataLossLog, describe_unlisted
from kinesis_trident.spout.errors import OptionsError, StreamRecreatedError
from kinesis_trident.spout.failed_records.places import check_places
from kinesis_trident.spout.kinesis import Kinesis, Shard
from kinesis_trident.spout.kinesis.client import connection_of, kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec, resolve_position
from kinesis_trident.spout.planner.shards.lineage import positions_of
from kinesis_trident.spout.positions import TRIM_HORIZON, AtTimestamp, Position, TrimHorizon
from kinesis_trident.spout.shard_rules import (
    LISTED_WITHIN_MS,
    SERVER_SECOND_MS,
    are_all,
    bound_time,
    describe_streams,
)


class RangesPartition(InputPartition):
    """The ranges that one Spark task of a batch reads, in order, and when the batch was loaded."""

    def __init__(self, ranges: Sequence[ShardRange], loaded: Loaded) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.loaded = loaded

    def __repr__(self) -> str:
        return f"RangesPartition({', '.join(f'{one.stream}/{one.shard}' for one in self.ranges)})"


class KinesisBatchReader(DataSourceReader):
    """Cuts the range between the two positions into tasks, shard by shard, parents first.

    Args:
        options: parsed by `SourceOptions.parse_batch`.
        loaded: when the frame was loaded.
    """

    def __init__(self, options: SourceOptions, loaded: Loaded) -> None:
        self._options = options
        self._loaded = loaded
        self._pushed = NO_FILTERS

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task per shard, or per `shardsPerTask` neighbours; at most `maxPartitions`.

        Raises:
            DataLossError: with `failOnDataLoss`, an option names a shard that is no longer listed.
            KinesisError: a stream cannot be listed.
        """
        options, kinesis, loaded = self._options, kinesis_client(self._options), self._loaded
        # The listing is made after this time by the server's clock, which reports whole seconds.
        listed = (
            loaded.time - SERVER_SECOND_MS + max(0, int(time.time() * 1000) - loaded.at) if loaded.at else 0
        )
        streams = [stream for stream in options.streams if self._pushed.admits("stream", stream)]
        ranges = [
            one
            for stream in streams
            for one in _ranges(options, kinesis, stream, loaded.time, self._pushed, listed)
        ]
        size = options.shards_per_task or 1
        if options.max_partitions is not None and ranges:
            size = max(size, -(-len(ranges) // options.max_partitions))
        dealt: list[list[ShardRange]] = [ranges[i : i + size] for i in range(0, len(ranges), size)]
        # Spark takes no partitions for one of its own kind.
        return [RangesPartition(own, loaded) for own in dealt or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, an Arrow batch for each answer of Kinesis.

        Raises:
            As `read_range`.
        """
        assert isinstance(partition, RangesPartition)
        kinesis = kinesis_client(self._options)
        for one in partition.ranges:
            yield from read_range(kinesis, self._options, one, partition.loaded, self._pushed)
        exempt_from_collections(connection_of(self._options))


class FilteringBatchReader(KinesisBatchReader):
    """A batch that takes over filters: `filterPushdown`.

    Spark 4.1 to 4.3 read what the last plan of a frame asked for, also in other queries of the same `load()`: they
    would lose rows. Spark that has `pushLimit` keeps plans apart (SPARK-58551).

    Args:
        options, loaded: see `KinesisBatchReader`.
        load: marks all plans of one `load()`; None if unknown, and no filter is taken over.
    """

    def __init__(self, options: SourceOptions, loaded: Loaded, load: str | None) -> None:
        super().__init__(options, loaded)
        self._load = load

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take over filters on arrival time, sequence number, shard and stream; return the others.

        Raises:
            OptionsError: Spark would apply them to other queries of the frame, and one of those has other filters.
        """
        keeps_apart = hasattr(DataSourceReader, "pushLimit")
        if self._load is None and not keeps_apart:
            return filters
        self._pushed, left = PushedFilters.take(filters)
        if not keeps_apart and not _is_only(f"kinesis-trident-filters-{self._load}", repr(self._pushed)):
            msg = (
                "with filterPushdown=true, a DataFrame takes the filters of one query only, because this Spark would "
                "apply them to its other queries too. Call load() for each filter (docs/backfill.md)"
            )
            raise OptionsError(msg)
        return left


def _is_only(name: str, text: str) -> bool:
    """Return whether no other text was given under this name in any process of this driver, and keep it.

    Spark gives its folders to the processes that plan, and removes them when the driver ends.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    path = Path(folder, name)
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(text)
    try:
        path.hardlink_to(own)
    except FileExistsError:
        return path.read_text() == text
    finally:
        own.unlink()
    return True


def load_streams(options: SourceOptions, at: int | None = None) -> Loaded:
    """Describe the streams of a batch, which is loaded now, or was loaded `at` a time of the machine's clock.

    Raises:
        StreamRecreatedError: with `failOnDataLoss`, a stream is younger than the load.
        KinesisError: a stream cannot be described.
        OptionsError: the place of `deadLetter` cannot be.
    """
    kinesis = kinesis_client(options)
    check_places(options, kinesis)
    infos = describe_streams(kinesis, options.streams)
    now = int(time.time() * 1000)
    # Only how long ago it was is asked of the machine's clock.
    passed = max(0, now - at) if at is not None else 0
    loaded = Loaded(bound_time(infos.values()) - 1 - passed, now, infos)
    for info in infos.values():
        if options.fail_on_data_loss and info.created > loaded.time:
            msg = (
                f"stream {info.name!r} was created after the frame was loaded: it is another stream than the one at "
                "that time. Load the frame again to read it"
            )
            raise StreamRecreatedError(msg)
    return loaded


def sort_by_lineage(listed: Sequence[Shard]) -> list[Shard]:
    """Return the shards of a stream, each after its parents, otherwise by id."""
    known = {shard.id: shard for shard in listed}
    ordered: dict[str, Shard] = {}

    def add(shard: Shard) -> None:
        waiting = [shard]
        while waiting:
            parents = [known[one] for one in waiting[-1].parents if one in known and one not in ordered]
            if parents:
                waiting += parents
            else:
                done = waiting.pop()
                ordered[done.id] = done

    for shard in sorted(listed, key=lambda one: one.id):
        if shard.id not in ordered:
            add(shard)
    return list(ordered.values())


def _ranges(
    options: SourceOptions, kinesis: Kinesis, stream: str, now: int, pushed: PushedFilters, at: int = 0
) -> Iterator[ShardRange]:
    """Yield the range of each shard; `now`: LATEST, `at`: a time before the listing, both by the server's clock."""
    latest = AtTimestamp(now)
    first, last = (
        PositionSpec.parse(options.starting_position),
        PositionSpec.parse(options.ending_position or LATEST),
    )
    start = None if last.list_named(stream) else first.find_common(stream, lambda: latest)
    # A shard closed before the start has no record after it.
    since = pushed.move_start(start, now) if isinstance(start, TrimHorizon | AtTimestamp) else None
    if isinstance(since, AtTimestamp):
        # What came of one that has just closed may not be listed yet.
        since = AtTimestamp(max(0, since.time - LISTED_WITHIN_MS))
    listed = kinesis.list_shards(stream, since)
    losses, there = DataLossLog(options.fail_on_data_loss), {shard.id for shard in listed}
    for option, spec in (("startingPosition", first), ("endingPosition", last)):
        for shard in sorted(set(spec.list_named(stream)) - there):
            what = describe_unlisted(kinesis.describe(stream), option, shard, spec.text_of(stream, shard))
            losses.report(what)
    starts = positions_of(first, stream, listed, lambda: latest)
    ends = positions_of(last, stream, listed, lambda: latest, rest=LATEST)
    # Shards that come later begin and end as those that are not named.
    others = (
        resolve_position(first.text_of_others(stream, str(TRIM_HORIZON)), lambda: latest),
        resolve_position(last.text_of_others(stream, LATEST), lambda: latest),
    )
    children: dict[str, list[Shard]] = {}
    for one in listed:
        for parent in one.parents:
            children.setdefault(parent, []).append(one)
    other = pushed.names_other(there)
    for one in sort_by_lineage(listed):
        kin = children.get(one.id, [])
        # What comes of a shard that is open after the end has no record before it.
        has_heirs = not are_all(kin, one) if one.closed else not _is_over(others[1], at)
        part = ShardRange(
            stream,
            one.id,
            starts[one.id],
            ends[one.id],
            one.closed,
            others=others if has_heirs else None,
            kin=tuple(child.id for child in kin) if has_heirs else (),
        )
        narrowed = pushed.narrow(part, one, now, other=other)
        if narrowed is not None:
            yield narrowed


def _is_over(end: Position, at: int) -> bool:
    """Return whether a shard that a listing of this time has as open was open at the end of a range."""
    return isinstance(end, TrimHorizon) or (
        isinstance(end, AtTimestamp) and end.time <= at - LISTED_WITHIN_MS
    )
