"""Operations on DataFrames for topologies: move, aggregate, join.

Frames of other kinds than Spark's register how they do what needs Spark's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import DoubleType, FloatType, LongType, StructType

from kinesis_trident.bolt.moves import Move
from kinesis_trident.bolt.partitions import move_to_partitions
from kinesis_trident.bolt.steps.border import empty
from kinesis_trident.bolt.storm.bolt_task import TASK
from kinesis_trident.bolt.storm.frames import add_hashes, add_partitions, copy_to_all
from kinesis_trident.bolt.tracking.held import plan_once
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.private_names import MissingNameError, collect_partitions
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    JoinNode,
    PersistentAggregateNode,
    TransformNode,
)
from kinesis_trident.trident.errors import OperationError

_OF_PARTIALS: Mapping[str | None, Callable[[Column], Column]] = {
    "sum": F.sum,
    "count": F.sum,
    "min": F.min,
    "max": F.max,
}


def run_partitions(frame: DataFrame, partitions: Sequence[int]) -> bool:
    """Run some partitions of a frame for the effects of their tasks; return True if one has a row.

    The frame is planned when the first of them are run, and not again; what their tasks read is moved then, too.
    """
    with plan_once(frame):
        rows = frame.rdd
    try:
        return any(collect_partitions(rows, partitions))
    except MissingNameError:
        return any(rows.context.runJob(rows, lambda found: [sum(1 for _ in found)], list(partitions)))


@singledispatch
def aggregate_in_spark(
    frame: DataFrame, node: AggregateNode | PersistentAggregateNode, *, partial: bool = False
) -> DataFrame:
    """Aggregate the groups of a batch in Spark. A group with only nulls is dropped.

    `partial`: the frame holds partial results, in the column `added`.
    """
    assert isinstance(node.aggregator, CombinerAggregator)
    function, keys = node.aggregator.in_spark, node.keys or ()
    name, kind = node.added.names[0], node.added.fields[0].dataType
    field = F.lit(1) if function == "count" and not partial else F.col(name if partial else node.inputs[0])
    if function == "count" and not partial:
        value = F.count(field)
    elif isinstance(kind, LongType) and function in ("sum", "count"):
        # Spark's own error names no operation, and its older settings begin again at the least number.
        value = F.try_sum(field)
        msg = f"{node.operation}: the sum of a group is too large for bigint. Cast the field to a wider type"
        value = F.when(value.isNotNull() | (F.count(field) == 0), value).otherwise(
            F.raise_error(msg).cast(kind)
        )
    else:
        value = _OF_PARTIALS[function](field)
    if function == "max" and isinstance(kind, FloatType | DoubleType):
        # Spark's greatest number is NaN; here it comes last.
        value = F.coalesce(F.max(F.when(~F.isnan(field), field)), value)
    groups = frame.groupBy(*keys).agg(value.cast(kind).alias(name))
    if function != "count":
        return groups.where(F.col(name).isNotNull())
    return groups if keys else groups.where(F.col(name) != 0)


@singledispatch
def join_frames(left: DataFrame, right: DataFrame, node: JoinNode) -> DataFrame:
    """Join two frames as the topology declares: the keys come first."""
    ours, theirs = left.alias("l"), right.alias("r")
    condition = [F.col(f"l.{a}") == F.col(f"r.{b}") for a, b in node.on]
    keys = {a for a, _ in node.on}, {b for _, b in node.on}
    both = ours.join(theirs, condition, node.how)
    columns: list[Column] = [F.coalesce(F.col(f"l.{a}"), F.col(f"r.{b}")) for a, b in node.on]
    columns += [F.col(f"l.{name}") for name in node.parents[0].schema.names if name not in keys[0]]
    columns += [F.col(f"r.{name}") for name in node.parents[1].schema.names if name not in keys[1]]
    return both.select(*(column.alias(name) for column, name in zip(columns, node.schema.names, strict=True)))


def check_fields(frame: DataFrame, node: TransformNode) -> DataFrame:
    """Check and return the frame that the user's code made.

    Raises:
        OperationError: its fields differ from those when the topology was built.
    """
    if frame.schema.names != node.schema.names:
        msg = (
            f"{node.operation}: returned the fields {', '.join(frame.schema.names)}, but "
            f"{', '.join(node.schema.names)} when the topology was built. Return the same fields each time"
        )
        raise OperationError(msg)
    return frame


def from_arrow(near: DataFrame, batches: Iterable[pa.RecordBatch], schema: StructType) -> DataFrame:
    """Make a DataFrame of rows computed in the driver, in the session of another one."""
    # PySpark refuses a column of structs without any batch.
    kind = arrow_schema(schema)
    rows = pa.Table.from_batches(list(batches) or [empty(kind)], kind)
    return near.sparkSession.createDataFrame(rows, schema)


def move_by_key(frame: DataFrame, keys: Sequence[str], partitions: int) -> DataFrame:
    """Bring each group to one partition; all rows to one if there are no keys."""
    return frame.repartition(partitions, *keys) if keys else frame.repartition(1)


def repartition(frame: DataFrame, move: Move, partitions: int) -> DataFrame:
    """Distribute the rows by a grouping of the topology; over `partitions` if it sets no number."""
    partitions = move.tasks or partitions
    if move.copies:
        return move_to_tasks(copy_to_all(frame, partitions), partitions)
    return frame.repartition(1 if move.is_global else partitions, *move.fields)


def add_tasks(frame: DataFrame, placed: Move | None, tasks: int) -> DataFrame:
    """Add the number of each row's task in a merge: that of its keys, any one, or that of its partition."""
    if placed is None or placed.copies:
        return add_partitions(frame, tasks)
    return add_hashes(frame, {TASK: None}, placed.keys(frame.schema), tasks)


def move_to_tasks(frame: DataFrame, tasks: int) -> DataFrame:
    """Bring each row to the task whose number it holds."""
    return move_to_partitions(frame, tasks, TASK).drop(TASK)
