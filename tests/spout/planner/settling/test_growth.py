"""The cost of named records grows as they do: steps of the interpreter at n and 4n, never times."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType

import msgspec
import numpy as np
import pytest

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, ExternalNode
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.external_requests import Amender, Amendment
from kinesis_trident.spout.planner.settling.settlement import InflightRules
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import After
from kinesis_trident.tracker import runs
from kinesis_trident.tracker.held_turns import AckWait, HeldRows, HeldTurn
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import keys_of_texts, pack
from kinesis_trident.tracker.records import Order, RecordPosition, Run, orders_of
from kinesis_trident.tracker.retry import RetryPolicy
from kinesis_trident.tracker.turns_by_txid import HeldTurns

SHARD = "shardId-000000000000"
NOW = 1_700_000_000_000
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
RULES = InflightRules(RetryPolicy(), random.Random(1), 100_000, timeout=600_000, max_inflight=10**6)
Asked = dict[str, ExternalNode]


def steps_of(work: Callable[[], object]) -> int:
    """Return the number of steps of the interpreter: of a list that is copied there are none."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def text(row: int) -> str:
    return str(FIRST + 2 * row)


def stored(shard: OpenShard, n: int) -> ShardState:
    safe, kept = shard.safe, RULES.keep(shard, 5)
    return ShardState(
        After(RecordPosition.parse(text(n))),
        CheckpointNode(
            checkpoint=safe.sequence if safe else None,
            txid=5,
            position=str(After(RecordPosition.parse(text(n)))),
            held=kept.node.size,
        ),
        kept.node,
        kept.records.held.records,
    )


def waiting(n: int) -> ShardState:
    some = tuple(Run(text(row), text(row), 1, text(row - 1), 1, NOW) for row in range(n))
    return stored(OpenShard.read(RecordPosition.parse(text(-1)), some, ()), n)


def held(n: int, fails: slice | None = None) -> ShardState:
    """Every second record waits for its ack, in five turns; those that are not acked may have failed."""
    keys = keys_of_texts([text(row) for row in range(n)])
    wait = AckWait(1, NOW + 600_000)
    size = n // 5
    turns = {
        txid: HeldTurn.of(txid, keys[txid * size : (txid + 1) * size], [HeldRows(range(size), None, wait)])
        for txid in range(5)
    }
    shard, _ = OpenShard(None, RecordPosition.parse(text(n)), held=HeldTurns(turns)).ack(
        keys[np.arange(1, n, 2)]
    )
    if fails is not None:
        shard, _ = shard.fail(keys[fails], "busy", RULES.fates(NOW))
    return stored(shard, n)


def take_in(state: ShardState, asked: Asked) -> tuple[int, list[Amendment]]:
    shards = Shards("none", states={SHARD: state})
    taken = list[Amendment]()
    amender = Amender(Layout("/k", "app", "orders", 1), RULES)
    return steps_of(lambda: taken.extend(amender.take_in(shards, {SHARD: asked}, NOW))), taken


def replay(rows: range) -> ExternalNode:
    return ExternalNode(op="replay", records=tuple(map(text, rows)))


def ack(row: int) -> ExternalNode:
    return ExternalNode(op="ack", positions=pack(keys_of_texts([text(row)])))


def one_by_one(ask: Callable[[int], ExternalNode], rows: range) -> Asked:
    return {f"{row:06d}": ask(row) for row in rows}


CURVES: dict[str, Callable[[int], tuple[ShardState, Asked]]] = {
    "all that wait": lambda n: (waiting(n), {"a": replay(range(n))}),
    "all that wait, one by one": lambda n: (
        waiting(n),
        one_by_one(lambda row: replay(range(row, row + 1)), range(0, n, 10)),
    ),
    "done records above acks": lambda n: (held(n), {"a": replay(range(1, n, 2))}),
    "done records below": lambda n: (held(n, slice(0, None, 2)), {"a": replay(range(1, n, 2))}),
    "acks, one by one": lambda n: (held(n), one_by_one(ack, range(0, n, 20))),
    "acks of what waits, one by one": lambda n: (
        held(n, slice(0, None, 2)),
        one_by_one(ack, range(0, n, 20)),
    ),
}


@pytest.mark.parametrize("curve", CURVES)
def test_what_is_named_costs_as_much_as_its_records(curve: str) -> None:
    small, large = (take_in(*CURVES[curve](n))[0] for n in (400, 1_600))
    assert large <= 4.6 * small


def test_one_more_ack_does_not_ask_for_every_record_that_waits_for_its_ack() -> None:
    small, large = (take_in(held(n), {"a": ack(n // 2)})[0] for n in (400, 1_600))
    assert large <= 1.2 * small


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
    costs = list[tuple[int, int, int]]()
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
    def cost(n: int) -> int:
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
