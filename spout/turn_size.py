"""Estimates what a batch will read, from the turns before, so that few records need few tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.partition import Amount

_WRITTEN, _WRITTEN_BYTES = 1.0, 2**20 / 1000
"""The most that Kinesis accepts for a shard in a millisecond: records, and their bytes."""


class TurnSize(msgspec.Struct, frozen=True, gc=False):
    """The last turn of a shard: its new records, and when it was `settled`, in epoch milliseconds.

    `at_tip`: it left nothing unread; `period_ms`: the time since the turn before, if that left nothing either.
    `record_bytes`: the size of a record in the last turn that had any; None before.
    """

    settled: int
    at_tip: bool
    records: int
    period_ms: int | None
    record_bytes: float | None

    @classmethod
    def after(cls, before: TurnSize | None, pin: Pin | None, now: int) -> TurnSize | None:
        """Return the size of a turn that is settled at `now`; None of a shard that has ended: nothing more is read."""
        if pin is None or pin.closed:
            return None
        size = pin.cost[0] if pin.cost else 0
        at_tip = pin.seen is not None
        return cls(
            settled=now,
            at_tip=at_tip,
            records=pin.fresh,
            period_ms=now - before.settled if at_tip and before is not None and before.at_tip else None,
            record_bytes=size / pin.fresh if pin.fresh else getattr(before, "record_bytes", None),
        )


def count_fitting(turn: TurnSize | None, size: int) -> int:
    """Return how many records of a shard fit into so many bytes, if they are like those of a turn; at least one."""
    if turn is None or not turn.record_bytes:
        return 1
    return max(1, int(size // turn.record_bytes))


def predict(plan: Plan, turns: Mapping[str, TurnSize], now: int) -> Amount | None:
    """Return what a batch that is planned at `now` will read; None if that is unknown, as with a backlog.

    A shard whose last turn left nothing unread is expected to have received as much in each millisecond since as in
    that turn, and at most what Kinesis accepts. Otherwise only the limits of the plan bound a turn.
    """
    known = [turn.record_bytes for turn in turns.values() if turn.record_bytes is not None]
    average = sum(known) / len(known) if known else math.inf
    records = size = 0.0
    for shard in plan.shards:
        turn = turns.get(shard)
        one = average if turn is None or turn.record_bytes is None else turn.record_bytes
        wanted = _new_records(plan, shard, turn, one, now) if plan.reads(shard) else 0.0
        wanted += sum(run.count for runs in (plan.retries, plan.dead) for run in runs.get(shard, ()))
        if math.isinf(wanted) or (wanted and math.isinf(one)):
            return None
        records += wanted
        size += wanted * one if wanted else 0.0
    return Amount(math.ceil(records), math.ceil(size))


def _new_records(plan: Plan, shard: str, turn: TurnSize | None, record_bytes: float, now: int) -> float:
    """Return how many new records of so many bytes a turn will read; infinite if unknown."""
    bound = plan.most_new(shard)
    most = math.inf if bound is None else float(bound)
    size = math.inf if plan.limitBytes is None else plan.limitBytes
    if turn is not None and turn.at_tip:
        passed = max(0, now - turn.settled)
        if turn.period_ms:
            most = min(most, turn.records * passed / turn.period_ms)
        most, size = min(most, passed * _WRITTEN), min(size, passed * _WRITTEN_BYTES)
    if 0 < record_bytes < math.inf:
        most = min(most, size / record_bytes)
    return most
