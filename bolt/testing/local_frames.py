"""DataFrames in this process: what the engine calls of Spark's DataFrame, over Arrow batches.

As in Spark a frame is computed anew for each action, unless it is persisted, and every task has its own copy of its
operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.testing.hashing import repartitions_of
from kinesis_trident.bolt.tracking.place import Place, placed
from kinesis_trident.bolt.tracking.spans import PROPERTY
from kinesis_trident.common.arrow_schemas import arrow_schema

Partition = list[pa.RecordBatch]
"""The batches of one task, none of them empty."""

Operator = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class _Settings(dict[str, str]):
    """A session's settings."""

    def set(self, name: str, value: str) -> None:
        """Set one."""
        self[name] = value

    def unset(self, name: str) -> None:
        """Remove one."""
        self.pop(name, None)


class LocalSession:
    """Makes frames, numbers their stages, and holds the settings."""

    def __init__(self) -> None:
        self.conf = _Settings()
        self._stages = itertools.count(1)

    def next_stage(self) -> int:
        """Return the number of a new stage."""
        return next(self._stages)

    def createDataFrame(self, rows: pa.Table, schema: StructType) -> LocalFrame:
        """Return a frame of these rows, in one partition."""
        return self.frame(schema, [rows.combine_chunks().to_batches()])

    def frame(self, schema: StructType, parts: Sequence[Partition]) -> LocalFrame:
        """Return a frame with these partitions."""
        kind = arrow_schema(schema)
        held = [[_fit(batch, kind) for batch in part if batch.num_rows] for part in parts]
        return LocalFrame(self, schema, len(held), lambda: held)


