"""Provides the fetchers, bounds and spool with which a task reads its turns, and builds their rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from kinesis_trident.spout.failed_records.kept_letters import KeptLetters
from kinesis_trident.spout.failed_records.retry_ranges import RunRecords
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool, spool_of
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.partition import ShardTurn, TurnsPartition, count_side_by_side
from kinesis_trident.spout.positions import Position, parse_position
from kinesis_trident.spout.reader.fan_out import FanOut, Subscriber, open_subscriptions
from kinesis_trident.spout.reader.fetch import Bounds, DueTurn, ShardFetcher
from kinesis_trident.spout.reader.missing import EmptyShard
from kinesis_trident.spout.reader.rows import Retried, Segment, TurnRows
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.records import RecordPosition, Run

_BUFFERED = 4
"""The part of the memory of a task (a quarter) for events that are pushed before a turn takes them."""


class TurnSource:
    """The source of the records of one partition's turns.

    Args:
        partition: of the task.
        kinesis: the calls.
        subscriber: creates subscriptions if the partition names consumers.

    Attributes:
        gone: the shards that retention has removed from the stream: they are empty and at their end.
        has_invalid: the shards of which a run to be read again has a position that is none of their stream's.
        spool: keeps the payload of failed records; None without one.
    """

    def __init__(
        self, partition: TurnsPartition, kinesis: Kinesis, subscriber: Subscriber | None = None
    ) -> None:
        self._partition = partition
        self._options = partition.options
        self._kinesis = kinesis
        self._kept = kept_cursors(kinesis)
        self._subscriber = subscriber if partition.consumers else None
        self._tag = tag(partition.epoch, partition.plan)
        self.gone: set[str] = set()
        self.has_invalid: set[str] = set()
        self.spool = spool_of(partition.options, partition.layout)
        self._letters = None
        if (place := partition.options.dead_letter) is not None:
            due = {turn.shard: [run for run, _ in turn.due] for turn in partition.turns if turn.due}
            self._letters = KeptLetters(place, partition.layout, kinesis, due)

    @property
    def pushed(self) -> bool:
        """Return whether records are pushed instead of polled."""
        return self._subscriber is not None

    def fetcher(self, turn: ShardTurn) -> ShardFetcher:
        """Return the fetcher of a turn's shard."""
        partition = self._partition
        key = partition.layout.key_of(turn.shard)
        if turn.shard in self.gone:
            return ShardFetcher(EmptyShard(self._kinesis), key.stream, key.shard, self._options)
        fan_out = None
        if self._subscriber is not None:
            fan_out = FanOut(
                self._subscriber,
                partition.consumers[key.stream],
                open_subscriptions(),
                self._options.max_fetch_bytes_per_task // _BUFFERED,
                turn.is_held,
            )
        limiter = shard_limiter(self._options, key.stream, key.shard)
        limiter.begin_turn(partition.txid, turn.used, partition.told, partition.layout.base)
        kept = self._kept.take((partition.layout, turn.shard), parse_position(turn.start))
        return ShardFetcher(
            self._kinesis,
            key.stream,
            key.shard,
            self._options,
            closed=turn.closed,
            fan_out=fan_out,
            limiter=limiter,
            cursor=turn.cursor or kept,
        )

    def keep_cursor(self, turn: ShardTurn, fetcher: ShardFetcher) -> None:
        """Keep where a turn has ended, for the next one in this process."""
        if fetcher.cursor is not None:
            self._kept.keep((self._partition.layout, turn.shard), fetcher.cursor)

    def read_due(
        self,
        turn: ShardTurn,
        fetcher: ShardFetcher,
        runs: list[Run],
        *,
        everything: bool = False,
        patient: bool = False,
    ) -> DueRecords:
        """Read due runs, from the spool as far as it has them.

        `everything`: without bounds, for a pinned turn. `patient`: wait while the shard is throttled.
        """
        options = self._options
        most = None if everything else options.retry_bytes_per_shard
        found = take_up(
            runs,
            lambda rest: fetcher.fetch_due(
                rest,
                options.retry_ranges_per_shard,
                most,
                patient=patient,
                skips_invalid=turn.shard in self.has_invalid,
            ),
            self.spool,
            turn.shard,
            math.inf if everything else options.max_fetch_bytes_per_shard,
        )
        return found if self._letters is None else found.complete_from(self._letters, turn.shard, runs)

    @property
    def at_a_time(self) -> int:
        """Return how many turns are in memory at a time, each with its share of `maxFetchBytesPerTask`."""
        return max(1, min(count_side_by_side(self._options), len(self._partition.turns)))

    def bounds(self, turn: ShardTurn) -> Bounds:
        """Return the bounds of a turn."""
        options = self._options
        records = options.max_fetch_records_per_shard
        size = min(options.max_fetch_bytes_per_shard, options.max_fetch_bytes_per_task)
        if turn.limit is not None:
            records = min(records, turn.limit)
        if self._partition.limit_bytes is not None:
            size = min(size, self._partition.limit_bytes)
        memory = options.max_fetch_bytes_per_task
        if self.pushed:
            # The rest is for the events that arrive meanwhile.
            memory -= memory // _BUFFERED
        return Bounds(
            records=records,
            bytes=size,
            memory=memory // self.at_a_time,
            seconds=options.max_fetch_time,
            upto=self._partition.upto,
        )

    def rows(self, turn: ShardTurn, segments: Sequence[Segment | Retried]) -> TurnRows:
        """Return the segments of a turn as rows."""
        part = self._partition
        key = part.layout.key_of(turn.shard)
        return TurnRows(key.stream, key.shard, turn.index, part.txid, self._tag, segments)

    def where(self, shard: str) -> str:
        """Return the names of a shard and its stream, for errors."""
        key = self._partition.layout.key_of(shard)
        return f"stream {key.stream!r}, shard {key.shard}"


