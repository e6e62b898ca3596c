from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.kinesis import AccessDeniedError, KinesisError, Page, ThrottledError, Unavailable
from kinesis_trident.spout.planner.shards.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
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
    assert probe.look(positions) == {A: True, B: False}
    assert probe.look(positions) == {A: True, B: False}
    kinesis.put(B, b"y")
    assert probe.look(positions) == {A: True, B: True}
    assert probe.looks[A].at == time.milliseconds()


def test_a_lag_is_told(probe: TipProbe, kinesis: MemoryKinesis, time: FakeTime) -> None:
    kinesis.put(A, b"x")
    time.sleep(7)
    kinesis.put(A, b"y")
    probe.look({A: TRIM_HORIZON, B: TRIM_HORIZON})
    assert probe.looks[A].behind_ms == 7000
    assert probe.looks[B].behind_ms == 0


def test_an_idle_shard_costs_one_call_a_look(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    last = After(RecordPosition(kinesis.put(A, b"x")))
    for _ in range(10):
        assert probe.look({A: last}) == {A: False}
    assert kinesis.calls["get_records", A] == 10
    assert kinesis.calls["iterator", A] == 1


def test_a_new_position_is_looked_at_from_there(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    first, second = (RecordPosition(kinesis.put(A, b"x")) for _ in range(2))
    assert probe.look({A: After(first)}) == {A: True}
    assert probe.look({A: After(second)}) == {A: False}


def test_an_expired_iterator_is_made_anew(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    start = AtTimestamp(0)
    assert probe.look({A: start}) == {A: False}
    kinesis.expire_iterators(A)
    kinesis.put(A, b"x")
    assert probe.look({A: start}) == {A: True}


def test_empty_pages_are_walked_through_over_several_looks(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    last = After(RecordPosition(kinesis.put(A, b"x")))
    kinesis.gap(A, 9)
    kinesis.put(A, b"y")
    seen = [probe.look({A: last})[A] for _ in range(3)]
    assert seen == [None, None, True]
    assert kinesis.calls["get_records", A] <= 12


def test_the_end_of_a_shard_is_something_to_read_until_it_was(
    probe: TipProbe, kinesis: MemoryKinesis
) -> None:
    last = RecordPosition(kinesis.put(A, b"x"))
    kinesis.close(A)
    assert probe.look({A: After(last)}) == {A: True}
    assert probe.look({A: ShardEnd(last)}) == {A: False}
    assert kinesis.calls["get_records", A] == 1


@pytest.mark.parametrize("error", [ThrottledError("slow"), Unavailable("503")])
def test_what_passes_is_not_known_now(probe: TipProbe, kinesis: MemoryKinesis, error: KinesisError) -> None:
    kinesis.put(A, b"x")
    kinesis.fail(A, error)
    assert probe.look({A: TRIM_HORIZON, B: TRIM_HORIZON}) == {A: None, B: False}
    assert probe.look({A: TRIM_HORIZON}) == {A: True}


def test_what_does_not_pass_is_raised(probe: TipProbe, kinesis: MemoryKinesis) -> None:
    kinesis.fail(B, AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        probe.look({A: TRIM_HORIZON, B: TRIM_HORIZON})


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
    assert list(probe.look(positions)) == shards
    kinesis.put(shards[0], b"x")
    found = list(probe.look(positions))
    probe.close()
    assert 5 <= len(found) < 1_000
    assert found == shards[: len(found)]
