"""The note of what a topology's states hold: the newest batch that was applied to each of them.

A store that came back from an older copy, or empty, does not know that it has lost something: the note does.
"""

from __future__ import annotations

from collections.abc import Mapping

from kinesis_trident.checkpoint.model.nodes import StatesNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.fencing import RACES, too_many_races
from kinesis_trident.checkpoint.zookeeper.operations import Refused

__all__ = ["StatesNote"]


class StatesNote:
    """The node `states`: written by the run that applies batches, after each batch that changed a state."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._path = nodes.layout.states

    def get(self) -> dict[str, int]:
        """Return the newest txid that was applied to each state, by its name; of all runs before this call."""
        found = self._nodes.fetch(self._path, StatesNode, fresh=True)
        return dict(found.node.applied) if found is not None else {}

    def put(self, applied: Mapping[str, int], epoch: int) -> None:
        """Note the newest txid that was applied to each state.

        Raises:
            FencedError: a newer run has taken over.
        """
        node = StatesNode(applied=dict(applied))
        for _ in range(RACES):
            found = self._nodes.fetch(self._path, StatesNode)
            try:
                if found is None:
                    self._nodes.create(self._path, node, epoch)
                else:
                    self._nodes.replace(self._path, node, found, epoch)
            except Refused:
                continue
            return
        raise too_many_races(self._path)
