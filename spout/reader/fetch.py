"""Reads one shard for a turn: new records within bounds, a turn again, due retries. No Spark, no ZooKeeper."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.spout.failed_records.retry_ranges import (
    Picker,
    RunRecords,
    check_runs,
    check_whole,
    gather,
    start_of,
)
from kinesis_trident.spout.kinesis import (
    InvalidPositionError,
    Kinesis,
    Page,
    ThrottledError,
)
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import ShardLimiter, shard_limiter
from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    position_at,
    select_through,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.positions import After, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.answers import END_PATIENCE, Answered, Closing, Denied, End, Tip, Undecided
from kinesis_trident.spout.reader.fan_out import FanOut, SubscriptionPager
from kinesis_trident.spout.reader.polling import Pager, ShardCalls, ShardPager
from kinesis_trident.spout.reader.turn import Bounds, Turn, TurnBuffer, cut
from kinesis_trident.tracker.records import RecordPosition, Run

__all__ = ["Bounds", "DueTurn", "FanOut", "ShardFetcher", "Turn", "cut"]

_UNDECIDED = 60.0
"""Seconds of empty answers without MillisBehindLatest after which the end of a required shard is unknown."""

_FEW = 1000
"""The records that the first call for several runs asks for at least: they take less time than another call."""

_OTHERS = 2
"""The same for each record of these runs: half of the records have failed where very many have."""

_MOST_INVALID = 20
"""The runs of another stream that one turn may find out: each takes a call, of which a shard allows five a second."""

_SAFETY_MS = 5 * 60 * 1000
"""Milliseconds that an idle AT_TIMESTAMP position stays behind: arrival times are approximate, and clocks differ."""


@dataclass(frozen=True, slots=True)
class DueTurn:
    """The records found for due retries.

    Attributes:
        records: of each run; those of the last one that was reached are possibly incomplete.
        missing: the runs that were read to their end and lack records that have left the stream.
        invalid: those of these whose position is none of this stream.
        through: the ranges were read up to here; None if nothing was read.
    """

    records: RunRecords
    missing: tuple[int, ...]
    through: RecordPosition | None
    invalid: tuple[int, ...] = ()


def _due_turn(picker: Picker, invalid: Sequence[int]) -> DueTurn:
    return DueTurn(picker.records, picker.missing, picker.through, tuple(sorted({*invalid, *picker.strange})))


class ShardFetcher:
    """Reads one shard for one task.

    New records are polled, or pushed if there is a `fan_out`. Records to read again are always polled: their positions
    are known, so the rows are the same, and the one subscription stays free for the reader of new records.

    Args:
        kinesis: the calls.
        stream: its name.
        shard: its id.
        options: `maxRecordsPerFetch`, `deaggregate`, `readTimeout`, and the limits of a shard.
        closed: the shard was listed as closed.
        fan_out: the source of pushed records, None to poll.
        limiter: the limits of polling; by default all turns of this process share one.
        cursor: what there is already at the start of the first turn.
        wall: epoch milliseconds, for a server that does not report the time.

    Attributes:
        calls: the counts of the calls so far that gave nothing.
        cursor: where the turn has ended that was polled last, with its iterator; None if that is unknown.
        answered: the time of the last answer, in epoch milliseconds by the server's clock; 0 if it reports none.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        shard: str,
        options: SourceOptions,
        *,
        closed: bool = False,
        fan_out: FanOut | None = None,
        limiter: ShardLimiter | None = None,
        cursor: ShardCursor | None = None,
        wall: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._shard = shard
        self._where = f"stream {stream!r}, shard {shard}"
        self._options = options
        self._closed = closed
        self._place = options.endpoint_url, options.region, options.deaggregate
        self._fan_out = fan_out
        self._limiter = limiter or shard_limiter(options, stream, shard)
        self._clock = self._limiter.clock
        self._wall = wall
        self.calls = ShardCalls()
        self.cursor = cursor
        self.answered = 0

    @property
    def busy_ms(self) -> int:
        """Return the milliseconds until the limits of the shard allow another call."""
        return math.ceil(1000 * self._limiter.wait_of_all())

    def fetch_new(self, position: Position, bounds: Bounds) -> Turn:
        """Read from `position` until a bound, the tip, or the shard's end.

        This waits for the first answer. It continues through empty answers behind the tip, however long that takes: a
        turn that stopped among them would start at the same position again. It reads a closed shard to its end: there
        "0 behind" is no tip. Throttling ends the turn with the records read so far; so does a fault that outlasts the
        time bound, if there are any records.

        Raises:
            Unavailable: no records were read, and no answer arrived for `readTimeout`.
            KinesisError: naming stream, shard and position.
        """
        cursor, self.cursor = self.cursor, None
        if isinstance(position, ShardEnd):
            return Turn([], 0, 0, None, position, closed=True)
        if self._fan_out is not None:
            turn = self._read_pushed_turn(self._fan_out, position, bounds)
            if turn is not None:
                return turn
        if cursor is None or cursor.position != position:
            cursor = ShardCursor(position)
        if cursor.seconds:
            bounds = replace(bounds, seconds=max(0.0, bounds.seconds - cursor.seconds))
        return self._read_turn(self._pager(cursor), position, bounds)

    def _read_pushed_turn(self, fan_out: FanOut, position: Position, bounds: Bounds) -> Turn | None:
        """Read a turn from a subscription, which stays open; None if another reader has the subscription."""
        key = (*self._place, fan_out.consumer, self._shard)
        is_elsewhere = fan_out.is_held and key not in fan_out.kept
        pager = fan_out.kept.take(key, position)
        if pager is not None:
            pager.go_on(position, self._closing(), self.calls)
        elif is_elsewhere:
            self.calls.subscribing = Subscribing.REFUSED
            return None
        else:
            pager = SubscriptionPager(
                fan_out,
                self._closing(),
                position,
                deaggregate=self._options.deaggregate,
                clock=self._clock,
                sleep=self._limiter.sleep,
                calls=self.calls,
            )
        try:
            turn = self._read_turn(pager, position, bounds)
        except BaseException:
            pager.close()
            raise
        if fan_out.is_held and self.calls.subscribing == Subscribing.TAKEN:
            # By the one that this query has begun.
            self.calls.subscribing = Subscribing.REFUSED
        if pager.may_stay_open:
            fan_out.kept.keep(key, turn.end, pager)
        else:
            pager.close()
        return None if pager.in_use and turn.last is None and turn.end == position else turn

    def _read_turn(self, pager: ShardPager, position: Position, bounds: Bounds) -> Turn:
        held = TurnBuffer(bounds)
        deadline = self._clock() + bounds.seconds
        given_up = self._clock() + max(bounds.seconds, END_PATIENCE)
        # With a bound on arrival, other shards rely on this one to get on.
        refused_until = self._clock() + (END_PATIENCE if bounds.upto is not None else 0.0)
        last: Answered | None = None
        seen = None
        while not (held.full or isinstance(last, End) or seen):
            asked = min(self._options.max_records_per_fetch, held.room)
            # After empty pages, ending for a throttle would lose the way through them.
            answer = self._next_or_end(
                pager, asked, deadline if held.batches else None, refused_until if last is None else math.inf
            )
            if answer is None:
                break
            last, page = answer, answer.page
            self.answered = page.server_time or self.answered
            tip = (page.server_time or self._wall()) if isinstance(answer, Tip) else None
            taken = held.take(answer.records, page.records.num_rows)
            if taken < answer.records.num_rows:
                rest = answer.records.slice(taken)
                pager.give_back(page, rest)
                return self._cut_short(held, page, rest, position, tip)
            seen = tip
            if isinstance(answer, Undecided) and self._clock() >= given_up:
                break
        behind = self._measure_lag(last.page, held) if last is not None else 0
        if isinstance(last, End):
            record = pager.position.record if isinstance(pager.position, After) else None
            return held.turn(ShardEnd(record), closed=True, behind_ms=behind)
        end = pager.position
        if isinstance(end, AtTimestamp) and isinstance(position, AtTimestamp) and seen is not None:
            end = AtTimestamp(max(position.time, seen - _SAFETY_MS))
        if isinstance(pager, Pager) and last is not None and last.page.next_iterator is not None:
            self.cursor = ShardCursor(end, last.page.next_iterator)
        return held.turn(end, behind_ms=behind, seen=seen)

    def _cut_short(
        self, held: TurnBuffer, page: Page, rest: pa.RecordBatch, start: Position, tip: int | None
    ) -> Turn:
        """Return the turn after a page that did not fit: the next turn reads the `rest` again.

        `tip`: when that was all that the shard had, in epoch milliseconds; None if there was more.
        """
        end = After(position_at(held.batches[-1], -1)) if held.batches else start
        read = arrival_at(held.batches[-1], -1) if held.batches else 0
        lag = max(1, arrival_at(rest, -1) - read) if read else 1
        return held.turn(
            end, behind_ms=(page.behind_ms or 0) + lag, ahead=self._measure_ahead(held.bounds, rest, tip)
        )

    def _measure_ahead(
        self, bounds: Bounds | None, rest: pa.RecordBatch, tip: int | None
    ) -> tuple[int, int] | None:
        """Return `Pin.ahead` of records that a turn has left; where reads are refused, another turn may read none."""
        first = arrival_at(rest, 0)
        if not first or bounds is None or bounds.upto is None:
            return None
        if self.calls.throttles:
            return first, first
        count = TurnBuffer(replace(bounds, upto=None)).take(rest, rest.num_rows)
        sure = tip if tip is not None and count == rest.num_rows else arrival_at(rest, count - 1)
        return first, max(first, sure)

    def _measure_lag(self, page: Page, held: TurnBuffer) -> int:
        """Return the lag after a page; if no answer reports it, the age of the last record, which is an upper bound."""
        if page.behind_ms is not None or not held.batches:
            return page.behind_ms or 0
        arrival = arrival_at(held.batches[-1], -1)
        return max(1, (page.server_time or self._wall()) - arrival) if arrival else 1

    def fetch_until(self, position: Position, last: RecordPosition) -> Turn:
        """Read exactly the records from `position` up to and including `last`, without bounds.

        Records that have left the stream are missing, which `count` shows.

        Raises:
            DeaggregateChangedError: `last` was read under the other value of `deaggregate`.
            ThrottledError, Unavailable: no answer for `readTimeout`.
            KinesisError: naming stream, shard and position.
        """
        if not self._options.deaggregate:
            check_runs([Run(first="", last=str(last))], self._where)
        pager = self._pager(ShardCursor(position))
        batches: list[pa.RecordBatch] = []
        given_up, answer = self._clock() + _UNDECIDED, None
        while not self._is_finished(pager, answer, last, given_up):
            answer = pager.insist(self._options.max_records_per_fetch, self._patience())
            batches.append(answer.records)
            check_whole(batches[-1], [str(last)], self._where)
        held = TurnBuffer(batches=select_through(batches, last))
        return held.turn(After(last))

    def fetch_due(
        self,
        runs: Sequence[Run],
        ranges: int,
        max_bytes: int | None,
        *,
        patient: bool = False,
        skips_invalid: bool = False,
    ) -> DueTurn:
        """Read due runs (sorted, disjoint) again, collected into at most `ranges` ranges.

        A range is read to its last record, or until `max_bytes` of payload were read, in whole answers and at least one
        with a record of the range; then, or when throttled (with `patient`, for `readTimeout`), the rest waits for
        another turn. Where fewer ranges than allowed hold all runs, each may have its share of what the others could
        read. With `max_bytes` None everything is read.

        With `skips_invalid` a run whose position is none of this stream is missing, and the others are read.

        Raises:
            DeaggregateChangedError: a run was read under the other value of `deaggregate`.
            ThrottledError: with `max_bytes` None, no answer for `readTimeout`.
            Unavailable: no answer for `readTimeout`.
            InvalidPositionError: one is of another stream.
            KinesisError: naming stream, shard and position.
        """
        if not self._options.deaggregate:
            check_runs(runs, self._where)
        picker = Picker(runs)
        invalid: list[int] = []
        gathered = gather(runs, ranges)
        if max_bytes is not None and gathered:
            # A range that has no gap worth leaving out may hold as much as the ranges that it stands for.
            max_bytes = max_bytes * min(ranges, len(runs)) // len(gathered)
        for indexes in gathered:
            left = indexes
            while left:
                group = runs[left.start : left.stop]
                try:
                    if not self._read_range(picker, group, max_bytes, patient=patient):
                        return _due_turn(picker, invalid)
                except InvalidPositionError:
                    if not skips_invalid:
                        raise
                    invalid.append(left.start)
                    group, left = group[:1], left[1:]
                else:
                    left = left[:0]
                picker.note_passed(group[-1].last_position)
                if len(invalid) == _MOST_INVALID and max_bytes is not None:
                    return _due_turn(picker, invalid)
        return _due_turn(picker, invalid)

    def _read_range(
        self, picker: Picker, group: Sequence[Run], max_bytes: int | None, *, patient: bool
    ) -> bool:
        """Offer a range's records to the picker; tell whether the range was read to its end."""
        pager = self._pager(ShardCursor(start_of(group[0])))
        last, delivered = group[-1].last_position, [run.last for run in group]
        count = size = 0
        # A single run bounds the number of records to read.
        most = _span(group[0]) if len(group) == 1 else _OTHERS * sum([run.count for run in group])
        asked = most if len(group) == 1 else max(_FEW, most)
        given_up, answer = self._clock() + _UNDECIDED, None
        while not self._is_finished(pager, answer, last, given_up):
            # If it begins after the end of an aggregate, that comes first, however large, with none of its records.
            if max_bytes is not None and size >= max_bytes and count:
                return False
            try:
                answer = pager.insist(
                    min(self._options.max_records_per_fetch, asked),
                    self._patience(),
                    throttled=patient or max_bytes is None,
                )
            except ThrottledError:
                if max_bytes is None:
                    raise
                return False
            check_whole(answer.records, delivered, self._where)
            # Later records belong to another range, which reads them itself.
            picker.offer(answer.records, last)
            count += answer.records.num_rows
            size += answer.page.size
            if len(group) == 1:
                asked = max(1, most - count)
            elif answer.page.records.num_rows:
                # At least a part of what was read: many calls cost more than some records.
                asked = max(
                    count // 2, _count_until(last, answer.page.records) or self._options.max_records_per_fetch
                )
        return True

    def _closing(self) -> Closing:
        return Closing(self._kinesis, self._stream, self._shard, known=self._closed)

    def _pager(self, cursor: ShardCursor) -> Pager:
        return Pager(
            self._closing(), cursor, self._limiter, deaggregate=self._options.deaggregate, calls=self.calls
        )

    def _patience(self) -> Patience:
        return Patience(self._options.read_timeout, self._clock)

    def _is_finished(
        self, pager: Pager, answer: Answered | None, last: RecordPosition, given_up: float
    ) -> bool:
        """Return whether everything up to `last` was read, or nothing more can be read.

        Raises:
            Unavailable: no answer before `given_up` showed it.
        """
        if isinstance(pager.position, After) and pager.position.record >= last:
            return True
        if isinstance(answer, Undecided) and self._clock() >= given_up:
            pager.check_end(answer)
            return True
        return isinstance(answer, End) or (isinstance(answer, Tip) and not answer.page.records.num_rows)

    def _next_or_end(
        self, pager: ShardPager, limit: int, deadline: float | None, refused_until: float
    ) -> Answered | None:
        """Return the next answer of a turn, or None if it ends; without a deadline, no record was read yet."""
        patience = self._patience()
        left = math.inf
        while True:
            if deadline is not None:
                left = deadline - self._clock()
            answer = pager.next(limit, left)
            if not isinstance(answer, Denied):
                return answer
            if answer.error is None:
                return None
            is_over = deadline is not None or patience.is_spent()
            if isinstance(answer.error, ThrottledError):
                if is_over or pager.in_use or self._clock() >= refused_until:
                    return None
            elif deadline is None and is_over:
                raise answer.error


def _count_until(last: RecordPosition, page: pa.RecordBatch) -> int:
    """Estimate how many records are between a page and `last`, by its distance; 0 if the page does not tell."""
    begins, ends = position_at(page, 0).number, position_at(page, -1).number
    return -(-page.num_rows * (last.number - ends) * 9 // (8 * (ends - begins))) if begins < ends else 0


def _span(run: Run) -> int:
    """Return the maximum number of Kinesis records that contain a run."""
    start = run.first or run.prev
    inside = start is not None and RecordPosition.parse(start).whole == run.last_position.whole
    return 1 if inside else run.count
