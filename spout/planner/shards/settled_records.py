"""Settles the records of one shard that are not done, by what a turn has done with them. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinesis_trident.checkpoint.model.nodes import InflightNode, NotDone, Pin, Plan
from kinesis_trident.spout.planner.plan import RUNS_A_SHARD, ShardState
from kinesis_trident.spout.positions import After, ShardEnd
from kinesis_trident.tracker.inflight.entries import Entry
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.position_keys import Keys, unpack
from kinesis_trident.tracker.reasons import FewReasons
from kinesis_trident.tracker.records import Place, RecordPosition, Run
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
    buried: Sequence[tuple[Run, int, Place]] = ()
    turns: Mapping[int, Keys] = field(default_factory=dict)


def settle_records(
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
    """Settle a turn; `pin` is None if nothing ran.

    Raises:
        ValueError: the outcome names records that the turn did not deliver.
    """
    tracker = tracker_of(state, policy)
    buried: Sequence[tuple[Run, int, Place]] = ()
    if pin is not None:
        given = _Given.of(tracker, plan.txid, pin, explicit, now)
        buried = tracker.turns.settle(
            plan.due(shard),
            pin.served,
            not_done,
            now,
            rng,
            through=pin.through,
            missing=pin.missing,
            fresh=_fresh(pin) if given is None else None,
            given=None if given is None else given.again,
        )
        if given is not None:
            tracker.explicit.give(given.txid, given.keys, given.row, given.deadline)
            # The records that a replay no longer found cannot come again.
            tracker.explicit.fail_given(given.txid, not_done, now, rng)
    return SettledRecords(
        tracker.checkpoint,
        inflight_of(tracker, plan.txid, max_retrying, explicit),
        buried,
        tracker.explicit.turns_in_use,
    )


def inflight_of(
    tracker: InflightRecordTracker, txid: int, max_retrying: int, explicit: Explicit | None
) -> InflightNode:
    """Return the unfinished records as they are stored, and whether the shard may read on."""
    # Exhausted runs are about to be written for people to read.
    few = FewReasons("shard")
    dead, waiting = few.of(tracker.dead), few.of(tracker.waiting)
    is_bound = explicit is not None and explicit.max_inflight is not None
    turns = tracker.explicit.turns_in_use
    return InflightNode(
        txid=txid,
        dead=dead,
        waiting=waiting,
        blocked=blocked_by(len(dead) + len(waiting), tracker.held if is_bound else 0, max_retrying, explicit),
        pending=tracker.explicit.pending,
        turns=tuple(sorted(turns)) if turns else (),
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

    tracker: InflightRecordTracker
    txid: int
    keys: Keys
    deadline: int
    row: int = 0

    @classmethod
    def of(
        cls, tracker: InflightRecordTracker, txid: int, pin: Pin, explicit: Explicit | None, now: int
    ) -> _Given | None:
        """None if records are done with their batch: the `ackMode` that they were read with decides."""
        if explicit is None or not pin.positions:
            return None
        return cls(tracker, txid, unpack(*pin.positions), now + explicit.timeout)

    def again(self, entry: Entry, served: int, through: Place) -> None:
        """Give the rows of a run that came again."""
        self.tracker.explicit.hand_over(
            entry,
            served,
            through,
            txid=self.txid,
            keys=self.keys,
            start=self.row,
            deadline=self.deadline,
        )
        self.row += served
