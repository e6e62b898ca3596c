"""Says what a run sees of its shards: for its progress, and for `status` in ZooKeeper."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.facts import facts_of
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.run_status import Lag, Seen, StatusNode, lag_of, total_lag
from kinesis_trident.checkpoint.model.standing import WAITS_FOR_PARENTS, Share, Standing
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.sight import Sight
from kinesis_trident.spout.planner.state import SourceState

_SHARDS = 100
"""The number of shards that the progress names: those with most waiting records, then those with most lag."""

_NAMED = 200
"""The number of shards that the status names: about 20 KB."""

_SAMPLES, _SAMPLE_MS = 16, 60_000
"""How many lags the status has, and the milliseconds between two of them."""


def seen_of(state: ShardState, sight: Sight) -> Seen:
    """Return what was seen of a shard: the last look, if it was at the shard's position, and the last turn."""
    look, (word, since) = sight.look, sight.held or ("", None)
    if look is None:
        return Seen(standing=word, since=since)
    here = look.position == state.position
    arrival = None
    if here and look.arrival is not None:
        # By the clock of this process, so that it ages evenly whatever the server's clock says.
        arrival = look.answered_at - max(0, look.at - look.arrival)
    decided = look.more is not None or (look.refused is not None and not look.behind_ms)
    seen = look.answered_at if here and look.answered_at and (decided or arrival is not None) else None
    # A turn that has moved the position on since that look was answered, so nothing is refused now.
    refused = look.refused if here else None
    return Seen(seen, arrival, refused, look.why if refused else "", word, since)


See = Callable[[Iterable[str] | None], Mapping[str, Standing]]
"""Says how some shards stand, or all of the streams that are read now."""


def lags_of(state: SourceState, now: int, share: Share = Share.COUNTED) -> dict[str, Lag]:
    """Return the lag of each shard that has this part in the sum, by name."""
    return {
        shard: lag_of(node.checkpoint, seen_of(node, state.sights.of(shard)), now)
        for shard, node in state.shards.active.items()
        if state.shards.standing(shard).share is share
    }


def status_of(state: SourceState, standings: Mapping[str, Standing], now: int) -> StatusNode:
    """Return the status: the shards that are not read, or have something unread, unknown or refused, by name.

    All others are said together.
    """
    shown = {
        shard: seen_of(node, state.sights.of(shard))
        for shard, node in state.shards.active.items()
        if standings[shard].share is not Share.ZERO
    }
    # A look at one that waits for its parents does not say that it is read.
    waiting = {shard for shard in shown if WAITS_FOR_PARENTS in standings[shard].causes}
    shown |= {shard: msgspec.structs.replace(shown[shard], seen=None) for shard in waiting}
    seen: dict[str, int | None] = dict.fromkeys(waiting)
    for shard in shown.keys() - waiting:
        one, node = shown[shard], state.shards.active[shard].checkpoint
        stored = node.seen if node is not None and not node.behind_ms else None
        seen[shard] = None if one.arrival is not None or one.refused else one.seen or stored
    # Those that are not read or were not at their tips first, then those that were there longest ago.
    ranked = sorted(shown, key=lambda shard: (standings[shard].reads, seen[shard] or 0, shard))
    newest = max((at for at in seen.values() if at is not None), default=0)
    odd = [
        shard
        for shard in ranked
        if not standings[shard].reads or seen[shard] is None or (seen[shard] or 0) < newest - 2_000
    ]
    named = odd[:_NAMED]
    rest = [seen[shard] for shard in shown.keys() - set(named)]
    losses = state.losses
    return StatusNode(
        epoch=state.epoch,
        time=now,
        settled=state.shards.settled,
        seen=None if None in rest else min((at for at in rest if at is not None), default=None),
        shards={shard: shown[shard] for shard in sorted(named)},
        retention={name: info.retention_hours for name, info in state.streams.infos.items()},
        accounts={name: info.account for name, info in state.streams.infos.items()},
        losses=losses.count,
        lost=losses.last[-1][:500] if losses.last else "",
        counts=state.counter.total(),
        taken=state.consumers.taken,
    )


def progress_of(state: SourceState, layout: Layout, see: See, now: int) -> dict[str, Any]:
    """Return the report as JSON values, for all shards together and for each by name. Times are in milliseconds.

    `see`: says how they stand; `now`: in epoch milliseconds by the clock of the looks.
    """
    found, losses, tally = state.shards, state.losses, state.counter.tally
    several = len(state.streams.created) > 1

    def name_of(shard: str) -> str:
        key = layout.key_of(shard)
        return key.source if several else key.shard

    lags, apart = lags_of(state, now), lags_of(state, now, Share.APART)
    foremost = _choose_foremost(found.active, {**lags, **apart})
    standings = see([shard for shard, _ in foremost])
    shards = {
        name_of(shard): {
            "checkpoint": node.checkpoint.checkpoint if node.checkpoint else None,
            **_figures_of(state, shard, standings[shard], now),
        }
        for shard, node in foremost
    }
    return {
        "application": layout.application,
        "streams": sorted(state.streams.created),
        "txid": found.settled,
        "behindMs": total_lag(lags) if lags or not apart else None,
        **({"paused": len(apart), "pausedBehindMs": total_lag(apart)} if apart else {}),
        "inflight": sum(node.held for node in found.active.values()),
        "unacked": found.unacked,
        "retrying": sum(node.retrying for node in found.active.values()),
        "deadLettered": sum(node.count for node in found.dead_letters.values()),
        **({"acks": tally._asdict()} if any(tally) else {}),
        **({"losses": losses.count, "lastLosses": list(losses.last)} if losses.count else {}),
        "counts": msgspec.to_builtins(state.counter.total()),
        "shards": shards,
        **({"otherShards": others} if (others := len(found.active) - len(shards)) else {}),
    }


