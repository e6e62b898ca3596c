"""Changes people make to the state of a stopped application, with a backup and an audit trail."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec

from kinesis_trident.checkpoint.errors import CheckpointError, CorruptNodeError
from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    Node,
    SettledNode,
    ShardsNode,
)
from kinesis_trident.checkpoint.store.fenced_nodes import RACES, NodeT, Stored, StorePart, delete_left_parts
from kinesis_trident.checkpoint.zookeeper.operations import (
    MISSING,
    NOT_EMPTY,
    PACK_SIZE,
    Create,
    Delete,
    Op,
    Refused,
    Write,
    pack_writes,
)

_KEPT = 50
"""The number of audit nodes, and of backups by people, that are kept."""

_KEPT_OF_RUNS = 10
_OF_RUN = "-run-"

_BYTES_OF_RUNS = 4 * 2**20
"""The size of all copies of runs, of which the newest stays whatever its size: the server holds them in memory."""


class ChangeStore(StorePart):
    """The nodes below `audit` and `backups`, and the overwriting of shards."""

    def note(self, audit: AuditNode) -> None:
        """Leave a note of a change, or of a request to the running query; any process may."""
        path = self._place(self._layout.audit, audit.time)
        self._nodes.make_folder(self._layout.audit)
        self._session.commit([Create(path, encode(audit))])
        self._forget_oldest(self._layout.audit)

    def remove_home(self, epoch: int) -> None:
        """Remove all nodes of this home, and the application's folder if nothing else is in it.

        The node `epoch` goes first: no run starts from a part. `epoch` 0: it is gone already.

        Raises:
            FencedError: a run has started meanwhile; nothing was removed.
            CheckpointError: other processes make new nodes all the time.
        """
        layout, session = self._layout, self._session
        for _ in range(RACES):
            paths, level = list[str](), [layout.base]
            while level:
                below = dict(zip(level, session.children(level, fresh=True), strict=True))
                paths += [path for path, names in below.items() if names is not None]
                level = [f"{path}/{name}" for path, names in below.items() for name in names or ()]
            if not epoch and layout.epoch in paths:
                # All was removed, and a query has started anew.
                return
            first = [path for path in (layout.epoch, layout.owner) if path in paths]
            rest = sorted(set(paths).difference(first), key=lambda path: -path.count("/"))
            try:
                for pack in pack_writes(
                    [[Delete(path) for path in first], *([Delete(path)] for path in rest)], PACK_SIZE
                ):
                    if epoch:
                        self._nodes.commit(pack, epoch)
                        epoch = 0
                    else:
                        session.commit(pack)
                break
            except Refused as refused:
                # A request or a note of another process, which no epoch keeps away.
                if refused.kind not in (MISSING, NOT_EMPTY):
                    raise
        else:
            msg = f"other processes write below {layout.base}. Stop them, and forget it again"
            raise CheckpointError(msg)
        with suppress(Refused):
            session.commit([Delete(layout.base.rpartition("/")[0])])

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
        letters: Mapping[str, DeadLettersNode] | None = None,
        *,
        accepts: bool = False,
    ) -> str:
        """Keep `before`, then write these nodes of shards, each shard in one multi, wherever they stood.

        A lineage is written first: it alone says where shards begin that have no checkpoint yet. A node that cannot be
        read is replaced too, and `before` keeps its bytes: what people write is what repairs it. `accepts`: checkpoints
        that are missing afterwards are no longer counted.

        Returns:
            The name of the backup.

        Raises:
            FencedError: a run has started meanwhile.
        """
        changes: list[dict[str, Node]] = [{self._layout.shards: lineage}] if lineage is not None else []
        for shard, checkpoint in checkpoints.items():
            nodes: dict[str, Node] = {self._layout.checkpoint_of(shard): checkpoint}
            if shard in inflight:
                nodes[self._layout.inflight_of(shard)] = inflight[shard]
            if letters and shard in letters:
                nodes[self._layout.deadletters_of(shard)] = letters[shard]
            changes.append(nodes)
        settled = self._nodes.get(self._layout.settled, SettledNode) if accepts else None
        if settled is not None and settled.begun:
            changes.append({self._layout.settled: msgspec.structs.replace(settled, stamped=0, begun=0)})
        unreadable: dict[str, bytes] = {}
        for nodes in changes:
            for path, node in nodes.items():
                self._read_standing(path, node, unreadable)
        for folder in (self._layout.backups, *self._layout.folders):
            self._nodes.make_folder(folder)
        kept = self._place(self._layout.backups, before.time)
        self._nodes.create(kept, msgspec.structs.replace(before, unreadable=unreadable), epoch)
        self._forget_oldest(self._layout.backups)
        for nodes in changes:
            self._overwrite(nodes, epoch)
        return kept.rpartition("/")[2]

    def keep(self, copy: BackupNode, epoch: int) -> None:
        """Keep a copy that a run makes of its state, unless nothing was settled since the last one.

        Raises:
            FencedError: a newer run has taken over.
        """
        folder = self._layout.backups
        names = [name for name in self._session.children([folder])[0] or () if _OF_RUN in name]
        of_batch = f"{_OF_RUN}{copy.settled}"
        if not names or not max(names).partition("~")[0].endswith(of_batch):
            self._nodes.make_folder(folder)
            # Whatever the clocks say: the first by name are removed.
            after = int(max(names).partition("-")[0]) if names else -1
            self._nodes.create(f"{folder}/{max(copy.time, after + 1):015d}{of_batch}", copy, epoch)
            self._forget_oldest(folder)

    def _read_standing(self, path: str, node: Node, unreadable: dict[str, bytes]) -> Any:
        """Return what is stored where a node is to be written; one that cannot be read is added to `unreadable`."""
        try:
            return self._nodes.fetch(path, type(node))
        except CorruptNodeError:
            found = self._session.read([path])[0]
            if found is None:
                return None
            unreadable[path] = found.data
            return Stored(node, found.stat.version)

    def _overwrite(self, nodes: Mapping[str, Node], epoch: int) -> None:
        ops, left = list[Op](), list[list[Op]]()
        for path, node in nodes.items():
            found = self._read_standing(path, node, {})
            data = self._nodes.prepare(path, node, epoch, found.parts if found else ())
            if found is None:
                ops.append(Create(path, data))
            else:
                ops.append(Write(path, data, found.version))
                left += ([op] for op in delete_left_parts(path, data, found.parts))
        for pack in pack_writes([ops, *left], PACK_SIZE):
            self._nodes.commit(pack, epoch)

    def backup(self, name: str) -> BackupNode | None:
        """Return a backup by its name; None if there is none."""
        return self._nodes.get(f"{self._layout.backups}/{name}", BackupNode)

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

    def _beyond_the_size(self, folder: str, names: Sequence[str], by_runs: Sequence[str]) -> set[str]:
        """Return the copies of runs before the newest ones that have the size of all together."""
        sizes = dict.fromkeys(by_runs, 0)
        for name, stat in zip(
            names, self._session.stats([f"{folder}/{name}" for name in names]), strict=True
        ):
            whole = name.partition("~")[0]
            if whole in sizes and stat is not None:
                sizes[whole] += stat.dataLength
        total = accumulate(sizes[name] for name in reversed(by_runs))
        return {
            name
            for name, size in zip(reversed(by_runs), total, strict=True)
            if size > _BYTES_OF_RUNS and name != by_runs[-1]
        }

    def _forget_oldest(self, folder: str) -> None:
        names = sorted(self._session.children([folder])[0] or [])
        whole = sorted({name.partition("~")[0] for name in names})
        by_runs = [name for name in whole if _OF_RUN in name]
        by_people = [name for name in whole if _OF_RUN not in name]
        old = {*by_runs[:-_KEPT_OF_RUNS], *by_people[:-_KEPT]}
        if by_runs:
            old |= self._beyond_the_size(folder, names, by_runs)
        for name in names:
            if name.partition("~")[0] in old:
                try:
                    self._session.commit([Delete(f"{folder}/{name}")])
                except Refused:
                    # Another console is doing the same.
                    continue
