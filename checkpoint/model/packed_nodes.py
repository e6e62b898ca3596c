"""The nodes that hold runs of failed records, packed if the runs are many. Pure.

A node of up to `FEW` runs is stored as readable JSON. With more its runs are packed (`tracker.packing`) and its
version is 2: thousands of failures otherwise take megabytes, again with every batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.nodes import (
    Batch,
    BatchOutcome,
    InflightNode,
    Node,
    NotDone,
    Ordinal,
    Plan,
    StartText,
    TaskCount,
)
from kinesis_trident.tracker.packing import PackedRuns, pack_runs, pack_same_runs, unpack_pieces, unpack_runs
from kinesis_trident.tracker.records import Failure, Number, PendingRun, Run

__all__ = ["FEW", "PACKED_VERSION", "PackedPlan", "packed", "packed_kind", "unpacked"]

PACKED_VERSION = 2
"""The version of nodes and offsets whose runs are packed; nodes with few runs keep version 1."""

_PACKED = b'{"v":%d,' % PACKED_VERSION
"""The beginning of the JSON of a packed node."""

FEW = 16
"""The number of runs up to which they are not packed."""

Chunks = tuple[PackedRuns, ...]


class PackedInflight(Node, frozen=True, kw_only=True):
    """An `InflightNode` with packed runs."""

    v: int = PACKED_VERSION
    txid: Ordinal
    waiting: Chunks
    dead: Chunks
    blocked: str
    pending: tuple[PendingRun, ...]
    turns: tuple[Ordinal, ...]


class PackedPlan(Node, frozen=True, kw_only=True):
    """A `Plan` with packed runs."""

    v: int = PACKED_VERSION
    txid: Ordinal
    plan: str
    streams: dict[str, Number]
    positions: dict[str, StartText]
    read: tuple[str, ...]
    retries: dict[str, Chunks]
    dead: dict[str, Chunks]
    notDone: dict[str, Chunks]
    limit: Number | None
    limitBytes: Number | None
    room: dict[str, Number]
    resume: dict[str, StartText]
    deaggregate: bool | None = None
    tasks: TaskCount | None = None


class PackedBatch(Node, frozen=True, kw_only=True):
    """A `Batch` with packed runs."""

    v: int = PACKED_VERSION
    epoch: Ordinal
    plan: PackedPlan


class PackedOutcome(Node, frozen=True, kw_only=True):
    """A `BatchOutcome`; a piece is packed as a run without attempts, with its reason as the only failure."""

    v: int = PACKED_VERSION
    txid: Ordinal
    plan: str
    epoch: Ordinal
    not_done: dict[str, Chunks]


_KINDS: dict[type[Node], type[Node]] = {
    InflightNode: PackedInflight,
    Batch: PackedBatch,
    Plan: PackedPlan,
    BatchOutcome: PackedOutcome,
}


def packed_kind(kind: type[Node], data: bytes) -> type[Node]:
    """Return the struct as which the JSON of a node of this kind is read."""
    # A node's version comes first because it is declared first.
    return _KINDS.get(kind, kind) if data.startswith(_PACKED) else kind


def packed(node: Node) -> Node:
    """Return a node in its stored form: itself, or with its runs packed."""
    if type(node) not in _KINDS:
        return node
    match node:
        case InflightNode() if len(node.waiting) + len(node.dead) > FEW:
            runs = {"waiting": pack_runs(node.waiting), "dead": pack_runs(node.dead)}
            return PackedInflight(**_fields(node) | runs)
        case Plan() if _count(node.retries, node.dead, node.notDone) > FEW:
            by_shard = {
                name: _each(pack_same_runs, getattr(node, name)) for name in ("retries", "dead", "notDone")
            }
            return PackedPlan(**_fields(node) | by_shard)
        case Batch() if isinstance(plan := packed(node.plan), PackedPlan):
            return PackedBatch(epoch=node.epoch, plan=plan)
        case BatchOutcome() if _count(node.not_done) > FEW:
            return PackedOutcome(**_fields(node) | {"not_done": _each(_pack_pieces, node.not_done)})
    return node


def unpacked(node: Node) -> Node:
    """Return the node of a stored form: the inverse of `packed`.

    Raises:
        tracker.errors.OrderError: its runs cannot be read.
    """
    match node:
        case PackedInflight():
            runs = {"waiting": unpack_runs(node.waiting), "dead": unpack_runs(node.dead)}
            return InflightNode(**_fields(node) | runs)
        case PackedPlan():
            by_shard = {
                name: _each(unpack_runs, getattr(node, name)) for name in ("retries", "dead", "notDone")
            }
            return Plan(**_fields(node) | by_shard)
        case PackedBatch():
            plan = unpacked(node.plan)
            assert isinstance(plan, Plan)
            return Batch(epoch=node.epoch, plan=plan)
        case PackedOutcome():
            return BatchOutcome(**_fields(node) | {"not_done": _each(unpack_pieces, node.not_done)})
    return node


def _fields(node: Node) -> dict[str, Any]:
    """Return the fields without the version, which is that of the other struct."""
    fields = msgspec.structs.asdict(node)
    del fields["v"]
    return fields


def _count(*by_shard: Mapping[str, Sequence[Any]]) -> int:
    return sum(len(runs) for held in by_shard for runs in held.values())


def _each(change: Any, by_shard: Mapping[str, Any]) -> dict[str, Any]:
    return {shard: change(held) for shard, held in by_shard.items()}


def _pack_pieces(pieces: Sequence[NotDone]) -> Chunks:
    # One object for each reason: packing looks no further at it.
    failures = {reason: (Failure(0, reason),) for reason in {piece.reason for piece in pieces}}
    return pack_runs(
        [
            Run(piece.first, piece.last, piece.count, piece.prev, 0, 0, failures[piece.reason])
            for piece in pieces
        ]
    )
