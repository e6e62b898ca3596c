"""Encodes nodes as JSON and decodes them by the rule of `checkpoint.model.nodes`. Pure.

A node that cannot be read is an error, never another value or a default: a checkpoint that is read wrongly would
silently lose or repeat records. So are fields that contradict each other, which their types cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import msgspec

from kinesis_trident.checkpoint.errors import CorruptNodeError, NewerFormatError
from kinesis_trident.checkpoint.model.nodes import VERSION, Batch, InflightNode, Node, Pin, Plan
from kinesis_trident.checkpoint.model.packed_nodes import decode_versioned, encode_versioned, newest_version
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.reasons import shorten

NodeT = TypeVar("NodeT", bound=Node)

_decoders: dict[type[Node], msgspec.json.Decoder[Node]] = {}


class UnreadableError(ValueError):
    """What is wrong with the JSON of a node; continues a sentence that begins with its place."""


class NewerVersionError(UnreadableError):
    """A newer release has written it."""


class _Version(msgspec.Struct):
    v: int


_version_decoder = msgspec.json.Decoder(_Version)

_FIRST = b'{"v":%d,' % VERSION

_WHAT_TO_DO = (
    "Nothing was changed. Restore the node from a backup; delete it only if you accept to lose its content"
)

_WHAT_TO_DO_THEN = (
    "Nothing was changed. Use the newer release again: its documentation says how to go back (deploying.md)"
)


def encode(node: Node) -> bytes:
    """Return the node as compact JSON, `v` included; very many runs of records are packed."""
    return encode_versioned(node)


def decode(path: str, data: bytes, kind: type[NodeT]) -> NodeT:
    """Return the node of type `kind` that `data` holds.

    Args:
        path: its place, for the error: a ZooKeeper path, or words such as `the offset of batch 7`.
        data: JSON.
        kind: a struct of `checkpoint.model.nodes`.

    Raises:
        NewerFormatError: a later release has written it, in a version that this one does not know.
        CorruptNodeError: bad JSON, a missing field, a wrong type, or fields that contradict each other.
    """
    try:
        return read(data, kind)
    except NewerVersionError as error:
        msg = f"{path} {error}. {_WHAT_TO_DO_THEN}"
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
    newest = newest_version(kind)
    if version > newest:
        msg = (
            f"was written by a newer release of kinesis-trident (version {version} of its format), which this one "
            f"cannot read: it reads versions up to {newest}"
        )
        raise NewerVersionError(msg)
    try:
        decoder = _decoder_of(kind)
        is_later = VERSION < version <= newest
        node = decode_versioned(data, decoder, version) if is_later else decoder.decode(data)
        wrong = flaw_of(node)
    except (*UNREADABLE, OrderError) as error:
        wrong = str(error)
    if wrong:
        msg = f"does not hold a {kind.__name__} of version {version}: {wrong}"
        raise UnreadableError(msg)
    return node  # type: ignore[return-value]


def _decoder_of(kind: type[Node]) -> msgspec.json.Decoder[Node]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


@contextmanager
def naming(path: str) -> Iterator[None]:
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
        case Batch():
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
