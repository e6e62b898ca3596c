r"""Splits nodes that are too large for ZooKeeper: a head names its parts, which are its siblings. Pure.

ZooKeeper's limit is 1 MiB a request (`jute.maxbuffer`), and beyond it the server cuts the connection without an
error. A node larger than `PART_SIZE` is written as sibling nodes `<name>~<digest>~<i>` first, then the head at its
path: `{"v": 1, "parts": n, "size": bytes, "digest": ...}`. Parts are slices of the JSON. Their names come from the
content, so a repeated write is the same write, and a head never meets the parts of another.

A node whose JSON has pieces (`tracker.packing`) is written again with each batch, of which most pieces stay. Each is a
part `<name>~<digest>` with the digest of its own content. The head names all, with the JSON in between as it is:
`{"v": 5, "pieces": [["{\"v\":5,..."], digest, digest, ..., ["\"}"]]}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import xxhash

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import PIECES_VERSION, encode
from kinesis_trident.checkpoint.model.layout import PART_MARK
from kinesis_trident.checkpoint.model.nodes import Node

PART_SIZE = 512 * 1024

WHOLE = 32 * 1024
"""The size of one piece of a node, in bytes, if there are hundreds of such nodes: 128 of them are 4 MiB."""

_WITHIN = 4 * 1024
"""The size up to which the JSON between two pieces is in the head."""

_HAS_PIECES = b'{"v":%d,' % PIECES_VERSION

# Only the fields themselves: a reason may hold such words, too, and thousands of those would make a head too large.
_PIECES = re.compile(rb'"(?:waiting|dead)":"((?:[0-9A-Za-z+/=]+[.])+)"')


class Head(Node, frozen=True, kw_only=True):
    """The node at the path of a large node."""

    largest: ClassVar[int] = PART_SIZE
    """The expected maximum of a part's bytes."""
    parts: int
    size: int
    digest: str


class PiecesHead(Node, frozen=True, kw_only=True, tag=PIECES_VERSION):
    """The node at the path of a node with pieces: the digests of its parts, and texts, each in a list, in between."""

    largest: ClassVar[int] = WHOLE
    pieces: tuple[str | tuple[str], ...]


_decoder: msgspec.json.Decoder[Head | PiecesHead] = msgspec.json.Decoder(Head | PiecesHead)


def split(
    path: str, data: bytes, part_size: int = PART_SIZE, whole: int | None = None
) -> tuple[bytes, dict[str, bytes]]:
    """Return the data for `path`, and the parts (path to bytes) to write before it; none if `data` fits.

    `whole`: the size up to which it fits; by default that of a part.
    """
    if len(data) <= (part_size if whole is None else whole):
        return data, {}
    if data.startswith(_HAS_PIECES):
        return _split_pieces(path, data, part_size)
    slices = [data[at : at + part_size] for at in range(0, len(data), part_size)]
    head = Head(parts=len(slices), size=len(data), digest=xxhash.xxh3_128_hexdigest(data))
    return encode(head), dict(zip(part_paths(path, head), slices, strict=True))


def _split_pieces(path: str, data: bytes, part_size: int) -> tuple[bytes, dict[str, bytes]]:
    names, parts = list[str | tuple[str]](), dict[str, bytes]()
    for is_piece, content in _slices_of(data):
        if not is_piece and len(content) <= _WITHIN:
            names.append((content.decode(),))
            continue
        for at in range(0, len(content), part_size):
            part = content[at : at + part_size]
            names.append(xxhash.xxh3_128_hexdigest(part))
            parts[f"{path}{PART_MARK}{names[-1]}"] = part
    return encode(PiecesHead(pieces=tuple(names))), parts


def _slices_of(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield whether it is a piece, and the content, of each piece and of what is between two of them."""
    at = 0
    for found in _PIECES.finditer(data):
        yield False, data[at : found.start(1)]
        yield from ((True, piece + b".") for piece in found[1].split(b".")[:-1])
        at = found.end(1)
    yield False, data[at:]


def head_of(data: bytes) -> Head | PiecesHead | None:
    """Return the head that `data` is, or None for a node in one piece."""
    if b'"parts"' not in data and b'"pieces"' not in data:
        return None
    try:
        # No node has these fields, so no node can be mistaken for a head.
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def part_paths(path: str, head: Head | PiecesHead) -> list[str]:
    """Return the paths of the parts, in order; a part that occurs twice is one node."""
    if isinstance(head, PiecesHead):
        return [f"{path}{PART_MARK}{name}" for name in head.pieces if isinstance(name, str)]
    return [f"{path}{PART_MARK}{head.digest}{PART_MARK}{i}" for i in range(head.parts)]


def join(path: str, head: Head | PiecesHead, parts: Sequence[bytes]) -> bytes:
    """Return the JSON of a node from its parts.

    Raises:
        CorruptNodeError: the parts do not match the head.
    """
    if isinstance(head, PiecesHead):
        return _join_pieces(path, head, parts)
    data = b"".join(parts)
    if len(data) != head.size or xxhash.xxh3_128_hexdigest(data) != head.digest:
        what = f"{head.parts} parts, which do not add up to {head.size} bytes with digest {head.digest}"
        raise _mismatch(path, what)
    return data


def _join_pieces(path: str, head: PiecesHead, parts: Sequence[bytes]) -> bytes:
    left, found = iter(parts), list[bytes]()
    for name in head.pieces:
        content = next(left, b"") if isinstance(name, str) else name[0].encode()
        if isinstance(name, str) and xxhash.xxh3_128_hexdigest(content) != name:
            raise _mismatch(path, f"parts, of which {name} has another content")
        found.append(content)
    return b"".join(found)


def _mismatch(path: str, what: str) -> CorruptNodeError:
    return CorruptNodeError(
        f"{path} is stored in {what}. Nothing was changed. Restore the nodes {path}{PART_MARK}* from a backup"
    )


def is_part(name: str) -> bool:
    """Return whether a child's name is that of a part."""
    return PART_MARK in name


def owner_of(name: str) -> str:
    """Return the name of the node that a part, or a node in one piece, belongs to."""
    return name.partition(PART_MARK)[0]
