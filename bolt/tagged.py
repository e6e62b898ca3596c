"""Rows of several streams in one frame: a column says whose a row is, and streams share the columns of one type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.arrow_schemas import arrow_schema

_T = TypeVar("_T")

STREAM = "__stream"
"""The column with the number of a row's stream."""


@dataclass(frozen=True)
class Tagged:
    """The columns of the rows of several streams: `STREAM`, and as few others as there can be.

    Args:
        streams: the fields of each.
    """

    streams: tuple[StructType, ...]

    @classmethod
    def of(cls, streams: Iterable[StructType]) -> Tagged:
        """Return the columns of the rows of these streams."""
        return cls(tuple(streams))

    @property
    def schema(self) -> StructType:
        """All columns."""
        return self._layout[0]

    def columns_of(self, number: int) -> list[str]:
        """Return the columns of a stream's fields, in their order."""
        return [self.schema[place].name for place in self._layout[1][number]]

    def tag(self, number: int, count: int, columns: Iterable[pa.Array]) -> pa.RecordBatch:
        """Return rows of a stream, so many in columns of its fields, as rows among those of all."""
        theirs = dict(zip(self._layout[1][number], columns, strict=True))
        tag = numbers(np.full(count, number, np.int32))
        others = [theirs[n] if n in theirs else pa.nulls(count, one.type) for n, one in self._others]
        return pa.RecordBatch.from_arrays([tag, *others], schema=self._arrow)

    def values_of(self, number: int, row: Sequence[_T]) -> list[_T]:
        """Return those of a row's values, one a column, that are of the stream's fields."""
        return [row[place] for place in self._layout[1][number]]

    def untag(self, rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Return rows of one stream with its fields, from rows that are all its own."""
        columns = self.values_of(number, rows.columns)
        return pa.RecordBatch.from_arrays(columns, names=self.streams[number].names)

    @cached_property
    def _layout(self) -> tuple[StructType, list[list[int]]]:
        """The columns, and for each stream those of its fields."""
        columns = [StructField(STREAM, IntegerType())]
        places: list[list[int]] = []
        for fields in self.streams:
            mine: list[int] = []
            for field in fields:
                alike = (n for n, column in enumerate(columns) if n and column.dataType == field.dataType)
                place = next((n for n in alike if n not in mine), len(columns))
                if place == len(columns):
                    columns.append(StructField(f"__{place}", field.dataType))
                mine.append(place)
            places.append(mine)
        return StructType(columns), places

    @cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(self.schema)

    @cached_property
    def _others(self) -> list[tuple[int, pa.Field]]:
        return [*enumerate(self._arrow)][1:]
