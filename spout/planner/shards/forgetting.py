"""Removes what ZooKeeper has of shards that are gone: what is kept grows with what is open, not with history."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.exhausted import merge_dead_letters

__all__ = ["Forgetting"]

log = logging.getLogger(__name__)

_AT_A_TIME = 100
"""Shards forgotten in one multi: what is kept of their dead letters changes with their removal."""


class Forgetting:
    """Forgets shards that retention has removed, once nothing of them is in flight.

    A shard that was read to its end is forgotten when it is no longer listed. Another one is, when the next listing of
    all shards does not have it either: an answer of Kinesis that lacks a shard by mistake must not start it over.

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
        """A shard is not listed any more, and nothing of it is in flight."""
        (self._gone if drained else self._missed_once).add(shard)

    def note_stored(self, shards: Collection[str]) -> None:
        """What ZooKeeper has at the start of shards that were not listed any more when the run before looked."""
        key_of = self._store.layout.key_of
        self._gone |= {shard for shard in shards if key_of(shard).shard != PAST_RETENTION}

    def forget(
        self, listed: Collection[str], dead_letters: Mapping[str, DeadLettersNode]
    ) -> dict[str, DeadLettersNode]:
        """Remove the nodes of those that are gone, after a listing of all shards.

        Their dead letters are counted on, all shards of a stream together.

        Returns:
            The dead letters by shard, as they are in ZooKeeper now.

        Raises:
            FencedError: a newer run has taken over.
        """
        left = dict(dead_letters)
        gone = sorted(self._gone.difference(listed))
        for start in range(0, len(gone), _AT_A_TIME):
            some = gone[start : start + _AT_A_TIME]
            letters = self._letters(some, left)
            self._store.forget(some, letters, self._epoch)
            left = {shard: node for shard, node in left.items() if shard not in set(some)} | letters
        if gone:
            log.info("%d shards past retention are forgotten: %s", len(gone), ", ".join(gone))
        self._gone = self._missed_once.difference(listed)
        self._missed_once = set()
        return left

    def _letters(
        self, gone: Sequence[str], letters: Mapping[str, DeadLettersNode]
    ) -> dict[str, DeadLettersNode]:
        """What is kept of the dead letters of shards that go."""
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
