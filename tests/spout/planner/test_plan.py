"""Test what a plan takes up, and what it leaves for a later one."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Plan
from kinesis_trident.spout.planner.plan import (
    MAX_DUE_RUNS,
    ShardState,
    add_waiting,
    keep_still_due,
    make_plan,
    make_starting_plan,
    per_shard_limit,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.tracker.records import Noted, RecordPosition, Run

NOW = 1_700_000_000_000


def run(first: int, due: int = 0, attempt: int = 1) -> Run:
    return Run(str(first), str(first), attempt=attempt, due=due)


def shard(*waiting: Run, dead: tuple[Run, ...] = (), blocked: str = "", position: int = 100) -> ShardState:
    return ShardState(
        TRIM_HORIZON,
        CheckpointNode(checkpoint="5", txid=3, position=f"AFTER_SEQUENCE_NUMBER {position}"),
        InflightNode(txid=3, waiting=waiting, dead=dead, blocked=blocked),
    )


def plan_for(
    states: dict[str, ShardState], *read: str, max_records: int | None = None, txid: int = 4
) -> Plan | None:
    return make_plan(
        txid=txid, plan="p", streams={"s": 1}, states=states, read=read, now=NOW, max_records=max_records
    )


def test_a_plan_that_nobody_has_stored_keeps_the_runs_that_are_still_due_as_it_names_them() -> None:
    kept, asked_again, cut, gone = run(7), run(8), Run("9", "11", count=3, attempt=1), run(12)
    states = {
        "a": shard(kept, run(8, attempt=0), Run("10", "11", count=2, attempt=1)),
        "b": shard(dead=(kept,)),
    }
    plan = Plan(
        txid=4,
        plan="p",
        streams={"s": 1},
        positions={},
        read=("c",),
        retries={"a": (kept, asked_again, cut), "b": (kept,), "c": (gone,)},
        dead={"b": (kept, gone), "a": (kept,)},
    )
    left = keep_still_due(plan, states)
    assert (left.retries, left.dead) == ({"a": (kept,)}, {"b": (kept,)})
    assert left.shards == ["a", "b", "c"]
    assert (left.plan, left.read) == (plan.plan, plan.read)


def test_there_is_no_plan_where_there_is_nothing_to_do() -> None:
    assert plan_for({"a": shard(run(7, NOW + 1)), "b": shard()}) is None
    assert plan_for({"a": shard(blocked="full")}) is None


def test_a_plan_takes_up_what_is_due_and_all_that_is_dead_and_names_the_rest() -> None:
    due, later, gone = run(7, NOW), run(8, NOW + 1), run(9, attempt=4)
    plan = plan_for({"b": shard(due, later, dead=(gone,)), "a": shard(later), "c": shard()}, "c")
    assert plan is not None
    assert plan.retries == {"b": (due,)}
    assert plan.dead == {"b": (gone,)}
    assert plan.notDone == {"a": (later,), "b": (later,)}
    assert plan.read == ("c",)
    assert plan.positions == dict.fromkeys("abc", "AFTER_SEQUENCE_NUMBER 100")
    assert plan.shards == ["b", "c"]
    assert (plan.txid, plan.plan, plan.streams, plan.limit) == (4, "p", {"s": 1}, None)


def test_a_shard_that_is_not_read_is_retried() -> None:
    plan = plan_for({"a": shard(run(7), blocked="full"), "b": shard()}, "b")
    assert plan is not None
    assert plan.read == ("b",)
    assert plan.retries == {"a": (run(7),)}


@pytest.mark.parametrize("kind", ["waiting", "dead"])
def test_runs_beyond_the_bound_wait_for_the_next_plan(kind: str) -> None:
    runs = tuple(run(i) for i in range(10, 10 + MAX_DUE_RUNS + 3))
    plan = plan_for({"a": shard(*runs) if kind == "waiting" else shard(dead=runs)})
    assert plan is not None
    taken = plan.retries if kind == "waiting" else plan.dead
    assert taken["a"] == runs[:MAX_DUE_RUNS]
    assert plan.notDone["a"] == runs[MAX_DUE_RUNS:]


def test_a_plan_changes_nothing() -> None:
    states = {"a": shard(run(7), dead=(run(9),)), "b": shard()}
    before = {name: (encode(s.checkpoint), encode(s.inflight)) for name, s in states.items()}  # type: ignore[arg-type]
    assert plan_for(states, "b") == plan_for(states, "b")
    after = {name: (encode(s.checkpoint), encode(s.inflight)) for name, s in states.items()}  # type: ignore[arg-type]
    assert before == after


def test_the_starting_offset_holds_positions_and_all_that_is_not_done_but_no_work() -> None:
    plan = make_starting_plan(
        3, {"s": 1}, {"a": shard(run(7), dead=(run(9),)), "b": ShardState(TRIM_HORIZON)}
    )
    assert (plan.txid, plan.plan, plan.shards) == (3, "", [])
    assert plan.positions == {"a": "AFTER_SEQUENCE_NUMBER 100", "b": "TRIM_HORIZON"}
    assert plan.notDone == {"a": (run(7), run(9))}


def test_a_shard_without_nodes_stands_where_it_starts() -> None:
    state = ShardState(After(RecordPosition(7, 2)))
    assert state.position == After(RecordPosition(7, 2))
    assert (state.safe, state.waiting, state.dead, state.blocked) == (None, (), (), "")
    assert ShardState(
        TRIM_HORIZON, CheckpointNode(checkpoint="8", sub=3, txid=1, position="TRIM_HORIZON")
    ).safe == RecordPosition(8, 3)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 10**6))
def test_the_records_of_a_batch_are_shared_out_and_no_shard_waits_for_ever(
    n: int, most: int, txid: int
) -> None:
    shards = [f"s{i:02}" for i in range(n)]
    read: Counter[str] = Counter()
    for i in range(n):
        limit, chosen = per_shard_limit(shards, most, txid + i)
        assert limit is not None
        assert limit >= 1
        assert limit * len(chosen) <= most
        assert chosen == sorted(set(chosen))
        assert len(chosen) == min(n, most)
        read.update(chosen)
    assert set(read) == set(shards)
    assert max(read.values()) - min(read.values()) <= 1


def test_without_a_bound_all_shards_are_read() -> None:
    assert per_shard_limit(["a", "b"], None, 7) == (None, ["a", "b"])
    assert per_shard_limit([], 5, 7) == (None, [])


def test_the_limit_of_a_plan_counts_new_records_of_shards_that_are_read() -> None:
    plan = plan_for({"a": shard(), "b": shard(blocked="full"), "c": shard()}, "a", "c", max_records=9)
    assert plan is not None
    assert (plan.limit, plan.read) == (4, ("a", "c"))


def test_what_bolts_hold_comes_with_each_batch_so_that_partners_meet() -> None:
    due = run(7, NOW)
    held = msgspec.structs.replace(run(8, NOW + 1_000, attempt=0), failures=(Noted(NOW, "HELD (bolt join)"),))
    plan = plan_for({"a": shard(due), "b": shard(held)})
    assert plan is not None
    assert {name: [one.last for one in runs] for name, runs in plan.retries.items()} == {
        "a": ["7"],
        "b": ["8"],
    }
    plan = plan_for({"a": shard(), "b": shard(held)}, "a")
    assert plan is not None
    assert [one.last for one in plan.retries["b"]] == ["8"]
    # By itself it makes no batch before it is due.
    assert (
        make_plan(txid=8, plan="p", streams={}, states={"b": shard(held)}, read=(), now=NOW, max_records=None)
        is None
    )


def test_due_and_dead_runs_are_merged_in_shard_order_by_number_not_by_text() -> None:
    plan = Plan(
        txid=1,
        plan="p",
        streams={},
        positions={},
        retries={"a": (run(9), Run("20:1", "20:3", 3))},
        dead={"a": (run(10), Run("", "20:0", 1, "15"))},
    )
    assert [(r.last, dead) for r, dead in plan.due("a")] == [
        ("9", False),
        ("10", True),
        ("20:0", True),
        ("20:3", False),
    ]
    assert plan.due("b") == []


def test_a_plan_made_earlier_is_told_again_what_waits_besides() -> None:
    due, later, gone = run(7), run(8, NOW + 1), run(9, attempt=4)
    plan = plan_for({"a": shard(due, later, dead=(gone,))}, "a")
    assert plan is not None
    states = {"a": shard(due, later, run(11), dead=(gone, run(12))), "b": shard(run(13))}
    again = add_waiting(plan, states)
    assert again.notDone == {"a": (later, run(11), run(12)), "b": (run(13),)}
    assert (again.retries, again.dead, again.read) == (plan.retries, plan.dead, plan.read)
