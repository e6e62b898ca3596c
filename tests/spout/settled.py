"""Settled batches, as the sights learn from them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kinesis_trident.checkpoint.model.nodes import Pin, Plan, SettledNode
from kinesis_trident.spout.planner.settling.finished_batch import Committed, CommittedBatch
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled


def settled(
    plan: Plan, pins: Mapping[str, Pin] | None = None, now: int = 0, since: Mapping[str, int] | None = None
) -> BatchSettled:
    """Return the event of a batch that was settled with these pins."""
    # Each pin is of the batch, whatever plan it names.
    found = {shard: msgspec.structs.replace(pin, plan=plan.plan) for shard, pin in (pins or {}).items()}
    finished = CommittedBatch(plan, found, Committed({}), False, since or {}, {})
    node = SettledNode(txid=plan.txid, plan=plan.plan)
    return BatchSettled(finished, now, (), node, {}, (), ())


def make_pin(
    count: int = 0,
    *,
    size: int = 100,
    at_tip: bool = True,
    closed: bool = False,
    reads: int = 0,
    busy_ms: int = 0,
    subscribing: int = 0,
    ahead: tuple[int, int] | None = None,
) -> Pin:
    """Return the pin of a turn with so many new records of so many bytes."""
    place = "TRIM_HORIZON"
    return Pin(
        txid=1,
        plan="p",
        epoch=1,
        start=place,
        end=place,
        last=None,
        count=count,
        fresh=count,
        digest="",
        xor=0,
        closed=closed,
        seen=1 if at_tip else None,
        cost=(count * size, 0, 0, reads, busy_ms, subscribing),
        ahead=ahead,
    )
