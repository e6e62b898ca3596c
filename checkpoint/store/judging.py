"""The note of a driver that judges its records: from then on a batch of its run is done only with an outcome.

A plain query publishes nothing, so for it "no outcome" means that everything is done. For a driver that judges, "no
outcome" means that the outcome was lost, as in a ZooKeeper that was restored from a copy made before it was
published.
"""

from __future__ import annotations

from collections.abc import Collection

from kinesis_trident.checkpoint.model.nodes import Batch, JudgingNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.fencing import RACES, too_many_races
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, Refused

__all__ = ["JudgingNote"]


class JudgingNote:
    """The node `judging`: the newest run whose driver judges."""

    _said = 0

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._layout = nodes.layout

    def say(self, epoch: int) -> None:
        """Note that the driver of the run of `epoch` judges its records; sends no request once it is noted.

        Raises:
            FencedError: a newer run has taken over.
        """
        if self._said == epoch:
            return
        path, node = self._layout.judging, JudgingNode(epoch=epoch)
        for _ in range(RACES):
            found = self._nodes.fetch(path, JudgingNode)
            try:
                if found is None:
                    self._nodes.create(path, node, epoch)
                elif found.node.epoch < epoch:
                    self._nodes.replace(path, node, found, epoch)
                else:
                    self._nodes.commit((), epoch)
            except Refused as refused:
                if found is None and refused.kind is not EXISTS:
                    raise
                continue
            self._said = epoch
            return
        raise too_many_races(path)

    def get(self) -> JudgingNode | None:
        """Return the note; None if no driver has ever judged."""
        found = self._nodes.fetch(self._layout.judging, JudgingNode)
        return found.node if found else None

    def owes_outcome(self, judging: JudgingNode | None, txid: int, pinned_by: Collection[int]) -> bool:
        """Return True if a batch without an outcome must have one: its run's driver judges records.

        `judging` is the note, read by `finished` or after it: it has what a driver noted before the batch was finished.
        `pinned_by` are the epochs of its pins: a later run that takes the batch over may not have judged it yet. A
        batch that is not stored was never run.
        """
        if judging is None:
            return False
        batch = self._nodes.fetch(self._layout.batch_of(txid), Batch)
        return batch is not None and judging.epoch in (batch.node.epoch, *pinned_by)