@dataclass(frozen=True, slots=True)
class DueRecords:
    """The records found for due runs.

    Attributes:
        records: of each run.
        missing: the indexes of runs that lack records that have left the stream.
        invalid: the indexes of runs that were never in it.
        through: the stream was read up to here; None if it was not read.
        fetched: tells for each run whether its records came from the stream.
    """

    records: RunRecords
    missing: tuple[int, ...]
    through: RecordPosition | None
    fetched: npt.NDArray[np.bool_]
    invalid: tuple[int, ...] = ()

    def complete_from(self, letters: KeptLetters, shard: str, runs: Sequence[Run]) -> DueRecords:
        """Return these with the records that have left the stream, and were replayed, from their letters."""
        gone = list(self.missing)
        if not gone:
            return self
        invalid = {at for at, index in enumerate(gone) if index in set(self.invalid)}
        kept = letters.get(shard, [runs[index] for index in gone], invalid)
        counts = np.full(len(runs), -1, np.int64)
        counts[gone] = kept.counts
        better = counts > np.maximum(self.records.counts, 0)
        whole = counts >= np.array([run.count for run in runs], np.int64)
        return DueRecords(
            self.records.replace_some(RunRecords(kept.slices, counts), better),
            tuple(index for index in gone if not whole[index]),
            self.through,
            self.fetched & ~better,
            self.invalid,
        )


def take_up(
    runs: Sequence[Run],
    fetch: Callable[[Sequence[Run]], DueTurn],
    spool: RetrySpool | None,
    shard: str,
    max_bytes: float = math.inf,
) -> DueRecords:
    """Find the records of runs (sorted, disjoint); `fetch` reads runs that the spool lacks from the stream.

    `max_bytes`: of the spool; runs beyond are not reached.

    Raises:
        KinesisError, DeaggregateChangedError: as `ShardFetcher.fetch_due`.
    """
    if spool is None or not runs:
        turn = fetch(runs)
        return DueRecords(turn.records, turn.missing, turn.through, turn.records.reached, turn.invalid)
    kept = spool.get(shard, runs, max_bytes)
    first = len(kept.counts)
    whole = kept.counts == np.array([run.count for run in runs[:first]], np.int64)
    rest = np.flatnonzero(~whole)
    turn = fetch([runs[index] for index in rest.tolist()])
    counts = np.full(len(runs), -1, np.int64)
    counts[rest] = turn.records.counts
    missing = tuple(rest[list(turn.missing)].tolist())
    # The spool may have more of a run than the stream still has; one that was not read to its end goes by the stream.
    spooled = np.zeros(len(runs), np.bool_)
    spooled[:first] = whole
    spooled[list(missing)] = kept.counts[list(missing)] > counts[list(missing)]
    kept = RunRecords(kept.slices, np.append(kept.counts, np.full(len(runs) - first, -1, np.int64)))
    found = RunRecords(turn.records.slices, counts).replace_some(kept, spooled)
    invalid = tuple(rest[list(turn.invalid)].tolist())
    return DueRecords(found, missing, turn.through, found.reached & ~spooled, invalid)


_AGE = 240.0
"""Seconds for which a kept iterator is used: Kinesis keeps it for five minutes."""


class KeptCursors:
    """The ends of turns, one a shard. Thread-safe, as each operation is one of a dict.

    Args:
        clock: seconds that never step back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[ShardCursor | None, float]] = {}

    def keep(self, shard: Hashable, cursor: ShardCursor) -> None:
        """Keep a cursor of a shard."""
        now = self._clock()
        self._kept.pop(shard, None)
        self._kept[shard] = cursor, now
        # The oldest come first. Another thread may have taken one meanwhile.
        for other in list(self._kept)[:2]:
            if now - self._kept.get(other, (None, now))[1] >= _AGE:
                self._kept.pop(other, None)

    def take(self, shard: Hashable, position: Position) -> ShardCursor | None:
        """Give back what is kept of a shard, if it is at this position and its iterator is not too old."""
        cursor, since = self._kept.pop(shard, (None, 0.0))
        fits = cursor is not None and cursor.position == position and self._clock() - since < _AGE
        return cursor if fits else None


_by_client: WeakKeyDictionary[Kinesis, KeptCursors] = WeakKeyDictionary()


def kept_cursors(kinesis: Kinesis) -> KeptCursors:
    """Return the cursors of a client, which is one of this process, an endpoint and credentials."""
    return _by_client.setdefault(kinesis, KeptCursors())
