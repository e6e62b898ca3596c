"""Changes people make to the state of a stopped application, with a backup and an audit trail."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Node, ShardsNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes, left_behind
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    Create,
    Delete,
    Op,
    Refused,
    Write,
)

__all__ = ["ChangeStore"]

NodeT = TypeVar("NodeT", bound=Node)

_KEPT = 50
"""The number of audit nodes, and of backups, that are kept."""


class ChangeStore:
    """The nodes below `audit` and `backups`, and the overwriting of shards."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout

    def note(self, audit: AuditNode) -> None:
        """Leave a note of a change, or of a request to the running query; any process may."""
        path = self._place(self._layout.audit, audit.time)
        self._make_folder(self._layout.audit)
        self._session.commit([Create(path, encode(audit))])
        self._forget_oldest(self._layout.audit)

    def notes(self) -> list[AuditNode]:
        """Return the notes, the newest first."""
        return list(self._all_below(self._layout.audit, AuditNode).values())

    def overwrite(
        self,
        before: BackupNode,
        checkpoints: Mapping[str, CheckpointNode],
        inflight: Mapping[str, InflightNode],
        epoch: int,
        lineage: ShardsNode | None = None,
    ) -> str:
        """Keep `before`, then write these nodes of shards, each shard in one multi, wherever they stood.

        A lineage is written first: it alone says where shards begin that have no checkpoint yet.

        Returns:
            The name of the backup.

        Raises:
            FencedError: a run has started meanwhile.
        """
        self._make_folder(self._layout.backups)
        kept = self._place(self._layout.backups, before.time)
        self._nodes.create(kept, before, epoch)
        self._forget_oldest(self._layout.backups)
        if lineage is not None:
            self._overwrite({self._layout.shards: lineage}, epoch)
        for shard, checkpoint in checkpoints.items():
            nodes: dict[str, Node] = {self._layout.checkpoint_of(shard): checkpoint}
            if shard in inflight:
                nodes[self._layout.inflight_of(shard)] = inflight[shard]
            self._overwrite(nodes, epoch)
        return kept.rpartition("/")[2]

    def _overwrite(self, nodes: Mapping[str, Node], epoch: int) -> None:
        ops: list[Op] = []
        for path, node in nodes.items():
            found: Any = self._nodes.fetch(path, type(node))
            data = self._nodes.prepare(path, node, epoch, found.parts if found else ())
            if found is None:
                ops.append(Create(path, data))
            else:
                ops += [Write(path, data, found.version), *left_behind(path, data, found.parts)]
        self._nodes.commit(ops, epoch)

    def backup(self, name: str) -> BackupNode | None:
        """Return a backup by its name; None if there is none."""
        found = self._nodes.fetch(f"{self._layout.backups}/{name}", BackupNode)
        return found.node if found else None

    def backups(self) -> dict[str, BackupNode]:
        """Return the backups by name, the newest first."""
        return self._all_below(self._layout.backups, BackupNode)

    def _all_below(self, folder: str, kind: type[NodeT]) -> dict[str, NodeT]:
        paths = self._nodes.children(folder)
        found = self._nodes.fetch_many(list(paths.values()), kind)
        pairs = zip(paths, found, strict=True)
        return {name: stored.node for name, stored in sorted(pairs, reverse=True) if stored is not None}

    def _place(self, folder: str, time: int) -> str:
        # Sorted by name, they are in order of time.
        return f"{folder}/{time:015d}-{uuid.uuid4().hex[:8]}"

    def _make_folder(self, folder: str) -> None:
        try:
            self._session.commit([Create(folder)])
        except Refused as refused:
            if refused.kind is MISSING:
                msg = f"{self._layout.base} does not exist: no query of this application has run. Check the names"
                raise StateMissingError(msg) from None
            if refused.kind is not EXISTS:
                raise

    def _forget_oldest(self, folder: str) -> None:
        names = sorted(self._session.children([folder])[0] or [])
        whole = sorted({name.partition("~")[0] for name in names})
        old = set(whole[: max(0, len(whole) - _KEPT)])
        for name in names:
            if name.partition("~")[0] in old:
                try:
                    self._session.commit([Delete(f"{folder}/{name}")])
                except Refused:
                    # Another console is doing the same.
                    continue
