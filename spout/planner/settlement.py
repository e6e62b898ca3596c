"""Settles one shard of a finished batch: moves its checkpoint and queues its failed records. Pure.

Settling happens when Spark asks for the next offset, which it does only after it has committed the batch. It takes
the plan, the turn's pin and the outcome, and returns the shard's two nodes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    InflightNode,
    NotDone,
    Pin,
    Plan,
)
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.settled_records import Explicit, settle_records
from kinesis_trident.spout.positions import After, ShardEnd, parse_position
from kinesis_trident.tracker.position_keys import Keys
from kinesis_trident.tracker.records import Failure, Place, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy


class SettledShard(msgspec.Struct, frozen=True):
    """One shard after a batch: its nodes, and the runs that were dead-lettered (or skipped) in it.

    `turns`: the positions of the rows of the batches that `inflight` names, by txid.
    """

    checkpoint: CheckpointNode
    inflight: InflightNode
    dead_lettered: tuple[DeadLetterRecord, ...] = ()
    drained: bool = False
    turns: Mapping[int, Keys] = msgspec.field(default_factory=dict)


def settle_shard(
    state: ShardState,
    plan: Plan,
    source: str,
    shard: str,
    pin: Pin | None,
    not_done: Sequence[NotDone],
    policy: RetryPolicy,
    *,
    max_retrying: int,
    now: int,
    rng: random.Random,
    explicit: Explicit | None = None,
) -> SettledShard:
    """Settle one shard of a batch.

    `state` is the shard before the batch; `source` is the prefix of its message ids, `shard` its name in the plan;
    `pin` is None if nothing ran (an empty turn: position and due retries stay); `not_done` is the outcome; `now` is in
    epoch milliseconds. With `explicit`, records without an outcome wait for their acks.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    before = state.checkpoint
    done = pin is not None and not not_done and _nothing_in_flight(state, plan, shard, pin, explicit)
    if done and pin is not None and pin.last is not None:
        node = _checkpoint_after(plan, shard, pin, before, RecordPosition.parse(pin.last))
        return SettledShard(node, InflightNode(txid=plan.txid, waiting=()), drained=pin.closed)
    settled = settle_records(state, plan, shard, pin, not_done, policy, max_retrying, now, rng, explicit)
    failures = {run.last: run.failures for run in state.dead}
    return SettledShard(
        checkpoint=_checkpoint_after(plan, shard, pin, before, settled.checkpoint),
        inflight=settled.inflight,
        dead_lettered=tuple(
            _letter(run, failures.get(run.last, ()), source, count, reached, txid=plan.txid, now=now)
            for run, count, reached in settled.buried
        ),
        drained=pin is not None and pin.closed,
        turns=settled.turns,
    )


def _nothing_in_flight(
    state: ShardState, plan: Plan, shard: str, pin: Pin, explicit: Explicit | None
) -> bool:
    """Tell whether a turn without failures leaves nothing to track: most do, and shards may be very many."""
    return (
        not (state.waiting or state.dead or state.pending)
        and shard not in plan.retries
        and shard not in plan.dead
        and (explicit is None or not pin.positions)
    )


def _checkpoint_after(
    plan: Plan, shard: str, pin: Pin | None, before: CheckpointNode | None, done: RecordPosition | None
) -> CheckpointNode:
    """Return the node of a shard after a batch; `done` is its safe checkpoint."""
    looked = pin if pin is not None and plan.reads(shard) and _saw_something(pin) else before
    return CheckpointNode(
        checkpoint=str(done.sequence) if done else None,
        sub=done.sub if done else -1,
        txid=plan.txid,
        position=_position_after(plan, shard, pin),
        arrival=(pin.arrival if pin else None) or (before.arrival if before else None),
        seen=looked.seen if looked else None,
        behind_ms=looked.behind_ms if looked else 0,
        read=(before.read if before else 0) + (pin.fresh if pin else 0),
    )


def _saw_something(pin: Pin) -> bool:
    """Tell whether a turn has found the shard's tip: one that was throttled at once has not."""
    return pin.seen is not None or pin.last is not None or pin.end != pin.start or pin.closed


def _position_after(plan: Plan, shard: str, pin: Pin | None) -> str:
    if pin is None:
        return plan.positions[shard]
    if not pin.closed:
        return pin.end
    before = parse_position(pin.start)
    last = (
        RecordPosition.parse(pin.last) if pin.last else before.record if isinstance(before, After) else None
    )
    return str(ShardEnd(last))


def _letter(
    run: Run,
    failures: Sequence[Failure],
    source: str,
    count: int,
    reached: Place,
    *,
    txid: int,
    now: int,
) -> DeadLetterRecord:
    where = run.first or f"after {run.prev}"
    last = run.last if count == run.count else str(reached)
    return DeadLetterRecord(
        message_id=f"{source}:{where}" if count == 1 else f"{source}:{where}..{last}",
        attempts=run.attempt,
        reason=failures[-1].reason if failures else "",
        time=now,
        txid=txid,
        count=count,
    )
