"""How Spark's checkpoint and ZooKeeper stand to each other when Spark names an offset. Pure.

Spark's offset carries our txid and the mark of its plan; ZooKeeper holds the newest settled txid and the plan above
it. They can disagree after a crash, a lost or restored ZooKeeper, a new or an old Spark checkpoint. Each case has
one outcome.
"""

from __future__ import annotations

from enum import Enum

from checkpoint.nodes import Plan

__all__ = ["Standing", "stands"]


class Standing(Enum):
    """What is to be done before going on from an offset."""

    AGREES = "the offset is the newest settled batch: plan the next"
    SETTLE = "the offset is the batch after the newest settled one, and its plan is stored: settle it"
    SPARK_BEHIND = "the offset is older than what is settled, or another batch was settled under its txid"
    ZOOKEEPER_BEHIND = "the offset is newer than anything that ZooKeeper holds: its data is lost or older"


def stands(offset: Plan, settled: int, settled_plan: str, stored: Plan | None) -> Standing:
    """Compare a finished batch, as Spark names it, with ZooKeeper.

    `settled` is the newest settled txid (0 for none) and `settled_plan` its plan's mark; `stored` is the plan that
    ZooKeeper holds under the next txid, if any. An empty mark is that of an offset before any batch: a Spark checkpoint
    that has got no further has never been given a row, so it goes on from ZooKeeper as a new one does.
    """
    if not offset.plan and offset.txid <= settled:
        return Standing.AGREES
    if offset.txid == settled:
        same = not settled_plan or offset.plan == settled_plan
        return Standing.AGREES if same else Standing.SPARK_BEHIND
    if offset.txid < settled:
        return Standing.SPARK_BEHIND
    if stored is not None and (stored.txid, stored.plan) == (offset.txid, offset.plan):
        return Standing.SETTLE
    return Standing.ZOOKEEPER_BEHIND
