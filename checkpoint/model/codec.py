"""Encodes nodes as JSON and decodes them by the rule of `checkpoint.model.nodes`. Pure.

A node that cannot be read is an error, never another value or a default: a checkpoint that is read wrongly would
silently lose or repeat records. So are fields that contradict each other, which their types cannot show.

A field with up to `FEW` runs is plain JSON; with more it is a text (`tracker.packing`): thousands of failures otherwise
take megabytes, again with every batch. Nodes and offsets with such a field have version 4; no release reads versions 2
and 3 of these. Where the text is of several pieces, so that they can be stored one by one, the node has version 5.
The shards of a plan, if they are more than `MANY`, are texts too (`packed_positions`): they are most of it, and Spark
keeps hundreds of plans. Such a plan has version 6.
A pin with a field of `_NEEDED` has version 2. Others have version 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import CorruptNodeError, NewerFormatError
from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.nodes import (
    VERSION,
    BatchNode,
    BatchOutcome,
    InflightNode,
    Node,
    Pin,
    Plan,
)
from kinesis_trident.checkpoint.model.packed_positions import pack_positions, unpack_positions
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.packing import PIECE_END, pack, pack_in_pieces, unpack, unpack_pieces

PACKED_VERSION = 4

PIECES_VERSION = 5

SHARDS_VERSION = 6

FEW = 16
"""The number of runs of a field up to which they are not packed."""

MANY = 1000
"""The number of shards of a field up to which they are not packed."""

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

NodeT = TypeVar("NodeT", bound=Node)

_decoders: dict[type[Node], msgspec.json.Decoder[Node]] = {}


class UnreadableError(ValueError):
    """What is wrong with the JSON of a node; continues a sentence that begins with its place."""


class NewerVersionError(UnreadableError):
    """Another release has written it, in a version that this one does not know; `is_newer`: than all that it reads."""

    def __init__(self, message: str, *, is_newer: bool) -> None:
        super().__init__(message)
        self.is_newer = is_newer


class _Version(msgspec.Struct):
    v: int


_version_decoder = msgspec.json.Decoder(_Version)

_FIRST = b'{"v":%d,' % VERSION

_WHAT_TO_DO = (
    "Nothing was changed. Restore the node from a backup, or from a copy that `checkpoints APP backups` lists"
)

_WHAT_TO_DO_THEN = (
    "Nothing was changed. Use that release again: its documentation says how to go back (deploying.md)"
)

_WHAT_TO_DO_BEFORE = (
    "Nothing was changed. Use that release again until few failed records wait (deploying.md, Stopping and "
    "upgrading)"
)


def encode(node: Node, *, in_pieces: bool = False) -> bytes:
    """Return the node as compact JSON, `v` included; very many runs of records are packed.

    `in_pieces`: those of a shard into several texts, if they are too many for one.
    """
    if isinstance(node, BackupNode):
        return _encode_copy(node)
    node = node.stored if isinstance(node, BatchOutcome) else node
    holder = node.plan if isinstance(node, BatchNode) else node
    runs = {name: getattr(holder, name) for name in _RUNS.get(type(holder), ())}
    many = {name: some for name, some in runs.items() if _count(some) > FEW}
    needed = [version for name, version in _NEEDED.get(type(node), {}).items() if getattr(node, name)]
    texts = {name: (pack_in_pieces if in_pieces else pack)(some) for name, some in many.items()}
    needed += [PIECES_VERSION if PIECE_END in text else PACKED_VERSION for text in texts.values()]
    if isinstance(holder, Plan) and len(holder.positions) > MANY:
        needed.append(SHARDS_VERSION)
        many["positions"], texts["positions"] = holder.positions, pack_positions(holder.positions)
        if len(holder.read) > MANY:
            many["read"], texts["read"] = holder.read, pack_positions(dict.fromkeys(holder.read, ""))
    if not needed:
        return _encoder.encode(node)
    version = max(needed)
    bare = replace(holder, **{name: type(some)() for name, some in many.items()})
    stored: dict[str, Any] = _fields.decode(_encoder.encode(bare))
    stored |= {"v": version} | texts
    if isinstance(node, BatchNode):
        outer = _fields.decode(_encoder.encode(replace(node, plan=bare)))
        stored = outer | {"v": version, "plan": stored}
    return _encoder.encode(stored)


def _encode_copy(node: BackupNode) -> bytes:
    """Return a copy of shards, in which the records in flight of each are as its own node has them."""
    inflight = {shard: encode(one) for shard, one in node.inflight.items()}
    if all(data.startswith(_FIRST) for data in inflight.values()):
        return _encoder.encode(node)
    stored: dict[str, Any] = _fields.decode(_encoder.encode(replace(node, inflight={})))
    packed = {shard: msgspec.Raw(data) for shard, data in inflight.items()}
    return _encoder.encode(stored | {"v": PACKED_VERSION, "inflight": packed})


def decode(path: str, data: bytes, kind: type[NodeT]) -> NodeT:
    """Return the node of type `kind` that `data` holds.

    Args:
        path: its place, for the error: a ZooKeeper path, or words such as `the offset of batch 7`.
        data: JSON.
        kind: a struct of `checkpoint.model.nodes`.

    Raises:
        NewerFormatError: another release has written it, in a version that this one does not know.
        CorruptNodeError: bad JSON, a missing field, a wrong type, or fields that contradict each other.
    """
    try:
        return read(data, kind)
    except NewerVersionError as error:
        msg = f"{path} {error}. {_WHAT_TO_DO_THEN if error.is_newer else _WHAT_TO_DO_BEFORE}"
        raise NewerFormatError(msg) from None
    except UnreadableError as error:
        raise corrupt(path, str(error)) from None


def read(data: bytes, kind: type[NodeT]) -> NodeT:
    """Return the node of type `kind` that `data` holds.

    Raises:
        NewerVersionError, UnreadableError: what is wrong, to be continued by what to do.
    """
    try:
        version = VERSION if data.startswith(_FIRST) else _version_decoder.decode(data).v
    except UNREADABLE as error:
        msg = f"does not hold a node of kinesis-trident ({error}): {data[:80]!r}"
        raise UnreadableError(msg) from None
    known = _versions_of(kind)
    if version > VERSION and version not in known:
        is_newer = version > known[-1]
        msg = (
            f"was written by {'a newer' if is_newer else 'another'} release of kinesis-trident (version "
            f"{version} of its format), which this one cannot read: it reads version{'s' if len(known) > 1 else ''} "
            f"{', '.join(map(str, known))}"
        )
        raise NewerVersionError(msg, is_newer=is_newer)
    try:
        decoder = _decoder_of(kind)
        is_later = version in known[1:]
        node = _decode_versioned(data, decoder, version) if is_later else decoder.decode(data)
        node = node.keyed if isinstance(node, BatchOutcome) else node
        wrong = flaw_of(node)
    except (*UNREADABLE, ValueError) as error:
        wrong = str(error)
    if wrong:
        msg = f"does not hold a {kind.__name__} of version {version}: {wrong}"
        raise UnreadableError(msg)
    return node  # type: ignore[return-value]


def _versions_of(kind: type[Node]) -> list[int]:
    """Return the versions of the nodes of a kind that can be read, the newest last."""
    if kind is InflightNode:
        return [VERSION, PACKED_VERSION, PIECES_VERSION]
    if kind in (BatchNode, Plan):
        return [VERSION, PACKED_VERSION, SHARDS_VERSION]
    if kind is BackupNode or kind in _RUNS:
        return [VERSION, PACKED_VERSION]
    return sorted({VERSION, *_NEEDED.get(kind, {}).values()})


def _decode_versioned(data: bytes, decoder: msgspec.json.Decoder[Node], version: int) -> Node:
    """Return a node of a version above 1; `decoder` is that of its kind.

    Raises:
        UNREADABLE, tracker.errors.OrderError: it is none.
    """
    kind = decoder.type
    outer: dict[str, Any] = _fields.decode(data)
    if kind is BackupNode:
        packed = _fields.decode(outer.pop("inflight", b"{}"))
        copy = decoder.decode(_encoder.encode(outer | {"v": VERSION}))
        return replace(
            copy, inflight={shard: read(bytes(raw), InflightNode) for shard, raw in packed.items()}
        )
    holder: dict[str, Any] = _fields.decode(outer.get("plan", b"null")) if kind is BatchNode else outer
    if holder.get("v") != outer["v"]:
        msg = "the plan of the batch is of another version"
        raise OrderError(msg)
    runs: dict[str, Any] = {}
    for name in _RUNS.get(Plan if kind is BatchNode else kind, ()):
        raw = bytes(holder.get(name, b""))
        if not raw.startswith(b'"'):
            continue
        runs[name] = unpack_pieces(_text.decode(raw)) if kind is BatchOutcome else unpack(_text.decode(raw))
        if isinstance(runs[name], tuple) is not (kind is InflightNode):
            msg = f"the runs of {name} belong to another kind of node"
            raise OrderError(msg)
        holder[name] = type(runs[name])()
    if version == SHARDS_VERSION:
        # The decoder of plain positions checks these too.
        holder["positions"] = unpack_positions(_text.decode(holder.get("positions", b"null")))
        if bytes(holder.get("read", b"")).startswith(b'"'):
            holder["read"] = list(unpack_positions(_text.decode(holder["read"])))
    holder["v"] = outer["v"] = VERSION
    if kind is BatchNode:
        outer["plan"] = holder
    node = decoder.decode(_encoder.encode(outer))
    if isinstance(node, BatchNode):
        return replace(node, plan=replace(node.plan, **runs))
    return replace(node, **runs)


def _count(runs: Any) -> int:
    return sum(map(len, runs.values())) if isinstance(runs, Mapping) else len(runs)


def _decoder_of(kind: type[Node]) -> msgspec.json.Decoder[Node]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


@contextmanager
def name_in_errors(path: str) -> Iterator[None]:
    """Name the node in the error when its fields are valid but its content makes no sense to the caller.

    Raises:
        CorruptNodeError: the body raised a ValueError, as trackers and positions do.
    """
    try:
        yield
    except ValueError as error:
        raise misfit_error(path, error) from error


def misfit_error(path: str, error: ValueError) -> CorruptNodeError:
    """Return the error of a node whose content makes no sense beside others."""
    return corrupt(path, f"does not fit the nodes beside it: {error}")


def corrupt(path: str, what: str) -> CorruptNodeError:
    """Return the error of a bad node; `what` continues the sentence that begins with its path."""
    return CorruptNodeError(f"{path} {shorten(what)}. {_WHAT_TO_DO}")


def flaw_of(node: Node) -> str:
    """Return what is wrong with a node whose fields all have the right type; the empty string if nothing is."""
    match node:
        case BatchNode():
            return _flaw_of_plan(node.plan)
        case Plan():
            return _flaw_of_plan(node)
        case InflightNode():
            for run in node.pending:
                if not run.open or len(run.open) % 2 or run.open[0] < 0:
                    return f"the ranges {run.open} of the pending records of txid {run.txid} are not valid ranges"
                if any(later <= sooner for sooner, later in pairwise(run.open)):
                    return (
                        f"the ranges {run.open} of the pending records of txid {run.txid} are not ascending"
                    )
        case Pin():
            if not -(2**63) <= node.xor < 2**64:
                return "xor has more than 64 bits"
    return ""


def _flaw_of_plan(plan: Plan) -> str:
    if any(later <= sooner for sooner, later in pairwise(plan.read)):
        return "read is not sorted"
    for field, shards in (("read", plan.read), ("retries", plan.retries), ("dead", plan.dead)):
        for shard in shards:
            if shard not in plan.positions:
                return f"{field} names shard {shard!r}, which has no position"
    return ""
