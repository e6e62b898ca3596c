"""All that a topology of bolts asks of DataFrames beyond their plain methods: columns that are computed.

Frames of other kinds than Spark's register how they do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce, singledispatch

from pyspark.sql import Column, DataFrame, functions as F

from kinesis_trident.bolt.names import quoted
from kinesis_trident.bolt.storm.api import SYSTEM
from kinesis_trident.bolt.storm.bolt_task import COMPONENT, TASK
from kinesis_trident.bolt.tagged import STREAM, Tagged
from kinesis_trident.bolt.tracking.tracking import run_frame
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA


@singledispatch
def add_scheme(frame: DataFrame, scheme: Mapping[str, str]) -> DataFrame:
    """Add the fields of a spout's scheme: names, each with an SQL expression. Without any it is the same frame."""
    return frame.withColumns({name: F.expr(sql) for name, sql in scheme.items()}) if scheme else frame


@singledispatch
def add_no_anchors(frame: DataFrame) -> DataFrame:
    """Add the column `__anchors`, with none."""
    return frame.withColumn(ANCHORS, F.array().cast(SCHEMA[ANCHORS].dataType))


@singledispatch
def add_component(frame: DataFrame, name: str) -> DataFrame:
    """Add the name of an input, in `__component`."""
    return frame.withColumn(COMPONENT, F.lit(name))


@singledispatch
def select_as(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Return columns under other names: `columns` has the new name of each."""
    return frame.select(*(F.col(quoted(name)).alias(new) for name, new in columns.items()))


@singledispatch
def rows_of_stream(frame: DataFrame, number: int) -> DataFrame:
    """Return the rows of one stream, by its number in `STREAM`."""
    return frame.where(F.col(STREAM) == number)


def unite(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several DataFrames as those of several streams in one."""
    tagged = Tagged.of(frame.schema for frame in frames)
    made = [
        frame.select(
            F.lit(number).alias(STREAM),
            *(
                F.col(quoted(name)).alias(column)
                for name, column in zip(frame.columns, tagged.columns_of(number), strict=True)
            ),
        )
        for number, frame in enumerate(frames)
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), made)


@singledispatch
def add_hashes(
    frame: DataFrame, columns: Mapping[str, int | None], keys: Sequence[str], tasks: int
) -> DataFrame:
    """Add numbers of tasks that depend on the values of `keys` only; 0 without any.

    `columns`: the names of the new columns, each with what makes its hash differ from others, or None.
    """

    def task(salt: int | None) -> Column:
        first = [] if salt is None else [F.lit(salt)]
        return F.pmod(F.xxhash64(*first, *map(quoted, keys)), F.lit(tasks)).cast("int")

    return frame.withColumns({name: task(salt) if keys else F.lit(0) for name, salt in columns.items()})


@singledispatch
def copy_to_all(frame: DataFrame, tasks: int) -> DataFrame:
    """Repeat each tuple for each task, with its number in `__task`."""
    return frame.withColumn(TASK, F.explode(F.sequence(F.lit(0), F.lit(tasks - 1))))


@singledispatch
def add_partitions(frame: DataFrame, tasks: int) -> DataFrame:
    """Add the number of each row's partition, in `__task`; those of more partitions than tasks begin again at 0."""
    return frame.withColumn(TASK, F.pmod(F.spark_partition_id(), F.lit(tasks)))


def deal_out(frame: DataFrame, tasks: int) -> DataFrame:
    """Spread the rows evenly, and add the number of each one's task, in `__task`."""
    return add_partitions(frame.repartition(tasks), tasks)


@singledispatch
def add_tick_rows(frame: DataFrame, tasks: int, *, tracked: bool) -> DataFrame:
    """Add a row for each of a bolt's tasks: a task without rows would not know its number, or not run at all."""
    ours = {TASK: F.col("id").cast("int"), COMPONENT: F.lit(SYSTEM)}
    if tracked:
        ours[ANCHORS] = F.array().cast(SCHEMA[ANCHORS].dataType)
    rows = frame.sparkSession.range(0, tasks, 1, 1).select(*(one.alias(name) for name, one in ours.items()))
    return frame.unionByName(rows, allowMissingColumns=True)


@singledispatch
def without_columns(frame: DataFrame) -> DataFrame:
    """Return as many rows that frames of any columns can be united."""
    return frame.select(F.lit(0).alias("end"))


def run_together(frames: Sequence[DataFrame]) -> None:
    """Run frames in one job, for the effects of their tasks."""
    ends = [without_columns(frame) for frame in frames]
    run_frame(reduce(lambda one, other: one.union(other), ends))
