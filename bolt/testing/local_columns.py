"""The columns by which a topology's tuples move, for frames in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from kinesis_trident.bolt.storm import frames
from kinesis_trident.bolt.storm.api import SYSTEM
from kinesis_trident.bolt.storm.bolt_task import COMPONENT, TASK
from kinesis_trident.bolt.tagged import STREAM
from kinesis_trident.bolt.testing.hashing import partitions_of
from kinesis_trident.bolt.testing.local_frames import LocalFrame
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.reader.rows import ANCHORS, ARROW_SCHEMA, SCHEMA

Own = TypeVar("Own", bound=Callable[..., Any])

_TASK = StructField(TASK, IntegerType(), nullable=False)


def for_local_frames(function: Any) -> Callable[[Own], Own]:
    """Register the decorated function as what a single-dispatch function of frames does with these."""
    return cast(Callable[[Own], Own], function.register(LocalFrame))


@for_local_frames(frames.add_scheme)
def _add_scheme(frame: LocalFrame, scheme: Mapping[str, str]) -> LocalFrame:
    """The given tuples have the fields of the scheme."""
    return frame


@for_local_frames(frames.add_no_anchors)
def _add_no_anchors(frame: LocalFrame) -> LocalFrame:
    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        none = pa.array([[]] * batch.num_rows, ARROW_SCHEMA.field(ANCHORS).type)
        return {**_columns(batch), ANCHORS: none}

    return frame.on_batches(StructType([*frame.schema.fields, SCHEMA[ANCHORS]]), change)


@for_local_frames(frames.add_component)
def _add_component(frame: LocalFrame, name: str) -> LocalFrame:
    schema = StructType([*frame.schema.fields, StructField(COMPONENT, StringType())])
    return frame.on_batches(
        schema, lambda batch: {**_columns(batch), COMPONENT: pa.repeat(name, batch.num_rows)}
    )


@for_local_frames(frames.select_as)
def _select_as(frame: LocalFrame, columns: Mapping[str, str]) -> LocalFrame:
    schema = StructType([StructField(new, frame.schema[name].dataType) for name, new in columns.items()])
    return frame.on_batches(schema, lambda batch: {new: batch.column(name) for name, new in columns.items()})


@for_local_frames(frames.rows_of_stream)
def _rows_of_stream(frame: LocalFrame, number: int) -> LocalFrame:
    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return _columns(batch.filter(pc.equal(batch.column(STREAM), number)))

    return frame.on_batches(frame.schema, change)


@for_local_frames(frames.add_hashes)
def _add_hashes(
    frame: LocalFrame, columns: Mapping[str, int | None], keys: Sequence[str], tasks: int
) -> LocalFrame:
    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        made = {
            name: partitions_of(batch, keys, tasks, salt) if keys else [0] * batch.num_rows
            for name, salt in columns.items()
        }
        return {**_columns(batch), **{name: pa.array(numbers, pa.int32()) for name, numbers in made.items()}}

    added = [StructField(name, IntegerType(), nullable=False) for name in columns]
    return frame.on_batches(StructType([*frame.schema.fields, *added]), change)


@for_local_frames(frames.add_partitions)
def _add_partitions(frame: LocalFrame, tasks: int) -> LocalFrame:
    return frame.with_partition_id(_TASK, tasks)


@for_local_frames(frames.add_tick_rows)
def _add_tick_rows(frame: LocalFrame, tasks: int, *, tracked: bool) -> LocalFrame:
    fields = [_TASK, StructField(COMPONENT, StringType())]
    columns: dict[str, list[Any]] = {TASK: list(range(tasks)), COMPONENT: [SYSTEM] * tasks}
    if tracked:
        fields.append(SCHEMA[ANCHORS])
        columns[ANCHORS] = [[]] * tasks
    schema = StructType(fields)
    rows = frame.sparkSession.createDataFrame(pa.table(columns, arrow_schema(schema)), schema)
    return frame.unionByName(rows, allowMissingColumns=True)


@for_local_frames(frames.copy_to_all)
def _copy_to_all(frame: LocalFrame, tasks: int) -> LocalFrame:
    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        rows = pa.array(np.repeat(np.arange(batch.num_rows), tasks))
        numbers = pa.array(np.tile(np.arange(tasks, dtype=np.int32), batch.num_rows))
        return {**{name: column.take(rows) for name, column in _columns(batch).items()}, TASK: numbers}

    return frame.on_batches(StructType([*frame.schema.fields, _TASK]), change)


@for_local_frames(frames.without_columns)
def _without_columns(frame: LocalFrame) -> LocalFrame:
    schema = StructType([StructField("end", IntegerType())])
    return frame.on_batches(schema, lambda batch: {"end": pa.repeat(0, batch.num_rows)})


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
