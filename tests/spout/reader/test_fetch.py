from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from found_records import payloads_by_run, served
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis import (
    IteratorExpiredError,
    KeyAwayError,
    KeyUnusableError,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter, Used
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher, Turn, cut
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
PLENTY = Bounds(records=10**9, bytes=10**12, seconds=3600)


class Rig:
    """A shard in memory, a clock that only sleeping moves, and a fetcher over both."""

    def __init__(
        self,
        *,
        page: int = 10_000,
        period: float = 0.0,
        rate: float = 1e15,
        longest: float = 10.0,
        read_timeout: float = 120.0,
    ) -> None:
        self.time = FakeTime()
        self.kinesis = MemoryKinesis(clock=self.time.milliseconds)
        self.limiter = ShardLimiter(
            Budget.of(period, rate, longest=longest),
            clock=self.time,
            sleep=self.time.sleep,
            wall=self.time,
            rng=random.Random(3),
        )
        options = SourceOptions(stream_name="orders", max_records_per_fetch=page, read_timeout=read_timeout)
        self.fetcher = ShardFetcher(
            self.kinesis, "orders", SHARD, options, limiter=self.limiter, wall=self.time.milliseconds
        )

    def put(self, *payloads: bytes) -> list[RecordPosition]:
        return [RecordPosition(self.kinesis.put(SHARD, data)) for data in payloads]

    @property
    def reads(self) -> int:
        return self.kinesis.calls["get_records", SHARD]


def payloads(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [data for batch in batches for data in batch.column("data").to_pylist()]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def rows(turn: Turn) -> list[dict[str, object]]:
    return [row for batch in turn.batches for row in batch.to_pylist()]


def limits_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The Limit of each GetRecords call from now on."""
    asked: list[int] = []
    read = MemoryKinesis.get_records

    def noted(self: MemoryKinesis, iterator: str, limit: int) -> object:
        asked.append(limit)
        return read(self, iterator, limit)

    monkeypatch.setattr(MemoryKinesis, "get_records", noted)
    return asked


def test_what_a_look_brought_does_not_end_the_turn_before_its_own_first_call() -> None:
    rig = Rig(period=0.2)
    rig.put(*numbers(9))
    first = rig.kinesis.get_records(rig.kinesis.iterator("orders", SHARD, "TRIM_HORIZON"), 2)
    cursor = ShardCursor(TRIM_HORIZON, page=first)
    # The looks have used up the calls of this second.
    rig.limiter.begin_turn(1, Used(((0, 0),) * 5), rig.time.milliseconds())
    options = SourceOptions(stream_name="orders")
    fetcher = ShardFetcher(rig.kinesis, "orders", SHARD, options, limiter=rig.limiter, cursor=cursor)
    turn = fetcher.fetch_new(TRIM_HORIZON, replace(PLENTY, seconds=0.5))
    assert payloads(turn.batches) == numbers(9)
    assert fetcher.calls.reads == 1
    assert turn.seen is not None


@pytest.mark.parametrize(("spent", "reads"), [(0.2, 1), (0.5, 0), (9.0, 0)])
def test_what_was_read_ahead_has_taken_time_of_the_turn(spent: float, reads: int) -> None:
    rig = Rig()
    rig.put(*numbers(9))
    first = rig.kinesis.get_records(rig.kinesis.iterator("orders", SHARD, "TRIM_HORIZON"), 2)
    cursor = ShardCursor(TRIM_HORIZON, page=first, seconds=spent)
    rig.time.sleep(1)
    read = rig.kinesis.get_records

    def slow(iterator: str, limit: int) -> Page:
        rig.time.sleep(1)
        return read(iterator, limit)

    rig.kinesis.get_records = slow  # type: ignore[method-assign]
    options = SourceOptions(stream_name="orders", max_records_per_fetch=3)
    fetcher = ShardFetcher(rig.kinesis, "orders", SHARD, options, limiter=rig.limiter, cursor=cursor)
    # The shard was busy for a while, so that the turn has waited before its first call.
    rig.limiter.begin_turn(1, Used(blocks=((100, 0),)), rig.time.milliseconds())
    turn = fetcher.fetch_new(TRIM_HORIZON, replace(PLENTY, seconds=0.4))
    assert payloads(turn.batches) == numbers(2 + 3 * reads)
    assert fetcher.calls.reads == reads
    assert turn.seen is None
    assert turn.behind_ms > 0
    rest = rig.fetcher.fetch_new(turn.end, PLENTY)
    assert payloads(rest.batches) == numbers(9)[2 + 3 * reads :]


def test_a_turn_at_the_tip_says_all_about_itself() -> None:
    rig = Rig()
    *_, last = rig.put(b"a", b"", b"ccc")
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert payloads(turn.batches) == [b"a", b"", b"ccc"]
    assert all(batch.schema == RECORD_SCHEMA for batch in turn.batches)
    assert {row["subSequenceNumber"] for row in rows(turn)} == {-1}
    assert (turn.count, turn.size, turn.last, turn.end) == (3, 4, last, After(last))
    assert (turn.closed, turn.behind_ms) == (False, 0)
    assert turn.arrival == turn.seen == rig.time.milliseconds()


def test_the_bound_on_records_is_exact_and_the_rest_comes_next() -> None:
    rig = Rig(page=4)
    rig.put(*numbers(10))
    first = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(7, 10**9, 60))
    assert payloads(first.batches) == numbers(10)[:7]
    assert first.seen is None
    second = rig.fetcher.fetch_new(first.end, Bounds(7, 10**9, 60))
    assert payloads(second.batches) == numbers(10)[7:]
    assert second.seen is not None


def test_a_turn_ends_before_what_arrived_later_inside_a_page_and_tells_when_that_was() -> None:
    rig = Rig(page=7)
    begun = rig.time.milliseconds()
    for number in range(9):
        rig.put(b"%d" % number)
        rig.time.sleep(60)
    minute = 60_000
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, replace(PLENTY, upto=begun + 2 * minute))
    assert payloads(turn.batches) == [b"0", b"1", b"2"]
    assert (turn.seen, turn.closed, turn.behind_ms > 0) == (None, False, True)
    # Another turn reads what is left of the page, at least.
    assert turn.ahead == (begun + 3 * minute, begun + 6 * minute)
    nothing = rig.fetcher.fetch_new(turn.end, replace(PLENTY, upto=begun + 3 * minute - 1))
    assert (nothing.count, nothing.end, nothing.last) == (0, turn.end, None)
    assert nothing.ahead == (begun + 3 * minute, rig.time.milliseconds())
    # Fewer, if it has other bounds besides; and nothing for sure where reads are refused.
    few = rig.fetcher.fetch_new(turn.end, replace(PLENTY, upto=begun, records=2))
    assert few.ahead == (begun + 3 * minute, begun + 4 * minute)
    rig.fetcher.calls.throttles = 1
    refused = rig.fetcher.fetch_new(turn.end, replace(PLENTY, upto=begun))
    assert refused.ahead == (begun + 3 * minute,) * 2
    rest = rig.fetcher.fetch_new(turn.end, replace(PLENTY, upto=begun + 8 * minute))
    assert payloads(rest.batches) == [b"%d" % number for number in range(3, 9)]
    assert (rest.seen, rest.ahead) == (rig.time.milliseconds(), None)


def test_the_bound_on_bytes_is_kept_but_one_record_is_always_taken() -> None:
    rig = Rig()
    rig.put(b"x" * 600, b"y" * 300, b"z" * 300)
    first = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(100, 1000, 60))
    assert [len(data) for data in payloads(first.batches)] == [600, 300]
    assert first.seen is None
    assert first.behind_ms > 0
    second = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(100, 10, 60))
    assert [len(data) for data in payloads(second.batches)] == [600]


def test_the_bound_on_memory_counts_all_columns_and_one_record_is_always_taken() -> None:
    rig = Rig()
    rig.put(*[b"x"] * 100)
    all_of_it = sum(batch.nbytes for batch in rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY).batches)
    half = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 10**9, 60, memory=all_of_it // 2))
    assert 40 < half.count <= 50
    assert sum(batch.nbytes for batch in half.batches) <= all_of_it // 2
    assert rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 10**9, 60, memory=1)).count == 1


def test_the_first_answer_is_not_asked_to_be_more_than_a_turn_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = limits_asked(monkeypatch)
    rig = Rig()
    rig.put(*[b"x" * 1024] * 200)
    memory = 100 * 2048
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 10**9, 60, memory=memory))
    # Nothing is known of the records then; afterwards as many as there is room for.
    assert asked[0] == 100
    assert 100 < sum(asked) < 200
    assert sum(batch.nbytes for batch in turn.batches) >= 0.9 * memory


def test_a_turn_that_is_cut_keeps_no_memory_for_the_records_it_does_not_hold() -> None:
    rig = Rig()
    rig.put(*[b"x" * 10**6] * 8)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 3 * 10**6, 60))
    assert turn.count == 3
    assert sum(batch.get_total_buffer_size() for batch in turn.batches) < 4 * 10**6


def test_what_is_held_tells_how_many_more_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(page=5)
    rig.put(*[b"x" * 100] * 20)
    asked = limits_asked(monkeypatch)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 700, 60))
    assert turn.size == 700
    assert asked == [5, 3]
    asked.clear()
    rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 750, 60))
    assert asked == [5, 3]
    asked.clear()
    rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(6, 10**9, 60))
    assert asked == [5, 1]


def test_a_full_page_without_lag_may_have_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(page=2)
    rig.put(*numbers(5))
    read = MemoryKinesis.get_records
    monkeypatch.setattr(
        MemoryKinesis,
        "get_records",
        lambda self, iterator, limit: replace(read(self, iterator, limit), behind_ms=0),
    )
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert payloads(turn.batches) == numbers(5)
    assert turn.seen is not None


def test_the_bound_on_time_ends_a_turn_between_pages() -> None:
    rig = Rig(page=2, period=0.5)
    rig.put(*numbers(50))
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1000, 10**9, 1.2))
    # Two calls at once, the next two a second later; the fifth would come after the bound.
    assert payloads(turn.batches) == numbers(50)[:8]
    assert turn.seen is None
    assert turn.behind_ms > 0


def test_an_answer_is_waited_for_even_when_that_takes_longer_than_the_bound() -> None:
    rig = Rig(rate=100)
    rig.put(b"x" * 1000, b"y")
    first = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(1, 10**9, 1))
    second = rig.fetcher.fetch_new(first.end, Bounds(1, 10**9, 1))
    assert payloads(second.batches) == [b"y"]
    assert sum(rig.time.sleeps) == pytest.approx(10)


def test_empty_pages_behind_the_tip_are_walked_through() -> None:
    rig = Rig(period=0.2)
    [before] = rig.put(b"before")
    rig.kinesis.gap(SHARD, 40)
    rig.put(b"after")
    turn = rig.fetcher.fetch_new(After(before), Bounds(10, 10**9, 1))
    assert payloads(turn.batches) == [b"after"]
    assert rig.reads > 40


def test_a_throttle_does_not_lose_the_walk() -> None:
    rig = Rig()
    [before] = rig.put(b"before")
    rig.kinesis.gap(SHARD, 10)
    rig.put(b"after")
    read = MemoryKinesis.get_records
    throttled = []

    def sometimes(self: MemoryKinesis, iterator: str, limit: int) -> object:
        if rig.reads == 5 and not throttled:
            throttled.append(1)
            msg = "slow down"
            raise ThrottledError(msg)
        return read(self, iterator, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryKinesis, "get_records", sometimes)
        turn = rig.fetcher.fetch_new(After(before), Bounds(10, 10**9, 1))
    assert throttled
    assert payloads(turn.batches) == [b"after"]
    assert rig.kinesis.calls["iterator", SHARD] == 1


def test_a_drained_shard_ends_with_its_last_record() -> None:
    rig = Rig()
    *_, last = rig.put(b"a", b"b")
    rig.kinesis.split(SHARD)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert (turn.closed, turn.end, turn.last) == (True, ShardEnd(last), last)
    again = rig.fetcher.fetch_new(After(last), PLENTY)
    assert (again.closed, again.end, again.count) == (True, ShardEnd(last), 0)
    done = rig.fetcher.fetch_new(again.end, PLENTY)
    assert (done.closed, done.end, done.count) == (True, ShardEnd(last), 0)


def test_a_closed_shard_is_not_at_its_end_before_its_last_record() -> None:
    rig = Rig(page=2)
    rig.put(*numbers(4))
    rig.kinesis.close(SHARD)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(2, 10**9, 60))
    assert not turn.closed
    assert rig.fetcher.fetch_new(turn.end, PLENTY).closed


def test_throttling_ends_the_turn_with_what_it_holds() -> None:
    rig = Rig(page=3)
    rig.put(*numbers(9))
    first = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(3, 10**9, 60))
    rig.kinesis.fail(SHARD, ThrottledError("slow down"))
    nothing = rig.fetcher.fetch_new(first.end, PLENTY)
    assert (nothing.count, nothing.end, nothing.seen) == (0, first.end, None)
    rest = rig.fetcher.fetch_new(nothing.end, PLENTY)
    assert payloads(rest.batches) == numbers(9)[3:]


@pytest.mark.parametrize("refused", [3, 30])
def test_a_turn_that_keeps_in_step_waits_for_a_while_where_its_first_read_is_refused(refused: int) -> None:
    rig = Rig(longest=1.0)
    begun = rig.time.now
    rig.put(b"0")
    rig.kinesis.fail(SHARD, *[ThrottledError("slow down")] * refused)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, replace(PLENTY, upto=rig.time.milliseconds()))
    if refused == 3:
        assert payloads(turn.batches) == [b"0"]
    else:
        assert (turn.count, turn.end) == (0, TRIM_HORIZON)
        assert 10 <= rig.time.now - begun < 12


def test_a_throttle_between_pages_keeps_those_before() -> None:
    rig = Rig(page=3)
    rig.put(*numbers(9))
    original = MemoryKinesis.get_records

    def second_throttled(self: MemoryKinesis, iterator: str, limit: int) -> object:
        if rig.reads == 1:
            self.calls["get_records", SHARD] += 1
            msg = "slow down"
            raise ThrottledError(msg)
        return original(self, iterator, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryKinesis, "get_records", second_throttled)
        turn = rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert payloads(turn.batches) == numbers(3)
    assert turn.seen is None


def test_an_expired_iterator_goes_on_after_the_last_record_held() -> None:
    rig = Rig(page=2, period=1.0)
    rig.put(*numbers(6))
    sleep = rig.time.sleep

    def sleep_and_expire(seconds: float) -> None:
        sleep(seconds)
        rig.kinesis.expire_iterators(SHARD)

    rig.limiter.sleep = sleep_and_expire
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(100, 10**9, 100))
    assert payloads(turn.batches) == numbers(6)


def test_iterators_that_expire_for_a_while_are_waited_out() -> None:
    rig = Rig()
    rig.put(b"a")
    rig.kinesis.fail(SHARD, *[IteratorExpiredError("old")] * 7)
    assert payloads(rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY).batches) == [b"a"]


def test_iterators_that_always_expire_are_an_error() -> None:
    rig = Rig()
    rig.put(b"a")
    made = rig.kinesis.iterator

    def stale(stream: str, shard: str, position: str) -> str:
        iterator = made(stream, shard, position)
        rig.kinesis.expire_iterators(SHARD)
        return iterator

    rig.kinesis.iterator = stale  # type: ignore[method-assign]
    with pytest.raises(KinesisError, match=f"'orders', shard {SHARD}, position TRIM_HORIZON"):
        rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)


def test_a_fault_that_passes_is_not_seen() -> None:
    rig = Rig()
    rig.put(b"a")
    rig.kinesis.fail(SHARD, *[Unavailable("503")] * 5)
    assert payloads(rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(10, 10**9, 0.1)).batches) == [b"a"]


def test_a_fault_that_stays_names_the_place() -> None:
    rig = Rig()
    rig.put(b"a")
    rig.kinesis.fail(SHARD, *[Unavailable("503")] * 1000)
    with pytest.raises(Unavailable, match=f"stream 'orders', shard {SHARD}, position TRIM_HORIZON: 503"):
        rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)


@pytest.mark.parametrize("seconds", [1.0, 120.0, 3600.0])
@pytest.mark.parametrize("share", [0.9, 1.2])
@pytest.mark.parametrize("read", ["new", "again", "due"])
def test_a_read_waits_out_an_outage_for_as_long_as_the_option_says(
    seconds: float, share: float, read: str
) -> None:
    rig = Rig(read_timeout=seconds, longest=seconds / 20)
    (last,) = rig.put(b"a")
    back = rig.time() + seconds * share
    answer = rig.kinesis.get_records

    def get_records(iterator: str, limit: int) -> Page:
        if rig.time() < back:
            msg = "503"
            raise Unavailable(msg)
        return answer(iterator, limit)

    rig.kinesis.get_records = get_records  # type: ignore[method-assign]

    def found() -> list[bytes]:
        if read == "due":
            due = rig.fetcher.fetch_due([Run(first=str(last), last=str(last))], 1, 1000)
            return payloads(due.records.batches())
        again = read == "again"
        turn = (
            rig.fetcher.fetch_until(TRIM_HORIZON, last)
            if again
            else rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
        )
        return payloads(turn.batches)

    if share < 1:
        assert found() == [b"a"]
    else:
        with pytest.raises(Unavailable, match="503"):
            found()
        assert rig.time() < back


def test_a_fault_that_stays_ends_a_turn_that_holds_something() -> None:
    rig = Rig(page=2)
    rig.put(*numbers(4))
    original = MemoryKinesis.get_records

    def broken_after_one(self: MemoryKinesis, iterator: str, limit: int) -> object:
        if rig.reads:
            msg = "503"
            raise Unavailable(msg)
        return original(self, iterator, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryKinesis, "get_records", broken_after_one)
        turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(100, 10**9, 1))
    assert payloads(turn.batches) == numbers(2)


def test_other_errors_name_the_place() -> None:
    rig = Rig()
    rig.kinesis.fail(SHARD, KinesisError("no"))
    with pytest.raises(KinesisError, match=f"stream 'orders', shard {SHARD}, position TRIM_HORIZON: no"):
        rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)


def test_an_idle_timestamp_moves_with_the_clock_but_never_back() -> None:
    rig = Rig()
    start = AtTimestamp(rig.time.milliseconds())
    soon = rig.fetcher.fetch_new(start, PLENTY)
    assert soon.end == start
    rig.time.sleep(3600)
    later = rig.fetcher.fetch_new(start, PLENTY)
    assert later.end == AtTimestamp(rig.time.milliseconds() - 300_000)
    rig.put(b"a")
    assert payloads(rig.fetcher.fetch_new(later.end, PLENTY).batches) == [b"a"]


def test_an_idle_position_after_a_record_stays() -> None:
    rig = Rig()
    [last] = rig.put(b"a")
    rig.time.sleep(3600)
    turn = rig.fetcher.fetch_new(After(last), PLENTY)
    assert (turn.end, turn.count, turn.seen) == (After(last), 0, rig.time.milliseconds())


def test_records_before_a_timestamp_are_dropped_where_the_iterator_starts_early() -> None:
    rig = Rig()
    rig.put(b"early")
    rig.time.sleep(0.5)
    at = AtTimestamp(rig.time.milliseconds())
    rig.put(b"now", b"later")
    made = rig.kinesis.iterator
    rig.kinesis.iterator = lambda stream, shard, _: made(stream, shard, "TRIM_HORIZON")  # type: ignore[method-assign]
    assert payloads(rig.fetcher.fetch_new(at, PLENTY).batches) == [b"now", b"later"]


def test_positions_inside_an_aggregate_leave_out_what_is_before_them() -> None:
    rig = Rig()
    first, second = rig.put(b"a", b"b")
    assert payloads(rig.fetcher.fetch_new(After(RecordPosition(first.sequence, 3)), PLENTY).batches) == [b"b"]
    assert payloads(rig.fetcher.fetch_new(At(RecordPosition(second.sequence, 0)), PLENTY).batches) == []


def test_a_turn_never_ends_between_records_of_one_sequence_number() -> None:
    rig = Rig()
    rig.put(b"a", b"b", b"c", b"d")
    records = rig.kinesis._stream.shards[SHARD].records
    records[2] = records[2]._replace(sequence=records[1].sequence)
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, Bounds(4, 2, 60))
    assert payloads(turn.batches) == [b"a"]
    turn = rig.fetcher.fetch_new(turn.end, Bounds(4, 1, 60))
    assert payloads(turn.batches) == [b"b", b"c"]


def test_cutting_a_turn() -> None:
    rig = Rig(page=2)
    positions = rig.put(*numbers(5))
    turn = rig.fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert cut(turn, positions[-1]) is turn
    shorter = cut(turn, positions[2])
    assert payloads(shorter.batches) == numbers(3)
    assert (shorter.count, shorter.size, shorter.end) == (3, 3, After(positions[2]))
    assert cut(turn, RecordPosition(1)).count == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 500),
    st.data(),
)
def test_turns_lose_and_double_nothing_and_replay_identically(
    sizes: list[int], page: int, records: int, size: int, data: st.DataObject
) -> None:
    rig = Rig(page=page)
    written = []
    for index, length in enumerate(sizes):
        if data.draw(st.integers(0, 9)) == 0:
            rig.kinesis.gap(SHARD, data.draw(st.integers(1, 3)))
        written.append(b"%d:" % index + b"x" * length)
        rig.put(written[-1])
    position: Position = TRIM_HORIZON
    read: list[bytes] = []
    for _ in range(1 + len(sizes)):
        turn = rig.fetcher.fetch_new(position, Bounds(records, size, 60))
        assert turn.count <= records
        assert turn.size <= size or turn.count == 1
        read += payloads(turn.batches)
        if turn.last is None:
            break
        other = Rig(page=data.draw(st.integers(1, 9)))
        other.kinesis = rig.kinesis
        again = ShardFetcher(
            rig.kinesis, "orders", SHARD, SourceOptions(max_records_per_fetch=page), limiter=other.limiter
        ).fetch_until(position, turn.last)
        assert rows(again) == rows(turn)
        assert (again.count, again.size, again.last) == (turn.count, turn.size, turn.last)
        position = turn.end
    assert read == written


def test_a_replay_waits_out_throttles_and_faults() -> None:
    rig = Rig(page=2)
    positions = rig.put(*numbers(6))
    rig.kinesis.fail(SHARD, *[ThrottledError("slow"), Unavailable("503")] * 3)
    turn = rig.fetcher.fetch_until(TRIM_HORIZON, positions[3])
    assert payloads(turn.batches) == numbers(4)
    assert turn.end == After(positions[3])


def test_a_read_that_must_be_had_waits_for_a_key_for_as_long_as_for_an_answer() -> None:
    rig = Rig(read_timeout=60)
    (last,) = rig.put(b"a")
    away = KeyAwayError("disabled")
    rig.kinesis.fail(SHARD, *[away] * 3)
    assert payloads(rig.fetcher.fetch_until(TRIM_HORIZON, last).batches) == [b"a"]
    rig.kinesis.fail(SHARD, *[away] * 1000)
    with pytest.raises(KeyUnusableError, match=f"shard {SHARD}, position TRIM_HORIZON: disabled") as caught:
        rig.fetcher.fetch_until(TRIM_HORIZON, last)
    assert type(caught.value) is KeyUnusableError
    assert rig.fetcher.fetch_new(TRIM_HORIZON, replace(PLENTY, seconds=1)).batches == []


def test_a_replay_of_trimmed_records_gives_what_is_left() -> None:
    rig = Rig()
    positions = rig.put(*numbers(6))
    rig.kinesis.trim(SHARD, positions[2].number)
    assert payloads(rig.fetcher.fetch_until(After(positions[0]), positions[4]).batches) == [b"3", b"4"]
    rig.kinesis.trim(SHARD, positions[5].number)
    assert rig.fetcher.fetch_until(After(positions[0]), positions[4]).count == 0


def runs_of(positions: Sequence[RecordPosition], *spans: tuple[int, int]) -> list[Run]:
    """Runs over index spans (start, stop), the first record of every second one left out."""
    return [
        Run(
            first="" if start and number % 2 else str(positions[start]),
            last=str(positions[stop - 1]),
            count=stop - start,
            prev=str(positions[start - 1]) if start else None,
        )
        for number, (start, stop) in enumerate(spans)
    ]


def test_due_runs_come_apart_again() -> None:
    rig = Rig(page=3)
    positions = rig.put(*numbers(30))
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 2), (5, 6), (10, 15), (29, 30)), 2, None)
    assert payloads_by_run(found.records) == [
        [b"0", b"1"],
        [b"5"],
        [b"10", b"11", b"12", b"13", b"14"],
        [b"29"],
    ]
    assert served(found.records) == (2, 1, 5, 1)
    assert found.missing == ()
    assert found.through == positions[29]


def test_one_run_reads_no_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(page=50)
    positions = rig.put(*numbers(100))
    asked = limits_asked(monkeypatch)
    found = rig.fetcher.fetch_due(runs_of(positions, (40, 41)), 2, 4096)
    assert (served(found.records), asked) == ((1,), [1])
    asked.clear()
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 70)), 2, 4096)
    assert (served(found.records), asked) == ((70,), [50, 20])


@pytest.mark.parametrize("every", [2, 7, 100])
def test_a_range_reads_few_records_behind_its_end(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    rig = Rig()
    positions = rig.put(*numbers(9000))
    asked = limits_asked(monkeypatch)
    runs = runs_of(positions, *[(at, at + 1) for at in range(0, 3000, every)])
    found = rig.fetcher.fetch_due(runs, 1, None)
    assert served(found.records) == (1,) * len(runs)
    assert sum(asked) <= 4500
    assert len(asked) <= 3


def test_a_range_whose_end_is_more_dense_than_its_beginning_takes_few_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    stream = rig.kinesis._stream
    positions = []
    for at in range(40_000):
        # As after hours in which the shard was nearly idle.
        stream._sequence += 10**9 if at < 1000 else 0
        positions += rig.put(b"%d" % at)
    asked = limits_asked(monkeypatch)
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 1), (39_999, 40_000)), 1, None)
    assert served(found.records) == (1, 1)
    assert len(asked) <= 12
    assert max(asked) == 10_000


def test_bytes_end_a_range_and_the_rest_is_left_out() -> None:
    rig = Rig(page=2)
    positions = rig.put(*[b"x" * 100] * 20)
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 3), (4, 10), (15, 16)), 1, 300)
    assert served(found.records) == (3,)
    assert found.through == positions[3]
    least = rig.fetcher.fetch_due(runs_of(positions, (0, 3)), 1, 1)
    assert served(least.records) == (2,)
    assert least.missing == ()
    assert least.through == positions[1]


def test_a_range_that_is_cut_ends_the_reading() -> None:
    rig = Rig(page=2)
    positions = rig.put(*[b"x" * 100] * 40)
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 3), (4, 10), (35, 36)), 2, 300)
    assert served(found.records) == (3,)


def test_records_gone_are_missing_wherever_they_were() -> None:
    rig = Rig()
    positions = rig.put(*numbers(12))
    rig.kinesis.trim(SHARD, positions[5].number)
    found = rig.fetcher.fetch_due(runs_of(positions, (0, 2), (4, 7), (8, 9)), 3, None)
    assert served(found.records) == (0, 1, 1)
    assert found.missing == (0, 1)
    assert payloads_by_run(found.records) == [
        [],
        [b"6"],
        [b"8"],
    ]
    rig.kinesis.trim(SHARD, positions[11].number)
    gone = rig.fetcher.fetch_due(runs_of(positions, (0, 2), (4, 7), (8, 9)), 2, None)
    assert (served(gone.records), gone.missing, gone.through) == ((0, 0, 0), (0, 1, 2), positions[8])


def test_due_runs_of_a_closed_shard() -> None:
    rig = Rig()
    positions = rig.put(*numbers(4))
    rig.kinesis.close(SHARD)
    assert served(rig.fetcher.fetch_due(runs_of(positions, (3, 4)), 2, 100).records) == (1,)


def test_throttled_retries_wait_for_another_turn_unless_they_must_be_had() -> None:
    rig = Rig()
    positions = rig.put(*numbers(4))
    rig.kinesis.fail(SHARD, ThrottledError("slow"))
    found = rig.fetcher.fetch_due(runs_of(positions, (1, 2)), 2, 100)
    assert (served(found.records), found.missing, found.through) == ((), (), None)
    rig.kinesis.fail(SHARD, ThrottledError("slow"))
    assert served(rig.fetcher.fetch_due(runs_of(positions, (1, 2)), 2, None).records) == (1,)
    rig.kinesis.fail(SHARD, ThrottledError("slow"))
    assert served(rig.fetcher.fetch_due(runs_of(positions, (1, 2)), 2, 100, patient=True).records) == (1,)


def test_no_runs_read_nothing() -> None:
    rig = Rig()
    found = rig.fetcher.fetch_due([], 2, 100)
    assert (served(found.records), rig.reads) == ((), 0)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.tuples(st.integers(1, 9), st.integers(1, 4)),
    st.integers(0, 60),
    st.sampled_from([None, 1, 5, 20]),
)
def test_due_runs_are_neither_lost_nor_doubled(
    count: int, failed: list[bool], page_and_ranges: tuple[int, int], trimmed: int, most: int | None
) -> None:
    page, ranges = page_and_ranges
    rig = Rig(page=page)
    positions = rig.put(*[b"%d" % n for n in range(count)])
    spans, start = [], None
    for index in range(count + 1):
        if index < count and failed[index]:
            start = index if start is None else start
        elif start is not None:
            spans.append((start, index))
            start = None
    runs = runs_of(positions, *spans)
    left = set(range(min(trimmed, count), count))
    if trimmed:
        rig.kinesis.trim(SHARD, positions[min(trimmed, count) - 1].number)
    found = rig.fetcher.fetch_due(runs, ranges, most)
    segments = payloads_by_run(found.records)
    assert served(found.records) == tuple(map(len, segments))
    if most is None:
        assert len(segments) == len(runs)
    for index, segment in enumerate(segments):
        there = [n for n in range(*spans[index]) if n in left]
        got = [int(data) for data in segment]
        assert got == there[: len(got)]
        assert found.through is not None
        complete = found.through >= runs[index].last_position
        assert complete or index == len(segments) - 1
        if complete:
            assert got == there
        assert (index in found.missing) == (complete and len(there) < runs[index].count)
        reached = {n for n in there if positions[n] <= found.through}
        assert set(got) == reached
    # Whatever the bounds, a turn gets further: else due retries would wait for ever.
    assert bool(segments) == bool(runs)
