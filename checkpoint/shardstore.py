"""What belongs to one shard over all batches: its safe checkpoint, what is in flight, its dead letters.

One shard's nodes change together, in one multi stamped with the txid, so a crash anywhere leaves each shard
either before or after a batch, and settling the batch again goes on where it stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from kazoo.client import KazooClient

from checkpoint.batchstore import PACK_SIZE, packed
from checkpoint.errors import CheckpointError, CheckpointMovedBackError
from checkpoint.fencing import RACES, too_many_races
from checkpoint.large import head_of, is_part, owner_of, part_paths
from checkpoint.layout import Layout
from checkpoint.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    Node,
    SettledNode,
    ShardsNode,
)
from checkpoint.nodestore import NodeStore, Stored, left_behind
from checkpoint.ops import Create, Delete, Op, Refused, Write, size_of
from tracker.records import RecordPosition

__all__ = ["ShardStore", "Unit", "position_of"]

NodeT = TypeVar("NodeT", bound=Node)
Updates = Mapping[str, tuple[CheckpointNode, InflightNode | None]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that change together: those of one shard, or, without a shard, what ends a settling."""

    nodes: Mapping[str, Node]
    removed: tuple[str, ...] = ()
    shard: str | None = None
    # What is removed may be left to a purge, where it is not as expected.
    may_leave: bool = False


