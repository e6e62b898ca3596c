"""The lineage of a stream's shards: which may be read now, and from where. Pure.

A shard is *drained* only when GetRecords gave no next iterator; that ListShards shows it closed is not enough.
Children are read after all their parents; a parent that is no longer listed counts as done. Shards found after the
first start come from resharding, so they are read from TRIM_HORIZON (as Flink's enumerator does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from checkpoint.nodes import ShardLineage
from spout.kinesis import Shard
from spout.positions import TRIM_HORIZON, Position, ShardEnd, parse_position

__all__ = ["Lineage", "adopted", "drained", "first_listing", "listed_again", "readable"]

Lineage = Mapping[str, ShardLineage]


def first_listing(
    listed: Sequence[Shard], start: Position | Mapping[str, Position]
) -> dict[str, ShardLineage]:
    """The lineage at the very first start: every shard begins where the user asked for, all alike or each by its id."""
    starts = start if isinstance(start, Mapping) else {shard.id: start for shard in listed}
    lineage = {shard.id: _lineage(shard, starts[shard.id]) for shard in listed}
    return drained(lineage, [shard for shard, at in starts.items() if isinstance(at, ShardEnd)])


def listed_again(lineage: Lineage, listed: Sequence[Shard]) -> dict[str, ShardLineage]:
    """The lineage after a later listing: new shards start at TRIM_HORIZON, what retention removed is forgotten.

    A shard that is gone from the listing is forgotten even if it was not drained: nothing is left to read.
    """
    now = {shard.id: shard for shard in listed}
    result = {}
    for shard in listed:
        known = lineage.get(shard.id)
        if known is None:
            result[shard.id] = _lineage(shard, TRIM_HORIZON)
        elif shard.closed and known.state == "open":
            result[shard.id] = msgspec.structs.replace(known, state="closed")
        else:
            result[shard.id] = known
    return {shard: result[shard] for shard in sorted(now)}


def drained(lineage: Lineage, shards: Sequence[str]) -> dict[str, ShardLineage]:
    """The lineage once these shards have been read to their end."""
    gone = set(shards)
    return {
        shard: msgspec.structs.replace(node, state="drained") if shard in gone else node
        for shard, node in lineage.items()
    }


def adopted(lineage: Lineage, positions: Mapping[str, str]) -> dict[str, ShardLineage]:
    """A lineage listed afresh, where an offset tells how far its shards were read.

    Shards that the offset does not know came of resharding after it, so they are read from TRIM_HORIZON, not from
    where the user asked to start; those it has at their end are drained, else their children would wait for ever.
    """
    result = {}
    for shard, node in lineage.items():
        at = positions.get(shard)
        if at is None:
            result[shard] = msgspec.structs.replace(node, start=str(TRIM_HORIZON))
        elif isinstance(parse_position(at), ShardEnd):
            result[shard] = msgspec.structs.replace(node, state="drained")
        else:
            result[shard] = node
    return result


def readable(lineage: Lineage, ordering: str) -> list[str]:
    """The shards whose new records may be read now, sorted; `ordering` is parentFirst or none."""

    def done(shard: str) -> bool:
        return shard not in lineage or lineage[shard].state == "drained"

    return sorted(
        shard
        for shard, node in lineage.items()
        if node.state != "drained" and (ordering == "none" or all(done(parent) for parent in node.parents))
    )


def _lineage(shard: Shard, start: Position) -> ShardLineage:
    return ShardLineage(parents=shard.parents, state="closed" if shard.closed else "open", start=str(start))
