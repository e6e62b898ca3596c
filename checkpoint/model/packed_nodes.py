"""The stored form of nodes that hold runs of failed records. Pure.

A field with up to `FEW` runs is plain JSON; with more it is a text (`tracker.packing`): thousands of failures otherwise
take megabytes, again with every batch. Nodes and offsets with such a field have version 3; those of version 2 come from
release 1.0.0, which packed the runs in chunks. A pin with a field of `_NEEDED` has version 2. Others have version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.nodes import (
    VERSION,
    Batch,
    BatchOutcome,
    InflightNode,
    Node,
    NotDone,
    Pin,
    Plan,
)
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.packing import Chunk, pack, unpack, unpack_chunks, unpack_pieces
from kinesis_trident.tracker.records import Run

CHUNKED_VERSION = 2

PACKED_VERSION = 3

FEW = 16
"""The number of runs of a field up to which they are not packed."""

_RUNS: dict[type[Node], tuple[str, ...]] = {
    InflightNode: ("waiting", "dead"),
    Plan: ("retries", "dead", "notDone"),
    BatchOutcome: ("not_done",),
}

_NEEDED: dict[type[Node], dict[str, int]] = {Pin: {"unreadable": 2}}
"""Fields that raise the version of the nodes that have them: earlier releases would read these nodes wrong."""

_encoder = msgspec.json.Encoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_chunks = msgspec.json.Decoder(tuple[Chunk, ...] | dict[str, tuple[Chunk, ...]])


def newest_version(kind: type[Node]) -> int:
    """Return the newest version of the nodes of a kind that can be read."""
    return (
        PACKED_VERSION
        if kind is Batch or kind in _RUNS
        else max(_NEEDED.get(kind, {}).values(), default=VERSION)
    )


def encode_versioned(node: Node) -> bytes:
    """Return a node as JSON, its runs packed where they are many."""
    holder = node.plan if isinstance(node, Batch) else node
    runs = {name: getattr(holder, name) for name in _RUNS.get(type(holder), ())}
    many = {name: some for name, some in runs.items() if _count(some) > FEW}
    needed = [version for name, version in _NEEDED.get(type(node), {}).items() if getattr(node, name)]
    if not many and not needed:
        return _encoder.encode(node)
    version = max([PACKED_VERSION] * bool(many) + needed)
    bare = replace(holder, **{name: type(some)() for name, some in many.items()})
    stored: dict[str, Any] = _fields.decode(_encoder.encode(bare))
    stored |= {"v": version} | {name: pack(some) for name, some in many.items()}
    if isinstance(node, Batch):
        outer = _fields.decode(_encoder.encode(replace(node, plan=bare)))
        stored = outer | {"v": version, "plan": stored}
    return _encoder.encode(stored)


def decode_versioned(data: bytes, decoder: msgspec.json.Decoder[Node], version: int) -> Node:
    """Return a node of a version above 1; `decoder` is that of its kind.

    Raises:
        UNREADABLE, tracker.errors.OrderError: it is none.
    """
    kind = decoder.type
    outer: dict[str, Any] = _fields.decode(data)
    holder: dict[str, Any] = _fields.decode(outer.get("plan", b"null")) if kind is Batch else outer
    if holder.get("v") != outer["v"]:
        msg = "the plan of the batch is of another version"
        raise OrderError(msg)
    runs: dict[str, Any] = {}
    for name in _RUNS.get(Plan if kind is Batch else kind, ()):
        raw = bytes(holder.get(name, b""))
        if version == CHUNKED_VERSION and raw:
            runs[name] = _unchunked(_chunks.decode(raw), kind)
        elif raw.startswith(b'"'):
            runs[name] = (
                unpack_pieces(_text.decode(raw)) if kind is BatchOutcome else unpack(_text.decode(raw))
            )
        else:
            continue
        if isinstance(runs[name], tuple) is not (kind is InflightNode):
            msg = f"the runs of {name} belong to another kind of node"
            raise OrderError(msg)
        holder[name] = type(runs[name])()
    holder["v"] = outer["v"] = VERSION
    if kind is Batch:
        outer["plan"] = holder
    node = decoder.decode(_encoder.encode(outer))
    if isinstance(node, Batch):
        return replace(node, plan=replace(node.plan, **runs))
    return replace(node, **runs)


def _unchunked(chunks: Any, kind: type[Node]) -> Any:
    """Return the runs, or the pieces of an outcome: those are runs with their reason as the only failure."""
    if isinstance(chunks, dict):
        return {shard: _unchunked(some, kind) for shard, some in chunks.items()}
    runs = unpack_chunks(chunks)
    return tuple(map(_piece, runs)) if kind is BatchOutcome else runs


def _piece(run: Run) -> NotDone:
    return NotDone(run.first, run.last, run.count, run.failures[-1].reason if run.failures else "", run.prev)


def _count(runs: Any) -> int:
    return sum(map(len, runs.values())) if isinstance(runs, Mapping) else len(runs)
