"""Builds a source's part of the query's progress: lag, in-flight, retrying and dead-lettered records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.tip_probe import Look
from kinesis_trident.spout.planner.state import SourceState

__all__ = ["progress_of"]

_LAST = 5
"""The number of losses that the progress describes."""

_SHARDS = 100
"""The number of shards that the progress names: those with most waiting records, then those with most lag."""


def progress_of(state: SourceState, looks: Mapping[str, Look], now: int) -> dict[str, Any]:
    """Return the report as JSON values, for all shards together and for each by name. Times are in milliseconds.

    `looks`: the last look at each shard; `now`: in epoch milliseconds by the clock of the looks.
    """
    letters, losses = state.dead_letters, state.losses.texts
    several = len(state.streams.created) > 1

    def name_of(shard: str) -> str:
        key = state.key_of(shard)
        return key.source if several else key.shard

    to_read = {shard for shard, node in state.lineage.items() if node.state != "drained"}
    lags = {
        shard: _lag(node, looks.get(shard), now) if shard in to_read else 0
        for shard, node in state.active.items()
    }
    known = max((lag for lag in lags.values() if lag is not None), default=0)
    shards = {
        name_of(shard): {
            "checkpoint": node.checkpoint.checkpoint if node.checkpoint else None,
            "behindMs": lags[shard],
            "unacked": node.unacked,
            "retrying": sum(run.count for run in node.waiting),
            "dead": sum(run.count for run in node.dead),
            "deadLettered": letters[shard].count if shard in letters else 0,
            **({"blocked": node.blocked} if node.blocked else {}),
        }
        for shard, node in _foremost(state.active, lags)
    }
    retrying = sum(run.count for run in state.waiting)
    return {
        "txid": state.settled,
        "behindMs": None if not known and None in lags.values() else known,
        "inflight": sum(node.held for node in state.active.values()),
        "unacked": state.unacked,
        "retrying": retrying,
        "deadLettered": sum(node.count for node in letters.values()),
        **({"acks": state.tally._asdict()} if any(state.tally) else {}),
        **({"losses": len(losses), "lastLosses": list(losses.values())[-_LAST:]} if losses else {}),
        "shards": shards,
        **({"otherShards": others} if (others := len(state.active) - len(shards)) else {}),
    }


def _foremost(
    states: Mapping[str, ShardState], lags: Mapping[str, int | None]
) -> list[tuple[str, ShardState]]:
    """Return the shards to name, by name."""
    if len(states) <= _SHARDS:
        return sorted(states.items())
    ranked = sorted(states, key=lambda shard: (-states[shard].held, -(lags[shard] or 0), shard))
    return sorted((shard, states[shard]) for shard in ranked[:_SHARDS])


def _lag(state: ShardState, look: Look | None, now: int) -> int | None:
    """Return the age of the oldest unread record of a shard; after a turn, the lag that the turn reported.

    None if unknown: the shard was not read or looked at yet, or the last turn was long ago.
    """
    if look is not None and look.position == state.position:
        if look.arrival is not None:
            return max(0, look.at - look.arrival) + max(0, now - look.noted)
        if look.more is not None:
            return 0
    if state.checkpoint is None or not state.begun or state.blocked:
        return None
    return state.checkpoint.behind_ms
