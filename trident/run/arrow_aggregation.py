"""Partial results of the aggregators that Spark has, computed in the workers of the tuples.

A Python worker makes many tuples, and each has a cost in the JVM and its shuffle. Here they are aggregated in the
same worker, in Arrow, so that it returns one row a group, or few. For a state, the worker that updates it combines
the rows of all workers; for other aggregations Spark does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.nodes import AggregateNode, PersistentAggregateNode, TopologyNode
from kinesis_trident.trident.errors import OperationError

_TUPLES = 16 << 20
"""The bytes of tuples that are aggregated at once."""

_GROUPS = 32 << 20
"""The bytes of groups that a task holds: with more, it yields them and starts again."""

_WORTH = 0.8
"""With more groups per tuple than this, aggregation costs more than it saves."""

_WIDE = pa.decimal128(38, 0)
"""A type for the sum of any possible number of whole numbers."""

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_KEYS = (*_WHOLE, T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.DecimalType)
_EXACT = {
    "sum": (*_WHOLE, T.FloatType, T.DoubleType),
    "min": (*_WHOLE, T.DateType),
    "max": (*_WHOLE, T.DateType),
}
"""For these types Arrow's results equal Spark's. For fractions they do not: Spark's greatest number is NaN."""


@dataclass(frozen=True, slots=True)
class Partials:
    """Aggregates tuples: one row a group, with `value` for a count, a sum, a minimum or a maximum.

    `reads` is the field that is aggregated, None for a count. `fields` are those of the group and the partial result.
    """

    keys: tuple[str, ...]
    reads: str | None
    function: str
    fields: T.StructType

    @property
    def schema(self) -> pa.Schema:
        """`fields` as an Arrow schema."""
        return arrow_schema(self.fields)

    @property
    def wanted(self) -> set[str]:
        """Return the fields that are read."""
        return {*self.keys, *([] if self.reads is None else [self.reads])}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups; one may occur several times."""
        groups = Groups(self)
        for chunk in chunks(batches):
            yield from groups.add(chunk)
        yield from groups.end()

    def merge(self, batches: Iterable[pa.RecordBatch], operation: str) -> Iterator[pa.RecordBatch]:
        """Yield one row a group from all its partial results; nothing for a group with only nulls.

        Raises:
            OperationError: a sum is too large for its type.
        """
        groups: list[pa.Table] = []
        held = least = 0
        for chunk in chunks(batches):
            groups.append(chunk)
            held += chunk.nbytes
            # Aggregate when they have doubled: each row is aggregated a few times, for any number of workers.
            if held > max(_GROUPS, 2 * least):
                groups = self.combine(groups)
                held = least = sum(table.nbytes for table in groups)
        if groups:
            whole = self._whole(groups, operation)
            yield from _batches([whole.filter(pc.is_valid(whole.column(-1)))])

    def single(self, tuples: pa.Table) -> pa.Table:
        """Return each tuple as a partial result."""
        columns = [tuples.column(key) for key in self.keys]
        columns += [
            numbers(np.ones(tuples.num_rows, np.int64)) if self.reads is None else tuples.column(self.reads)
        ]
        return pa.table(
            [column.cast(kind) for column, kind in zip(columns, self.schema.types, strict=True)],
            schema=self.schema,
        )

    def combine(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Combine the tables into one with one row a group; or return them unchanged if a sum might not fit."""
        if not tables:
            return []
        table = pa.concat_tables(tables)
        return [self._group(table)] if self._fits(table) else tables

    def _whole(self, tables: list[pa.Table], operation: str) -> pa.Table:
        """Return one row a group: exact even if a sum might not fit."""
        table, kind = pa.concat_tables(tables), self.schema.types[-1]
        if self._fits(table):
            return self._group(table)
        value = len(self.keys)
        groups = self._group(
            table.set_column(value, self.schema.names[value], table.column(value).cast(_WIDE))
        )
        try:
            sums = groups.column(value).cast(kind)
        except pa.ArrowInvalid as error:
            msg = f"{operation}: the sum of a group is too large for {kind}: {error}. Cast the field to a wider type"
            raise OperationError(msg) from error
        return groups.set_column(value, self.schema.field(value), sums)

    def _fits(self, table: pa.Table) -> bool:
        """Return whether no sum of these can be too large for its type."""
        values = table.column(len(self.keys))
        if self.function not in ("count", "sum") or not pa.types.is_integer(values.type):
            return True
        ends = pc.min_max(values).as_py()
        return bool(len(values) * max(abs(ends["min"] or 0), abs(ends["max"] or 0)) < 1 << 63)

    def _group(self, table: pa.Table) -> pa.Table:
        function, value = "sum" if self.function == "count" else self.function, self.schema.names[-1]
        # Only nulls give null. Another thread would only take a core from another task.
        options = pc.ScalarAggregateOptions(min_count=1)
        groups = table.group_by(list(self.keys), use_threads=False).aggregate([(value, function, options)])
        return groups.select([*self.keys, f"{value}_{function}"]).rename_columns(self.schema.names)


class Groups:
    """The groups of one task, combined as its tuples come."""

    def __init__(self, partials: Partials) -> None:
        self._partials = partials
        self._groups: list[pa.Table] = []
        self._taken = self._given = 0
        self._is_worth_it = True

    def add(self, chunk: pa.Table) -> Iterator[pa.RecordBatch]:
        """Add tuples; yield the groups that are too many to keep."""
        partials = self._partials
        if not self._is_worth_it:
            yield from _batches([partials.single(chunk)])
            return
        self._groups += partials.combine([partials.single(chunk)])
        self._taken += chunk.num_rows
        if sum(table.nbytes for table in self._groups) > _GROUPS:
            self._groups = partials.combine(self._groups)
            if sum(table.nbytes for table in self._groups) > _GROUPS // 2:
                self._given += sum(table.num_rows for table in self._groups)
                yield from _batches(self._groups)
                self._groups = []
                self._is_worth_it = self._given <= _WORTH * self._taken

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the groups that are left."""
        groups = self._groups
        yield from _batches(groups if len(groups) < 2 else self._partials.combine(groups))


def partials_of(node: TopologyNode) -> Partials | None:
    """Return what makes partial results of a node's groups.

    None if it aggregates no groups, if Spark lacks the aggregator, or if Arrow's results differ.
    """
    if not isinstance(node, AggregateNode | PersistentAggregateNode) or node.keys is None:
        return None
    keys, aggregator = node.keys, node.aggregator
    if not isinstance(aggregator, CombinerAggregator):
        return None
    function, given = aggregator.in_spark, node.parents[0].schema
    if function is None:
        return None
    fields = [given[key] for key in keys]
    if not all(type(field.dataType) in _KEYS for field in fields):
        return None
    if function != "count" and type(given[node.inputs[0]].dataType) not in _EXACT[function]:
        return None
    added = T.StructField(node.added.names[0], node.added.fields[0].dataType)
    read = None if function == "count" else node.inputs[0]
    return Partials(keys, read, function, T.StructType([*fields, added]))


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the same rows in fewer and larger tables."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size > _TUPLES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.combine_chunks().to_batches()
