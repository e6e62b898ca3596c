"""Arrow columns of numbers and texts, and their values in numpy, without pandas. Pure.

`pyarrow.array`, `pyarrow.scalar`, each function of Arrow that is given a Python value, and `Array.to_numpy` import
pandas where it is installed: a third of a second at the start of each process that reads, and 40 MB of its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["numbers", "repeated", "texts", "values_of"]


def numbers(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers as a column that shares their memory; `kind` is its type if that is not the numbers' own."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        kind or pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
    )


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return texts as a column.

    Raises:
        UnicodeEncodeError: one holds half of a surrogate pair.
    """
    joined = "".join(values)
    content = joined.encode()
    each = values if len(content) == len(joined) else [text.encode() for text in values]
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, each), np.int32, len(values)), out=ends[1:])
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)])


def repeated(text: str, count: int) -> pa.StringArray:
    """Return a column of the same text."""
    content = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(content * count)]
    )


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column of numbers, or of booleans, without nulls."""
    content = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].view(np.bool_)
    kind = np.dtype(f"i{column.type.bit_width // 8}")
    if content is None:
        return np.empty(0, kind)
    return np.frombuffer(content, kind, len(column), column.offset * kind.itemsize)
