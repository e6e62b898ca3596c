"""Test what a batch is expected to read, from the turns before it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from settled import make_pin

from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.partition import Amount
from kinesis_trident.spout.turn_size import TurnSize, predict
from kinesis_trident.tracker.records import Run

SIZE = 100


def pin(records: int, **more: bool) -> Pin:
    return make_pin(records, size=SIZE, **more)


def plan(*shards: str, **more: object) -> Plan:
    places = dict.fromkeys(shards, "TRIM_HORIZON")
    return Plan(txid=1, plan="p", streams={"s": 1}, positions=places, read=tuple(sorted(shards)), **more)


def learned(*turns: tuple[int, Pin]) -> dict[str, TurnSize]:
    """The size after turns of one shard, each settled at a time."""
    size = None
    for now, one in turns:
        size = TurnSize.after(size, one, now)
    return {"a": size} if size is not None else {}


def test_a_shard_that_was_never_read_and_one_with_a_backlog_are_unknown() -> None:
    assert predict(plan("a"), {}, 0) is None
    behind = learned((0, pin(50, at_tip=False)))
    assert predict(plan("a"), behind, 1_000) is None
    assert predict(plan("a", "b", limit=10), behind, 1_000) == Amount(20, 20 * SIZE)


def test_limits_bound_a_backlog_once_the_size_of_a_record_is_known() -> None:
    assert predict(plan("a", limit=10), {}, 0) is None
    behind = learned((0, pin(50, at_tip=False)))
    assert predict(plan("a", limit=10, room={"a": 4}), behind, 9) == Amount(4, 4 * SIZE)
    assert predict(plan("a", limitBytes=7 * SIZE), behind, 9) == Amount(7, 7 * SIZE)


def test_a_shard_at_its_tip_goes_on_as_in_its_last_turn() -> None:
    steady = learned((0, pin(9)), (1_000, pin(200)))
    assert predict(plan("a"), steady, 2_500) == Amount(300, 300 * SIZE)
    idle = learned((0, pin(9)), (1_000, pin(0)))
    assert predict(plan("a"), idle, 2_500) == Amount(0, 0)


def test_without_a_turn_before_it_gets_at_most_what_kinesis_accepts() -> None:
    assert predict(plan("a"), learned((0, pin(200))), 300) == Amount(300, 300 * SIZE)
    after_backlog = learned((0, pin(50_000, at_tip=False)), (1_000, pin(10)))
    assert predict(plan("a"), after_backlog, 1_500) == Amount(500, 500 * SIZE)


def test_due_records_count() -> None:
    due = plan(retries={"a": (Run(first="1", last="3", count=3, attempt=1),)})
    assert predict(due, learned((0, pin(5))), 9) == Amount(3, 3 * SIZE)
    assert predict(due, {}, 9) is None


def test_a_shard_that_has_ended_is_forgotten() -> None:
    assert predict(plan("a", limit=1), learned((0, pin(5)), (9, pin(5, closed=True))), 10) is None


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()), max_size=4),
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 10**9),
)
def test_an_expectation_keeps_the_limits_whatever_was_before(
    turns: list[tuple[int, int, bool]], limit: int | None, limit_bytes: int | None
) -> None:
    times = sorted(now for now, _, _ in turns)
    sizes = learned(*((now, pin(n, at_tip=tip)) for now, (_, n, tip) in zip(times, turns, strict=True)))
    found = predict(plan("a", limit=limit, limitBytes=limit_bytes), sizes, 2 * 10**6)
    if found is not None:
        assert found.records <= (math.inf if limit is None else limit)
        assert found.bytes <= (math.inf if limit_bytes is None else limit_bytes + 1)
        assert found.bytes == pytest.approx(found.records * SIZE, abs=SIZE)
