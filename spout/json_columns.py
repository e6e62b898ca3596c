"""The records of a GetRecords body as Arrow columns, without a Python object for any of them. Pure.

Servers write all records of an answer alike: the same names in the same order, no white space, no escapes. What the
first record looks like is then true of all of them, and checking that for all at once, in numpy, is most of the work of
parsing. A body where it is not true is left to a JSON parser.

Large buffers are gone through in blocks: what is made on the way stays in the processor's cache, and its memory is used
again. Asking the system for fresh memory of the size of a body costs as much as decoding it.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pybase64

__all__ = ["Columns", "columns_of"]

_Positions = np.ndarray[Any, np.dtype[np.int64]]
_Ends = np.ndarray[Any, np.dtype[np.int32]]
_Chars = np.ndarray[Any, np.dtype[np.uint8]]

_OPENING = b'"Records":[{"'
_STRINGS = ("PartitionKey", "Data", "SequenceNumber")
_ARRIVAL = "ApproximateArrivalTimestamp"
_MOST_QUOTES = 64
_MOST_BYTES = 2**31 - 1
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of equal length, in the order of the records.

    Attributes:
        key: string.
        data: binary, decoded.
        sequence: string.
        arrival: seconds since 1970, float64.
        rest: the body with an empty list in place of the records.
    """

    key: pa.Array
    data: pa.Array
    sequence: pa.Array
    arrival: np.ndarray[Any, np.dtype[np.float64]]
    rest: bytes


class _IrregularError(Exception):
    """This body needs a parser."""


def columns_of(body: bytes) -> Columns | None:
    """The columns of a body; None where it has no records or is not regular, perhaps not even valid.

    Of a valid body they are what any JSON parser finds; one that is nearly valid may pass for the one that it was.
    """
    opened = body.find(_OPENING)
    # An escape may hide a quote.
    if opened < 0 or len(body) > _MOST_BYTES or b"\\" in body:
        return None
    start = opened + len(_OPENING) - 2
    chars = np.frombuffer(body, dtype=np.uint8)
    try:
        quotes = _quotes(chars, start)
        shape = _Shape.of_first(body, quotes)
        rows = shape.rows(chars, quotes)
        end = int(rows[-1, -1]) + 1
        if body[end : end + len(shape.closing) + 1] != shape.closing + b"]":
            return None
        data = _decoded(body, shape.ends("Data", rows))
        key, sequence, arrival = (
            _values(body, shape.ends(name, rows)).cast(pa.string())
            for name in ("PartitionKey", "SequenceNumber", _ARRIVAL)
        )
        return Columns(
            key=key,
            data=data,
            sequence=sequence,
            arrival=_numbers(arrival),
            rest=body[:start] + body[end + len(shape.closing) :],
        )
    except (_IrregularError, pa.ArrowInvalid, binascii.Error):
        return None