class LocalFrame:
    """A DataFrame in this process."""

    def __init__(
        self, session: LocalSession, schema: StructType, count: int, compute: Callable[[], list[Partition]]
    ) -> None:
        self.sparkSession = session
        self.schema = schema
        self._count = count
        self._compute = compute
        self._persisted = False
        self._kept: list[Partition] | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    @property
    def rdd(self) -> LocalFrame:
        """The object that is asked for the number of partitions: the frame itself."""
        return self

    def getNumPartitions(self) -> int:
        """Return the number of partitions, without computing them."""
        return self._count

    def partitions(self) -> list[Partition]:
        """Compute the rows, if they are not kept."""
        if self._kept is not None:
            return self._kept
        made = self._compute()
        if self._persisted:
            self._kept = made
        return made

    def persist(self) -> Self:
        """Keep the rows once they are computed."""
        self._persisted = True
        return self

    def unpersist(self) -> Self:
        """Let the rows go."""
        self._persisted, self._kept = False, None
        return self

    def localCheckpoint(self, eager: bool = True) -> LocalFrame:
        """Compute the rows now, and return a frame of them."""
        return self.sparkSession.frame(self.schema, self.partitions())

    def collect(self) -> list[Row]:
        """Compute the rows."""
        make = Row(*self.columns)
        return [make(*row.values()) for row in self.toArrow().to_pylist()]

    def isEmpty(self) -> bool:
        """Compute the rows; return True if there are none."""
        return not any(self.partitions())

    def toArrow(self) -> pa.Table:
        """Compute the rows."""
        return pa.Table.from_batches(itertools.chain(*self.partitions()), arrow_schema(self.schema))

    def mapInArrow(self, operator: Operator, schema: StructType) -> LocalFrame:
        """Run an operator in each partition."""
        return self._compute_later(
            schema, self._count, partial(self._map_partitions, operator, arrow_schema(schema))
        )

    def _map_partitions(self, operator: Operator, schema: pa.Schema) -> list[Partition]:
        session, given = self.sparkSession, self.partitions()
        stage, spans = session.next_stage(), session.conf.get(PROPERTY)
        pickled = cloudpickle.dumps(operator)  # type: ignore[no-untyped-call]
        parts = []
        for number, batches in enumerate(given):
            with placed(Place(stage, number, spans)):
                made = cloudpickle.loads(pickled)(iter(batches))
                parts.append([_fit(batch, schema) for batch in made if batch.num_rows])
        return parts

    def on_batches(
        self, schema: StructType, change: Callable[[pa.RecordBatch], Mapping[str, pa.Array]]
    ) -> LocalFrame:
        """Return a frame with other columns, which `change` makes of each batch."""
        kind = arrow_schema(schema)

        def made() -> list[Partition]:
            return [
                [_fit(pa.RecordBatch.from_pydict(dict(change(batch))), kind) for batch in part]
                for part in self.partitions()
            ]

        return self._compute_later(schema, self._count, made)

    def select(self, *names: str) -> LocalFrame:
        """Return these columns."""
        schema = StructType([self.schema[name] for name in names])
        return self.on_batches(schema, lambda batch: {name: batch.column(name) for name in names})

    def withColumnRenamed(self, name: str, new: str) -> LocalFrame:
        """Return the same columns, one of them under another name."""
        schema = StructType(
            [
                StructField(new if one.name == name else one.name, one.dataType, one.nullable)
                for one in self.schema.fields
            ]
        )
        return self.on_batches(schema, lambda batch: dict(zip(schema.names, batch.columns, strict=True)))

    def with_partition_id(self, added: StructField, count: int) -> LocalFrame:
        """Add the number of each row's partition, modulo `count`."""
        schema = StructType([*self.schema.fields, added])
        kind = arrow_schema(schema).field(added.name)

        def made() -> list[Partition]:
            return [
                [
                    batch.append_column(kind, pa.repeat(pa.scalar(number % count, kind.type), batch.num_rows))
                    for batch in part
                ]
                for number, part in enumerate(self.partitions())
            ]

        return self._compute_later(schema, self._count, made)

    def drop(self, *names: str) -> LocalFrame:
        """Return the other columns."""
        return self.select(*(name for name in self.columns if name not in names))

    def union(self, other: LocalFrame) -> LocalFrame:
        """Return the rows of both, column by column in their order."""

        def made() -> list[Partition]:
            theirs = [[batch.rename_columns(self.columns) for batch in part] for part in other.partitions()]
            return [*self.partitions(), *theirs]

        return self._compute_later(self.schema, self._count + other._count, made)

    unionAll = union

    def unionByName(self, other: LocalFrame, allowMissingColumns: bool = False) -> LocalFrame:
        """Return the rows of both; columns that only one has are null in the other's."""
        schema = from_arrow_schema(
            pa.unify_schemas(
                [arrow_schema(self.schema), arrow_schema(other.schema)], promote_options="permissive"
            )
        )
        # Spark 4.0 lets the elements of every list be null.
        kind = arrow_schema(schema)

        def made() -> list[Partition]:
            return [
                [_widen(batch, kind) for batch in part] for part in (*self.partitions(), *other.partitions())
            ]

        return self._compute_later(schema, self._count + other._count, made)

    def repartition(self, count: int, *names: str) -> LocalFrame:
        """Bring rows with the same values in these columns together; without any, spread the rows evenly."""
        if not names:
            return self.move(
                count, lambda batch, first: [n % count for n in range(first, first + batch.num_rows)]
            )
        return self.move(count, lambda batch, _: repartitions_of(batch, names, count))

    def repartitionById(self, count: int, name: str) -> LocalFrame:
        """Bring each row to the partition whose number it holds."""
        return self.move(count, lambda batch, _: batch.column(name).to_pylist())

    def move(self, count: int, choose: Callable[[pa.RecordBatch, int], Sequence[int]]) -> LocalFrame:
        """Bring each row to the partition that `choose(batch, number of its first row)` names."""
        kind = arrow_schema(self.schema)

        def made() -> list[Partition]:
            places: list[list[int]] = [[] for _ in range(count)]
            first = 0
            whole = list(itertools.chain(*self.partitions()))
            for batch in whole:
                for row, place in enumerate(choose(batch, first), first):
                    places[place].append(row)
                first += batch.num_rows
            table = pa.Table.from_batches(whole, kind)
            return [
                table.take(pa.array(rows, pa.int64())).combine_chunks().to_batches() if rows else []
                for rows in places
            ]

        return self._compute_later(self.schema, count, made)

    @property
    def write(self) -> _NoopWriter:
        """The writer that runs the frame for the effects of its tasks."""
        return _NoopWriter(self)

    def _compute_later(
        self, schema: StructType, count: int, compute: Callable[[], list[Partition]]
    ) -> LocalFrame:
        return LocalFrame(self.sparkSession, schema, count, compute)


class _NoopWriter:
    """Spark's writer, with the only sink that the engine uses."""

    def __init__(self, frame: LocalFrame) -> None:
        self._frame = frame

    def format(self, _name: str) -> Self:
        """Choose the sink."""
        return self

    def mode(self, _mode: str) -> Self:
        """Choose what replaces what."""
        return self

    def save(self) -> None:
        """Compute the rows."""
        self._frame.partitions()


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch's columns in the order and with the types of a schema."""
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in schema], schema=schema
    )


def _widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    given: Mapping[str, Any] = {name: batch.column(name) for name in batch.schema.names}
    columns = {
        field.name: given[field.name] if field.name in given else pa.nulls(batch.num_rows, field.type)
        for field in schema
    }
    return _fit(pa.RecordBatch.from_pydict(columns), schema)
