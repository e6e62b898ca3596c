"""Test where a shard ends: closed, and an answer without a next iterator; all else is followed, or asked again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from looking import answers, look

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.spout.batch.pushed_filters import ShardRange
from kinesis_trident.spout.batch.range_read import read_range
from kinesis_trident.spout.kinesis import Page, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.answers import Closing
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher, Turn
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, aggregate
from kinesis_trident.tracker.records import RecordPosition

SHARD = "shardId-000000000000"
BATCH = SourceOptions.parse_batch({"streamName": "orders", "minFetchPeriod": "0ms"})
RANGE = ShardRange("orders", SHARD, TRIM_HORIZON, ShardEnd(), closed=True)


class Shelf:
    """A shard in memory, and a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.kinesis = MemoryKinesis(clock=self.time.milliseconds)

    def put(self, count: int) -> list[RecordPosition]:
        return [RecordPosition(self.kinesis.put(SHARD, b"%d" % n)) for n in range(count)]

    def fetcher(self, *, closed: bool) -> ShardFetcher:
        return ShardFetcher(
            self.kinesis,
            "orders",
            SHARD,
            SourceOptions(stream_name="orders"),
            closed=closed,
            limiter=ShardLimiter(Budget.of(0.2, 1e15), clock=self.time, sleep=self.time.sleep),
            wall=self.time.milliseconds,
        )

    def turn(self, *, closed: bool, position: Position = TRIM_HORIZON) -> Turn:
        return self.fetcher(closed=closed).fetch_new(position, Bounds(1000, 10**9, 5))

    def probe(self) -> TipProbe:
        return TipProbe(self.kinesis, Layout("/", "app", "orders", 1), clock=self.time)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@settings(max_examples=30, deadline=None)
@given(records=st.integers(0, 3), empty=st.integers(0, 4), start=st.integers(0, 3))
def test_a_closed_shard_is_followed_to_its_end(records: int, empty: int, start: int) -> None:
    shelf = Shelf()
    put = shelf.put(records)
    shelf.kinesis.linger(SHARD, empty)
    shelf.kinesis.split(SHARD)
    position = After(put[min(start, records) - 1]) if min(start, records) else TRIM_HORIZON
    turn = shelf.turn(closed=True, position=position)
    assert turn.count == records - min(start, records)
    assert turn.closed
    assert isinstance(turn.end, ShardEnd)


