"""The columns by which a topology's tuples move, for frames in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from kinesis_trident.bolt.storm import frames
from kinesis_trident.bolt.storm.bolt_task import COMPONENT, TASK
from kinesis_trident.bolt.storm.components import Grouping
from kinesis_trident.bolt.testing.hashing import partitions_of
from kinesis_trident.bolt.testing.local_frames import LocalFrame, for_local_frames
from kinesis_trident.spout.reader.rows import ANCHORS, ARROW_SCHEMA, SCHEMA

__all__: list[str] = []

_TASK = StructField(TASK, IntegerType(), nullable=False)


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


@for_local_frames(frames.label)
def _label(frame: LocalFrame, component: str, columns: Mapping[str, str], kept: Sequence[str]) -> LocalFrame:
    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        given = _columns(batch)
        fields = {name: given[field] for field, name in columns.items()}
        return {
            **fields,
            **{name: given[name] for name in kept},
            COMPONENT: pa.repeat(component, batch.num_rows),
        }

    fields = [StructField(name, frame.schema[field].dataType) for field, name in columns.items()]
    schema = [*fields, *(frame.schema[name] for name in kept), StructField(COMPONENT, StringType())]
    return frame.on_batches(StructType(schema), change)


@for_local_frames(frames.address)
def _address(frame: LocalFrame, grouping: Grouping, tasks: int) -> LocalFrame:
    names = frames.grouped_columns(grouping, frame.schema)

    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        numbers = partitions_of(batch, names, tasks) if names else [0] * batch.num_rows
        return {**_columns(batch), TASK: pa.array(numbers, pa.int32())}

    return frame.on_batches(StructType([*frame.schema.fields, _TASK]), change)


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