def _figures_of(state: SourceState, shard: str, standing: Standing, now: int) -> dict[str, Any]:
    """Return the figures of a shard for the progress."""
    node, info = state.shards.active[shard], state.streams.info_of(shard)
    seen = seen_of(node, state.sights.of(shard))
    hours = info.retention_hours if info is not None else None
    letters = state.shards.dead_letters.get(shard)
    facts = facts_of(node.checkpoint, node.inflight, letters, seen, standing, hours, now)
    refused = {} if seen.refused is None else {f"{seen.why}Ms": max(0, now - seen.refused)}
    return {**msgspec.to_builtins(facts.figures), **refused}


def _choose_foremost(
    states: Mapping[str, ShardState], lags: Mapping[str, Lag]
) -> list[tuple[str, ShardState]]:
    """Return the shards to name, by name."""
    if len(states) <= _SHARDS:
        return sorted(states.items())
    ranked = sorted(
        states, key=lambda shard: (-states[shard].held, -(lags.get(shard, Lag(0)).ms or 0), shard)
    )
    return sorted((shard, states[shard]) for shard in ranked[:_SHARDS])


class StatusNotes:
    """Says in ZooKeeper, every few seconds, and in the log what a run sees; no query waits for it."""

    def __init__(self, store: SourceStore, state: SourceState, around: Surroundings) -> None:
        self._store = store
        self._state = state
        self._around = around
        self._due = -math.inf
        self._apart = set[str]()
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_SAMPLES)

    def note(self, see: See) -> None:
        """Write a note if one is due; `see` says how the shards stand."""
        now, period = self._around.steady(), self._around.status_period
        if period is None or (now < self._due and not self._store.status.learn()):
            return
        self._due = now + period
        at = self._around.now()
        standings = see(None)
        self._sample(standings, at)
        self._see(standings, at)
        status = status_of(self._state, standings, at)
        lags = tuple((one, lag) for one, lag, _ in self._samples)
        reads = tuple(read for *_, read in self._samples)
        self._store.status.tell(msgspec.structs.replace(status, lags=lags, reads=reads))
        sights, states = self._state.sights, self._state.shards.states
        refused = {
            shard: look
            for shard, sight in sights.by_shard.items()
            if (look := sight.look) is not None and look.refused is not None
            if shard in states and states[shard].position == look.position
        }
        self._state.sights = self._state.life.log_refused(refused, at, sights)

    def _see(self, standings: Mapping[str, Standing], at: int) -> None:
        """Note since when each shard that is not read stands as it does."""
        sights, changed = self._state.sights, {}
        for shard, standing in standings.items():
            sight, word = sights.of(shard), standing.held_by
            if word != (sight.held[0] if sight.held else ""):
                changed[shard] = msgspec.structs.replace(sight, held=(word, at) if word else None)
        self._state.sights = sights.put(changed)

    def _sample(self, standings: Mapping[str, Standing], at: int) -> None:
        """Remember the lag and the records read, about once a minute.

        They begin anew after the clock stepped back, and where the lag is that of other shards than before.
        """
        samples, apart = self._samples, {s for s, one in standings.items() if one.share is Share.APART}
        if (samples and at < samples[-1][0]) or apart != self._apart:
            samples.clear()
        self._apart = apart
        if not samples or at - samples[-1][0] >= _SAMPLE_MS:
            lags = lags_of(self._state, at)
            lag = total_lag(lags) if lags or not apart else None
            stands = {shard for shard, one in lags.items() if one.ms is None or not standings[shard].reads}
            sights = self._state.sights
            stood = {shard for shard, one in sights.by_shard.items() if one.stood}
            changed = {s: msgspec.structs.replace(sights.of(s), stood=s in stands) for s in stood ^ stands}
            self._state.sights = sights.put(changed)
            if lag and lag in {lags[shard].ms for shard in (stood - stands) & lags.keys()}:
                # What grew while the shard stood is no growth since it is read again.
                samples.clear()
            if lag is not None:
                nodes = (one.checkpoint for one in self._state.shards.active.values())
                samples.append((at, lag, sum(node.read for node in nodes if node is not None)))
