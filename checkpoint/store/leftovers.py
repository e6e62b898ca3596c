"""Removes what is not needed any more: the nodes of settled batches, and parts that a crash has left."""

from __future__ import annotations

from collections.abc import Collection

from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, InflightNode, Node, ShardsNode
from kinesis_trident.checkpoint.model.split_nodes import is_part, owner_of
from kinesis_trident.checkpoint.store.atomic_writes import UnitWriter
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    FencedNodes,
    stray_child_error,
    too_many_races,
    txid_of,
)
from kinesis_trident.checkpoint.zookeeper.operations import (
    NOT_EMPTY,
    PACK_SIZE,
    REQUEST_LIMIT,
    Delete,
    Op,
    Refused,
    packed,
)


class Leftovers:
    """Removes plans, pins, outcomes and reports of settled batches, and parts of large nodes without a head."""

    def __init__(self, nodes: FencedNodes, writer: UnitWriter) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout
        self._writer = writer
        self._swept = False

    def purge(self, txid_upto: int, epoch: int, keep: Collection[int] = ()) -> int:
        """Remove plans, pins and outcomes up to and including a txid, and parts of large nodes without a head.

        The nodes of the txids in `keep` stay.

        Returns:
            The number of removed nodes.

        Raises:
            FencedError: a newer run has taken over.
        """
        removed = self._purge_batches(txid_upto, epoch, frozenset(keep))
        if not self._swept:
            # Only a crash of an older run leaves such parts: once is enough.
            removed += self.sweep_parts(epoch)
            self._swept = True
        return removed

    def sweep_parts(self, epoch: int) -> int:
        """Remove parts of in-flight nodes and lineages that a crash has left without a head; return their number."""
        with self._writer.lock:
            return self._sweep(epoch)

    def _purge_batches(self, txid_upto: int, epoch: int, keep: frozenset[int]) -> int:
        removed = 0
        for _ in range(RACES):
            ops = self._removals(txid_upto, keep)
            try:
                for pack in packed(ops, PACK_SIZE):
                    self._nodes.commit(pack, epoch)
                    removed += len(pack)
            except Refused as refused:
                folder = refused.op.path.rpartition("/")[0]
                if refused.kind is NOT_EMPTY and folder not in (
                    self._layout.batches,
                    self._layout.reports,
                ):
                    raise stray_child_error(refused.op.path) from None
                # A late task has made a pin between the listing and the removal.
                continue
            return removed
        raise too_many_races(self._layout.batches)

    def _removals(self, txid_upto: int, keep: frozenset[int]) -> list[list[Op]]:
        """Return the removals in groups that go together: the pins of a batch with its plan.

        Otherwise a late task could pin its turn again while a pin is gone and the plan is not.
        """
        layout = self._layout
        folders = (layout.batches, layout.acks, layout.reports)
        listed = self._session.children(folders)
        old = {
            folder: [
                name
                for name in names or []
                if (txid := txid_of(f"{folder}/{name}", owner_of(name))) <= txid_upto and txid not in keep
            ]
            for folder, names in zip(folders, listed, strict=True)
        }
        parents = [f"{folder}/{name}" for folder in (layout.batches, layout.reports) for name in old[folder]]
        below = self._session.children(parents)
        groups: list[list[Op]] = []
        for parent, names in zip(parents, below, strict=True):
            # Children first: ZooKeeper does not remove a node with children.
            removed: list[Op] = [*(Delete(f"{parent}/{name}") for name in names or []), Delete(parent)]
            groups += packed([[op] for op in removed], REQUEST_LIMIT - PACK_SIZE)
        groups += ([Delete(f"{layout.acks}/{name}")] for name in old[layout.acks])
        return groups

    def _sweep(self, epoch: int) -> int:
        layout = self._layout
        removed: list[Op] = []
        folders: tuple[tuple[str, type[Node]], ...] = (
            (layout.inflight, InflightNode),
            (layout.deadletters, DeadLettersNode),
            (layout.base, ShardsNode),
        )
        for folder, kind in folders:
            names = [name for name in self._session.children([folder])[0] or [] if is_part(name)]
            heads = sorted({f"{folder}/{owner_of(name)}" for name in names})
            found = self._nodes.fetch_many(heads, kind)
            named = {part for stored in found if stored is not None for part in stored.parts}
            removed += [Delete(f"{folder}/{name}") for name in names if f"{folder}/{name}" not in named]
        for pack in packed([[op] for op in removed], PACK_SIZE):
            self._nodes.commit(pack, epoch)
        return len(removed)
