"""Arrow columns of numbers, booleans and texts, and their values in numpy, without pandas. Pure.

`pyarrow.array`, `pyarrow.scalar`, each function of Arrow that is given a Python value, and `Array.to_numpy` import
pandas where it is installed: a third of a second at the start of each process that reads, and 40 MB of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers as a column that shares their memory; `kind` is its type if that is not the numbers' own."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        kind or pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
    )


def booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return booleans as a column, such as that by which rows are filtered."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return texts as a column.

    Raises:
        UnicodeEncodeError: one holds half of a surrogate pair.
    """
    return pa.Array.from_buffers(pa.string(), len(values), [None, *_text_buffers(values)])


def repeated(text: str, count: int) -> pa.StringArray:
    """Return a column of the same text."""
    content = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(content * count)]
    )


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column of numbers, or of booleans, without nulls: in the place of one may be any."""
    content = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].view(np.bool_)
    sort = (
        "f"
        if pa.types.is_floating(column.type)
        else "u"
        if pa.types.is_unsigned_integer(column.type)
        else "i"
    )
    kind = np.dtype(f"{sort}{column.type.bit_width // 8}")
    if content is None:
        return np.empty(0, kind)
    return np.frombuffer(content, kind, len(column), column.offset * kind.itemsize)


def find_invalid_texts(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which texts of a column are not valid UTF-8, as Spark and Arrow let them be; None if all are valid."""
    if _is_ascii(column):
        return None
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        # Arrow names only the first one.
        return np.fromiter(map(_is_invalid_text, column.cast(pa.large_binary()).to_pylist()), np.bool_)
    return None


def spread(starts: npt.ArrayLike, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return `counts[i]` indexes from `starts[i]` on, for each i in turn; one start serves all."""
    before = np.cumsum(counts) - counts
    spreading: npt.NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(
        np.asarray(starts) - before, counts
    )
    return spreading


def _is_ascii(column: pa.Array) -> bool:
    """Return whether all bytes of a column of texts are: Arrow, which looks at each text, takes 30 times as long."""
    if column.type != pa.string() or not len(column):
        return False
    _, ends, content = column.buffers()
    at = np.frombuffer(ends, np.int32, len(column) + 1, column.offset * 4)
    return content is None or not np.frombuffer(content, np.int8, at[-1] - at[0], at[0]).min(initial=0) < 0


def _is_invalid_text(value: bytes | None) -> bool:
    try:
        str(value or b"", "utf-8")
    except UnicodeDecodeError:
        return True
    return False


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as a column, as `pyarrow.array` does: plain ones without pandas.

    Raises:
        Exception: of many classes, those of `pyarrow.array`: a value does not fit the type.
    """
    found = plain_column(values, {*map(type, values)}, kind)
    return pa.array(values, type=kind) if found is None else found


def plain_column(values: Sequence[Any], classes: Set[type], kind: pa.DataType) -> pa.Array | None:
    """Return plain values of these classes as a column; None if a value, or the type, is none that Python has so."""
    if not len(values):
        return pa.nulls(0, kind)
    plain, empty, buffers_of = _PLAIN.get(kind, (None, None, None))
    if buffers_of is None or not classes <= {plain, NoneType}:
        return None
    valid, given = None, values
    if NoneType in classes:
        valid = _bits([value is not None for value in values])
        given = [empty if value is None else value for value in values]
    try:
        buffers = buffers_of(given)
    except (OverflowError, UnicodeEncodeError):
        # Arrow's own error says which value it is.
        return None
    return pa.Array.from_buffers(kind, len(values), [valid, *buffers])


def _bits(values: Sequence[bool] | npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(values, np.bool_), bitorder="little"))


def _text_buffers(values: Sequence[str]) -> list[pa.Buffer]:
    joined = "".join(values)
    content = joined.encode()
    each = values if len(content) == len(joined) else [text.encode() for text in values]
    return _binary_buffers(each, content)


def _binary_buffers(values: Sequence[str] | Sequence[bytes], content: bytes) -> list[pa.Buffer]:
    """Return the buffers of values that take one byte for each of their elements."""
    if len(content) >= 2**31:
        msg = f"{len(content):,} bytes are too many for one column"
        raise OverflowError(msg)
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    return [pa.py_buffer(ends), pa.py_buffer(content)]


def _integer_buffers(kind: type[np.signedinteger[Any]]) -> Callable[[Sequence[int]], list[pa.Buffer]]:
    def buffers_of(values: Sequence[int]) -> list[pa.Buffer]:
        wide = np.fromiter(values, np.int64, len(values))
        narrow = wide.astype(kind, copy=False)
        if narrow is not wide and not np.array_equal(narrow, wide):
            raise OverflowError
        return [pa.py_buffer(narrow)]

    return buffers_of


_PLAIN: dict[pa.DataType, tuple[type, Any, Callable[[Any], list[pa.Buffer]]]] = {
    pa.string(): (str, "", _text_buffers),
    pa.binary(): (bytes, b"", lambda values: _binary_buffers(values, b"".join(values))),
    pa.bool_(): (bool, False, lambda values: [_bits(values)]),
    pa.float64(): (float, 0.0, lambda values: [pa.py_buffer(np.fromiter(values, np.float64, len(values)))]),
    pa.int64(): (int, 0, _integer_buffers(np.int64)),
    pa.int32(): (int, 0, _integer_buffers(np.int32)),
    pa.int16(): (int, 0, _integer_buffers(np.int16)),
    pa.int8(): (int, 0, _integer_buffers(np.int8)),
}
"""The class of plain values of a type, one that stands for null, and the buffers of a column without its validity."""
