"""Writes nodes that change together: in multis that move a shard or batch from one state to the next, once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kinesis_trident.checkpoint.errors import CheckpointMovedBackError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Node, SettledNode
from kinesis_trident.checkpoint.model.split_nodes import head_of, part_paths
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    FencedNodes,
    Stored,
    delete_left_parts,
    too_many_races,
)
from kinesis_trident.checkpoint.zookeeper.operations import (
    PACK_SIZE,
    Create,
    Delete,
    Op,
    Refused,
    Write,
    pack_writes,
    size_of,
)
from kinesis_trident.tracker.records import RecordPosition

_MOST_LEFT = 512
"""The parts that are removed with the head that no longer names them: thousands would make a request too large."""

_PACKS_UNDER_WAY = 4
"""Multis that are sent before the first of them is answered: 1 MiB, which the server holds in memory."""


class Unit(msgspec.Struct, frozen=True):
    """Nodes that change together: those of one shard, or, without a shard, the nodes that end a settling."""

    nodes: Mapping[str, Node]
    removed: tuple[str, ...] = ()
    shard: str | None = None
    # Removals may be left to a purge if the nodes are not as expected.
    may_leave: bool = False


@dataclass(slots=True)
class _Pack:
    """The writes of one multi; what nodes are once it is done; the shards that it moves.

    `left`: the removals that come after it. `is_last`: it holds what ends a settling.
    """

    ops: list[Op] = field(default_factory=list)
    after: dict[str, Stored[Any]] = field(default_factory=dict)
    shards: list[str] = field(default_factory=list)
    left: list[Op] = field(default_factory=list)
    size: int = 0
    is_last: bool = False

    def add(self, unit: Unit, ops: Sequence[Op], became: Mapping[str, Stored[Any]], size: int) -> None:
        """Add the writes of a unit."""
        self.ops += ops
        self.after |= became
        self.size += size
        if unit.shard is None:
            self.is_last = True
        else:
            self.shards.append(unit.shard)


class UnitWriter:
    """Writes units, as many as fit in a multi, and remembers the nodes it wrote.

    Attributes:
        lock: held while units are written, and by whoever else removes or writes such nodes.
    """

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._layout = nodes.layout
        # The nodes that settling last wrote or read: nobody else writes them under our epoch, and each write checks
        # the version, so a batch is settled without reading first.
        self._known: dict[str, Stored[Any] | None] = {}
        # Parts are written before the head that names them: a concurrent sweep in between, as in a purge, would
        # remove them as left over.
        self.lock = threading.Lock()

    def move(self, units: Sequence[Unit], epoch: int, moved: list[str] | None = None) -> list[str]:
        """Write units in as few multis as they fit in; skip shards that carry the stamp of this txid or a later one.

        `moved`: as in the answer, from each of ZooKeeper's on.

        Returns:
            The shards that this call has moved.

        Raises:
            CheckpointMovedBackError: a checkpoint would move back; nothing was written.
            FencedError: a newer run has taken over.
            Refused: a request that is consumed was withdrawn.
        """
        with self.lock:
            return self._move_units(units, epoch, [] if moved is None else moved)

    def forget(self, paths: Iterable[str]) -> None:
        """Read these nodes again before they are written next: somebody else has written them, under `lock`."""
        for path in paths:
            self._known.pop(path, None)

    def _move_units(self, units: Sequence[Unit], epoch: int, moved: list[str]) -> list[str]:
        last = None
        for _ in range(RACES):
            try:
                self._learn(units)
                self._write([unit for unit in units if self._must_write(unit)], epoch, moved)
            except Refused as refused:
                # The remembered nodes are out of date: another process of this run has written.
                last = refused
                self._known.clear()
                if any(refused.op.path in unit.removed and not unit.may_leave for unit in units):
                    raise
                units = [
                    msgspec.structs.replace(unit, removed=()) if unit.may_leave else unit for unit in units
                ]
                continue
            except BaseException:
                self._known.clear()
                raise
            return moved
        raise too_many_races(self._layout.checkpoints, last)

    def _learn(self, units: Sequence[Unit]) -> None:
        """Read those of the nodes about to be written that are not known yet."""
        unknown: dict[type[Node], list[str]] = {}
        for unit in units:
            for path, node in unit.nodes.items():
                if path not in self._known:
                    unknown.setdefault(type(node), []).append(path)
        for kind, paths in unknown.items():
            self._known.update(zip(paths, self._nodes.fetch_many(paths, kind), strict=True))

    def _must_write(self, unit: Unit) -> bool:
        """Return whether a unit must be written: not if the shard carries the stamp of this txid.

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
            if _is_further(new.checkpoint, old.checkpoint):
                continue
            was, becomes = position_of(old), position_of(new)
            if was is not None and (becomes is None or becomes < was):
                msg = (
                    f"the checkpoint at {path} would move back from {was} (txid {old.txid}) to {becomes} "
                    f"(txid {new.txid}); nothing was written. This is a defect: report it with what it "
                    f"and its neighbour under {self._layout.inflight} hold"
                )
                raise CheckpointMovedBackError(msg)
        return True

    def _write(self, units: Sequence[Unit], epoch: int, moved: list[str]) -> None:
        """Write units; while the server does some multis, the next ones are made.

        What ends a settling is sent once all else is done.
        """
        under_way: deque[tuple[_Pack, Callable[[], object]]] = deque()

        def finish(most: int) -> None:
            while len(under_way) > most:
                pack, finished = under_way.popleft()
                finished()
                self._known.update(pack.after)
                moved.extend(pack.shards)
                for some in pack_writes([[op] for op in pack.left], PACK_SIZE):
                    # What stays is removed by the next run.
                    with suppress(Refused):
                        self._nodes.commit(some, epoch)

        try:
            for pack in self._packs(units, epoch):
                finish(0 if pack.is_last else _PACKS_UNDER_WAY - 1)
                under_way.append((pack, self._nodes.begin(pack.ops, epoch)))
            finish(0)
        except Refused:
            # Multis that were sent after the refused one may have been applied: their answers are awaited too.
            while under_way:
                with suppress(Refused):
                    finish(0)
            raise

    def _packs(self, units: Sequence[Unit], epoch: int) -> Iterator[_Pack]:
        """Make the multis that write units, as many units as fit in each."""
        pack = _Pack()
        for unit in units:
            ops: list[Op] = list(map(Delete, unit.removed))
            became: dict[str, Stored[Any]] = {}
            late: list[Op] = []
            for path, node in unit.nodes.items():
                known = self._known[path]
                if not _changes(known.node if known else None, node):
                    continue
                data, parts = self._data_of(path, node, epoch, known.parts if known else ())
                if known is None:
                    ops.append(Create(path, data))
                    became[path] = Stored(node, 0, parts=parts)
                else:
                    left = delete_left_parts(path, data, known.parts)
                    ops += [Write(path, data, known.version), *left[:_MOST_LEFT]]
                    late += left[_MOST_LEFT:]
                    became[path] = Stored(node, known.version + 1, parts=parts)
            weight = sum(map(size_of, ops))
            if pack.ops and pack.size + weight > PACK_SIZE:
                yield pack
                pack = _Pack()
            pack.add(unit, ops, became, weight)
            pack.left += late
        if pack.ops:
            yield pack

    def _data_of(
        self, path: str, node: Node, epoch: int, kept: Sequence[str]
    ) -> tuple[bytes, tuple[str, ...]]:
        """Return the data of a node and the paths of its parts: those that are not `kept` are written first."""
        if isinstance(node, CheckpointNode):
            # As many as there are shards, and none is large.
            return encode(node), ()
        data = self._nodes.prepare(path, node, epoch, kept)
        head = head_of(data)
        return data, tuple(part_paths(path, head)) if head else ()


def position_of(node: CheckpointNode) -> RecordPosition | None:
    """Return the safe checkpoint as a comparable position; None before the first record is done."""
    return None if node.checkpoint is None else RecordPosition(node.checkpoint, node.sub)


def _is_further(text: str | None, other: str | None) -> bool:
    """Return whether one sequence number is seen at a glance to be greater: if both have as many digits."""
    return text is not None and other is not None and len(text) == len(other) and text > other


def _changes(old: Node | None, new: Node) -> bool:
    """Return whether writing `new` over `old` changes anything."""
    match old, new:
        case None, InflightNode():
            return not new.is_empty
        case InflightNode(), InflightNode():
            # The stamp alone is not a change: the checkpoint carries it.
            return msgspec.structs.replace(old, txid=new.txid, counted=new.counted) != new
        case SettledNode(), SettledNode():
            return new.txid > old.txid
    return old != new
