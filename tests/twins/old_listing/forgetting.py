"""Forgets shards and notes tips: the module as it was before a listing was an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, DeadLettersNode, ShardLineage
from kinesis_trident.checkpoint.model.replays import merge_dead_letters
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.spout.shard_rules import find_known

log = logging.getLogger(__name__)

_AT_A_TIME = 100
"""The number of shards removed in one multi, which also updates their dead letters."""


class Forgetting:
    """Forgets shards that retention has removed, once they have no records in flight.

    A shard that was read to its end is forgotten when it is no longer listed; any other when the next full listing does
    not have it either: one that an answer of Kinesis has lacked by mistake goes on where it stood.

    `missed`: the shards in ZooKeeper that the previous run no longer saw in the listing.
    """

    def __init__(self, store: SourceStore, epoch: int, missed: dict[str, ShardState]) -> None:
        self._store = store
        self._epoch = epoch
        self._missed: dict[str, ShardState] = missed

    @property
    def unread(self) -> set[str]:
        """Return the shards that a listing has lacked. Mended since: also those that were read to their end."""
        return set(self._missed)

    def begin(self, shard: str, node: ShardLineage) -> ShardState:
        """Return the state of a shard that is listed, and was not before: as it stood if a listing has lacked it."""
        was = ShardState(parse_position(node.start))
        return replace(self._missed[shard], start=was.start) if shard in self.unread else was

    def forget(self, shards: Shards) -> Shards:
        """Remove the shards that a full listing lacks, and their nodes; dead letters stay counted, for each stream.

        Raises:
            FencedError: a newer run has taken over.
        """
        states, left = dict(shards.states), dict(shards.dead_letters)
        unlisted = (shard for shard in states.keys() - shards.lineage.keys() if not states[shard].held)
        missed = {shard: states.pop(shard) for shard in unlisted}
        gone = sorted(self._missed.keys() - states.keys())
        for start in range(0, len(gone), _AT_A_TIME):
            some = gone[start : start + _AT_A_TIME]
            letters = self._letters(some, left)
            self._store.shards.forget(some, letters, self._epoch)
            left = {shard: node for shard, node in left.items() if shard not in set(some)} | letters
        if gone:
            log.info("forgot %d shards past retention: %s", len(gone), ", ".join(gone))
        self._missed = {shard: state for shard, state in missed.items() if shard not in gone}
        return replace(shards, states=states, dead_letters=left)

    def _letters(
        self, gone: Sequence[str], letters: Mapping[str, DeadLettersNode]
    ) -> dict[str, DeadLettersNode]:
        """Return the merged dead letters of the shards to remove."""
        layout = self._store.layout
        by_place: dict[str, list[DeadLettersNode]] = {}
        for shard in gone:
            if shard in letters:
                key = layout.key_of(shard)
                place = layout.name_of(ShardKey(key.stream, key.created, PAST_RETENTION))
                by_place.setdefault(place, []).append(letters[shard])
        return {
            place: merge_dead_letters([*([letters[place]] if place in letters else []), *nodes])
            for place, nodes in by_place.items()
        }


_PERIOD_MS = 10 * 60 * 1000
"""Milliseconds between two notes in ZooKeeper for one shard."""


def note_tips(
    store: SourceStore, epoch: int, shards: Shards, sights: Sights
) -> tuple[dict[str, ShardState], dict[str, int]]:
    """Return each shard that looks have seen at a later tip, and the tips that ZooKeeper is told: idleness is no loss.

    One that was never read gets its first node, with txid 0.
    """
    found, noted = {}, {}
    for shard, sight in sights.by_shard.items():
        state, look = shards.states.get(shard), sight.look
        if state is None or look is None or not (look.more is False or look.is_end):
            continue
        node = state.checkpoint or CheckpointNode(checkpoint=None, txid=0, position=str(state.position))
        if state.position != look.position or look.at <= (node.seen or 0):
            continue
        listed = shards.lineage[shard].listed if shard in shards.lineage else 0
        told = find_known(state.position, state.checkpoint, listed) if sight.noted is None else sight.noted
        seen = msgspec.structs.replace(node, seen=look.at, behind_ms=0)
        if look.at - told >= _PERIOD_MS:
            store.shards.amend(shard, epoch, checkpoint=seen)
            noted[shard] = look.at
        found[shard] = replace(state, checkpoint=seen)
    return found, noted
