"""Changes shards after a listing, which shows new ones and lacks some, and after looks that have seen tips. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, ShardsNode
from kinesis_trident.checkpoint.model.replays import merge_dead_letters
from kinesis_trident.spout.kinesis import Shard, StreamInfo
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.shard_events import HomeUnit, ShardUnit
from kinesis_trident.spout.planner.shards.filling import fill_state
from kinesis_trident.spout.planner.shards.lineage import Lineage, add_new_shards, mark_drained
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import Position, ShardEnd, parse_position

_AT_A_TIME = 100
"""The number of shards removed in one multi, which also updates their dead letters."""

_PERIOD_MS = 10 * 60 * 1000
"""Milliseconds between two notes in ZooKeeper for one shard."""


class Listing(NamedTuple):
    """What a listing says of one stream, of which these shards were `known` before.

    `start`: of a shard without a known ancestor. `gone`: those known ones that a full listing lacks, and that cannot be
    read. `digits`: how many the service fills sequence numbers up to; 0 if it does not, or that is not known.
    """

    info: StreamInfo
    known: Lineage
    shards: Sequence[Shard]
    start: Position
    gone: Set[str]
    digits: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The shards of each stream were listed, `everything` or only new ones. No batch is unsettled."""

    listings: Sequence[Listing]
    everything: bool


def take_in_listing(shards: Shards, event: Listed, layout: Layout) -> Iterator[HomeUnit | ShardUnit]:
    """Yield what a listing changes: which shards there are, the forgotten ones, and numbers that lack their zeros.

    A shard without records in flight is forgotten once two full listings in a row lack it. One that an answer of
    Kinesis has lacked by mistake goes on where it stood.
    """
    lineage, states, waited_for = dict(shards.lineage), dict(shards.states), shards.waited_for
    for one in event.listings:
        found = add_new_shards(one.known, one.shards, one.start, shards.missed, one.info.server_time)
        gone = one.gone - waited_for
        lineage = {shard: node for shard, node in (lineage | found).items() if shard not in gone}
    for shard in sorted(lineage.keys() - states.keys()):
        start = parse_position(lineage[shard].start)
        states[shard] = replace(shards.missed.get(shard) or ShardState(start), start=start)
    new = lineage.keys() - shards.lineage.keys()
    ended = [shard for shard in new if isinstance(states[shard].position, ShardEnd)]
    lineage = mark_drained(lineage, ended) if ended else lineage
    missed = {shard: one for shard, one in shards.missed.items() if shard not in states}
    for shard in states.keys() - lineage.keys() if event.everything else ():
        if not states[shard].held:
            missed[shard] = states.pop(shard)
    past = sorted(shards.missed.keys() - states.keys()) if event.everything else []
    after = replace(shards, lineage=lineage, states=states, missed=missed)
    if after != shards:
        yield HomeUnit(after, None if lineage == shards.lineage else ShardsNode(shards=lineage))
    for at in range(0, len(past), _AT_A_TIME):
        some = past[at : at + _AT_A_TIME]
        letters = _count_on(some, after.dead_letters, layout)
        counted = {shard: node for shard, node in after.dead_letters.items() if shard not in some} | letters
        missed = {shard: one for shard, one in after.missed.items() if shard not in some}
        after = replace(after, missed=missed, dead_letters=counted)
        yield HomeUnit(after, gone=some, dead_letters=letters)
    digits = {one.info.name: one.digits for one in event.listings if one.digits}
    for shard, state in after.active.items() if digits else ():
        count = digits.get(layout.key_of(shard).stream, 0)
        filled = fill_state(state, count) if count else state
        if filled is not state:
            what = "its positions were stored without the zeros in front that this service writes, and are"
            yield ShardUnit(shard, filled, told=[f"shard {shard}: {what} filled up to {count} digits"])


def _count_on(
    gone: Sequence[str], counted: Mapping[str, DeadLettersNode], layout: Layout
) -> dict[str, DeadLettersNode]:
    """Return the dead letters of shards that are forgotten, together for each stream."""
    by_place: dict[str, list[DeadLettersNode]] = {}
    for shard in filter(counted.__contains__, gone):
        key = layout.key_of(shard)
        place = layout.name_of(ShardKey(key.stream, key.created, PAST_RETENTION))
        by_place.setdefault(place, [counted[place]] if place in counted else []).append(counted[shard])
    return {place: merge_dead_letters(nodes) for place, nodes in by_place.items()}


def take_in_tips(shards: Shards, sights: Sights) -> Iterator[ShardUnit]:
    """Yield the shards that looks have seen at later tips; ZooKeeper is told only now and then: idleness is no loss.

    One that was never read gets its first node, with txid 0.
    """
    for shard, sight in sights.by_shard.items():
        state, look = shards.states.get(shard), sight.look
        if state is None or look is None or not (look.more is False or look.is_end):
            continue
        node = state.checkpoint or CheckpointNode(checkpoint=None, txid=0, position=str(state.position))
        if state.position != look.position or look.at <= (node.seen or 0):
            continue
        told = shards.known_until(shard) if sight.noted is None else sight.noted
        seen = replace(state, checkpoint=msgspec.structs.replace(node, seen=look.at, behind_ms=0))
        yield ShardUnit(shard, seen, writes="checkpoint" if look.at - told >= _PERIOD_MS else "nothing")
