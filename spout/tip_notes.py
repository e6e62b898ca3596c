"""Notes until when shards were seen to hold nothing more: so long nothing of them was lost, however idle they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from checkpoint.nodes import CheckpointNode
from checkpoint.store import SourceStore
from spout.losses import last_known
from spout.planning import ShardState
from spout.probe import Look
from spout.shards import Lineage

__all__ = ["TipNotes"]

_PERIOD_MS = 10 * 60 * 1000
"""Between two notes in ZooKeeper of one shard."""


class TipNotes:
    """Keeps `CheckpointNode.seen` of idle shards, in ZooKeeper only now and then.

    Args:
        store: where the nodes are.
        epoch: of this run.
        shards: what is known of each shard; changed here.
    """

    def __init__(self, store: SourceStore, epoch: int, shards: dict[str, ShardState]) -> None:
        self._store = store
        self._epoch = epoch
        self._shards = shards
        self._stored: dict[str, int] = {}

    def note(self, looks: Mapping[str, Look], lineage: Lineage) -> None:
        """Note what looks at the tip of shards have seen; one that was never read gets its first node, with txid 0."""
        for shard, look in looks.items():
            state = self._shards.get(shard)
            if state is None or look.more is not False or state.position != look.position:
                continue
            node = state.checkpoint or CheckpointNode(checkpoint=None, txid=0, position=str(state.position))
            if look.at <= (node.seen or 0):
                continue
            listed = lineage[shard].listed if shard in lineage else 0
            known = self._stored.get(shard, last_known(state.position, state.checkpoint, listed))
            seen = msgspec.structs.replace(node, seen=look.at, behind_ms=0)
            if look.at - known >= _PERIOD_MS:
                self._store.amend(shard, self._epoch, checkpoint=seen)
                self._stored[shard] = look.at
            self._shards[shard] = replace(state, checkpoint=seen)
