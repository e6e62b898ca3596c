"""The columns by which a topology's tuples move: all that it asks of DataFrames beyond their plain methods.

Frames of other kinds than Spark's register how they do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce, singledispatch

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kinesis_trident.bolt.storm.bolt_task import COMPONENT, TASK
from kinesis_trident.bolt.storm.components import FIELDS, GLOBAL, Grouping
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA

__all__ = [
    "add_no_anchors",
    "add_scheme",
    "address",
    "copy_to_all",
    "grouped_columns",
    "label",
    "run_together",
]


@singledispatch
def add_scheme(frame: DataFrame, scheme: Mapping[str, str]) -> DataFrame:
    """Add the fields of a spout's scheme: names, each with an SQL expression."""
    return frame.withColumns({name: F.expr(sql) for name, sql in scheme.items()})


@singledispatch
def add_no_anchors(frame: DataFrame) -> DataFrame:
    """Add the column `__anchors`, with none."""
    return frame.withColumn(ANCHORS, F.array().cast(SCHEMA[ANCHORS].dataType))


@singledispatch
def label(frame: DataFrame, component: str, columns: Mapping[str, str], kept: Sequence[str]) -> DataFrame:
    """Return fields under the names in `columns`, the columns `kept`, and the component's name in `__component`."""
    fields = [F.col(field).alias(name) for field, name in columns.items()]
    return frame.select(*fields, *kept, F.lit(component).alias(COMPONENT))


@singledispatch
def address(frame: DataFrame, grouping: Grouping, tasks: int) -> DataFrame:
    """Add the number of each tuple's task, in `__task`."""
    return frame.withColumn(TASK, _task(grouping, frame, tasks))


@singledispatch
def copy_to_all(frame: DataFrame, tasks: int) -> DataFrame:
    """Repeat each tuple for each task, with its number in `__task`."""
    return frame.withColumn(TASK, F.explode(F.sequence(F.lit(0), F.lit(tasks - 1))))


def run_together(frames: Sequence[DataFrame]) -> None:
    """Run frames in one job, for the effects of their tasks."""
    ends = [without_columns(frame) for frame in frames]
    reduce(lambda one, other: one.union(other), ends).write.format("noop").mode("overwrite").save()


@singledispatch
def without_columns(frame: DataFrame) -> DataFrame:
    """Return as many rows that frames of any columns can be united."""
    return frame.select(F.lit(0).alias("end"))


def grouped_columns(grouping: Grouping, schema: StructType) -> list[str]:
    """Return the columns that decide about a tuple's task.

    The task depends on the row only: a stage that is computed again chooses the same task.
    """
    if grouping.kind == GLOBAL:
        return []
    if grouping.kind == FIELDS:
        return list(grouping.fields)
    return [one.name for one in schema.fields if "map<" not in one.dataType.simpleString()]


def _task(grouping: Grouping, frame: DataFrame, tasks: int) -> Column:
    names = grouped_columns(grouping, frame.schema)
    return F.pmod(F.xxhash64(*names), F.lit(tasks)).cast("int") if names else F.lit(0)
