"""Rows for row functions, whose columns become Python values only when used; and rows back to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from kinesis_trident.common.arrow_columns import column_of

FLUSH_BYTES = 16 << 20
"""The bytes of texts and binaries that are kept as Python objects; more are put into an Arrow batch."""


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
            if name in self._columns.names:
                raise
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

    def __init__(
        self,
        batch: pa.RecordBatch,
        places: Mapping[str, str] | None = None,
        made: dict[str, list[Any]] | None = None,
    ) -> None:
        self._batch = batch
        self._places = {name: name for name in batch.schema.names} if places is None else places
        self._made: dict[str, list[Any]] = {} if made is None else made
        self._lists: dict[str, list[Any]] = {}

    def rename_columns(self, places: Mapping[str, str]) -> Columns:
        """Return the same columns under other names, and no others: `places` has the column of each name."""
        return Columns(self._batch, places, self._made)

    @property
    def names(self) -> list[str]:
        """The names of all columns, our own included."""
        return list(self._places)

    def values(self, name: str) -> list[Any]:
        """Return the values of one column.

        Raises:
            KeyError: there is no such column; the message names the columns.
        """
        found = self._lists.get(name)
        if found is None:
            place = self._places.get(name)
            if place is None:
                known = ", ".join(one for one in self.names if not one.startswith("__"))
                msg = f"there is no column {name!r}; the columns are {known}"
                raise KeyError(msg)
            found = self._made.get(place)
            if found is None:
                found = self._made[place] = self._batch.column(place).to_pylist()
            self._lists[name] = found
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
    if pa.types.is_integer(field.type) and not {*map(type, column)} <= {int, NoneType}:
        for value in column:
            # Arrow would silently cut off the fraction.
            if isinstance(value, _FRACTIONAL) and value % 1 != 0:
                msg = f"the column {field.name!r} holds whole numbers, but a value is {value!r}"
                raise ValueError(msg)
    try:
        return column_of(column, field.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        kind = from_arrow_type(field.type).simpleString()
        msg = f"the column {field.name!r} is {kind}, but a value is not: {error}"
        raise pa.ArrowInvalid(msg) from error


def size_of(values: Iterable[Any]) -> int:
    """Return about how many bytes the texts and binaries in some values have."""
    size = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes or kind is bytearray:
            size += len(value)
        elif kind is list or kind is tuple:
            size += size_of(value)
        elif kind is dict:
            size += size_of(value) + size_of(value.values())
    return size
