"""Builds the column of an answer's payloads, in memory of exactly their size. Pure.

Arrow's own builder grows by doubling, and copies each time. Base64 takes half of the time of a large answer if it is
decoded one payload at a time, so there many are decoded together.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinesis_trident.common.arrow_columns import numbers

_TOGETHER = 256
"""The number of small payloads joined at a time: few enough to stay in the processor's cache."""

_SMALL = 4096
"""Mean bytes of payloads that are worth joining; joining larger ones would copy them in memory once more."""

_AT_ONCE = 2**20
"""Bytes of base64 that are decoded at a time, about."""

_QUOTE, _PADDING, _ZEROS = b'"=A'
"""Characters; the last one stands for six zero bits in base64."""


def join_payloads(data: Sequence[bytes]) -> pa.Array:
    """Return payloads as a column."""
    ends = np.zeros(len(data) + 1, dtype=np.int32)
    np.fromiter(map(len, data), np.int32, len(data)).cumsum(out=ends[1:])
    joined = pa.allocate_buffer(int(ends[-1]))
    if joined.size:
        into = memoryview(joined).cast("B")
        together = _TOGETHER if joined.size < _SMALL * len(data) else 1
        for first in range(0, len(data), together):
            last = min(first + together, len(data))
            into[ends[first] : ends[last]] = b"".join(data[first:last])
    return _column(ends, joined)


def decode_payloads(texts: Sequence[msgspec.Raw]) -> pa.Array:
    """Return payloads, each the JSON of a text in base64, as a column.

    Raises:
        ValueError: one is not that, or has escapes or line breaks in it.
    """
    # Only a process that reads large answers needs it.
    from pybase64 import b64decode

    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if (lengths % 4 != 2).any():
        msg = "a payload is not base64 in quotes"
        raise ValueError(msg)
    mean = int(lengths.sum()) // len(texts)
    if mean > _SMALL:
        return join_payloads([b64decode(_without_quotes(one), None, True) for one in texts])
    together = _AT_ONCE // mean
    if len(texts) <= together:
        return _decode_together(texts, lengths)
    joined = pa.allocate_buffer(int((lengths // 4 * 3).sum()))
    into, ends = memoryview(joined).cast("B"), np.zeros(len(texts) + 1, np.int32)
    for first in range(0, len(texts), together):
        found = _decode_together(texts[first : first + together], lengths[first : first + together])
        _, bounds, content = found.buffers()
        at = int(ends[first])
        into[at : at + content.size] = memoryview(content).cast("B")
        ends[first + 1 : first + 1 + len(found)] = at + np.frombuffer(bounds, np.int32, len(found) + 1)[1:]
    return _column(ends, joined.slice(0, int(ends[-1])))


def _decode_together(texts: Sequence[msgspec.Raw], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Decode payloads of these lengths as if they were one.

    The quotes at the end of one and at the beginning of the next become, with the two characters that join them, one
    more group of four, and the paddings become zeros: what they are decoded to is left out.
    """
    from pybase64 import b64decode

    joined = bytearray(b"AA").join(texts)
    text = np.frombuffer(joined, np.uint8)
    starts = np.cumsum(lengths + 2) - lengths - 2
    stops = starts + lengths - 1
    if (text[starts] != _QUOTE).any():
        msg = "a payload is no text"
        raise ValueError(msg)
    padded = text[stops - 1] == _PADDING
    twice = padded & (text[stops - 2] == _PADDING)
    for zeros in (starts, stops, stops[padded] - 1, stops[twice] - 2):
        text[zeros] = _ZEROS
    content = b64decode(memoryview(joined)[1:-1], None, True)
    bounds = np.full(2 * len(texts) + 1, len(content), np.int32)
    bounds[:-1:2] = starts // 4 * 3
    bounds[1::2] = bounds[:-1:2] + lengths // 4 * 3 - padded - twice
    return _column(bounds, pa.py_buffer(content)).take(numbers(np.arange(0, 2 * len(texts), 2)))


def _without_quotes(text: msgspec.Raw) -> memoryview:
    view = memoryview(text)
    if view[0] != _QUOTE:
        msg = "a payload is no text"
        raise ValueError(msg)
    return view[1:-1]


def _column(bounds: npt.NDArray[np.int32], content: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), content])
