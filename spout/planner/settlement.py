"""Settles one shard of a finished batch: moves its checkpoint and queues its failed records. Pure.

Settling happens when Spark asks for the next offset, which it does only after it has committed the batch. It takes
the plan, the turn's pin and the outcome, and returns the shard's two nodes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    InflightNode,
    NotDone,
    Pin,
    Plan,
)
from kinesis_trident.spout.planner.plan import RUNS_A_SHARD, ShardState
from kinesis_trident.spout.positions import After, ShardEnd, parse_position
from kinesis_trident.tracker.garbage import collections_paused
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.position_keys import Keys, unpack
from kinesis_trident.tracker.reasons import FewReasons
from kinesis_trident.tracker.records import Failure, RecordPosition, Run, in_shard_order
from kinesis_trident.tracker.retry import RetryPolicy

__all__ = ["Explicit", "SettledShard", "blocked_by", "inflight_of", "settle_shard", "tracker_of"]


@dataclass(frozen=True, slots=True)
class Explicit:
    """The time that records read with `ackMode=explicit` wait for their acks, in milliseconds.

    `max_inflight`: the maximum of unfinished records of a shard; None for no limit, with `ackMode=batch`.
    """

    timeout: int
    max_inflight: int | None = None


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
        return SettledShard(node, InflightNode(txid=plan.txid), drained=pin.closed)
    with collections_paused():
        tracker = tracker_of(state, policy)
        letters: list[DeadLetterRecord] = []
        if pin is not None:
            given = _Given.of(plan.txid, pin, explicit, now)
            due = plan.due(shard)
            fresh_failed, buried = _settle_due(tracker, due, pin, not_done, given, now=now, rng=rng)
            failures = {run.last: run.failures for run in state.dead}
            letters = [
                _letter(run, failures.get(run.last, ()), source, count, reached, txid=plan.txid, now=now)
                for run, count, reached in buried
            ]
            if given is not None:
                tracker.explicit.give(given.txid, given.keys, given.row, given.deadline)
                # What a replay no longer found cannot come again.
                tracker.explicit.fail_given(given.txid, not_done, now, rng)
            elif pin.last is not None:
                # Records that a replay no longer found were delivered once, and the outcome may name them.
                count = max(pin.fresh + pin.lost, 1)
                tracker.turns.delivered(RecordPosition.parse(pin.last), count, fresh_failed, now, rng)
        settled = SettledShard(
            checkpoint=_checkpoint_after(plan, shard, pin, before, tracker.checkpoint),
            inflight=inflight_of(tracker, plan.txid, max_retrying, explicit),
            dead_lettered=tuple(letters),
            drained=pin is not None and pin.closed,
            turns=tracker.explicit.turns_in_use,
        )
        tracker.release()
    return settled


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


def inflight_of(
    tracker: InflightRecordTracker, txid: int, max_retrying: int, explicit: Explicit | None
) -> InflightNode:
    """Return the unfinished records as they are stored, and whether the shard may read on."""
    dead, waiting = tracker.dead, tracker.waiting
    # Exhausted runs are about to be written for people to read.
    few = FewReasons("shard")
    return InflightNode(
        txid=txid,
        dead=few.of(dead),
        waiting=few.of(waiting),
        blocked=blocked_by(len(dead) + len(waiting), tracker.held, max_retrying, explicit),
        pending=tracker.explicit.pending,
        turns=tuple(sorted(tracker.explicit.turns_in_use)),
    )


def blocked_by(retrying: int, held: int, max_retrying: int, explicit: Explicit | None) -> str:
    """Return why a shard with so many failed runs and unfinished records reads nothing new; empty if it reads on."""
    max_retrying = min(max_retrying, RUNS_A_SHARD)
    if retrying >= max_retrying:
        return (
            f"{retrying} failed runs of records wait for a retry, and maxRetryingRecords is "
            f"{max_retrying}: the shard reads nothing new until some are done"
        )
    if explicit is not None and explicit.max_inflight is not None and held >= explicit.max_inflight:
        return (
            f"{held} records are read and not done, and maxInflightRecords is "
            f"{explicit.max_inflight}: the shard reads nothing new until some are acked"
        )
    return ""


def tracker_of(state: ShardState, policy: RetryPolicy) -> InflightRecordTracker:
    """Build the tracker of a shard from its nodes."""
    position = state.position
    return InflightRecordTracker.restore(
        state.safe,
        state.waiting,
        state.dead,
        policy,
        pending=state.pending,
        turns=state.turns,
        through=position.record if isinstance(position, After | ShardEnd) else None,
    )


@dataclass(slots=True)
class _Given:
    """Adds the rows of a turn to the tracker; `row` is the next one."""

    txid: int
    keys: Keys
    deadline: int
    row: int = 0

    @classmethod
    def of(cls, txid: int, pin: Pin, explicit: Explicit | None, now: int) -> _Given | None:
        """None if records are done with their batch: the `ackMode` that they were read with decides."""
        if explicit is None or not pin.positions:
            return None
        return cls(txid, unpack(*pin.positions), now + explicit.timeout)


def _saw_something(pin: Pin) -> bool:
    """Tell whether a turn has found the shard's tip: one that was throttled at once has not."""
    return pin.seen is not None or pin.last is not None or pin.end != pin.start or pin.closed


def _settle_due(
    tracker: InflightRecordTracker,
    due: Sequence[tuple[Run, bool]],
    pin: Pin,
    not_done: Sequence[NotDone],
    given: _Given | None,
    *,
    now: int,
    rng: random.Random,
) -> tuple[list[NotDone], list[tuple[Run, int, RecordPosition]]]:
    """Settle the runs delivered again.

    Returns the rest of the outcome, which belongs to the new records, and for each dead-lettered run the number of its
    records and the last one.
    """
    buried = []
    through = RecordPosition.parse(pin.through) if pin.through else None
    if not due:
        return list(not_done), []
    ends, pieces = in_shard_order(not_done)
    missing = set(pin.missing)
    seen = 0
    lasts = RecordPosition.parse_all([run.last for run, _ in due])
    for index, ((run, dead), last) in enumerate(zip(due, lasts, strict=True)):
        served = pin.served[index] if index < len(pin.served) else -1
        reached = last
        start = seen
        while seen < len(ends) and ends[seen] <= reached:
            seen += 1
        if served < 0:
            continue
        mine = pieces[start:seen]
        gone = index in missing
        if through is not None and not gone and served < run.count:
            reached = min(through, reached)
        if dead:
            count = run.count if gone else served
            tracker.turns.dead_lettered(run, count, reached)
            if count:
                buried.append((run, count, reached))
            continue
        found: Run | None = run
        if gone:
            found = tracker.turns.expired(run, served, now)
        if found is not None and given is not None:
            tracker.explicit.give_again(
                found,
                served,
                reached,
                txid=given.txid,
                keys=given.keys,
                start=given.row,
                deadline=given.deadline,
            )
            given.row += served
        elif found is not None:
            tracker.turns.redelivered(found, served, reached, mine, now, rng)
    return pieces[seen:], buried


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
    reached: RecordPosition,
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
