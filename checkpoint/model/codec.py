"""Encodes nodes as JSON and decodes them strictly. Pure.

A node that cannot be read is an error, never another value or a default: a checkpoint that is read wrongly would
silently lose or repeat records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.contents import flaw_of
from kinesis_trident.checkpoint.model.nodes import VERSION, Batch, Node
from kinesis_trident.checkpoint.model.packed_nodes import PACKED_VERSION, packed, packed_kind, unpacked
from kinesis_trident.tracker.errors import UNREADABLE, OrderError
from kinesis_trident.tracker.reasons import shorten

__all__ = ["corrupt", "decode", "encode", "misfit", "naming", "version_of"]

NodeT = TypeVar("NodeT", bound=Node)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Node], msgspec.json.Decoder[Node]] = {}


class _Version(msgspec.Struct):
    v: int


_version_decoder = msgspec.json.Decoder(_Version)

_WHAT_TO_DO = (
    "Nothing was changed. Restore the node from a backup, or read it with the release that wrote it; delete it "
    "only if you accept to lose its content"
)


def encode(node: Node) -> bytes:
    """Return the node as compact JSON, `v` included; very many runs of records are packed."""
    return _encoder.encode(packed(node))


def version_of(path: str, data: bytes) -> int:
    """Return the format version that a JSON object names.

    Raises:
        CorruptNodeError: it is not a JSON object, or has no `v`.
    """
    try:
        return _version_decoder.decode(data).v
    except UNREADABLE as error:
        msg = f"{path} does not hold a node of kinesis-trident ({error}): {data[:80]!r}. {_WHAT_TO_DO}"
        raise CorruptNodeError(msg) from None


def decode(path: str, data: bytes, kind: type[NodeT]) -> NodeT:
    """Return the node of type `kind` that `data` holds.

    Args:
        path: its place, for the error: a ZooKeeper path, or words such as `the offset of batch 7`.
        data: JSON.
        kind: a struct of `checkpoint.model.nodes`.

    Raises:
        CorruptNodeError: another version, bad JSON, a missing or an unknown field, a wrong type, or fields that
            contradict each other.
    """
    stored = packed_kind(kind, data)
    if stored is not kind:
        return _sound(path, _unpacked(path, data, stored))  # type: ignore[return-value]
    decoder = _decoder_of(kind)
    try:
        node = decoder.decode(data)
    except UNREADABLE as error:
        # For another version the reason is unknown.
        _refuse_other_version(path, version_of(path, data))
        raise corrupt(path, f"does not hold a {kind.__name__} of version {VERSION}: {error}") from None
    # Our nodes begin with `v`; where it is missing, the default must not replace it.
    _refuse_other_version(path, node.v if data.startswith(b'{"v":') else version_of(path, data))
    if isinstance(node, Batch):
        _refuse_other_version(path, node.plan.v)
    return _sound(path, node)  # type: ignore[return-value]


def _sound(path: str, node: Node) -> Node:
    wrong = flaw_of(node)
    if wrong:
        raise corrupt(path, f"does not hold a {type(node).__name__}: {wrong}")
    return node


def _decoder_of(kind: type[Node]) -> msgspec.json.Decoder[Node]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


def _unpacked(path: str, data: bytes, stored: type[Node]) -> Node:
    """Return the node that is stored with its runs packed."""
    try:
        return unpacked(_decoder_of(stored).decode(data))
    except (*UNREADABLE, OrderError) as error:
        raise corrupt(
            path, f"does not hold a {stored.__name__} of version {PACKED_VERSION}: {error}"
        ) from None


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the node in the error when its fields are valid but its content makes no sense to the caller.

    Raises:
        CorruptNodeError: the body raised a ValueError, as trackers and positions do.
    """
    try:
        yield
    except ValueError as error:
        raise misfit(path, error) from error


def misfit(path: str, error: ValueError) -> CorruptNodeError:
    """Return the error of a node whose content makes no sense beside others."""
    return corrupt(path, f"does not fit the nodes beside it: {error}")


def corrupt(path: str, what: str) -> CorruptNodeError:
    """Return the error of a bad node; `what` continues the sentence that begins with its path."""
    return CorruptNodeError(f"{path} {shorten(what)}. {_WHAT_TO_DO}")


def _refuse_other_version(path: str, version: int) -> None:
    if version != VERSION:
        msg = (
            f"{path} has format version {version}; this release of kinesis-trident reads version {VERSION}. "
            f"{_WHAT_TO_DO}"
        )
        raise CorruptNodeError(msg)
