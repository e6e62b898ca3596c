"""Partial results for several consumers of one node's tuples, computed in one pass, moved and held as one frame."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions as F, types as T

from kinesis_trident.bolt.names import quoted
from kinesis_trident.bolt.partitions import move_to_partitions
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.run.arrow_aggregation import Groups, Partials, chunks

_OF = "__of"
"""The column that tells whose groups a row holds."""


@dataclass(frozen=True, slots=True)
class SharedPartials:
    """Aggregates the tuples of one node for several consumers in one pass: each row belongs to one of them.

    `__of` is the number of the consumer; its fields are in columns of their types, which consumers share.

    Args:
        consumers: the partial results of each.
        partitions: the number of partitions of each in `moved`, which hold rows of no other one; 0 if it is not there.
    """

    consumers: tuple[Partials, ...]
    partitions: tuple[int, ...]

    @property
    def fields(self) -> T.StructType:
        """The columns of all consumers."""
        return self._layout()[0]

    @property
    def wanted(self) -> set[str]:
        """Return the fields that are read."""
        return set().union(*(one.wanted for one in self.consumers))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups of all consumers; one may occur several times."""
        fields, places = self._layout()
        schema = arrow_schema(fields)
        groups = [Groups(one) for one in self.consumers]
        for chunk in chunks(batches):
            for i, one in enumerate(groups):
                yield from (_tag(batch, i, places[i], schema) for batch in one.add(chunk))
        for i, one in enumerate(groups):
            yield from (_tag(batch, i, places[i], schema) for batch in one.end())

    def move(self, frame: DataFrame) -> DataFrame:
        """Bring each group of a consumer to one of its partitions, all consumers at once."""
        places = self._layout()[1]
        there = [i for i, count in enumerate(self.partitions) if count]
        cases = []
        for i in there:
            keys = ", ".join(f"_{place}" for place in places[i][: len(self.consumers[i].keys)])
            # As Spark moves rows by their keys.
            within = f" + pmod(hash({keys}), {self.partitions[i]})" if keys else ""
            cases.append(f"WHEN {i} THEN {self.partitions_of(i).start}{within}")
        if len(there) < len(self.partitions):
            frame = frame.where(f"{_OF} IN ({', '.join(map(str, there))})")
        # A column that is put together costs many calls of the JVM, a text one.
        place = F.expr(f"CASE {_OF} {' '.join(cases)} END")
        return move_to_partitions(frame, sum(self.partitions), place)

    def of(self, frame: DataFrame, consumer: int) -> DataFrame:
        """Return the groups of one consumer."""
        names = self.consumers[consumer].fields.names
        columns = [
            f"_{place} AS {quoted(name)}"
            for place, name in zip(self._layout()[1][consumer], names, strict=True)
        ]
        return frame.where(f"{_OF} = {consumer}").selectExpr(*columns)

    def partitions_of(self, consumer: int) -> range:
        """Return the partitions of one consumer among those of all."""
        first = sum(self.partitions[:consumer])
        return range(first, first + self.partitions[consumer])

    def consumer_of(self, partition: int) -> tuple[int, int]:
        """Return the consumer of a partition, and the partition's number among those of the consumer."""
        consumer = bisect_right([*accumulate(self.partitions)], partition)
        return consumer, partition - self.partitions_of(consumer).start

    def groups(self, batches: Iterable[pa.RecordBatch], consumer: int) -> Iterator[pa.RecordBatch]:
        """Yield the groups of one consumer, from the rows of its partitions."""
        places, names = self._layout()[1][consumer], self.consumers[consumer].fields.names
        for batch in batches:
            yield pa.RecordBatch.from_arrays([batch.column(place) for place in places], names=names)

    def _layout(self) -> tuple[T.StructType, list[list[int]]]:
        """Return the columns, and for each consumer those of its fields: as few as there can be."""
        columns = [T.StructField(_OF, T.IntegerType())]
        places: list[list[int]] = []
        for one in self.consumers:
            mine: list[int] = []
            for field in one.fields:
                alike = (n for n, column in enumerate(columns) if n and column.dataType == field.dataType)
                place = next((n for n in alike if n not in mine), len(columns))
                if place == len(columns):
                    columns.append(T.StructField(f"_{place}", field.dataType))
                mine.append(place)
            places.append(mine)
        return T.StructType(columns), places


def _tag(groups: pa.RecordBatch, consumer: int, places: list[int], schema: pa.Schema) -> pa.RecordBatch:
    """Return the groups of one consumer as rows for all of them."""
    columns: list[pa.Array | None] = [None] * len(schema)
    columns[0] = numbers(np.full(groups.num_rows, consumer, np.int32))
    for place, column in zip(places, groups.columns, strict=True):
        columns[place] = column
    filled = [
        pa.nulls(groups.num_rows, field.type) if column is None else column
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)
