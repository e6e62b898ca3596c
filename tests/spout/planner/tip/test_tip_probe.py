from __future__ import annotations

from collections.abc import Iterator

import pytest
from looking import last_looks, look

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    KeyAwayError,
    KeyUnusableError,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.planner.tip.looks import Look, Question
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, aggregate
from kinesis_trident.tracker.records import RecordPosition

A, B = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def kinesis(time: FakeTime) -> MemoryKinesis:
    return MemoryKinesis(shards=2, clock=time.milliseconds)


@pytest.fixture
def probe(kinesis: MemoryKinesis) -> Iterator[TipProbe]:
    found = TipProbe(kinesis, Layout("/", "app", "orders", 1))
    yield found
    found.close()


def test_it_sees_what_is_new_and_takes_nothing(
    probe: TipProbe, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    kinesis.put(A, b"x")
    time.sleep(2)
    positions: dict[str, Position] = {A: TRIM_HORIZON, B: TRIM_HORIZON}
    assert look(probe, positions) == {A: True, B: False}
    assert look(probe, positions) == {A: True, B: False}
    kinesis.put(B, b"y")
    assert look(probe, positions) == {A: True, B: True}
    assert last_looks(probe)[A].at == time.milliseconds()


def test_a_lag_is_told(probe: TipProbe, kinesis: MemoryKinesis, time: FakeTime) -> None:
    kinesis.put(A, b"x")
    time.sleep(7)
    kinesis.put(A, b"y")
    look(probe, {A: TRIM_HORIZON, B: TRIM_HORIZON})
    assert last_looks(probe)[A].behind_ms == 7000
    assert last_looks(probe)[B].behind_ms == 0


def test_an_idle_shard_costs_one_call_a_look(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    last = After(RecordPosition(kinesis.put(A, b"x")))
    for _ in range(10):
        assert look(probe, {A: last}) == {A: False}
    assert kinesis.calls["get_records", A] == 10
    assert kinesis.calls["iterator", A] == 1


def test_a_new_position_is_looked_at_from_there(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    first, second = (RecordPosition(kinesis.put(A, b"x")) for _ in range(2))
    assert look(probe, {A: After(first)}) == {A: True}
    assert look(probe, {A: After(second)}) == {A: False}


def test_an_expired_iterator_is_made_anew(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    start = AtTimestamp(0)
    assert look(probe, {A: start}) == {A: False}
    kinesis.expire_iterators(A)
    kinesis.put(A, b"x")
    assert look(probe, {A: start}) == {A: True}


def test_empty_pages_are_walked_through_over_several_looks(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    last = After(RecordPosition(kinesis.put(A, b"x")))
    kinesis.gap(A, 9)
    kinesis.put(A, b"y")
    seen = [look(probe, {A: last})[A] for _ in range(3)]
    assert seen == [None, None, True]
    assert kinesis.calls["get_records", A] <= 12


def test_the_end_of_a_shard_is_something_to_read_until_it_was(
    probe: TipProbe, kinesis: MemoryKinesis
) -> None:
    last = RecordPosition(kinesis.put(A, b"x"))
    kinesis.close(A)
    assert look(probe, {A: After(last)}) == {A: True}
    assert look(probe, {A: ShardEnd(last)}) == {A: False}
    assert kinesis.calls["get_records", A] == 1


@pytest.mark.parametrize("error", [ThrottledError("slow"), Unavailable("503")])
def test_what_passes_is_not_known_now(probe: TipProbe, kinesis: MemoryKinesis, error: KinesisError) -> None:
    kinesis.put(A, b"x")
    kinesis.fail(A, error)
    assert look(probe, {A: TRIM_HORIZON, B: TRIM_HORIZON}) == {A: None, B: False}
    assert look(probe, {A: TRIM_HORIZON}) == {A: True}


def test_who_is_answered_between_other_readers_is_refused_all_the_time(kinesis: MemoryKinesis) -> None:
    clock = FakeTime()
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), wall=clock.milliseconds)
    first, second = (After(RecordPosition(kinesis.put(A, b"x"))) for _ in range(2))

    def refused_at(position: Position, seconds: float) -> int | None:
        clock.sleep(seconds)
        kinesis.fail(A, ThrottledError("slow"))
        assert look(probe, {A: position}) == {A: None}
        return last_looks(probe)[A].refused

    begun = refused_at(first, 1)
    assert refused_at(first, 15) == begun
    assert look(probe, {A: first}) == {A: True}
    assert last_looks(probe)[A].refused is None
    assert refused_at(first, 10) == begun
    assert refused_at(first, 20) == begun
    # Somebody has read on.
    assert refused_at(second, 10) == begun
    clock.sleep(40)
    assert look(probe, {A: second}) == {A: False}
    assert refused_at(second, 31) == clock.milliseconds()
    # Single refusals, as of any shard that several read.
    for _ in range(5):
        assert look(probe, {A: second}) == {A: False}
        assert refused_at(second, 3) == clock.milliseconds()
    probe.close()


def test_a_key_that_stays_unusable_is_raised_after_its_time_alone(kinesis: MemoryKinesis) -> None:
    clock = FakeTime()
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), wall=clock.milliseconds, readable_within=60)
    kinesis.fail(A, ThrottledError("slow"), *[KeyAwayError("disabled")] * 3)
    for refusal in ("throttled", "unusableKey", "unusableKey"):
        assert look(probe, {A: TRIM_HORIZON}) == {A: None}
        assert (last_looks(probe)[A].why, last_looks(probe)[A].refused) == (
            refusal,
            last_looks(probe)[A].refused_again_at,
        )
        clock.sleep(59 if refusal == "throttled" else 30)
    with pytest.raises(KeyUnusableError, match=f"shard {A}, position TRIM_HORIZON: disabled") as caught:
        look(probe, {A: TRIM_HORIZON})
    assert type(caught.value) is KeyUnusableError
    probe.close()


def test_what_does_not_pass_is_raised(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    kinesis.fail(B, AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        look(probe, {A: TRIM_HORIZON, B: TRIM_HORIZON})


class SlowKinesis(MemoryKinesis):
    """Takes a second for each read."""

    def __init__(self, time: FakeTime, shards: int) -> None:
        super().__init__(shards=shards, clock=time.milliseconds)
        self._time = time

    def get_records(self, iterator: str, limit: int) -> Page:
        self._time.sleep(1)
        return super().get_records(iterator, limit)


def test_who_has_found_something_does_not_look_at_thousands_of_shards_first(time: FakeTime) -> None:
    kinesis = SlowKinesis(time, 1_000)
    shards = [shard.id for shard in kinesis.list_shards("orders")]
    positions: dict[str, Position] = dict.fromkeys(shards, TRIM_HORIZON)
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), patience=5, clock=time)
    assert list(look(probe, positions)) == shards
    kinesis.put(shards[0], b"x")
    found = list(look(probe, positions))
    probe.close()
    assert 5 <= len(found) < 1_000
    assert found == shards[: len(found)]


def test_a_look_keeps_what_it_finds_for_one_reader(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    for number in range(5):
        kinesis.put(A, str(number).encode())
    assert look(probe, {A: TRIM_HORIZON}, limit=9) == {A: True}
    found = last_looks(probe)[A]
    page = found.cursor.page
    assert page is not None
    assert page.records.column("data").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert page.behind_ms == 0
    assert found.hand_on().cursor.page is None
    assert found.hand_on().cursor.iterator == found.cursor.iterator


def test_a_full_answer_does_not_show_the_tip(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    kinesis.put(A, b"1")
    look(probe, {A: TRIM_HORIZON})
    page = last_looks(probe)[A].cursor.page
    assert page is not None
    assert page.behind_ms is None


def test_a_large_answer_is_left_to_the_reader(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    for _ in range(3):
        kinesis.put(A, bytes(100_000))
    assert look(probe, {A: TRIM_HORIZON}, limit=9) == {A: True}
    assert last_looks(probe)[A].cursor.page is None


def test_what_a_look_keeps_says_how_far_a_turn_reads_at_least(time: FakeTime, kinesis: MemoryKinesis) -> None:
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1))
    begun = time.milliseconds()
    number = kinesis.put(A, aggregate([(b"1", "a"), (b"2", "b")]))
    for _ in range(2):
        time.sleep(1)
        kinesis.put(A, b"x")
    look(probe, {A: TRIM_HORIZON}, limit=9)
    found = last_looks(probe)[A]
    kept = [found.find_kept(TRIM_HORIZON, records, 10**6) for records in range(1, 6)]
    assert kept == [(begun, begun + at) for at in (0, 0, 1000, 2000, 2000)]
    # A turn may take less of what is larger.
    assert found.find_kept(TRIM_HORIZON, 9, 100) is None
    # Of the aggregate one was read.
    rest = After(RecordPosition(number, 0))
    look(probe, {A: rest}, limit=9)
    found = last_looks(probe)[A]
    assert found.find_kept(rest, 2, 10**6) == (begun, begun + 1000)
    assert found.find_kept(TRIM_HORIZON, 9, 10**6) is None
    # The reader has it now.
    assert found.hand_on().find_kept(rest, 2, 10**6) is None


@pytest.mark.parametrize(("upto", "asked"), [(-1, 0), (-2, 1)])
def test_who_read_all_that_a_look_found_needs_no_new_iterator(
    probe: TipProbe, kinesis: MemoryKinesis, upto: int, asked: int
) -> None:
    put = [kinesis.put(A, b"x") for _ in range(3)]
    look(probe, {A: TRIM_HORIZON}, limit=9)
    before = kinesis.calls["iterator", A]
    assert look(probe, {A: After(RecordPosition(put[upto]))}, limit=9) == {A: upto == -2}
    assert kinesis.calls["iterator", A] - before == asked


def test_the_rest_of_an_aggregate_is_not_left_out(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    number = kinesis.put(A, aggregate([(b"1", "a"), (b"2", "b")]))
    look(probe, {A: TRIM_HORIZON}, limit=9)
    assert look(probe, {A: After(RecordPosition(number, 0))}, limit=9) == {A: True}
    assert look(probe, {A: After(RecordPosition(number, 1))}, limit=9) == {A: False}


def test_an_answer_without_a_next_iterator_is_left_to_the_reader(
    probe: TipProbe, kinesis: MemoryKinesis
) -> None:
    kinesis.put(A, b"1")
    kinesis.break_off(A, 1)
    assert look(probe, {A: TRIM_HORIZON}, limit=9) == {A: True}
    assert last_looks(probe)[A].cursor.page is None


def ahead(probe: TipProbe, position: Position, held: Look | None, limit: int) -> Look:
    """What is there after so many records more."""
    question = Question(position, limit=limit, most=10**6, last=held or last_looks(probe).get(A))
    return probe.begin_ahead(A, question, held).result().looks[A]


def test_answers_that_follow_each_other_are_one(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    for number in range(5):
        kinesis.put(A, str(number).encode())
    found = ahead(probe, TRIM_HORIZON, None, 2)
    for known in (2, 4, 5):
        assert found.cursor.page is not None
        assert found.cursor.page.records.column("data").to_pylist() == [b"%d" % n for n in range(known)]
        # Whether more follows is not known of a full answer.
        assert found.cursor.page.behind_ms == (
            0 if known == 5 else None if found.cursor.page.behind_ms is None else 1
        )
        assert found.cursor.page.size == known
        found = ahead(probe, TRIM_HORIZON, found, 2)
    # An empty one shows the tip anew.
    assert found.cursor.page is not None
    assert (found.cursor.page.records.num_rows, found.cursor.page.behind_ms) == (5, 0)
    last_looks(probe)[A] = found
    before = kinesis.calls["iterator", A]
    assert found.next_cursor is not None
    assert look(probe, {A: found.next_cursor.position}) == {A: False}
    assert kinesis.calls["iterator", A] == before


def test_the_end_of_a_shard_is_left_to_the_reader_and_what_is_before_it_is_no_tip(
    probe: TipProbe,
    kinesis: MemoryKinesis,
) -> None:
    kinesis.put(A, b"0")
    found = ahead(probe, TRIM_HORIZON, None, 9)
    kinesis.put(A, b"1")
    kinesis.close(A)
    found = ahead(probe, TRIM_HORIZON, found, 9)
    assert found.cursor.page is not None
    assert (found.cursor.page.records.num_rows, found.cursor.page.behind_ms) == (1, None)
    assert ahead(probe, TRIM_HORIZON, found, 9) is found
