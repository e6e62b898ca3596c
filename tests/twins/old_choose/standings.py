"""The standing of a shard with what a run sees of it: its looks, its drain, and who waits for whom. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kinesis_trident.checkpoint.model.standing import (
    AHEAD,
    BLOCKED,
    DRAINED,
    IDLE,
    PLAIN,
    READING,
    REFUSED,
    UNKNOWN,
    Looks,
    Standing,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights


def see_standings(
    names: Iterable[str],
    shards: Shards,
    sights: Sights,
    *,
    most: int | None = None,
    ahead: Container[str] = (),
) -> dict[str, Standing]:
    """Return how some shards stand.

    `most`: the maximum of the records of a shard that are read and not done. `ahead`: the shards that wait for the
    others, for the last plan.
    """
    states, stored, found, drained = shards.states, shards.standings, {}, sights.find_drained(shards)
    for shard in names:
        standing, look = stored.get(shard, PLAIN), sights.look_of(shard)
        if standing.looks > Looks.SELDOM:
            more = look.more if look is not None else None
            standing = standing.also(
                READING if sights.has_more(shard) else IDLE if more is False else UNKNOWN
            )
            if most and states[shard].held >= most:
                standing = standing.also(BLOCKED)
            if look is not None and look.refused is not None and look.position == states[shard].position:
                standing = standing.also(REFUSED)
            if shard in ahead:
                standing = standing.also(AHEAD)
            if shard in drained:
                standing = standing.also(DRAINED)
        # Else nothing that is seen of it has it read.
        found[shard] = standing
    return found


def find_rare(shards: Shards, sights: Sights) -> set[str]:
    """Return the shards, of the streams that are read now, that may be looked at otherwise than at their pace."""
    return (shards.standings.keys() | sights.find_drained(shards)) & shards.active.keys()
