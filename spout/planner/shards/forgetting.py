"""Removes the nodes of missing shards from ZooKeeper, so that its size follows the open shards, not history."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.exhausted import merge_dead_letters

log = logging.getLogger(__name__)

_AT_A_TIME = 100
"""The number of shards removed in one multi, which also updates their dead letters."""


class Forgetting:
    """Forgets shards that retention has removed, once they have no records in flight.

    A shard that was read to its end is forgotten when it is no longer listed; any other when the next full listing does
    not have it either: an answer of Kinesis that lacks a shard by mistake must not make it start over.

    Args:
        store: of the source.
        epoch: of this run.
    """

    def __init__(self, store: SourceStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._missed_once: set[str] = set()
        self._gone: set[str] = set()

    def note(self, shard: str, *, drained: bool) -> None:
        """Note that a shard is no longer listed and has no records in flight."""
        (self._gone if drained else self._missed_once).add(shard)

    def note_stored(self, shards: Collection[str]) -> None:
        """Note the shards in ZooKeeper that the previous run no longer saw in the listing."""
        key_of = self._store.layout.key_of
        self._gone |= {shard for shard in shards if key_of(shard).shard != PAST_RETENTION}

    def forget(
        self, listed: Collection[str], dead_letters: Mapping[str, DeadLettersNode]
    ) -> dict[str, DeadLettersNode]:
        """Remove the nodes of missing shards after a full listing.

        Their dead letters stay counted, merged for each stream.

        Returns:
            The dead letters by shard, as ZooKeeper has them now.

        Raises:
            FencedError: a newer run has taken over.
        """
        left = dict(dead_letters)
        gone = sorted(self._gone.difference(listed))
        for start in range(0, len(gone), _AT_A_TIME):
            some = gone[start : start + _AT_A_TIME]
            letters = self._letters(some, left)
            self._store.shards.forget(some, letters, self._epoch)
            left = {shard: node for shard, node in left.items() if shard not in set(some)} | letters
        if gone:
            log.info("forgot %d shards past retention: %s", len(gone), ", ".join(gone))
        self._gone = self._missed_once.difference(listed)
        self._missed_once = set()
        return left

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
