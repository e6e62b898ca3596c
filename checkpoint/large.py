"""Nodes beyond what ZooKeeper holds: a head that names its parts, which stand beside it. Pure.

ZooKeeper's limit is 1 MiB a request (`jute.maxbuffer`), and beyond it the connection is cut without an error.
What is larger than `PART_SIZE` is written as sibling nodes `<name>~<digest>~<i>` first, then the head in its
place: `{"v": 1, "parts": n, "size": bytes, "digest": ...}`. Parts are slices of the JSON. Their names come
from the content, so a repeated write is the same write, and a head never meets the parts of another.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

from checkpoint.codec import encode
from checkpoint.errors import CorruptNodeError
from checkpoint.layout import PART_MARK
from checkpoint.nodes import Node

__all__ = ["PART_SIZE", "head_of", "is_part", "join", "owner_of", "part_paths", "split"]

PART_SIZE = 512 * 1024


class Head(Node, frozen=True, kw_only=True):
    """What stands in the place of a large node."""

    parts: int
    size: int
    digest: str


_head_decoder = msgspec.json.Decoder(Head)


def split(path: str, data: bytes, part_size: int = PART_SIZE) -> tuple[bytes, dict[str, bytes]]:
    """What to write at `path`, and the parts (path to bytes) to write before it; none when `data` fits."""
    if len(data) <= part_size:
        return data, {}
    slices = [data[at : at + part_size] for at in range(0, len(data), part_size)]
    head = Head(parts=len(slices), size=len(data), digest=xxhash.xxh3_128_hexdigest(data))
    return encode(head), dict(zip(part_paths(path, head), slices, strict=True))


def head_of(data: bytes) -> Head | None:
    """The head that `data` is, or None where it is a node in one piece."""
    if b'"parts"' not in data:
        return None
    try:
        # No node has these fields, so nothing else can be taken for a head.
        return _head_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def part_paths(path: str, head: Head) -> list[str]:
    """Where the parts stand, in order."""
    return [f"{path}{PART_MARK}{head.digest}{PART_MARK}{i}" for i in range(head.parts)]


def join(path: str, head: Head, parts: Sequence[bytes]) -> bytes:
    """The node's JSON.

    Raises:
        CorruptNodeError: the parts are not what the head says.
    """
    data = b"".join(parts)
    if len(data) != head.size or xxhash.xxh3_128_hexdigest(data) != head.digest:
        msg = (
            f"{path} is kept in {head.parts} parts, and those beside it do not add up to its {head.size} "
            f"bytes of digest {head.digest}. Nothing was changed. Restore the nodes {path}{PART_MARK}* from "
            "a backup"
        )
        raise CorruptNodeError(msg)
    return data


def is_part(name: str) -> bool:
    """Whether a child's name is that of a part."""
    return PART_MARK in name


def owner_of(name: str) -> str:
    """The name of the node that a part, or a node in one piece, belongs to."""
    return name.partition(PART_MARK)[0]
