"""What is asked for by name, at any number of records: the curves that `benchmarks/growth.py` times and tests count."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, ExternalNode
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.external_requests import step
from kinesis_trident.spout.planner.settling.settlement import InflightRules
from kinesis_trident.spout.planner.settling.shard_events import Requested, ShardUnit
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import After
from kinesis_trident.tracker.held_turns import AckWait, HeldRows, HeldTurn
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import keys_of_texts, pack
from kinesis_trident.tracker.records import RecordPosition, Run
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

    def trace(frame: FrameType, event: str, _: object) -> Any:
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


def take_in(
    state: ShardState, asked: Asked, measure: Callable[[Callable[[], object]], float] = steps_of
) -> tuple[float, list[ShardUnit]]:
    """Take in what is asked for; return what that costs, and what has become of the shard."""
    shards = Shards("none", states={SHARD: state})
    taken = list[ShardUnit]()
    event, layout = Requested({SHARD: asked}), Layout("/k", "app", "orders", 1)

    def take() -> None:
        taken.extend(one for one in step(shards, event, RULES, layout, NOW) if isinstance(one, ShardUnit))

    return measure(take), taken


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
