"""The nodes of one shard over all batches: its safe checkpoint, its records in flight, its dead letters.

One shard's nodes change together, in one multi stamped with the txid, so a crash anywhere leaves each shard either
before or after a batch, and settling the batch again continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import CheckpointError, StateMissingError
from kinesis_trident.checkpoint.model.belonging import find_lost_lineage, find_lost_shards
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    Node,
    SettledNode,
    ShardLineage,
    ShardsNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.store.atomic_writes import Unit, UnitWriter
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    FencedNodes,
    NodeT,
    StorePart,
    delete_left_parts,
    too_many_races,
)
from kinesis_trident.checkpoint.zookeeper.client import config_of
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Op, Refused, Write

Updates = Mapping[str, tuple[CheckpointNode, InflightNode | None]]


class ShardStore(StorePart):
    """Checkpoints, in-flight records and dead letter counts, moved on by settling batches."""

    def __init__(self, nodes: FencedNodes, writer: UnitWriter) -> None:
        super().__init__(nodes)
        self._writer = writer

    def checkpoints(self) -> dict[str, CheckpointNode]:
        """Return all safe checkpoints by shard."""
        return self._all_below(self._layout.checkpoints, CheckpointNode)

    def inflight(self) -> dict[str, InflightNode]:
        """Return the unfinished records by shard; a shard that never had any is absent."""
        return self._all_below(self._layout.inflight, InflightNode)

    def read_together(self) -> tuple[dict[str, CheckpointNode], dict[str, InflightNode]]:
        """Return the checkpoints and the unfinished records that belong to them, also while a run moves both on.

        Raises:
            CheckpointError: it moves on faster than they can be read.
        """
        before = self.checkpoints()
        for _ in range(RACES):
            # Whoever moves a shard on changes its checkpoint with it.
            inflight, after = self.inflight(), self.checkpoints()
            if after == before:
                return before, inflight
            before = after
        msg = f"{self._layout.checkpoints} moves on faster than it can be read. Stop the query first"
        raise CheckpointError(msg)

    def check_folders(self, epoch: int) -> None:
        """Make the folders of the home again that may be missing; refuse to go on without another one.

        Raises:
            StateMissingError: a folder is gone whose nodes are lost with it.
            FencedError: a newer run has taken over.
        """
        folders = self._layout.folders
        found = zip(folders, self._session.stats(folders), strict=True)
        gone = [folder for folder, stat in found if stat is None]
        lost = sorted(self._layout.needed_folders.intersection(gone))
        if lost:
            what = f"{', '.join(lost)} does not exist, with all that was in it"
            raise self.lost_error(what)
        if gone:
            with suppress(Refused):
                # Another process makes it at the same time.
                self._nodes.commit(list(map(Create, gone)), epoch)

    def check_lineage(
        self, settled: SettledNode | None, lineage: ShardsNode | None, streams: StreamsNode | None
    ) -> None:
        """Refuse to list shards anew where batches were settled: each would be read again from its start.

        Raises:
            StateMissingError: a node that describes the home is gone.
        """
        lost = find_lost_lineage(self._layout, settled, lineage, streams)
        if lost:
            raise self.lost_error(lost)

    def check_shards(
        self,
        settled: SettledNode | None,
        lineage: Mapping[str, ShardLineage],
        checkpoints: Mapping[str, CheckpointNode],
        inflight: Mapping[str, InflightNode],
    ) -> None:
        """Refuse to go on with nodes of shards that do not belong together, as they were read.

        Raises:
            StateMissingError: a node is gone, or as it was long ago.
        """
        lost = find_lost_shards(self._layout, settled, lineage, checkpoints, inflight)
        if lost:
            raise self.lost_error(lost)

    def lost_error(self, what: str) -> StateMissingError:
        """Return the error that says what of the home is missing, and what to do."""
        layout = self._layout
        config = config_of(self._session.client)
        (together,) = self._nodes.fetch_many([layout.streams], StreamsNode) if layout.several else (None,)
        streams = ",".join(sorted(together.node.streams) if together else [layout.stream])
        # The application may have other homes.
        home = ["--stream", streams] if streams else []
        shown, line = (
            command_line(config, layout.root, "checkpoints", layout.application, *words, options=home)
            for words in (["backups"], ["import", "NAME"])
        )
        return StateMissingError(
            f"{what}. Somebody has deleted nodes of {layout.base}, or put back an older copy of a part of it; nothing "
            f"was changed. Put them back as they were. Or let reading go on from a copy, one that `{shown}` lists: "
            f"`{line}`"
        )

    def dead_letters(self) -> dict[str, DeadLettersNode]:
        """Return the number of dead letters and the last few, by shard."""
        return self._all_below(self._layout.deadletters, DeadLettersNode)

    def lineage(self) -> ShardsNode | None:
        """Return the lineage of the stream's shards; None before the first listing."""
        return self._nodes.get(self._layout.shards, ShardsNode)

    def checked_lineage(self) -> tuple[Mapping[str, ShardLineage], list[Check]]:
        """Return the lineage of the stream's shards, none before the first listing, and the check that it is this."""
        stored = self._nodes.fetch(self._layout.shards, ShardsNode)
        return (stored.node.shards, [Check(self._layout.shards, stored.version)]) if stored else ({}, [])

    def put_lineage(self, node: ShardsNode, epoch: int) -> None:
        """Store the lineage: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._writer.move([Unit({self._layout.shards: node})], epoch)

    def settle(
        self,
        updates: Updates,
        dead_letters: Mapping[str, DeadLettersNode],
        shards_node: ShardsNode | None,
        settled: SettledNode,
        epoch: int,
        leftover: Sequence[str] = (),
        moved: list[str] | None = None,
    ) -> list[str]:
        """Move shards on by one batch; shards that are moved already are skipped, so it may be repeated.

        Args:
            updates: by shard, its new checkpoint and its records in flight; None leaves those unchanged.
            dead_letters: by shard, the new counts; written with the shard's checkpoint, skipped with it. A shard named
                here is named in `updates` too.
            shards_node: the lineage, if it has changed.
            settled: written last, once every shard carries the stamp.
            epoch: of this run.
            leftover: paths of the batch's own nodes, removed with the last multi so that none of its rows are read
                again; if they are not as expected, they are left to `purge`.
            moved: gets the shards as ZooKeeper answers that they are moved on, also if another one fails.

        Returns:
            The shards that this call has moved on; those already stamped with this txid or a later one are not
            included.

        Raises:
            CheckpointMovedBackError: a checkpoint would move back; nothing was written.
            FencedError: a newer run has taken over.
        """
        strays = set(dead_letters) - set(updates)
        if strays:
            msg = (
                f"cannot settle txid {settled.txid}: there is no checkpoint for {', '.join(sorted(strays))}. This "
                "is a defect: please report it"
            )
            raise CheckpointError(msg)
        units = [
            Unit(self._nodes_of(shard, checkpoint, inflight, dead_letters.get(shard)), shard=shard)
            for shard, (checkpoint, inflight) in updates.items()
        ]
        last: dict[str, Node] = {self._layout.settled: settled}
        if shards_node is not None:
            last[self._layout.shards] = shards_node
        return self._writer.move([*units, Unit(last, tuple(leftover), may_leave=True)], epoch, moved)

    def amend(
        self,
        shard: str,
        epoch: int,
        *,
        checkpoint: CheckpointNode | None = None,
        inflight: InflightNode | None = None,
        dead_letters: DeadLettersNode | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """Change a shard's nodes between two batches, in one multi; their stamp stays the same.

        `consumed` names the nodes of `external` that the change includes; they are removed with it.

        Raises:
            FencedError: a newer run has taken over.
            Refused: one of `consumed` was withdrawn; nothing was written.
        """
        folder = self._layout.external_of(shard)
        nodes = self._nodes_of(shard, checkpoint, inflight, dead_letters)
        self._writer.move([Unit(nodes, tuple(f"{folder}/{name}" for name in consumed))], epoch)

    def forget(self, shards: Sequence[str], dead_letters: Mapping[str, DeadLettersNode], epoch: int) -> None:
        """Remove the nodes of shards in one multi; keep their `dead_letters`, by their new name.

        A folder of `external` with requests in it stays until they are handled.

        Raises:
            FencedError: a newer run has taken over.
        """
        with self._writer.lock:
            last = None
            for _ in range(RACES):
                ops = [
                    *self._written(dead_letters, epoch),
                    *self._delete_shards(shards),
                    *self._uncount(shards),
                ]
                try:
                    self._nodes.commit(ops, epoch)
                except Refused as refused:
                    # Meanwhile another process has made a request for such a shard.
                    last = refused
                    continue
                self._writer.forget(op.path for op in ops)
                return
            raise too_many_races(self._layout.checkpoints, last)

    def _written(self, dead_letters: Mapping[str, DeadLettersNode], epoch: int) -> list[Op]:
        nodes = {self._layout.deadletters_of(name): node for name, node in dead_letters.items()}
        ops: list[Op] = []
        for path, found in self._nodes.fetch_each(dict.fromkeys(nodes, DeadLettersNode)).items():
            data = self._nodes.prepare(path, nodes[path], epoch)
            if found is None:
                ops.append(Create(path, data))
            else:
                ops += [Write(path, data, found.version), *delete_left_parts(path, data, found.parts)]
        return ops

    def _uncount(self, shards: Sequence[str]) -> list[Op]:
        """Return the write that lets the newest settled batch count the checkpoints without those of some shards."""
        path = self._layout.settled
        found = self._nodes.fetch(path, SettledNode)
        if found is None or not found.node.begun:
            return []
        settled = found.node
        removed = self._nodes.fetch_many(
            [self._layout.checkpoint_of(shard) for shard in shards], CheckpointNode
        )
        txids = [stored.node.txid for stored in removed if stored is not None]
        begun, stamped = sum(txid > 0 for txid in txids), sum(txid >= settled.txid for txid in txids)
        node = replace(
            settled, begun=max(0, settled.begun - begun), stamped=max(0, settled.stamped - stamped)
        )
        return [Write(path, encode(node), found.version)] if node != settled else []

    def _delete_shards(self, shards: Sequence[str]) -> list[Op]:
        layout = self._layout
        kinds = {path: kind for shard in shards for path, kind in layout.nodes_of(shard).items()}
        ops: list[Op] = []
        for path, stored in self._nodes.fetch_each(kinds).items():
            if stored is not None:
                ops += map(Delete, (path, *stored.parts))
        folders = [layout.external_of(shard) for shard in shards]
        asked = self._session.children(folders)
        return [*ops, *(Delete(folder) for folder, names in zip(folders, asked, strict=True) if names == [])]

    def _all_below(self, folder: str, kind: type[NodeT]) -> dict[str, NodeT]:
        return {name: stored.node for name, stored in self._nodes.fetch_folder(folder, kind).items()}

    def _nodes_of(
        self,
        shard: str,
        checkpoint: CheckpointNode | None,
        inflight: InflightNode | None,
        dead_letters: DeadLettersNode | None,
    ) -> dict[str, Node]:
        """Return those of a shard's nodes that change, by path."""
        nodes: dict[str, Node] = {}
        if checkpoint is not None:
            nodes[self._layout.checkpoint_of(shard)] = checkpoint
        if inflight is not None:
            nodes[self._layout.inflight_of(shard)] = inflight
        if dead_letters is not None:
            nodes[self._layout.deadletters_of(shard)] = dead_letters
        return nodes
