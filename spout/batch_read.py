"""`spark.read.format("kinesis-trident")`: reads the records between two positions once, without ZooKeeper.

The positions are fixed when the frame is loaded, so each action on it reads the same records while the stream has them.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kinesis_trident.common.worker_garbage import exempt_from_collections
from kinesis_trident.spout.data_loss import (
    DataLossLog,
    describe_expired_start,
    describe_gone_in_batch,
    describe_unlisted,
)
from kinesis_trident.spout.errors import ExhaustedError, OptionsError
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter, Letter
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, Shard, Unavailable
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.pages.decoding import why_unreadable
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.kinesis.record_batches import (
    compact,
    portions,
    position_at,
    select_before,
    select_readable,
    unreadable_in,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.options.starting_position import LATEST, PositionSpec
from kinesis_trident.spout.planner.shards.lineage import positions_of
from kinesis_trident.spout.planner.streams import describe_streams
from kinesis_trident.spout.positions import At, AtTimestamp, Position, ShardEnd, TrimHorizon
from kinesis_trident.spout.pushed_filters import NO_FILTERS, PushedFilters, ShardRange
from kinesis_trident.spout.reader.missing import is_gone
from kinesis_trident.spout.reader.polling import Pager
from kinesis_trident.spout.reader.rows import make_untracked_rows
from kinesis_trident.spout.shard_looks import cut_ranges, try_again
from kinesis_trident.tracker.records import Run

log = logging.getLogger(__name__)

_END_PATIENCE = 10.0
"""Seconds to continue through empty answers that indicate neither the tip nor the end."""


_PAGE_SECONDS = 2.0
"""The longest wait after a refusal of tasks that share a shard: less than the 5 seconds that a full page blocks it."""


class RangesPartition(InputPartition):
    """The ranges that one Spark task of a batch reads, in order."""

    def __init__(self, ranges: Sequence[ShardRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"RangesPartition({', '.join(f'{one.stream}/{one.shard}' for one in self.ranges)})"


class KinesisBatchReader(DataSourceReader):
    """Cuts the range between the two positions into tasks, shard by shard, parents first.

    Args:
        options: parsed by `SourceOptions.parse_batch`.
        now: when the frame was loaded, in epoch milliseconds by the server's clock, for LATEST.
    """

    def __init__(self, options: SourceOptions, now: int) -> None:
        self._options = options
        self._now = now
        self._pushed = NO_FILTERS

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task per shard, per `shardsPerTask` neighbours, or `tasksPerShard` of them; at most `maxPartitions`.

        Raises:
            DataLossError: with `failOnDataLoss`, an option names a shard that is no longer listed.
            KinesisError: a stream cannot be listed.
        """
        options, kinesis = self._options, kinesis_client(self._options)
        streams = [stream for stream in options.streams if self._pushed.admits("stream", stream)]
        ranges = [
            one for stream in streams for one in _ranges(options, kinesis, stream, self._now, self._pushed)
        ]
        size, tasks = options.shards_per_task or 1, options.tasks_per_shard
        if options.max_partitions is not None and ranges:
            size = max(size, -(-len(ranges) // options.max_partitions))
            tasks = min(tasks, options.max_partitions // len(ranges))
        dealt: Sequence[Sequence[ShardRange]] = (
            cut_ranges(kinesis, options, ranges, self._now, tasks)
            if tasks > 1
            else [ranges[i : i + size] for i in range(0, len(ranges), size)]
        )
        # Spark takes no partitions for one of its own kind.
        return [RangesPartition(own) for own in dealt or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, an Arrow batch for each answer of Kinesis.

        Raises:
            DataLossError: with `failOnDataLoss`, a shard has left the stream since the batch was planned.
            KinesisError: naming stream, shard and position.
        """
        assert isinstance(partition, RangesPartition)
        kinesis, losses = kinesis_client(self._options), DataLossLog(self._options.fail_on_data_loss)
        for one in partition.ranges:
            yield from read_range(kinesis, self._options, one, losses, self._pushed)
        exempt_from_collections(self._options)


class FilteringBatchReader(KinesisBatchReader):
    """A batch that takes over filters: `filterPushdown`.

    Spark 4.1 to 4.3 read what the last plan of a frame asked for, also in other queries of the same `load()`: they
    would lose rows. Spark that has `pushLimit` keeps plans apart (SPARK-58551).

    Args:
        options, now: see `KinesisBatchReader`.
        load: marks all plans of one `load()`; None if unknown, and no filter is taken over.
    """

    def __init__(self, options: SourceOptions, now: int, load: str | None) -> None:
        super().__init__(options, now)
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


def read_clock(options: SourceOptions) -> int:
    """Return the time by the clock of Kinesis in epoch milliseconds, rounded up, and check that the streams exist.

    Raises:
        KinesisError: a stream cannot be described.
    """
    infos = describe_streams(kinesis_client(options), options.streams)
    # The answer has whole seconds, rounded down.
    return max(info.server_time for info in infos.values()) + 999


def read_range(
    kinesis: Kinesis,
    options: SourceOptions,
    part: ShardRange,
    losses: DataLossLog | None = None,
    pushed: PushedFilters = NO_FILTERS,
) -> Iterator[pa.RecordBatch]:
    """Read one shard between two positions, an answer at a time.

    If the end is a time, this waits until it has passed, so that no earlier record can still arrive: for LATEST at most
    a second. A closed shard is read to its end.

    Args:
        kinesis: the calls.
        options: how it is read.
        part: what is read.
        losses: receives the report of a shard that is past retention; None for a new one.
        pushed: which rows are wanted.

    Raises:
        DataLossError: with `failOnDataLoss`, the shard has left the stream.
        ThrottledError, Unavailable: no answer for `readTimeout`, or no answer that indicates whether more follows.
        ExhaustedError: with `onExhausted=fail`, a record cannot be decoded.
        DeadLetterError: one cannot be written to the dead letter.
        KinesisError: naming stream, shard and position.
    """
    if isinstance(part.start, ShardEnd) or isinstance(part.end, TrimHorizon):
        return
    limiter = shard_limiter(share_limits(options, part.tasks), part.stream, part.shard)
    pager = Pager(
        kinesis,
        part.stream,
        part.shard,
        ShardCursor(part.start),
        limiter,
        deaggregate=options.deaggregate,
        closed=part.closed,
    )
    patient = try_again(options)
    losses = losses or DataLossLog(options.fail_on_data_loss)
    is_expected = part.seen
    given_up, records, has_given = math.inf, None, False
    while not pager.drained:
        try:
            records = patient(pager.next, part.limit(options.max_records_per_fetch, records))
        except KinesisError as error:
            if part.otherwise is not None and pager.page is None:
                log.info("reading from %s, because %s", part.otherwise, error)
                whole = replace(part, start=part.otherwise, otherwise=None)
                yield from read_range(kinesis, options, whole, losses, pushed)
                return
            if not is_gone(kinesis, part.stream, part.shard, error):
                raise
            what = describe_gone_in_batch(
                kinesis.describe(part.stream), part.shard, str(pager.position), str(part.end)
            )
            losses.report(what, f"{part.stream}/{part.shard}")
            return
        page = pager.page
        assert records is not None
        assert page is not None
        if is_expected and (records.num_rows or pager.drained or pager.at_tip):
            is_expected = False
            _check_start(kinesis, part, records, losses)
        mine = select_before(records, part.end)
        wanted = pushed.rows(mine)
        if wanted.num_rows:
            _put_aside(kinesis, options, part, wanted)
            rows = select_readable(wanted)
            # Spark's worker holds back the end of a batch, up to 64 KiB, until it gets more to write: the second half
            # of the first page makes the first half leave, and whoever wants a few rows has them.
            half = 0 if has_given else rows.num_rows // 2
            has_given = True
            for piece in (rows.slice(0, half), rows.slice(half)) if half else (rows,):
                for portion in portions(piece):
                    yield make_untracked_rows(portion, part.stream, part.shard)
        empty = page.records.num_rows == 0
        is_behind = part.last is not None and mine.num_rows and position_at(mine, -1).sequence > part.last
        if (
            is_behind
            or mine.num_rows < records.num_rows
            or (empty and pager.at_tip and _is_past(part.end, page.server_time))
        ):
            return
        given_up = min(given_up, limiter.clock() + _END_PATIENCE) if pager.undecided else math.inf
        if limiter.clock() >= given_up and _is_past(part.end, page.server_time):
            if page.behind_ms == 0:
                # A closed shard of a server that never ends one.
                return
            msg = (
                f"stream {part.stream!r}, shard {part.shard}, position {pager.position}: the answers are empty and "
                "lack MillisBehindLatest, so the end of the shard is unknown. Check that the endpoint is a Kinesis "
                "endpoint"
            )
            raise Unavailable(msg)


def _check_start(kinesis: Kinesis, part: ShardRange, records: pa.RecordBatch, losses: DataLossLog) -> None:
    """Report it if the record that a range begins with has expired: `records` are the first that are left."""
    assert isinstance(part.start, At)
    if not records.num_rows or position_at(records, 0).sequence != part.start.record.sequence:
        what = describe_expired_start(kinesis.describe(part.stream), part.shard, part.start)
        losses.report(what, f"{part.stream}/{part.shard}")


def share_limits(options: SourceOptions, tasks: int) -> SourceOptions:
    """Return the options with the limits of one of several tasks that read a shard at once.

    They are refused now and then, because a page of one blocks the shard for the others: whoever waited for long would
    leave its share to nobody.
    """
    if tasks == 1:
        return options
    longest = min(options.client_max_retry_interval, _PAGE_SECONDS)
    return replace(
        options,
        min_fetch_period=options.min_fetch_period * tasks,
        max_fetch_rate=options.max_fetch_rate / tasks,
        client_retry_interval=min(options.client_retry_interval, longest),
        client_max_retry_interval=longest,
    )


def _put_aside(kinesis: Kinesis, options: SourceOptions, part: ShardRange, records: pa.RecordBatch) -> None:
    """Write the records that cannot be decoded to the dead letter, or do what `onExhausted` says."""
    left_out = unreadable_in(records)
    if not len(left_out):
        return
    odd = compact(records, left_out)
    where = [str(position_at(odd, index)) for index in range(odd.num_rows)]
    what = (
        f"stream {part.stream!r}, shard {part.shard}: {odd.num_rows} records cannot be decoded, the first is "
        f"{where[0]} ({why_unreadable(odd.column('data')[0].as_py())})"
    )
    if options.on_exhausted == "fail":
        msg = f"{what}. Set deadLetter, which gets them as Kinesis sent them, or onExhausted=skip"
        raise ExhaustedError(msg)
    if options.on_exhausted == "deadLetter":
        letters: list[Letter] = [(Run(where[0], where[-1], odd.num_rows), [odd], False)]
        named = replace(options, application_name=options.application_name or "batch")
        DeadLetterWriter(named, kinesis).write(
            stream=part.stream, txid=0, letters={part.shard: letters}, plan="batch", again=True
        )
    log.warning("%s: %s", what, "skipped" if options.on_exhausted == "skip" else "written to the dead letter")


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


def _is_past(end: Position, server_time: int | None) -> bool:
    now = server_time if server_time is not None else int(time.time() * 1000)
    return not isinstance(end, AtTimestamp) or now >= end.time


def _ranges(
    options: SourceOptions, kinesis: Kinesis, stream: str, now: int, pushed: PushedFilters
) -> Iterator[ShardRange]:
    latest = AtTimestamp(now)
    first, last = (
        PositionSpec.parse(options.starting_position),
        PositionSpec.parse(options.ending_position or LATEST),
    )
    start = None if last.list_named(stream) else first.find_common(stream, lambda: latest)
    # A shard closed before the start has no record after it.
    since = pushed.move_start(start, now) if isinstance(start, TrimHorizon | AtTimestamp) else None
    listed = kinesis.list_shards(stream, since)
    losses, there = DataLossLog(options.fail_on_data_loss), {shard.id for shard in listed}
    for option, spec in (("startingPosition", first), ("endingPosition", last)):
        for shard in sorted(set(spec.list_named(stream)) - there):
            what = describe_unlisted(kinesis.describe(stream), option, shard, spec.text_of(stream, shard))
            losses.report(what, f"{option} {stream}/{shard}")
    starts, ends = (positions_of(spec, stream, listed, lambda: latest) for spec in (first, last))
    for one in sort_by_lineage(listed):
        part = ShardRange(stream, one.id, starts[one.id], ends[one.id], one.closed)
        narrowed = pushed.narrow(part, one, now)
        if narrowed is not None:
            yield narrowed
