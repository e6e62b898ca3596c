"""Turns, replays and retries of a shard whose records are partly aggregates: the same rows at any bound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from found_records import served
from hypothesis import given, settings, strategies as st
from looking import look
from thorough import examples

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.failed_records.retry_ranges import DeaggregateChangedError
from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher, Turn, cut
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, aggregate
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
PLENTY = Bounds(records=10**9, bytes=10**12, seconds=3600)

Row = tuple[RecordPosition, bytes, str]


@dataclass
class Shard:
    """A shard in memory, and what its rows are with aggregates split."""

    kinesis: MemoryKinesis
    time: FakeTime
    rows: list[Row]

    def fetcher(self, page: int = 10_000, *, deaggregate: bool = True) -> ShardFetcher:
        limiter = ShardLimiter(
            Budget.of(0, 1e15), clock=self.time, sleep=self.time.sleep, rng=random.Random(3)
        )
        options = SourceOptions(stream_name="orders", max_records_per_fetch=page, deaggregate=deaggregate)
        return ShardFetcher(
            self.kinesis, "orders", SHARD, options, limiter=limiter, wall=self.time.milliseconds
        )

    @property
    def positions(self) -> list[RecordPosition]:
        return [where for where, _, _ in self.rows]

    def whole(self, count: int) -> int:
        """Return how many of the first `count` rows are not of an aggregate that goes on."""
        while 0 < count < len(self.rows) and self.rows[count][0].number == self.rows[count - 1][0].number:
            count -= 1
        return count

    def run(self, start: int, stop: int, *, knows_first: bool = True) -> Run:
        before = str(self.positions[start - 1]) if start else None
        first = str(self.positions[start]) if knows_first or before is None else ""
        return Run(first, str(self.positions[stop - 1]), stop - start, before)


def shard_of(sizes: Sequence[int]) -> Shard:
    """A plain record for each 0 of `sizes`, an aggregate of so many for the others; payloads of 1 to 3 bytes."""
    time = FakeTime()
    made = Shard(MemoryKinesis(clock=time.milliseconds), time, [])
    for size in sizes:
        users = [(b"%d" % (len(made.rows) + n), f"user {n}") for n in range(max(1, size))]
        key = users[0][1] if size == 0 else "a"
        sequence = made.kinesis.put(SHARD, aggregate(users) if size else users[0][0], key)
        made.rows += [
            (RecordPosition(sequence, sub if size else -1), data, key)
            for sub, (data, key) in enumerate(users)
        ]
    return made


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return [
        (
            RecordPosition(int(row["sequenceNumber"]), row["subSequenceNumber"]),
            row["data"],
            row["partitionKey"],
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(1, 12), st.integers(1, 30), st.booleans())
def test_turns_of_any_bounds_give_every_row_once_and_again(
    sizes: list[int], page: int, most: int, most_bytes: int, close: bool
) -> None:
    shard = shard_of(sizes)
    if close:
        shard.kinesis.close(SHARD)
    fetcher, bounds = shard.fetcher(page), Bounds(most, most_bytes, 3600)
    found: list[Row] = []
    position: Position = TRIM_HORIZON
    while True:
        turn = fetcher.fetch_new(position, bounds)
        held = rows_of(turn.batches)
        size = sum(len(data) for _, data, _ in held)
        assert (turn.count, turn.size) == (len(held), size)
        found += held
        assert found == shard.rows[: len(found)]
        assert shard.whole(len(found)) == len(found)
        # One aggregate is always taken, whatever its size; else the bounds are kept.
        if len({where.number for where, _, _ in held}) > 1:
            assert len(held) <= most
            assert size <= most_bytes
        if held:
            assert turn.last == held[-1][0]
            # A replay, with pages of another size, reads the same.
            again = shard.fetcher(page % 9 + 1).fetch_until(position, held[-1][0])
            assert rows_of(again.batches) == held
            assert (again.last, again.size) == (turn.last, turn.size)
        else:
            assert turn.seen is not None or turn.closed
            break
        position = turn.end
    assert found == shard.rows
    assert turn.end == (ShardEnd(found[-1][0]) if close else After(found[-1][0]))


@settings(max_examples=examples(150), deadline=None)
@given(SIZES, st.integers(1, 9), st.data())
def test_reading_starts_and_ends_anywhere(sizes: list[int], page: int, data: st.DataObject) -> None:
    shard = shard_of(sizes)
    start = data.draw(st.integers(0, len(shard.rows) - 1))
    stop = data.draw(st.integers(start + 1, len(shard.rows)))
    last = shard.positions[stop - 1]
    fetcher = shard.fetcher(page)
    for position, first in ((At(shard.positions[start]), start), (After(shard.positions[start]), start + 1)):
        turn = fetcher.fetch_new(position, PLENTY)
        assert rows_of(turn.batches) == shard.rows[first:]
        assert rows_of(cut(turn, last).batches) == shard.rows[first:stop]
        assert rows_of(fetcher.fetch_until(position, last).batches) == shard.rows[first:stop]
    everything = fetcher.fetch_new(AtTimestamp(shard.time.milliseconds()), PLENTY)
    assert rows_of(everything.batches) == shard.rows


@settings(max_examples=examples(150), deadline=None)
@given(
    SIZES,
    st.lists(st.booleans(), min_size=84, max_size=84),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 12),
    st.sampled_from([None, 1, 60]),
)
def test_due_user_records_come_alone(
    sizes: list[int], failed: list[bool], page: int, ranges: int, trimmed: int, most: int | None
) -> None:
    shard = shard_of(sizes)
    spans, start = [], None
    for index in range(len(shard.rows) + 1):
        if index < len(shard.rows) and failed[index]:
            start = index if start is None else start
        elif start is not None:
            spans.append((start, index))
            start = None
    runs = [shard.run(*span, knows_first=bool(n % 2)) for n, span in enumerate(spans)]
    sequences = sorted({where.number for where in shard.positions})
    gone = sequences[min(trimmed, len(sequences)) - 1] if trimmed else 0
    shard.kinesis.trim(SHARD, gone)
    found = shard.fetcher(page).fetch_due(runs, ranges, most)
    counts = served(found.records)
    assert bool(counts) == bool(runs)
    assert most is not None or len(counts) == len(runs)
    for index, count in enumerate(counts):
        there = [row for row in shard.rows[slice(*spans[index])] if row[0].number > gone]
        got = rows_of(found.records.of_run(index))
        assert found.through is not None
        assert got == [row for row in there if row[0] <= found.through]
        assert count == len(got)
        complete = found.through >= runs[index].last_position
        assert (index in found.missing) == (complete and len(there) < runs[index].count)


def test_a_run_behind_an_aggregate_that_is_larger_than_the_bound_is_read() -> None:
    """Its first record is not known: reading begins with the aggregate before it."""
    shard = shard_of([4, 0])
    run = shard.run(4, 5, knows_first=False)
    assert served(shard.fetcher(1).fetch_due([run], 2, 1).records) == (1,)


def limits_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    read = MemoryKinesis.get_records

    def noted(self: MemoryKinesis, iterator: str, limit: int) -> Page:
        asked.append(limit)
        return read(self, iterator, limit)

    monkeypatch.setattr(MemoryKinesis, "get_records", noted)
    return asked


def test_one_user_record_is_read_with_its_aggregate_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of([0, 50, 50])
    asked = limits_asked(monkeypatch)
    for run in (shard.run(20, 30), shard.run(20, 30, knows_first=False), shard.run(20, 21)):
        assert served(shard.fetcher().fetch_due([run], 2, 10**6).records) == (run.count,)
    assert asked == [1, 1, 1]


def test_what_is_held_tells_how_many_aggregates_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of([10] * 20)
    asked = limits_asked(monkeypatch)
    assert shard.fetcher(5).fetch_new(TRIM_HORIZON, Bounds(80, 10**9, 60)).count == 80
    assert asked == [5, 3]


def test_an_expired_iterator_is_renewed_within_an_aggregate() -> None:
    shard = shard_of([4, 4, 0])
    fetcher = shard.fetcher(1)
    read = shard.kinesis.get_records
    expired = []

    def once(iterator: str, limit: int) -> Page:
        page = read(iterator, limit)
        if not expired:
            expired.append(iterator)
            shard.kinesis.expire_iterators(SHARD)
        return page

    shard.kinesis.get_records = once  # type: ignore[method-assign]
    turn = fetcher.fetch_new(After(shard.positions[1]), PLENTY)
    assert rows_of(turn.batches) == shard.rows[2:]
    assert expired


def test_without_the_option_aggregates_are_plain_records() -> None:
    shard = shard_of([0, 3])
    (_, plain), (where, data) = [
        (where, data)
        for where, data, _ in rows_of(
            shard.fetcher(deaggregate=False).fetch_new(TRIM_HORIZON, PLENTY).batches
        )
    ]
    assert plain == b"0"
    assert where == RecordPosition(shard.positions[1].sequence)
    assert data == aggregate([(b"1", "user 0"), (b"2", "user 1"), (b"3", "user 2")])
    # After the end of an aggregate that was split, what follows is read.
    sequence = shard.kinesis.put(SHARD, b"new", "key")
    after = shard.fetcher(deaggregate=False).fetch_new(After(shard.positions[-1]), PLENTY)
    assert rows_of(after.batches) == [(RecordPosition(sequence), b"new", "key")]


def test_what_was_delivered_otherwise_is_refused() -> None:
    shard = shard_of([0, 3, 0])
    whole = RecordPosition(shard.positions[1].sequence)
    split, now = shard.run(2, 3), shard.fetcher(deaggregate=False)
    said = f"record {split.last} was delivered with deaggregate=true, .* deaggregate=false"
    with pytest.raises(DeaggregateChangedError, match=said):
        now.fetch_due([split], 2, 100)
    with pytest.raises(DeaggregateChangedError, match=said):
        now.fetch_until(TRIM_HORIZON, split.last_position)
    said = f"shard {SHARD}: record {whole} was delivered with deaggregate=false, .* deaggregate=true"
    with pytest.raises(DeaggregateChangedError, match=said):
        shard.fetcher().fetch_due([Run(str(whole), str(whole))], 2, 100)
    with pytest.raises(DeaggregateChangedError, match=said):
        shard.fetcher().fetch_until(TRIM_HORIZON, whole)
    # A plain record is the same either way, aggregates around it or not.
    for fetcher in (now, shard.fetcher()):
        plain = str(shard.positions[4])
        assert served(fetcher.fetch_due([Run(plain, plain)], 2, 100).records) == (1,)


def test_a_look_at_the_tip_does_not_see_what_is_read() -> None:
    shard = shard_of([0, 3])
    probe = TipProbe(shard.kinesis, Layout("/", "app", "orders", 1), wall=shard.time.milliseconds)

    def finds(position: Position) -> bool | None:
        return look(probe, {SHARD: position})[SHARD]

    end = After(shard.positions[-1])
    assert finds(end) is False
    before = shard.kinesis.calls["get_records", SHARD]
    assert finds(end) is False
    assert shard.kinesis.calls["get_records", SHARD] == before + 1
    assert finds(After(shard.positions[1])) is True
    assert finds(At(shard.positions[3])) is True
    shard.kinesis.put(SHARD, b"new")
    assert finds(end) is True
    assert finds(end) is True
    unsplit = TipProbe(shard.kinesis, Layout("/", "app", "orders", 1), deaggregate=False)
    assert look(unsplit, {SHARD: end})[SHARD] is True
    shard.kinesis.close(SHARD)
    assert finds(After(RecordPosition(shard.positions[-1].number + 10**9, 0))) is True
    probe.close()
    unsplit.close()


def test_a_turn_is_what_it_says() -> None:
    shard = shard_of([3, 0])
    turn: Turn = shard.fetcher().fetch_new(TRIM_HORIZON, PLENTY)
    assert (turn.count, turn.size, turn.last) == (4, 4, shard.positions[-1])
    assert [where.sub for where, _, _ in rows_of(turn.batches)] == [0, 1, 2, -1]
    assert turn.arrival == shard.time.milliseconds()
