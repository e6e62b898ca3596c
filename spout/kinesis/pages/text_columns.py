"""Cuts the columns of a large page straight out of the text of its JSON, without an object a record. Pure.

A server writes all records of an answer alike: the same names in the same order, and between the values the same text.
So the quotes of the text, which numpy finds all at once, form a table with a row a record. Where the text between the
values of each row is that of the first record, byte by byte, the table holds the records. Texts with escapes, and an
answer that is written in any other way, are left to a decoder of JSON, which would read the same.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pybase64

from kinesis_trident.arrow_columns import numbers
from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.pages.record_columns import RecordColumns

__all__ = ["columns_of"]

_KEY, _DATA, _SEQUENCE = b"PartitionKey", b"Data", b"SequenceNumber"
_ARRIVAL = b"ApproximateArrivalTimestamp"
_KINDS = {_KEY: True, _DATA: True, _SEQUENCE: True, _ARRIVAL: False}
"""The values of a record, and whether they are texts; others have to be the same in each record."""

_S = rb"[ \t\r\n]*"
_HEAD = re.compile(rb'"Records"%b:%b(\[)%b\{%b(?=")' % (_S, _S, _S, _S))
_FIELD = re.compile(rb'"(\w+)"%b:%b(?:"([^"\\\x00-\x1f]*)"|([0-9][0-9.eE+-]*))%b([,}])%b' % (_S, _S, _S, _S))
_BETWEEN = re.compile(rb',%b\{%b(?=")' % (_S, _S))
_NUMBER = re.compile(rb"[0-9.eE+-]*")

_QUOTE, _BACKSLASH, _SPACE, _POINT, _ZERO, _PAD, _NO_BITS = np.frombuffer(b'"\\ .0=A', np.uint8)
_BEYOND_ASCII = np.uint8(128)
_IN_NUMBER = np.isin(np.arange(256), list(b".eE+-"))
"""What is in a number beside digits."""

_BEFORE = 1024
"""The bytes of an answer before its records in which these are looked for; an iterator may be 512 long."""

_SCANNED = 2**20
"""The bytes of text whose quotes are looked for at a time: few enough to stay in a processor's cache."""

_DECODED = 2**21
"""The bytes of base64 decoded at a time, likewise, unless one value is larger."""

_WORD = 8
"""The bytes of text compared at a time."""

_Places = npt.NDArray[np.int64]
_Spans = tuple[_Places, _Places]


class _IrregularError(KinesisError):
    """The records are written in some other way."""


class _Place(NamedTuple):
    """A place in the text of each record: `offset` bytes from its quote of index `quote`."""

    quote: int
    offset: int


