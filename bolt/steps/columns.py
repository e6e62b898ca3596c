"""Rows for row functions, whose columns become Python values only when used; and rows back to columns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Columns", "Record", "batch_of", "checked"]


class Record:
    """One row as a row function sees it: `record.data` or `record["data"]`; columns are converted when first used."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(*error.args) from None

    def __getitem__(self, name: str) -> Any:
        return self._columns.values(name)[self._row]

    def asDict(self) -> dict[str, Any]:
        """Return all columns by name."""
        return {name: self[name] for name in self._columns.names if not name.startswith("__")}

    def __repr__(self) -> str:
        return f"Record({self.asDict()!r})"


class Columns:
    """The columns of a batch as Python lists, each made once and only when needed."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._lists: dict[str, list[Any]] = {}

    @property
    def names(self) -> list[str]:
        """The names of all columns, our own included."""
        return list(self._batch.schema.names)

    def values(self, name: str) -> list[Any]:
        """Return the values of one column.

        Raises:
            KeyError: there is no such column; the message names the columns.
        """
        found = self._lists.get(name)
        if found is None:
            if name not in self._batch.schema.names:
                known = ", ".join(one for one in self.names if not one.startswith("__"))
                msg = f"there is no column {name!r}; the columns are {known}"
                raise KeyError(msg)
            found = self._lists[name] = self._batch.column(name).to_pylist()
        return found


_FRACTIONAL = (float, np.floating, Decimal, Fraction)


def batch_of(values: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of rows given as tuples.

    Raises:
        Exception: of many classes, such as Arrow's own: a value does not fit its type.
    """
    columns = list(zip(*values, strict=True)) if values else [() for _ in schema]
    return checked([_array(*pair) for pair in zip(columns, schema, strict=True)], schema)


def checked(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of these columns.

    Raises:
        ValueError: a NOT NULL column holds a null, which would end the task in Spark.
    """
    for column, field in zip(columns, schema, strict=True):
        if column.null_count and not field.nullable:
            msg = f"the column {field.name!r} is NOT NULL, but a value is null"
            raise ValueError(msg)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(column: Sequence[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_integer(field.type):
        for value in column:
            # Arrow would silently cut off the fraction.
            if isinstance(value, _FRACTIONAL) and value % 1 != 0:
                msg = f"the column {field.name!r} holds whole numbers, but a value is {value!r}"
                raise ValueError(msg)
    return pa.array(column, type=field.type)
