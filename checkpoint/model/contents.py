"""Finds fields of a node that contradict each other, which their types cannot show. Pure."""

from __future__ import annotations

from itertools import pairwise

from kinesis_trident.checkpoint.model.nodes import Batch, InflightNode, Node, Pin, Plan

__all__ = ["flaw_of"]


def flaw_of(node: Node) -> str:
    """Return what is wrong with a node whose fields all have the right type; the empty string if nothing is."""
    match node:
        case Batch():
            return _flaw_of_plan(node.plan)
        case Plan():
            return _flaw_of_plan(node)
        case InflightNode():
            for run in node.pending:
                if not run.open or len(run.open) % 2 or run.open[0] < 0:
                    return f"the ranges {run.open} of the pending records of txid {run.txid} are not valid ranges"
                if any(later <= sooner for sooner, later in pairwise(run.open)):
                    return (
                        f"the ranges {run.open} of the pending records of txid {run.txid} are not ascending"
                    )
        case Pin():
            if not -(2**63) <= node.xor < 2**64:
                return "xor has more than 64 bits"
    return ""


def _flaw_of_plan(plan: Plan) -> str:
    if any(later <= sooner for sooner, later in pairwise(plan.read)):
        return "read is not sorted"
    for field, shards in (("read", plan.read), ("retries", plan.retries), ("dead", plan.dead)):
        for shard in shards:
            if shard not in plan.positions:
                return f"{field} names shard {shard!r}, which has no position"
    return ""
