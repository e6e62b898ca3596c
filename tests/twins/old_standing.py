"""The questions that were asked of a shard, one by one, before it had a standing: the twin of its flags."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.looks import Look


def has_ended(tip: Sights, shards: Shards, shard: str) -> bool:
    """Return whether, after `stop_at_tip`, a shard has been read that far."""
    return tip.of(shard).beyond or (tip.of(shard).at_tip and shard not in shards.closed)


def have_all_ended(tip: Sights, shards: Shards) -> bool:
    """Return whether, after `stop_at_tip`, all these shards have been read that far."""
    return tip.until is not None and all(has_ended(tip, shards, shard) for shard in shards.positions)


def is_waiting(shards: Shards, shard: str) -> bool:
    """Return whether a shard is listed and may not be read yet: its parents come first."""
    return (
        shard in shards.lineage and shards.lineage[shard].state != "drained" and shard not in shards.positions
    )


def choose_blocked(shards: Shards) -> set[str]:
    """Return the shards that were looked at now and then because they are not read."""
    return {
        shard
        for shard, state in shards.active.items()
        if (state.blocked if shard in shards.positions else is_waiting(shards, shard))
    }


def is_to_be_read(shards: Shards, shard: str) -> bool:
    """Return whether a shard's unread records are a loss when they expire, if its stream is read."""
    return shard in shards.lineage and shards.lineage[shard].state != "drained"


def find_to_read(tip: Sights, shards: Shards) -> list[str]:
    """Return the shards known to have something new at their positions."""
    return sorted(
        shard for shard in shards.positions if tip.of(shard).more and not has_ended(tip, shards, shard)
    )


def find_closed_to(
    tip: Sights, shards: Shards, looks: Mapping[str, Look], most: int | None
) -> tuple[set[str], list[str], set[str]]:
    """Return the shards that cannot be read now, those that can, and those with a part in the alignment."""
    states, wanted = shards.states, find_to_read(tip, shards)
    closed_to = {shard for shard in wanted if states[shard].blocked or (most and states[shard].held >= most)}
    can_be_read = [shard for shard in wanted if shard not in closed_to]
    counted = {shard for shard in shards.positions if not has_ended(tip, shards, shard)}
    for shard in counted:
        look = looks.get(shard)
        if shard not in wanted and (look is None or look.more is not False):
            closed_to.add(shard)
    return closed_to | shards.childless, can_be_read, counted | shards.childless


def find_prefetched(tip: Sights, shards: Shards, taken: Collection[str] = ()) -> set[str]:
    """Return the shards that may be read beside a batch."""
    return {
        shard
        for shard in shards.positions
        if shard not in taken and not shards.states[shard].blocked and not has_ended(tip, shards, shard)
    }


def is_read(snapshot: Snapshot, shard: str) -> bool:
    """Return whether the newest run reads the stream of a shard, and the shard is not read to its end."""
    lineage = snapshot.shards.get(shard)
    if lineage is not None and lineage.state == "drained":
        return False
    return snapshot.layout.key_of(shard).stream in snapshot.active
