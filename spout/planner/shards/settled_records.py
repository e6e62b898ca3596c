"""Settles the records of one shard that are not done, by what a turn has done with them. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kinesis_trident.checkpoint.model.nodes import InflightNode, NotDone, Pin, Plan
from kinesis_trident.spout.planner.plan import RUNS_A_SHARD, ShardState
from kinesis_trident.spout.positions import After, ShardEnd
from kinesis_trident.tracker.garbage import collections_paused
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.inflight.whole_runs import ShardRuns, settle_runs
from kinesis_trident.tracker.position_keys import Keys, unpack
from kinesis_trident.tracker.reasons import FewReasons
from kinesis_trident.tracker.records import RecordPosition, Run, in_shard_order
from kinesis_trident.tracker.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Explicit:
    """The time that records read with `ackMode=explicit` wait for their acks, in milliseconds.

    `max_inflight`: the maximum of unfinished records of a shard; None for no limit, with `ackMode=batch`.
    """

    timeout: int
    max_inflight: int | None = None


@dataclass(frozen=True, slots=True)
class SettledRecords:
    """The records of a shard after a turn.

    `checkpoint`: everything up to it is done, None before the first record. `buried`: the exhausted runs that the turn
    has dealt with, with the number of records and the last one. `turns`: the positions of the rows of the batches that
    `inflight` names, by txid.
    """

    checkpoint: RecordPosition | None
    inflight: InflightNode
    buried: Sequence[tuple[Run, int, RecordPosition]] = ()
    turns: Mapping[int, Keys] = field(default_factory=dict)


def settle_in_one_pass(
    state: ShardState,
    plan: Plan,
    shard: str,
    pin: Pin,
    not_done: Sequence[NotDone],
    policy: RetryPolicy,
    max_retrying: int,
    now: int,
    rng: random.Random,
    explicit: Explicit | None,
) -> SettledRecords | None:
    """Settle a turn as `settle_tracked` does, in a fraction of the time; None where only a tracker can.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    if pin.missing or state.pending or state.turns or (explicit is not None and pin.positions):
        return None
    safe, through = state.safe, _last_read(state)
    before = ShardRuns(
        None if safe is None else str(safe),
        state.waiting,
        state.dead,
        None if through is None else str(through),
    )
    with collections_paused():
        settled = settle_runs(before, plan.due(shard), pin.served, _fresh(pin), not_done, policy, now, rng)
        if settled is None:
            return None
        held = sum(run.count for run in (*settled.waiting, *settled.dead))
        return SettledRecords(
            settled.checkpoint,
            _inflight(plan.txid, settled.waiting, settled.dead, held, max_retrying, explicit),
            [(run, run.count, run.last_position) for run in settled.buried],
        )


def settle_tracked(
    state: ShardState,
    plan: Plan,
    shard: str,
    pin: Pin | None,
    not_done: Sequence[NotDone],
    policy: RetryPolicy,
    max_retrying: int,
    now: int,
    rng: random.Random,
    explicit: Explicit | None,
) -> SettledRecords:
    """Settle a turn with a tracker, whatever it has done; `pin` is None if nothing ran.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    with collections_paused():
        tracker = tracker_of(state, policy)
        buried: list[tuple[Run, int, RecordPosition]] = []
        if pin is not None:
            given = _Given.of(plan.txid, pin, explicit, now)
            due = plan.due(shard)
            fresh_failed, buried = _settle_due(tracker, due, pin, not_done, given, now=now, rng=rng)
            if given is not None:
                tracker.explicit.give(given.txid, given.keys, given.row, given.deadline)
                # What a replay no longer found cannot come again.
                tracker.explicit.fail_given(given.txid, not_done, now, rng)
            elif (fresh := _fresh(pin)) is not None:
                last, count = fresh
                tracker.turns.delivered(RecordPosition.parse(last), count, fresh_failed, now, rng)
        settled = SettledRecords(
            tracker.checkpoint,
            inflight_of(tracker, plan.txid, max_retrying, explicit),
            buried,
            tracker.explicit.turns_in_use,
        )
        tracker.release()
    return settled


def inflight_of(
    tracker: InflightRecordTracker, txid: int, max_retrying: int, explicit: Explicit | None
) -> InflightNode:
    """Return the unfinished records as they are stored, and whether the shard may read on."""
    node = _inflight(txid, tracker.waiting, tracker.dead, tracker.held, max_retrying, explicit)
    return msgspec.structs.replace(
        node, pending=tracker.explicit.pending, turns=tuple(sorted(tracker.explicit.turns_in_use))
    )


def _inflight(
    txid: int,
    waiting: Sequence[Run],
    dead: Sequence[Run],
    held: int,
    max_retrying: int,
    explicit: Explicit | None,
) -> InflightNode:
    # Exhausted runs are about to be written for people to read.
    few = FewReasons("shard")
    return InflightNode(
        txid=txid,
        dead=few.of(dead),
        waiting=few.of(waiting),
        blocked=blocked_by(len(dead) + len(waiting), held, max_retrying, explicit),
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
    return InflightRecordTracker.restore(
        state.safe,
        state.waiting,
        state.dead,
        policy,
        pending=state.pending,
        turns=state.turns,
        through=_last_read(state),
    )


def _last_read(state: ShardState) -> RecordPosition | None:
    """Return the last record that was ever delivered, where that is known."""
    position = state.position
    return position.record if isinstance(position, After | ShardEnd) else None


def _fresh(pin: Pin) -> tuple[str, int] | None:
    """Return the last of the new records of a turn, and their number; None if there are none."""
    # Records that a replay no longer found were delivered once, and the outcome may name them.
    return None if pin.last is None else (pin.last, max(pin.fresh + pin.lost, 1))


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
    pieces = in_shard_order(not_done)
    ends = RecordPosition.parse_all([piece.last for piece in pieces])
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
