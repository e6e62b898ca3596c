"""The lineage of a stream's shards decides which may be read now, and from where. Pure.

A shard is *drained* only when GetRecords returned no next iterator; ListShards showing it as closed is not enough.
Children are read after all their parents; a parent that is no longer listed counts as done. Shards found after the
first start come from resharding, so they are read from TRIM_HORIZON (as Flink's enumerator does). But ancestors of a
known shard were left out on purpose, because they closed before the start position: they stay left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.options.modes import ShardOrdering
from kinesis_trident.spout.options.starting_position import REST, PositionSpec, resolve_position
from kinesis_trident.spout.positions import TRIM_HORIZON, Position, ShardEnd, parse_position

Lineage = Mapping[str, ShardLineage]


def start_lineage(
    listed: Sequence[Shard], start: Position | Mapping[str, Position], now: int = 0
) -> dict[str, ShardLineage]:
    """Return the lineage at the very first start: shards start where the user asked, all alike or each by its id.

    `now`: by the server's clock in epoch milliseconds, here and below.
    """
    starts = start if isinstance(start, Mapping) else {shard.id: start for shard in listed}
    lineage = {shard.id: _make_lineage(shard, starts[shard.id], now) for shard in listed}
    return mark_drained(lineage, [shard for shard, at in starts.items() if isinstance(at, ShardEnd)])


def add_new_shards(
    lineage: Lineage,
    listed: Sequence[Shard],
    start: Position = TRIM_HORIZON,
    missed: Collection[str] = (),
    now: int = 0,
) -> dict[str, ShardLineage]:
    """Return the lineage after a listing of new shards: they start at TRIM_HORIZON, and their parents are closed.

    The listing may name known shards too. `start`: of those without a known ancestor. `missed`: those that another
    listing has lacked, of whose descendants some may be known.
    """
    # A listing of before a known shard has what it came from, and not the shard itself.
    parents = parents_of(lineage) | {shard.id: shard.parents for shard in listed}
    behind = ancestors(parents, lineage).difference(missed)
    new = {
        shard.id: _make_lineage(
            shard, start if ancestors(parents, [shard.id]).isdisjoint(lineage) else TRIM_HORIZON, now
        )
        for shard in listed
        if shard.id not in lineage and shard.id not in behind
    }
    closed = {shard.id for shard in listed if shard.closed}
    closed.update(parent for node in new.values() for parent in node.parents)
    result = {
        shard: msgspec.structs.replace(node, state="closed")
        if shard in closed and node.state == "open"
        else node
        for shard, node in {**lineage, **new}.items()
    }
    return dict(sorted(result.items()))


def mark_drained(lineage: Lineage, shards: Sequence[str]) -> dict[str, ShardLineage]:
    """Return the lineage after these shards were read to their end."""
    gone = set(shards)
    return {
        shard: msgspec.structs.replace(node, state="drained") if shard in gone else node
        for shard, node in lineage.items()
    }


def left_out(lineage: Lineage, is_held: Callable[[str], bool]) -> set[str]:
    """Return the shards that an offset need not name: whoever adopts it takes the ancestors of its shards for done.

    They are drained, and among the shards that come from them at least one is named. `is_held`: tells whether a shard
    has records in flight; such a shard is named.
    """
    done = {shard for shard, node in lineage.items() if node.state == "drained" and not is_held(shard)}
    return done & ancestors(parents_of(lineage), lineage.keys() - done) if done else done


def add_left_out(positions: Mapping[str, str], parents: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the positions of an offset with those of the known shards that it leaves out: they are at their ends."""
    return dict.fromkeys(ancestors(parents, positions) & parents.keys(), str(ShardEnd())) | dict(positions)


def adopt_positions(
    lineage: Lineage, listed: Sequence[Shard], positions: Mapping[str, str], now: int = 0
) -> dict[str, ShardLineage]:
    """Return the lineage after a full listing, with the positions of an offset.

    Shards that the offset does not have come from later resharding, so they are read from TRIM_HORIZON, not from the
    user's start position; but the ancestors of its shards were done before it. Shards that it has at their end are
    drained, otherwise their children would wait for ever. Known shards that are not listed stay until the next listing.
    """
    parents = parents_of(lineage) | {shard.id: shard.parents for shard in listed}
    whole = add_left_out(positions, parents)
    result = {shard.id: lineage.get(shard.id) or _make_lineage(shard, TRIM_HORIZON, now) for shard in listed}
    for shard, node in result.items():
        if shard not in whole:
            result[shard] = msgspec.structs.replace(node, start=str(TRIM_HORIZON))
    ended = [shard for shard, at in whole.items() if isinstance(parse_position(at), ShardEnd)]
    return mark_drained({**lineage, **result}, ended)


def parents_of(lineage: Lineage) -> dict[str, Sequence[str]]:
    """Return the parents of each shard."""
    return {shard: node.parents for shard, node in lineage.items()}


def find_readable(lineage: Lineage, ordering: ShardOrdering) -> list[str]:
    """Return the shards whose new records may be read now, sorted."""

    def done(shard: str) -> bool:
        return shard not in lineage or lineage[shard].state == "drained"

    return sorted(
        shard
        for shard, node in lineage.items()
        if node.state != "drained" and (ordering == "none" or all(done(parent) for parent in node.parents))
    )


def find_childless(lineage: Lineage) -> list[str]:
    """Return the drained shards of which no child is known: AWS lists the children of each soon."""
    parents = {parent for node in lineage.values() for parent in node.parents}
    return [shard for shard, node in lineage.items() if node.state == "drained" and shard not in parents]


def ancestors(parents: Mapping[str, Sequence[str]], of: Iterable[str]) -> set[str]:
    """Return the ancestors of some shards, as far as the parents of each shard are known."""
    found: set[str] = set()
    ask = [parent for shard in of for parent in parents.get(shard, ())]
    while ask:
        shard = ask.pop()
        if shard not in found:
            found.add(shard)
            ask += parents.get(shard, ())
    return found


def _make_lineage(shard: Shard, start: Position, now: int) -> ShardLineage:
    return ShardLineage(shard.parents, "closed" if shard.closed else "open", str(start), now)


def positions_of(
    spec: PositionSpec,
    stream: str,
    listed: Collection[Shard],
    latest: Callable[[], Position],
    rest: str = str(TRIM_HORIZON),
) -> dict[str, Position]:
    """Return the position of each listed shard of a stream by id.

    If some shards of a stream have entries, their ancestors are done, and other shards are at `rest`: they are new, and
    start at their oldest record. `*` in the spec has another position for these.
    """
    texts = spec.texts_of(stream)
    named = set(texts) - {REST}
    behind = ancestors({shard.id: shard.parents for shard in listed}, named)
    rest = spec.text_of_others(stream, rest)
    return {
        shard: resolve_position(texts[shard], latest)
        if shard in named
        else ShardEnd()
        if shard in behind
        else resolve_position(rest, latest)
        for shard in (held.id for held in listed)
    }
