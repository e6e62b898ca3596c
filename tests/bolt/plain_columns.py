"""Columns of Arrow that hold what Python cannot: texts are given as bytes, times as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of plain values: of bytes for texts, of numbers for times."""
    valid = pa.array([value is not None for value in values], pa.bool_())
    match kind:
        case pa.StructType():
            return pa.StructArray.from_arrays(
                [
                    column([value and value[i] for value in values], field.type)
                    for i, field in enumerate(kind)
                ],
                fields=list(kind),
                mask=pc.invert(valid),
            )
        case pa.ListType() | pa.MapType():
            ends = np.cumsum([0, *(len(value or ()) for value in values)]).astype(np.int32)
            inside = column(
                [one for value in values for one in value or ()],
                kind.value_type
                if isinstance(kind, pa.ListType)
                else pa.struct([kind.key_field, kind.item_field]),
            )
            return pa.Array.from_buffers(
                kind, len(values), [valid.buffers()[1], pa.py_buffer(ends)], children=[inside]
            )
    if pa.types.is_string(kind):
        # Arrow's own ways check them.
        ends = np.cumsum([0, *(len(value or b"") for value in values)]).astype(np.int32)
        content = b"".join(value or b"" for value in values)
        return pa.Array.from_buffers(
            kind, len(values), [valid.buffers()[1], pa.py_buffer(ends), pa.py_buffer(content)]
        )
    if pa.types.is_temporal(kind):
        width = pa.int32() if pa.types.is_date(kind) else pa.int64()
        return pa.array(values, width).view(kind)
    return pa.array(values, kind)


def can_be_read(value: pa.Scalar) -> bool:
    """Return whether Python can make a value of one of Arrow."""
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return False
    return True
