"""Splits nodes that are too large for ZooKeeper: a head names its parts, which are its siblings. Pure.

ZooKeeper's limit is 1 MiB a request (`jute.maxbuffer`), and beyond it the server cuts the connection without an
error. A node larger than `PART_SIZE` is written as sibling nodes `<name>~<digest>~<i>` first, then the head at its
path: `{"v": 1, "parts": n, "size": bytes, "digest": ...}`. Parts are slices of the JSON. Their names come from the
content, so a repeated write is the same write, and a head never meets the parts of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import PART_MARK
from kinesis_trident.checkpoint.model.nodes import Node

PART_SIZE = 512 * 1024

WHOLE = 32 * 1024
"""The size of one piece of a node, in bytes, if there are hundreds of such nodes: 128 of them are 4 MiB."""


class Head(Node, frozen=True, kw_only=True):
    """The node at the path of a large node."""

    parts: int
    size: int
    digest: str


_decoder = msgspec.json.Decoder(Head)


def split(
    path: str, data: bytes, part_size: int = PART_SIZE, whole: int | None = None
) -> tuple[bytes, dict[str, bytes]]:
    """Return the data for `path`, and the parts (path to bytes) to write before it; none if `data` fits.

    `whole`: the size up to which it fits; by default that of a part.
    """
    if len(data) <= (part_size if whole is None else whole):
        return data, {}
    slices = [data[at : at + part_size] for at in range(0, len(data), part_size)]
    head = Head(parts=len(slices), size=len(data), digest=xxhash.xxh3_128_hexdigest(data))
    return encode(head), dict(zip(part_paths(path, head), slices, strict=True))


def head_of(data: bytes) -> Head | None:
    """Return the head that `data` is, or None for a node in one piece."""
    if b'"parts"' not in data:
        return None
    try:
        # No node has these fields, so no node can be mistaken for a head.
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def part_paths(path: str, head: Head) -> list[str]:
    """Return the paths of the parts, in order; a part that occurs twice is one node."""
    return [f"{path}{PART_MARK}{head.digest}{PART_MARK}{i}" for i in range(head.parts)]


def join(path: str, head: Head, parts: Sequence[bytes]) -> bytes:
    """Return the JSON of a node from its parts.

    Raises:
        CorruptNodeError: the parts do not match the head.
    """
    data = b"".join(parts)
    if len(data) != head.size or xxhash.xxh3_128_hexdigest(data) != head.digest:
        msg = (
            f"{path} is stored in {head.parts} parts, which do not add up to {head.size} bytes with digest "
            f"{head.digest}. Nothing was changed. Restore the nodes {path}{PART_MARK}* from a backup"
        )
        raise CorruptNodeError(msg)
    return data


def is_part(name: str) -> bool:
    """Return whether a child's name is that of a part."""
    return PART_MARK in name


def owner_of(name: str) -> str:
    """Return the name of the node that a part, or a node in one piece, belongs to."""
    return name.partition(PART_MARK)[0]
