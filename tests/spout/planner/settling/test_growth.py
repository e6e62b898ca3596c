"""The cost of named records grows as they do: steps of the interpreter at n and 4n, never times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from benchmarks.named_records import (
    CURVES,
    ack,
    held,
    replay,
    steps_of,
    take_in,
    text,
)
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.positions import After
from kinesis_trident.tracker import runs
from kinesis_trident.tracker.held_turns import HeldTurn
from kinesis_trident.tracker.records import Order, RecordPosition, Run, orders_of


@pytest.mark.parametrize("curve", CURVES)
def test_what_is_named_costs_as_much_as_its_records(curve: str) -> None:
    small, large = (take_in(*CURVES[curve](n))[0] for n in (400, 1_600))
    assert large <= 4.6 * small


def test_one_more_ack_does_not_ask_for_every_record_that_waits_for_its_ack() -> None:
    small, large = (take_in(held(n), {"a": ack(n // 2)})[0] for n in (400, 1_600))
    assert large <= 1.2 * small


@pytest.mark.parametrize(
    ("curve", "requests"), [("all that wait, one by one", 40), ("acks of what waits, one by one", 20)]
)
def test_what_waits_is_copied_once_for_requests_that_follow_each_other(
    curve: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a copy there are no steps, but its time is that of all that waits."""
    copied, change = list[int](), runs.Runs.change

    def count(some: runs.Runs[Run], *edits: Any, **how: Any) -> runs.Runs[Run]:
        copied.append(len(some))
        return change(some, *edits, **how)

    monkeypatch.setattr(runs.Runs, "change", count)
    _, (taken,) = take_in(*CURVES[curve](400))
    assert sum(copied) <= 4 * 400
    assert len(taken.consumed) == requests


def test_runs_are_looked_up_in_their_turns_once_for_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, locate = Counter[str](), HeldTurn.locate

    def count(turn: HeldTurn, runs: Sequence[Run]) -> list[int]:
        rows = locate(turn, runs)
        looked_up.update(run.last for run, row in zip(runs, rows, strict=True) if row >= 0)
        return rows

    state = held(400, slice(0, None, 2))
    monkeypatch.setattr(HeldTurn, "locate", count)
    take_in(state, {"a": ack(200)})
    acked = looked_up.pop(text(200))
    assert ({*looked_up.values()}, acked) == ({1}, 1)
    # That a turn is in use shows at the first runs that are looked up there.
    assert len(looked_up) <= 5 * 16


def test_what_this_process_has_stored_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more ack makes no order of each record that waits for a retry, and asks for no turn of each."""
    made, looked_up, locate = list[str](), list[str](), HeldTurn.locate

    def count(texts: Sequence[str]) -> list[Order]:
        made.extend(texts)
        return orders_of(texts)

    def look_up(turn: HeldTurn, some: Sequence[Run]) -> list[int]:
        looked_up.extend(run.last for run in some)
        return locate(turn, some)

    monkeypatch.setattr(runs, "orders_of", count)
    monkeypatch.setattr(HeldTurn, "locate", look_up)
    costs = list[tuple[int, int, float]]()
    for n in (400, 1_600):
        _, (first,) = take_in(held(n, slice(0, None, 2)), {"a": ack(n // 2)})
        assert first.state is not None
        made.clear(), looked_up.clear()
        steps, (second,) = take_in(first.state, {"b": ack(n // 2 + 2)})
        assert second.state is not None
        assert len(second.state.waiting) == n // 2 - 2
        costs.append((len(made), len(looked_up), steps))
    assert costs[0][:2] == costs[1][:2]
    # What is left for each run is to add up its number of records, and to see whether its reasons are bounded.
    assert costs[1][2] - costs[0][2] < 100 * 600


def test_nodes_that_others_have_changed_are_read() -> None:
    _, (first,) = take_in(held(400), {"a": ack(200)})
    assert first.state is not None
    assert first.state.kept is not None
    assert first.state.inflight is not None
    stood = msgspec.structs.replace(first.state.inflight, blocked="full")
    assert replace(first.state, inflight=stood).kept is None
    assert replace(first.state, start=After(RecordPosition("1"))).kept is first.state.kept


def test_a_replay_that_is_taken_back_costs_as_much_as_its_records() -> None:
    def cost(n: int) -> float:
        rows = range(1, n, 2)
        _, (taken,) = take_in(held(n), {"a": replay(rows)})
        assert taken.state is not None
        assert len(taken.state.waiting) == n // 2
        cancel = ExternalNode(op="cancel", records=tuple(map(text, rows)))
        steps, (after,) = take_in(taken.state, {"b": cancel})
        assert after.state is not None
        assert not after.state.waiting
        return steps

    assert cost(1_600) <= 4.6 * cost(400)


def test_a_step_is_counted_wherever_it_is() -> None:
    def double(rows: int) -> list[int]:
        return [2 * row for row in range(rows)]

    assert steps_of(lambda: double(1_000)) - steps_of(lambda: double(500)) >= 500