@pytest.mark.parametrize("known", [False, True])
def test_a_closed_shard_that_names_no_children_ends_with_an_aggregate_too(
    known: bool, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iterator within an aggregate gives that again, also where nothing is behind it."""
    read, calls = shelf.kinesis.get_records, 0

    def get_records(iterator: str, limit: int) -> Page:
        nonlocal calls
        calls += 1
        assert calls < 20
        return replace(read(iterator, limit), closed=False)

    monkeypatch.setattr(shelf.kinesis, "get_records", get_records)
    shelf.kinesis.put(SHARD, aggregate([(b"0", "key"), (b"1", "key")]))
    shelf.kinesis.split(SHARD)
    turn = shelf.turn(closed=known)
    assert (turn.count, turn.closed) == (2, True)
    assert isinstance(turn.end, ShardEnd)
    calls = 0
    assert turn.last is not None
    again = shelf.turn(closed=known, position=After(turn.last))
    assert (again.count, again.closed) == (0, True)
    assert sum(batch.num_rows for batch in read_range(shelf.kinesis, BATCH, RANGE)) == 2


def test_the_end_of_a_shard_is_found_by_who_looks(shelf: Shelf) -> None:
    (last,) = shelf.put(1)
    shelf.kinesis.linger(SHARD, 6)
    shelf.kinesis.split(SHARD)
    probe = shelf.probe()
    # Nobody knows yet that it is closed.
    assert look(probe, {SHARD: After(last)}) == {SHARD: False}
    # A look takes four answers, and the next one goes on behind them.
    assert look(probe, {SHARD: After(last)}, closed=True) == {SHARD: None}
    assert look(probe, {SHARD: After(last)}, closed=True) == {SHARD: True}
    probe.close()


def test_a_closed_shard_that_never_ends_is_said(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    (last,) = shelf.put(1)
    shelf.kinesis.linger(SHARD, 10**9)
    shelf.kinesis.split(SHARD)
    probe = shelf.probe()
    for _ in range(80):
        assert look(probe, {SHARD: After(last)}, closed=True) == {SHARD: None}
        shelf.time.sleep(1)
    probe.close()
    assert caplog.text.count("is listed as closed, but its answers are empty") == 1
    turn = shelf.turn(closed=True, position=After(last))
    assert (turn.count, turn.closed, turn.seen) == (0, False, None)


def test_an_open_shard_without_an_iterator_gets_a_new_one(shelf: Shelf) -> None:
    shelf.put(1)
    shelf.kinesis.break_off(SHARD, 3)
    turn = shelf.turn(closed=False)
    assert (turn.count, turn.closed) == (1, False)
    assert turn.seen is not None
    shelf.put(1)
    assert shelf.turn(closed=False, position=turn.end).count == 1


@pytest.mark.parametrize("broken_off", [1, 2, 3, 4])
@pytest.mark.parametrize("empty", [0, 2])
def test_a_shard_that_is_split_after_an_answer_without_an_iterator_is_read_to_its_end(
    broken_off: int, empty: int
) -> None:
    shelf = Shelf()
    shelf.put(4)
    shelf.kinesis.linger(SHARD, empty)
    shelf.kinesis.split(SHARD)
    # As they come from an open shard: no more is known of it by then than that it is closed.
    shelf.kinesis.break_off(SHARD, broken_off)
    part = ShardRange("orders", SHARD, TRIM_HORIZON, ShardEnd(), closed=True)
    given = replace(BATCH, max_records_per_fetch=1)
    assert sum(batch.num_rows for batch in read_range(shelf.kinesis, given, part)) == 4


def test_who_looks_at_an_open_shard_without_an_iterator_asks_for_a_listing(shelf: Shelf) -> None:
    (last,) = shelf.put(1)
    probe = shelf.probe()
    shelf.kinesis.break_off(SHARD, 1)
    assert look(probe, {SHARD: After(last)}) == {SHARD: None}
    assert probe.ended_open
    assert look(probe, {SHARD: After(last)}) == {SHARD: False}
    shelf.put(1)
    assert look(probe, {SHARD: After(last)}) == {SHARD: True}
    probe.close()


def test_the_listing_is_asked_where_an_answer_names_no_children(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shelf.kinesis.get_records(shelf.kinesis.iterator("orders", SHARD, "TRIM_HORIZON"), 1)
    shelf.kinesis.break_off(SHARD, 1)
    ended = shelf.kinesis.get_records(str(page.next_iterator), 1)
    assert ended.next_iterator is None
    assert not Closing(shelf.kinesis, "orders", SHARD).is_end(ended)
    assert not Closing(shelf.kinesis, "orders", SHARD, known=True).is_end(page)
    assert Closing(shelf.kinesis, "orders", SHARD, known=True).is_end(ended)
    shelf.kinesis.close(SHARD)
    assert Closing(shelf.kinesis, "orders", SHARD).is_end(ended)
    # Past retention.
    shelf.kinesis.forget(SHARD)
    assert Closing(shelf.kinesis, "orders", SHARD).is_end(ended)


def test_an_answer_whose_end_cannot_be_confirmed_now_comes_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put(3)
    shelf.kinesis.break_off(SHARD, 2)
    listing, refusals = shelf.kinesis.list_shards, [ThrottledError("slow"), Unavailable("down")]

    def list_shards(stream: str, since: object = None) -> object:
        if refusals:
            raise refusals.pop()
        return listing(stream)

    monkeypatch.setattr(shelf.kinesis, "list_shards", list_shards)
    turn = shelf.turn(closed=False)
    again = shelf.turn(closed=False, position=turn.end)
    assert turn.count + again.count == 3
    assert not again.closed


def test_a_lag_that_is_not_told_is_no_tip(shelf: Shelf) -> None:
    put = shelf.put(2)
    shelf.kinesis.tells_lag = False
    shelf.time.sleep(7)
    turn = shelf.turn(closed=False)
    assert (turn.count, turn.seen, turn.closed) == (2, None, False)
    assert turn.behind_ms >= 7000
    idle = shelf.turn(closed=False, position=turn.end)
    assert (idle.count, idle.seen, idle.end) == (0, None, turn.end)
    probe = shelf.probe()
    assert look(probe, {SHARD: turn.end}) == {SHARD: None}
    probe.close()
    # What was read before is read again without the tip being known; what is gone cannot be known to be.
    fetcher = shelf.fetcher(closed=False)
    assert fetcher.fetch_until(TRIM_HORIZON, put[-1]).count == 2
    shelf.kinesis.trim(SHARD, put[-1].number)
    with pytest.raises(Unavailable, match="lack MillisBehindLatest"):
        fetcher.fetch_until(TRIM_HORIZON, put[-1])


def test_a_closed_shard_is_not_at_its_tip_where_only_what_is_there_is_read() -> None:
    sights = Sights(LookTimes.of()).stop_at_tip(0).take(answers({"a": False, "b": False}), {}, 0)
    lineage = {"a": ShardLineage(), "b": ShardLineage()}
    assert sights.find_drained(Shards("parentFirst", lineage=lineage)) == {"a", "b"}
    # A listing finds out only now, and its children may hold what came before.
    lineage["a"] = ShardLineage(state="closed")
    assert sights.find_drained(Shards("parentFirst", lineage=lineage)) == {"b"}


@pytest.mark.parametrize("end", [ShardEnd(), None])
def test_a_batch_follows_a_closed_shard_to_its_end(shelf: Shelf, end: Position | None) -> None:
    shelf.put(2)
    shelf.kinesis.linger(SHARD, 3)
    shelf.kinesis.split(SHARD)
    part = ShardRange(
        "orders", SHARD, TRIM_HORIZON, end or AtTimestamp(shelf.time.milliseconds() + 1), closed=True
    )
    assert sum(batch.num_rows for batch in read_range(shelf.kinesis, BATCH, part)) == 2
    # Two records, three empty answers, the end.
    assert shelf.kinesis.calls["get_records", SHARD] == 5