class _Fixed(NamedTuple):
    """Text that is the same in each record, and where it starts."""

    start: _Place
    text: bytes


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a record is written.

    Args:
        quotes: their number; the quote of that index is the first one of the next record.
        values: where the values start and end, by name.
        inner: the texts between two values.
        link: the text from the last value to the first one of the next record.
        closing: the part of `link` that is of the record itself.
    """

    quotes: int
    values: dict[bytes, tuple[_Place, _Place]]
    inner: list[_Fixed]
    link: _Fixed
    closing: bytes


def columns_of(body: bytes | memoryview) -> tuple[RecordColumns, bytes] | None:
    """Read the records of a GetRecords answer, or of an event of a subscription.

    Returns:
        The records, which share no memory with the body, and the text around them: the answer with an empty list of
        records. They count only if that text is such an answer in JSON. None if a decoder of JSON has to read the body.
    """
    try:
        return _columns(memoryview(body))
    except (_IrregularError, Base64Error, pa.ArrowInvalid):
        return None


def _columns(body: memoryview) -> tuple[RecordColumns, bytes]:
    head = _HEAD.search(body, 0, _BEFORE)
    if head is None:
        raise _IrregularError
    layout = _layout_of(body, head.end())
    text = np.frombuffer(body, np.uint8)
    quotes = _quotes_of(text[head.end() :]) + head.end()
    table = _table_of(text, quotes, layout)
    spans = {name: _span(table, *places) for name, places in layout.values.items()}
    end = _end_of_last(body, spans, layout)
    rest = bytes(body[: head.end(1)]) + bytes(body[end:])
    # A name may stand there twice, also with its letters as escapes: JSON takes the last one.
    if b"\\u" in rest or rest.count(b'"Records"') != 1:
        raise _IrregularError
    columns = RecordColumns(
        _keys(_cut(body, spans[_KEY])),
        _payloads(body, spans[_DATA]),
        _ascii(_cut(body, spans[_SEQUENCE])),
        _arrivals(_cut(body, spans[_ARRIVAL])),
    )
    return columns, rest


def _layout_of(body: memoryview, start: int) -> _Layout:
    """Read how the first record is written; `start`: of its first name."""
    names: list[bytes] = []
    places: list[tuple[_Place, _Place]] = []
    spans: list[tuple[int, int]] = []
    at, quote, closed = start, 0, None
    while closed is None:
        field = _FIELD.match(body, at)
        if field is None:
            raise _IrregularError
        at = field.end()
        if field[4] == b"}":
            closed = field.end(4)
            between = _BETWEEN.match(body, at)
            if between is None:
                raise _IrregularError
            at = between.end()
        is_text = field[3] is None
        if field[1] in _KINDS and is_text == _KINDS[field[1]]:
            names.append(field[1])
            begins, ends = field.span(2 if is_text else 3)
            spans.append((begins, ends))
            if is_text:
                places.append((_Place(quote + 2, 1), _Place(quote + 3, 0)))
            else:
                places.append((_Place(quote + 1, begins - field.end(1)), _Place(quote + 2, ends - at)))
        quote += 4 if is_text else 2
    if len(names) != len(_KINDS) or {*names} != {*_KINDS}:
        raise _IrregularError
    bounds = list(zip(places, spans, strict=True))
    inner = [
        _Fixed(place[1], bytes(body[span[1] : following[0]]))
        for (place, span), (_, following) in pairwise(bounds)
    ]
    first, last = spans[0][0], spans[-1][1]
    link = _Fixed(places[-1][1], bytes(body[last:at]) + bytes(body[start:first]))
    return _Layout(quote, dict(zip(names, places, strict=True)), inner, link, bytes(body[last:closed]))


def _quotes_of(text: npt.NDArray[np.uint8]) -> _Places:
    """Return the places of all quotes, and after them the length of the text."""
    marks = np.empty(min(_SCANNED, -(-len(text) // _WORD) * _WORD), np.bool_)
    found = []
    for start in range(0, len(text), _SCANNED):
        part = text[start : start + _SCANNED]
        np.equal(part, _QUOTE, out=marks[: len(part)])
        marks[len(part) :] = False
        # Most of the text is base64: it is passed over eight bytes at a time.
        words = marks.view(np.uint64)
        hits = np.flatnonzero(words != 0)
        within = np.flatnonzero(words[hits].view(np.bool_))
        found.append((hits[within >> 3] << 3) + (within & 7) + start)
    return np.concatenate([*found, np.array([len(text)])])


def _table_of(text: npt.NDArray[np.uint8], quotes: _Places, layout: _Layout) -> _Places:
    """Return the places of the quotes of each record, and of the first quote after it."""
    rows = (len(quotes) - 1) // layout.quotes
    wide = np.lib.stride_tricks.sliding_window_view(quotes[: rows * layout.quotes + 1], layout.quotes + 1)
    table = wide[:: layout.quotes]
    alike = np.ones(rows, np.bool_)
    for fixed in layout.inner:
        alike &= _stands(text, _places(table, fixed.start), fixed.text)
    linked = alike & _stands(text, _places(table, layout.link.start), layout.link.text)
    # The first row that no other one follows is the last record.
    count = int(np.argmin(linked)) + 1
    if linked[count - 1] or not alike[count - 1]:
        raise _IrregularError
    return table[:count]


def _stands(text: npt.NDArray[np.uint8], starts: _Places, fixed: bytes) -> npt.NDArray[np.bool_]:
    """Tell for each of the places whether the text stands there."""
    last = len(text) - len(fixed)
    if len(fixed) < _WORD or last < 0:
        raise _IrregularError
    found = starts <= last
    starts = np.minimum(starts, last)
    # At any byte, not only at multiples of eight.
    words = np.ndarray(len(text) - _WORD + 1, np.uint64, text, strides=(1,))
    for at in [*range(0, len(fixed) - _WORD, _WORD), len(fixed) - _WORD]:
        found &= words[starts + at] == np.frombuffer(fixed, np.uint64, 1, at)
    return found


def _places(table: _Places, place: _Place) -> _Places:
    return table[:, place.quote] + place.offset


def _span(table: _Places, start: _Place, end: _Place) -> _Spans:
    return _places(table, start), _places(table, end)


def _end_of_last(body: memoryview, spans: dict[bytes, _Spans], layout: _Layout) -> int:
    """Return where the last record ends; its last value is bounded by other text than those of the others."""
    starts, ends = next(spans[name] for name, (_, end) in layout.values.items() if end is layout.link.start)
    if layout.link.start.quote == layout.quotes:
        number = _NUMBER.match(body, int(starts[-1]))
        ends[-1] = number.end() if number else 0
    end = int(ends[-1]) + len(layout.closing)
    if body[int(ends[-1]) : end] != layout.closing:
        raise _IrregularError
    return end


def _cut(content: memoryview | bytes, spans: _Spans) -> pa.BinaryArray:
    """Return the bytes at some places, in their order, as a column with memory of its own."""
    starts, ends = spans
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    # What stands between two of them is a value, too, which is left out.
    pieces = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    )
    return pieces.take(numbers(np.arange(0, len(bounds), 2, dtype=np.int32)))


def _content(column: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    bounds, content = column.buffers()[1:]
    size = int(np.frombuffer(bounds, np.int32, 1, 4 * len(column))[0])
    return np.frombuffer(content, np.uint8, size) if size else np.empty(0, np.uint8)


def _as_text(column: pa.BinaryArray) -> pa.StringArray:
    """Return a column of ASCII as texts, without looking at it."""
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


def _keys(column: pa.BinaryArray) -> pa.StringArray:
    content = _content(column)
    if (content < _SPACE).any() or (content == _BACKSLASH).any():
        raise _IrregularError
    return column.cast(pa.string()) if (content >= _BEYOND_ASCII).any() else _as_text(column)


def _ascii(column: pa.BinaryArray) -> pa.StringArray:
    if (_content(column) >= _BEYOND_ASCII).any():
        raise _IrregularError
    return _as_text(column)


def _arrivals(column: pa.BinaryArray) -> npt.NDArray[np.float64]:
    content, bounds = _content(column), np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    # What is below 0 wraps around, beyond 9.
    is_digit = content - _ZERO <= 9
    # Arrow takes 01, 1. and 1.e9 for numbers, too.
    if not (
        _IN_NUMBER[content[~is_digit]].all()
        and np.diff(bounds).all()
        and is_digit[bounds[1:] - 1].all()
        and is_digit[np.flatnonzero(content == _POINT) + 1].all()
        and is_digit[bounds[:-1]].all()
        and (content[bounds[:-1]] != _ZERO).all()
    ):
        raise _IrregularError
    return np.frombuffer(_as_text(column).cast(pa.float64()).buffers()[1], np.float64, len(column))


def _payloads(body: memoryview, spans: _Spans) -> pa.BinaryArray:
    """Decode base64, into a column of exactly its size."""
    starts, ends = spans
    lengths = ends - starts
    if (lengths & 3).any():
        raise _IrregularError
    text = np.frombuffer(body, np.uint8)
    # There is text before each value, so these places exist for an empty one, too.
    padded = (text[ends - 1] == _PAD) & (lengths > 0)
    pads = padded.astype(np.int64) + (padded & (text[ends - 2] == _PAD))
    bounds = np.zeros(len(starts) + 1, np.int64)
    np.cumsum((lengths >> 2) * 3 - pads, out=bounds[1:])
    whole = pa.allocate_buffer(int(bounds[-1]))
    into = np.frombuffer(whole, np.uint8) if whole.size else np.empty(0, np.uint8)
    for first, last in _portions(lengths):
        some = slice(first, last)
        into[bounds[first] : bounds[last]] = _decoded(body, (starts[some], ends[some]), pads[some])
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(bounds.astype(np.int32)), whole]
    )


def _portions(lengths: _Places) -> Iterator[tuple[int, int]]:
    """Yield the bounds of values to be decoded together."""
    totals = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = totals[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(totals, before + _DECODED, side="right")))
        yield first, last
        first = last


def _decoded(body: memoryview, spans: _Spans, pads: _Places) -> npt.NDArray[np.uint8]:
    """Return the payloads of some values, one after the other."""
    encoded = _cut(body, spans)
    content = _content(encoded)
    if not pads.any():
        return np.frombuffer(pybase64.b64decode(content.data, validate=True), np.uint8)
    # Together they are one text of base64 if zeros stand in place of the padding; the bytes of these are cut out.
    ends = np.frombuffer(encoded.buffers()[1], np.int32, len(encoded), 4).astype(np.int64)
    content = content if content.flags.writeable else content.copy()
    content[ends[pads > 0] - 1] = _NO_BITS
    content[ends[pads > 1] - 2] = _NO_BITS
    whole = pybase64.b64decode(content.data, validate=True)
    ends = (ends >> 2) * 3
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return _content(_cut(whole, (starts, ends - pads)))
