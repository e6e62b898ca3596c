"""Packs the positions of very many shards into a text for JSON: base64 of zlib of columns. Pure.

A line of JSON says how wide the columns are, and which words stand before the numbers. Then come the names, the index
of the words, and the numbers: byte by byte, not shard by shard. The bytes that neighbours have in common are nothing
then, and of a sequence number of Kinesis only its time and its counter are left, a third of its digits: the number of
its shard stands in bytes of its own, and rises by one from shard to shard. Names alone have empty texts.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping

import msgspec

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.tracker.errors import OrderError

_MOST_BYTES = 64 * 2**20
"""The limit of what a text unpacks to: that of hundreds of thousands of shards."""

_INDEX = 4
"""The bytes of an index of words."""

_SUB_BITS = 32
"""The bits behind a sequence number, of the number in its aggregate plus one; 0 for none."""

# Words, a number without zeros before it, and that of a record in an aggregate; a text of another form is all words.
_parts = re.compile(r"([A-Z_]* 0*)([1-9][0-9]*)(?::(0|[1-9][0-9]{0,8}))?").fullmatch


class _Shape(msgspec.Struct, frozen=True):
    """The number of shards, and the bytes of a name and of a number in columns."""

    count: int
    name: int
    number: int
    words: tuple[str, ...]


_shape_decoder = msgspec.json.Decoder(_Shape)


def pack_positions(positions: Mapping[str, str]) -> str:
    """Return the positions of shards, by name and in text form, as a text; no name ends with a NUL."""
    words: dict[str, int] = {}
    indexes, numbers = list[int](), list[int]()
    for text in positions.values():
        found = _parts(text)
        before, number, sub = found.groups() if found else (text, None, None)
        indexes.append(words.setdefault(before, len(words)))
        numbers.append((int(number or 0) << _SUB_BITS) + (0 if sub is None else int(sub) + 1))
    names = [name.encode() for name in positions]
    name = max([1, *map(len, names)])
    width = max(1, -(-max(numbers, default=0).bit_length() // 8))
    columns = (
        _turn(b"".join(one.ljust(name, b"\0") for one in names), name),
        _turn(b"".join(one.to_bytes(_INDEX) for one in indexes), _INDEX),
        _turn(b"".join(one.to_bytes(width) for one in numbers), width),
    )
    shape = msgspec.json.encode(_Shape(len(names), name, width, tuple(words)))
    return base64.b64encode(zlib.compress(b"\n".join((shape, b"".join(columns))))).decode()


def unpack_positions(text: str) -> dict[str, str]:
    """Return the positions that `pack_positions` has packed.

    Raises:
        OrderError: the text is no output of it.
    """
    try:
        stream = zlib.decompressobj()
        line, _, data = stream.decompress(base64.b64decode(text, validate=True), _MOST_BYTES).partition(b"\n")
        shape = _shape_decoder.decode(line)
        widths = (shape.name, _INDEX, shape.number)
        if not stream.eof or shape.count < 0 or min(widths) < 1 or len(data) != shape.count * sum(widths):
            msg = "it is cut off, or has another length than its columns"
            raise ValueError(msg)
        rows, at = list[list[bytes]](), 0
        for width in widths:
            column = _turn(data[at : at + shape.count * width], shape.count)
            rows.append([column[place : place + width] for place in range(0, len(column), width)])
            at += len(column)
        return {
            name.rstrip(b"\0").decode(): shape.words[int.from_bytes(index)] + _write(int.from_bytes(number))
            for name, index, number in zip(*rows, strict=True)
        }
    except (ValueError, IndexError, zlib.error, *UNREADABLE) as error:
        msg = f"packed positions {text[:40]!r}... cannot be read: {error!r}"
        raise OrderError(msg) from error


def _turn(rows: bytes, width: int) -> bytes:
    """Return rows of so many bytes as columns."""
    return b"".join(rows[at::width] for at in range(width))


def _write(value: int) -> str:
    number, sub = value >> _SUB_BITS, value & (1 << _SUB_BITS) - 1
    return f"{number or ''}:{sub - 1}" if sub else f"{number or ''}"
