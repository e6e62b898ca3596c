"""Builds a source's part of the query's progress: lag, in-flight, retrying and dead-lettered records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.run_status import Lag, total_lag
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.sights import lags_of, retention_ms, sight_of
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.tip.looks import Look

_LAST = 5
"""The number of losses that the progress describes."""

_SHARDS = 100
"""The number of shards that the progress names: those with most waiting records, then those with most lag."""


def progress_of(state: SourceState, layout: Layout, looks: Mapping[str, Look], now: int) -> dict[str, Any]:
    """Return the report as JSON values, for all shards together and for each by name. Times are in milliseconds.

    `looks`: the last look at each shard; `now`: in epoch milliseconds by the clock of the looks.
    """
    found, losses, tally = state.shards, state.losses.texts, state.counter.tally
    letters = found.dead_letters
    several = len(state.streams.created) > 1

    def name_of(shard: str) -> str:
        key = layout.key_of(shard)
        return key.source if several else key.shard

    lags = lags_of(state, looks, now)
    shards = {
        name_of(shard): {
            "checkpoint": node.checkpoint.checkpoint if node.checkpoint else None,
            **_sight_of(state, shard, lags[shard], looks.get(shard), now),
            "unacked": node.unacked,
            "retrying": sum(run.count for run in node.waiting),
            "dead": sum(run.count for run in node.dead),
            "deadLettered": letters[shard].count if shard in letters else 0,
            **({"blocked": node.blocked} if node.blocked else {}),
        }
        for shard, node in _choose_foremost(found.active, lags)
    }
    return {
        "application": layout.application,
        "streams": sorted(state.streams.created),
        "txid": found.settled,
        "behindMs": total_lag(lags),
        "inflight": sum(node.held for node in found.active.values()),
        "unacked": found.unacked,
        "retrying": sum(run.count for run in found.waiting),
        "deadLettered": sum(node.count for node in letters.values()),
        **({"acks": tally._asdict()} if any(tally) else {}),
        **({"losses": len(losses), "lastLosses": list(losses.values())[-_LAST:]} if losses else {}),
        "counts": msgspec.to_builtins(state.counter.total()),
        "shards": shards,
        **({"otherShards": others} if (others := len(found.active) - len(shards)) else {}),
    }


def _sight_of(state: SourceState, shard: str, lag: Lag, look: Look | None, now: int) -> dict[str, Any]:
    """Return the lag of a shard, when its end was last looked at, and what is left until unread records expire."""
    retention, sight = retention_ms(state, shard), sight_of(state.shards.active[shard], look)
    left = None if retention is None or lag.ms is None else max(0, retention - lag.ms)
    refused = {} if sight.refused is None else {f"{sight.why}Ms": max(0, now - sight.refused)}
    return {"behindMs": lag.ms, "seenAt": lag.seen_at, "retentionLeftMs": left, **refused}


def _choose_foremost(
    states: Mapping[str, ShardState], lags: Mapping[str, Lag]
) -> list[tuple[str, ShardState]]:
    """Return the shards to name, by name."""
    if len(states) <= _SHARDS:
        return sorted(states.items())
    ranked = sorted(states, key=lambda shard: (-states[shard].held, -(lags[shard].ms or 0), shard))
    return sorted((shard, states[shard]) for shard in ranked[:_SHARDS])
