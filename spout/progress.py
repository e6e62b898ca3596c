"""What the query's progress shows of a source: lag, in-flight, retrying and dead-lettered records. Pure."""

from __future__ import annotations

from typing import Any

from spout.state import SourceState

__all__ = ["progress_of"]

_LAST = 5
"""Losses that the progress spells out."""


def progress_of(state: SourceState) -> dict[str, Any]:
    """The report as JSON values: for all shards together, and for each by name. Times are in milliseconds."""
    letters, losses = state.dead_letters, state.losses.said
    several = len(state.streams.created) > 1

    def name_of(shard: str) -> str:
        key = state.key_of(shard)
        return key.source if several else key.shard

    shards = {
        name_of(shard): {
            "checkpoint": node.checkpoint.checkpoint if node.checkpoint else None,
            "behindMs": node.checkpoint.behind_ms if node.checkpoint else None,
            "unacked": node.unacked,
            "retrying": sum(run.count for run in node.waiting),
            "dead": sum(run.count for run in node.dead),
            "deadLettered": letters[shard].count if shard in letters else 0,
            **({"blocked": node.blocked} if node.blocked else {}),
        }
        for shard, node in sorted(state.active.items())
    }
    nodes = [node.checkpoint for node in state.active.values() if node.checkpoint]
    retrying = sum(run.count for run in state.waiting)
    return {
        "txid": state.settled,
        "behindMs": max((node.behind_ms for node in nodes), default=0),
        "inflight": sum(node.held for node in state.active.values()),
        "unacked": state.unacked,
        "retrying": retrying,
        "deadLettered": sum(node.count for node in letters.values()),
        **({"acks": state.amender.tally._asdict()} if any(state.amender.tally) else {}),
        **({"losses": len(losses), "lastLosses": list(losses.values())[-_LAST:]} if losses else {}),
        "shards": shards,
    }