class ShardStore(NodeStore):
    """Checkpoints, in-flight records and dead letter counts, moved on by settling batches."""

    def __init__(self, client: KazooClient, layout: Layout, timeout: float | None = None) -> None:
        super().__init__(client, layout, timeout)
        # What settling last wrote or read: nobody else writes these nodes under our epoch, and each write
        # checks the version, so a batch is settled without reading first.
        self._known: dict[str, Stored[Any] | None] = {}
        # Parts are written before the head that names them: who sweeps in between, as purging does beside all
        # else, would take them for left over.
        self._moving = threading.Lock()

    def checkpoints(self) -> dict[str, CheckpointNode]:
        """All safe checkpoints by shard."""
        return self._nodes(self.layout.checkpoints, CheckpointNode)

    def inflight(self) -> dict[str, InflightNode]:
        """What is not done, by shard; a shard that never had anything is not named."""
        return self._nodes(self.layout.inflight, InflightNode)

    def dead_letters(self) -> dict[str, DeadLettersNode]:
        """How many records were dead-lettered and the last few, by shard."""
        return self._nodes(self.layout.deadletters, DeadLettersNode)

    def settled(self) -> SettledNode | None:
        """The newest batch that is settled in all its shards; None before the first."""
        found = self._fetch(self.layout.settled, SettledNode)
        return found.node if found else None

    def lineage(self) -> ShardsNode | None:
        """The lineage of the stream's shards; None before the first listing."""
        found = self._fetch(self.layout.shards, ShardsNode)
        return found.node if found else None

    def put_lineage(self, node: ShardsNode, epoch: int) -> None:
        """Store the lineage: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._move([Unit({self.layout.shards: node})], epoch)

    def settle(
        self,
        updates: Updates,
        dead_letters: Mapping[str, DeadLettersNode],
        shards_node: ShardsNode | None,
        settled: SettledNode,
        epoch: int,
        consumed: Mapping[str, Sequence[str]] | None = None,
        leftover: Sequence[str] = (),
    ) -> list[str]:
        """Move shards on by one batch; what was done of it before is skipped, so it may be repeated.

        Args:
            updates: by shard, its new checkpoint and what is in flight now; None leaves that as it is.
            dead_letters: by shard, the new counts; written with the shard's checkpoint, skipped with it.
            shards_node: the lineage, where it has changed.
            settled: written last, once every shard carries the stamp.
            epoch: of this run.
            leftover: paths of the batch's own nodes, removed with the last multi so that none of its rows are
                given any more; where they are not as expected, they are left to `purge`.
            consumed: by shard, the names of the nodes of `external` that `updates` has taken in; removed with
                the shard's checkpoint. A shard named here or in `dead_letters` is named in `updates` too.

        Returns:
            The shards that this call has moved on; those already stamped with this txid or a later one are
            left out.

        Raises:
            CheckpointMovedBackError: a checkpoint would move back; nothing was written.
            FencedError: a newer run has taken over.
        """
        strays = {*dead_letters, *(consumed or {})} - set(updates)
        if strays:
            msg = f"cannot settle txid {settled.txid}: no checkpoint is given for {', '.join(sorted(strays))}"
            raise CheckpointError(msg)
        units = [
            self._unit(shard, checkpoint, inflight, dead_letters.get(shard), (consumed or {}).get(shard, ()))
            for shard, (checkpoint, inflight) in updates.items()
        ]
        last: dict[str, Node] = {self.layout.settled: settled}
        if shards_node is not None:
            last[self.layout.shards] = shards_node
        return self._move([*units, Unit(last, tuple(leftover), may_leave=True)], epoch)

    def amend(
        self,
        shard: str,
        epoch: int,
        *,
        checkpoint: CheckpointNode | None = None,
        inflight: InflightNode | None = None,
        consumed: Sequence[str] = (),
    ) -> None:
        """Change a shard's nodes between two batches, in one multi; their stamp stays what it is.

        `consumed` names the nodes of `external` that this takes in; they are removed with it.

        Raises:
            FencedError: a newer run has taken over.
        """
        nodes: dict[str, Node] = {}
        if checkpoint is not None:
            nodes[self.layout.checkpoint_of(shard)] = checkpoint
        if inflight is not None:
            nodes[self.layout.inflight_of(shard)] = inflight
        folder = self.layout.external_of(shard)
        self._move([Unit(nodes, tuple(f"{folder}/{name}" for name in consumed))], epoch)

    def sweep_parts(self, epoch: int) -> int:
        """Remove parts of in-flight nodes and lineages that a crash has left unnamed; returns how many."""
        with self._moving:
            return self._sweep(epoch)

    def _sweep(self, epoch: int) -> int:
        layout = self.layout
        removed: list[Op] = []
        folders: tuple[tuple[str, type[Node]], ...] = (
            (layout.inflight, InflightNode),
            (layout.deadletters, DeadLettersNode),
            (layout.base, ShardsNode),
        )
        for folder, kind in folders:
            names = [name for name in self._session.children([folder])[0] or [] if is_part(name)]
            heads = sorted({f"{folder}/{owner_of(name)}" for name in names})
            found = self._fetch_many(heads, kind)
            named = {part for stored in found if stored is not None for part in stored.parts}
            removed += [Delete(f"{folder}/{name}") for name in names if f"{folder}/{name}" not in named]
        for pack in packed([[op] for op in removed], PACK_SIZE):
            self._commit(pack, epoch)
        return len(removed)

    def _nodes(self, folder: str, kind: type[NodeT]) -> dict[str, NodeT]:
        return {name: stored.node for name, stored in self._fetch_folder(folder, kind).items()}

    def _unit(
        self,
        shard: str,
        checkpoint: CheckpointNode,
        inflight: InflightNode | None,
        dead_letters: DeadLettersNode | None,
        consumed: Sequence[str],
    ) -> Unit:
        nodes: dict[str, Node] = {self.layout.checkpoint_of(shard): checkpoint}
        if inflight is not None:
            nodes[self.layout.inflight_of(shard)] = inflight
        if dead_letters is not None:
            nodes[self.layout.deadletters_of(shard)] = dead_letters
        folder = self.layout.external_of(shard)
        return Unit(nodes, tuple(f"{folder}/{name}" for name in consumed), shard)

    def _move(self, units: Sequence[Unit], epoch: int) -> list[str]:
        with self._moving:
            return self._moved(units, epoch)

    def _moved(self, units: Sequence[Unit], epoch: int) -> list[str]:
        moved: list[str] = []
        for _ in range(RACES):
            try:
                self._learn(units)
                self._write([unit for unit in units if self._wanted(unit)], epoch, moved)
            except Refused:
                # Known no more: another process of this run has written, or a consumed node is gone.
                self._known.clear()
                units = [replace(unit, removed=()) if unit.may_leave else unit for unit in units]
                continue
            except BaseException:
                self._known.clear()
                raise
            return moved
        raise too_many_races(self.layout.checkpoints)

    def _learn(self, units: Sequence[Unit]) -> None:
        """Read what is not known yet of the nodes about to be written."""
        unknown: dict[type[Node], list[str]] = {}
        for unit in units:
            for path, node in unit.nodes.items():
                if path not in self._known:
                    unknown.setdefault(type(node), []).append(path)
        for kind, paths in unknown.items():
            self._known.update(zip(paths, self._fetch_many(paths, kind), strict=True))

    def _wanted(self, unit: Unit) -> bool:
        """Whether a unit is still to be written: a shard is not when it carries the stamp of this txid.

        Raises:
            CheckpointMovedBackError: a checkpoint would move back.
        """
        for path, new in unit.nodes.items():
            known = self._known[path]
            if known is None or not isinstance(new, CheckpointNode):
                continue
            old: CheckpointNode = known.node
            if unit.shard is not None and old.txid >= new.txid:
                return False
            was, becomes = position_of(old), position_of(new)
            if was is not None and (becomes is None or becomes < was):
                msg = (
                    f"the checkpoint at {path} would move back from {was} (txid {old.txid}) to {becomes} "
                    f"(txid {new.txid}); nothing was written. This is a defect: report it with what it "
                    f"and its neighbour under {self.layout.inflight} hold"
                )
                raise CheckpointMovedBackError(msg)
        return True

    def _write(self, units: Sequence[Unit], epoch: int, moved: list[str]) -> None:
        pack: list[Op] = []
        after: dict[str, Stored[Any]] = {}
        shards: list[str] = []
        held = 0

        def flush() -> None:
            nonlocal held
            if pack:
                self._commit(pack, epoch)
                self._known.update(after)
                moved.extend(shards)
            pack.clear()
            after.clear()
            shards.clear()
            held = 0

        for unit in units:
            ops: list[Op] = list(map(Delete, unit.removed))
            became: dict[str, Stored[Any]] = {}
            for path, node in unit.nodes.items():
                known = self._known[path]
                if not _changes(known.node if known else None, node):
                    continue
                data = self._prepare(path, node, epoch)
                head = head_of(data)
                parts = tuple(part_paths(path, head)) if head else ()
                if known is None:
                    ops.append(Create(path, data))
                    became[path] = Stored(node, 0, parts=parts)
                else:
                    ops += [Write(path, data, known.version), *left_behind(path, data, known.parts)]
                    became[path] = Stored(node, known.version + 1, parts=parts)
            weight = sum(map(size_of, ops))
            if held + weight > PACK_SIZE:
                flush()
            pack += ops
            held += weight
            after |= became
            if unit.shard is not None:
                shards.append(unit.shard)
        flush()


def position_of(node: CheckpointNode) -> RecordPosition | None:
    """The safe checkpoint as a position that compares; None before the first record is done."""
    return None if node.checkpoint is None else RecordPosition(int(node.checkpoint), node.sub)


def _changes(old: Node | None, new: Node) -> bool:
    """Whether writing `new` over `old` says anything new."""
    match old, new:
        case None, InflightNode():
            return bool(new.waiting or new.dead or new.pending or new.blocked)
        case InflightNode(), InflightNode():
            # The stamp alone is the checkpoint's to carry.
            return msgspec.structs.replace(old, txid=new.txid) != new
        case SettledNode(), SettledNode():
            return new.txid > old.txid
    return old != new
