"""Aggregations, joins and copies of frames in this process: what a Trident topology otherwise asks of Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.steps.border import read, rows_that_fit
from kinesis_trident.bolt.testing.local_columns import for_local_frames
from kinesis_trident.bolt.testing.local_frames import LocalFrame
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.nodes import AggregateNode, JoinNode, PersistentAggregateNode
from kinesis_trident.trident.run import frames
from kinesis_trident.trident.run.python_aggregation import GroupAggregation, keys_of

__all__: list[str] = []


@for_local_frames(frames.aggregate_in_spark)
def _aggregate(
    frame: LocalFrame, node: AggregateNode | PersistentAggregateNode, *, partial: bool = False
) -> LocalFrame:
    """Aggregate by the aggregator's own functions."""
    keys, added = node.keys or (), node.added
    name = added.names[0]
    assert isinstance(node.aggregator, CombinerAggregator)
    counts = node.aggregator.in_spark == "count" and not partial
    value = frame.schema[name if partial else node.inputs[0]] if not counts else added.fields[0]

    def change(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        values = pa.array([1] * batch.num_rows) if counts else batch.column(value.name)
        return {**{key: batch.column(key) for key in keys}, name: values}

    fields = [frame.schema[key] for key in keys]
    single = frame.on_batches(StructType([*fields, StructField(name, value.dataType)]), change)
    schema = StructType([*fields, *added.fields])
    groups = GroupAggregation(node.operation, keys, (name,), node.aggregator, arrow_schema(schema), None)
    moved = single.repartition(frame.getNumPartitions(), *keys) if keys else single.repartition(1)
    return moved.mapInArrow(groups, schema)


@for_local_frames(frames.join_frames)
def _join(left: LocalFrame, right: LocalFrame, node: JoinNode) -> LocalFrame:
    """Join row by row: the keys come first; a null equals nothing."""
    ours, theirs = left.toArrow(), right.toArrow()
    mine, other = ([pair[side] for pair in node.on] for side in (0, 1))
    left_keys, right_keys = keys_of(ours, mine), keys_of(theirs, other)
    by_key: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(right_keys):
        if None not in key:
            by_key.setdefault(_equal(key), []).append(row)
    pairs: list[tuple[int | None, int | None]] = []
    matched: set[int] = set()
    for row, key in enumerate(left_keys):
        found = [] if None in key else by_key.get(_equal(key), [])
        matched.update(found)
        pairs += [(row, one) for one in found]
        if not found and node.how in ("left", "full"):
            pairs.append((row, None))
    if node.how in ("right", "full"):
        pairs += [(None, row) for row in range(theirs.num_rows) if row not in matched]
    our_rest, their_rest = _rows(ours, mine), _rows(theirs, other)
    rows = [
        (
            *(left_keys[a] if a is not None else right_keys[b or 0]),
            *(our_rest[a] if a is not None else [None] * (ours.num_columns - len(mine))),
            *(their_rest[b] if b is not None else [None] * (theirs.num_columns - len(other))),
        )
        for a, b in pairs
    ]
    return left.sparkSession.frame(node.schema, [[rows_that_fit(rows, arrow_schema(node.schema))[0]]])


def _rows(table: pa.Table, but: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the rows without some columns."""
    columns = [read(table.column(name)) for name in table.schema.names if name not in but]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _equal(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key in which all NaN are one: in Spark they are equal."""
    return tuple(math.nan if isinstance(one, float) and math.isnan(one) else one for one in key)
