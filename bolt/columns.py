"""Arrow batches from what user functions return: strictly, so that a value that does not fit fails its record."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["batch_of", "checked"]

_FRACTIONAL = (float, np.floating, Decimal, Fraction)


def batch_of(values: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of rows given as tuples.

    Raises:
        Exception: of many classes, Arrow's own among them: a value does not fit its type.
    """
    columns = list(zip(*values, strict=True)) if values else [() for _ in schema]
    return checked([_array(*pair) for pair in zip(columns, schema, strict=True)], schema)


def checked(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns.

    Raises:
        ValueError: a null in a column that is NOT NULL, which would end the task in Spark.
    """
    for column, field in zip(columns, schema, strict=True):
        if column.null_count and not field.nullable:
            msg = f"null in the column {field.name!r}, which is NOT NULL"
            raise ValueError(msg)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(column: Sequence[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_integer(field.type):
        for value in column:
            # Arrow would cut the fraction off in silence.
            if isinstance(value, _FRACTIONAL) and value % 1 != 0:
                msg = f"{value!r} in the column {field.name!r}, which holds whole numbers"
                raise ValueError(msg)
    return pa.array(column, type=field.type)
