"""Aggregations, joins and copies of frames in this process: what a Trident topology otherwise asks of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial as partial_of
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kinesis_trident.bolt.testing.local_columns import for_local_frames
from kinesis_trident.bolt.testing.local_frames import LocalFrame
from kinesis_trident.bolt.testing.run_bolts import run_in_spark
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator, Count, Max, Min, Sum
from kinesis_trident.trident.build.nodes import AggregateNode, JoinNode, PersistentAggregateNode
from kinesis_trident.trident.run import frames
from kinesis_trident.trident.run.python_aggregation import GroupAggregation, keys_of

__all__: list[str] = []

_FUNCTIONS: Mapping[str | None, CombinerAggregator] = {
    "count": Count(),
    "sum": Sum(),
    "min": Min(),
    "max": Max(),
}
_ORDERED: tuple[type[DataType], ...] = (
    *(NumericType, StringType, BinaryType, BooleanType, DateType, TimestampType, TimestampNTZType),
)
"""Types whose values have one order in Spark and in Python."""


@for_local_frames(frames.aggregate_in_spark)
def _aggregate(
    frame: LocalFrame, node: AggregateNode | PersistentAggregateNode, *, partial: bool = False
) -> LocalFrame:
    """Aggregate as the function of Spark's does, whatever functions the aggregator has itself."""
    keys, added, aggregator = node.keys or (), node.added, node.aggregator
    assert isinstance(aggregator, CombinerAggregator)
    function = _FUNCTIONS["sum" if partial and aggregator.in_spark == "count" else aggregator.in_spark]
    counts = aggregator.in_spark == "count" and not partial
    value = added.fields[0]
    name = value.name if partial else node.inputs[0] if node.inputs else ""
    read = StructField("one", value.dataType) if counts else frame.schema[name]
    if not isinstance(read.dataType, _ORDERED) or function.result(StructType([read])) != value.dataType:
        there = partial_of(_aggregate_there, node, partial)
        return cast(LocalFrame, run_in_spark(there)(cast(DataFrame, frame)))

    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        values = pa.array([1] * batch.num_rows) if counts else batch.column(name)
        return {**{key: batch.column(key) for key in keys}, value.name: values}

    fields = [frame.schema[key] for key in keys]
    single = frame.on_batches(StructType([*fields, StructField(value.name, read.dataType)]), change)
    schema = StructType([*fields, *added.fields])
    groups = GroupAggregation(node.operation, keys, (value.name,), function, arrow_schema(schema), None)
    moved = single.repartition(frame.getNumPartitions(), *keys) if keys else single.repartition(1)
    return moved.mapInArrow(groups, schema)


def _aggregate_there(
    node: AggregateNode | PersistentAggregateNode, partial: bool, frame: DataFrame
) -> DataFrame:
    return frames.aggregate_in_spark(frame, node, partial=partial)


@for_local_frames(frames.join_frames)
def _join(left: LocalFrame, right: LocalFrame, node: JoinNode) -> LocalFrame:
    """Join row by row: the keys come first; a null equals nothing."""
    ours, theirs = left.toArrow(), right.toArrow()
    mine, other = ([pair[side] for pair in node.on] for side in (0, 1))
    by_key: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(keys_of(theirs, other)):
        if None not in key:
            by_key.setdefault(key, []).append(row)
    pairs: list[tuple[int | None, int | None]] = []
    matched: set[int] = set()
    for row, key in enumerate(keys_of(ours, mine)):
        found = [] if None in key else by_key.get(key, [])
        matched.update(found)
        pairs += [(row, one) for one in found]
        if not found and node.how in ("left", "full"):
            pairs.append((row, None))
    if node.how in ("right", "full"):
        pairs += [(None, row) for row in range(theirs.num_rows) if row not in matched]
    schema = arrow_schema(node.schema)
    # The columns of a frame come in any order: each is taken by its name.
    a, b = (pa.array([pair[side] for pair in pairs], pa.int64()) for side in (0, 1))
    either = pa.array(
        [one if one is not None else ours.num_rows + (two or 0) for one, two in pairs], pa.int64()
    )
    columns = [
        pa.chunked_array([*ours.column(x).cast(kind).chunks, *theirs.column(y).cast(kind).chunks], kind).take(
            either
        )
        for (x, y), kind in zip(node.on, schema.types, strict=False)
    ]
    columns += [ours.column(name).take(a) for name in node.parents[0].schema.names if name not in mine]
    columns += [theirs.column(name).take(b) for name in node.parents[1].schema.names if name not in other]
    return left.sparkSession.createDataFrame(pa.Table.from_arrays(columns, schema=schema), node.schema)
