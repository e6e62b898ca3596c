"""Removes the nodes of missing shards from ZooKeeper, so that its size follows the open shards, not history."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.exhausted import merge_dead_letters
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.positions import ShardEnd

log = logging.getLogger(__name__)

_AT_A_TIME = 100
"""The number of shards removed in one multi, which also updates their dead letters."""


class Forgetting:
    """Forgets shards that retention has removed, once they have no records in flight.

    A shard that was read to its end is forgotten when it is no longer listed; any other when the next full listing does
    not have it either: an answer of Kinesis that lacks a shard by mistake must not make it start over.
    """

    def __init__(self, store: SourceStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._missed_once: set[str] = set()
        self._gone: set[str] = set()

    def note_stored(self, shards: Collection[str]) -> None:
        """Note the shards in ZooKeeper that the previous run no longer saw in the listing."""
        key_of = self._store.layout.key_of
        self._gone |= {shard for shard in shards if key_of(shard).shard != PAST_RETENTION}

    def forget(self, shards: Shards) -> Shards:
        """Remove the shards that a full listing lacks, and their nodes; dead letters stay counted, for each stream.

        Raises:
            FencedError: a newer run has taken over.
        """
        states, left = dict(shards.states), dict(shards.dead_letters)
        for shard in states.keys() - shards.lineage.keys():
            if not states[shard].held:
                at = states.pop(shard).position
                (self._gone if isinstance(at, ShardEnd) else self._missed_once).add(shard)
        there = {*shards.lineage, *states}
        gone = sorted(self._gone - there)
        for start in range(0, len(gone), _AT_A_TIME):
            some = gone[start : start + _AT_A_TIME]
            letters = self._letters(some, left)
            self._store.shards.forget(some, letters, self._epoch)
            left = {shard: node for shard, node in left.items() if shard not in set(some)} | letters
        if gone:
            log.info("forgot %d shards past retention: %s", len(gone), ", ".join(gone))
        self._gone, self._missed_once = self._missed_once - there, set()
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