@dataclass(slots=True)
class _Shape:
    """What all records look like, told by their quotes: a place is the number of a quote in its record, and an offset.

    Attributes:
        fixed: texts that are the same in all records, with the places where they begin.
        wanted: the places where the values begin and end.
        quotes: how many quotes a record has.
        closing: what follows a record's last quote.
    """

    fixed: list[tuple[int, int, bytes]] = field(default_factory=list)
    wanted: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    quotes: int = 0
    closing: bytes = b""

    @classmethod
    def of_first(cls, body: bytes, quotes: _Positions) -> _Shape:
        """The shape of the record that begins with these quotes.

        Raises:
            _IrregularError: it is none that this understands.
        """
        shape = cls()
        first = quotes[:_MOST_QUOTES].tolist()
        if len(quotes) <= _MOST_QUOTES:
            first.append(len(body))
        name = value = ""
        fixed_from = (0, 0)
        for number, (left, right) in enumerate(pairwise(first)):
            text, outside = body[left + 1 : right], number % 2 == 1
            if outside and b"}" in text:
                shape.closing = text[: text.index(b"}") + 1]
                shape.quotes = number + 1
                shape._fix(body, first, fixed_from, (number, 1))
                break
            if not outside and not value:
                name = text.decode("latin-1")
            if not outside and value in _STRINGS:
                shape._fix(body, first, fixed_from, (number, 1))
                shape.wanted[value] = (number, 1, number + 1, 0)
                fixed_from = (number + 1, 0)
            elif outside and name == _ARRIVAL:
                # A number, between a colon and a comma.
                if not (len(text) > 2 and text.endswith(b",")):
                    raise _IrregularError
                shape._fix(body, first, fixed_from, (number, 2))
                shape.wanted[name] = (number, 2, number + 1, -1)
                fixed_from = (number + 1, -1)
            value = name if outside and text == b":" else ""
        if set(shape.wanted) != {*_STRINGS, _ARRIVAL} or not shape.closing:
            raise _IrregularError
        return shape

    def _fix(self, body: bytes, first: list[int], begin: tuple[int, int], end: tuple[int, int]) -> None:
        text = body[first[begin[0]] + begin[1] : first[end[0]] + end[1]]
        self.fixed.append((*begin, text))

    def rows(self, chars: _Chars, quotes: _Positions) -> _Positions:
        """The quotes of all records, a row for each.

        Raises:
            _IrregularError: one of them has another shape.
        """
        rows = quotes[: len(quotes) // self.quotes * self.quotes].reshape(-1, self.quotes)
        # The records end where one is not followed by another.
        separator = self.closing + b",{"
        followed = rows[1:, 0] - rows[:-1, -1] == len(separator) + 1
        followed &= chars.take(rows[:-1, -1] + 1 + len(self.closing), mode="clip") == ord(",")
        rows = rows if followed.all() else rows[: int(followed.argmin()) + 1]
        if not _all_have(chars, rows[:-1, -1] + 1, separator) or not all(
            _all_have(chars, rows[:, number] + offset, text) for number, offset, text in self.fixed
        ):
            raise _IrregularError
        return rows

    def ends(self, name: str, rows: _Positions) -> _Ends:
        """Where the values of that name begin and end, in the records with these quotes."""
        first, after, last, before = self.wanted[name]
        begin, end = rows[:, first] + after, rows[:, last] + before
        return np.stack([begin, end], axis=1, dtype=np.int32)


def _quotes(chars: _Chars, start: int) -> _Positions:
    """Where the quotes from `start` on are."""
    mask = np.empty(_BLOCK, dtype=np.bool_)
    found = []
    for first in range(start, len(chars), _BLOCK):
        block = chars[first : first + _BLOCK]
        found.append(np.flatnonzero(np.equal(block, ord('"'), out=mask[: len(block)])) + first)
    return np.concatenate(found)


def _all_have(chars: _Chars, positions: _Positions, text: bytes) -> bool:
    """Whether `text` is at all of the positions."""
    if not text or len(positions) == 0:
        return True
    # One item for each position in the buffer, so that they are copied whole.
    windows = np.ndarray(
        (len(chars) - len(text) + 1,), dtype=f"V{len(text)}", buffer=chars.data, strides=(1,)
    )
    if positions[-1] >= len(windows):
        return False
    found = windows[positions].view(np.uint8).reshape(-1, len(text))
    return bool((found == np.frombuffer(text, dtype=np.uint8)).all())


def _values(buffer: bytes, ends: _Ends) -> pa.Array:
    """The values between these places of a buffer, which rise, as a binary column with memory of its own."""
    # Values and what is between them, in turns: Arrow copies the values out of it.
    count = 2 * len(ends) - 1
    turns = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(buffer)])
    return turns.take(pa.array(np.arange(0, count, 2)))


def _decoded(body: bytes, ends: _Ends) -> pa.Array:
    """What the base64 texts between these places of the body stand for.

    Raises:
        _IrregularError, binascii.Error: one is not valid.
    """
    if ((ends[:, 1] - ends[:, 0]) % 4).any():
        raise _IrregularError
    blocks = np.searchsorted(ends[:, 0], np.arange(ends[0, 0], ends[-1, 1] + 1, _BLOCK)).tolist()
    return pa.concat_arrays(
        [
            _decoded_block(_values(body, ends[first:end]))
            for first, end in pairwise([*blocks, len(ends)])
            if first < end
        ]
    )


def _decoded_block(texts: pa.Array) -> pa.Array:
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int32)[: len(texts) + 1]
    chars = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[: ends[-1]]
    padding = _padding(chars, ends)
    bounds = ends // 4 * 3
    if not padding.any():
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(pybase64.b64decode(chars.data, validate=True))]
        return pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    # Padding in the middle cannot be decoded: zeros in its place make bytes that are left out again.
    chars = chars.copy()
    last = ends[1:] - 1
    chars[last[padding > 0]] = ord("A")
    chars[last[padding > 1] - 1] = ord("A")
    decoded = pybase64.b64decode(chars.data, validate=True)
    return _values(decoded, np.stack([bounds[:-1], bounds[1:] - padding], axis=1, dtype=np.int32))


def _padding(chars: _Chars, ends: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """How many of the last characters of each text are padding: none, one or two."""
    padding = np.zeros(len(ends) - 1, dtype=np.int32)
    filled = np.flatnonzero(np.diff(ends))
    last = ends[1:][filled] - 1
    padding[filled] = chars[last] == ord("=")
    padding[filled] += padding[filled] * (chars[last - 1] == ord("="))
    return padding


def _numbers(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers that are written there."""
    numbers: np.ndarray[Any, np.dtype[np.float64]] = pc.cast(texts, pa.float64()).to_numpy()
    if not np.isfinite(numbers).all():
        raise _IrregularError
    return numbers
