"""DataFrames as topologies need them: held, moved, aggregated, joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.fields import arrow
from kinesis_trident.trident.build.graph import Grouping, JoinNode, RepartitionNode, TransformNode
from kinesis_trident.trident.errors import OperationError

__all__ = [
    "as_declared",
    "by_key",
    "from_arrow",
    "held",
    "in_spark",
    "joined",
    "lost",
    "released",
    "repartitioned",
    "run",
]

_COPY = "__copy"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_IN_SPARK: Mapping[str | None, Callable[[Column], Column]] = {"sum": F.sum, "min": F.min, "max": F.max}
_OF_PARTIALS = {**_IN_SPARK, "count": F.sum}


def held(frame: DataFrame, *, adaptive: bool = True) -> DataFrame:
    """Compute a frame now and keep its rows. Rows that are lost are not computed again: then the batch is replayed.

    A cache would compute them again, and a function that judges differently the second time would change a state.
    Not `adaptive`: the numbers of all partitions are given, so that Spark need not plan again after each shuffle.
    """
    with nullcontext() if adaptive else _planned_once(frame):
        return frame.localCheckpoint(eager=True)


def lost(error: Exception) -> bool:
    """Whether an action failed because rows that were held are gone, with the executor that held them."""
    return "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in str(error)


def run(frame: DataFrame) -> None:
    """Compute a frame for what its tasks do; its rows go nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def in_spark(
    frame: DataFrame,
    keys: tuple[str, ...],
    inputs: tuple[str, ...],
    aggregator: CombinerAggregator,
    added: StructType,
    *,
    partial: bool = False,
) -> DataFrame:
    """The groups of a batch, aggregated by Spark. What was aggregated of nothing but nulls is no group.

    `partial`: the frame holds partial results, in the column `added`.
    """
    name, kind = added.names[0], added.fields[0].dataType
    if partial:
        value = _OF_PARTIALS[aggregator.in_spark](F.col(name))
    elif aggregator.in_spark == "count":
        value = F.count(F.lit(1))
    else:
        value = _IN_SPARK[aggregator.in_spark](F.col(inputs[0]))
    groups = frame.groupBy(*keys).agg(value.cast(kind).alias(name))
    if aggregator.in_spark != "count":
        return groups.where(F.col(name).isNotNull())
    return groups if keys else groups.where(F.col(name) != 0)


def joined(node: JoinNode, left: DataFrame, right: DataFrame) -> DataFrame:
    """Two frames joined as the topology says: the keys first."""
    ours, theirs = left.alias("l"), right.alias("r")
    condition = [F.col(f"l.{a}") == F.col(f"r.{b}") for a, b in node.on]
    keys = {a for a, _ in node.on}, {b for _, b in node.on}
    both = ours.join(theirs, condition, node.how)
    columns: list[Column] = [F.coalesce(F.col(f"l.{a}"), F.col(f"r.{b}")) for a, b in node.on]
    columns += [F.col(f"l.{name}") for name in node.parents[0].schema.names if name not in keys[0]]
    columns += [F.col(f"r.{name}") for name in node.parents[1].schema.names if name not in keys[1]]
    return both.select(*(column.alias(name) for column, name in zip(columns, node.schema.names, strict=True)))


def as_declared(frame: DataFrame, node: TransformNode) -> DataFrame:
    """What the user's code gave.

    Raises:
        OperationError: it has other fields than when the topology was built.
    """
    if frame.schema.names != node.schema.names:
        msg = (
            f"{node.operation}: gave the fields {', '.join(frame.schema.names)}; when the topology was built, "
            f"{', '.join(node.schema.names)}"
        )
        raise OperationError(msg)
    return frame


def from_arrow(near: DataFrame, batches: Iterable[pa.RecordBatch], schema: StructType) -> DataFrame:
    """What was computed in the driver, as a DataFrame of the session of another one."""
    return near.sparkSession.createDataFrame(pa.Table.from_batches(list(batches), arrow(schema)), schema)


def released(frame: DataFrame) -> None:
    """Free the rows of a held frame. Spark does so too, once nothing refers to them: this is only sooner."""
    with suppress(Exception):
        frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


def by_key(frame: DataFrame, keys: Sequence[str], partitions: int) -> DataFrame:
    """Each group in one partition; all rows in one where there are no keys."""
    return frame.repartition(partitions, *keys) if keys else frame.repartition(1)


def repartitioned(node: RepartitionNode, frame: DataFrame, partitions: int) -> DataFrame:
    """The rows as a grouping of the topology puts them; `partitions` if it does not say how many."""
    partitions = node.partitions or partitions
    if node.grouping is Grouping.SHUFFLE:
        return frame.repartition(partitions)
    if node.grouping is Grouping.FIELDS:
        return frame.repartition(partitions, *node.fields)
    if node.grouping is Grouping.GLOBAL:
        return frame.repartition(1)
    copies = frame.withColumn(_COPY, F.explode(F.array(*map(F.lit, range(partitions)))))
    return copies.repartitionById(partitions, F.col(_COPY)).drop(_COPY)


@contextmanager
def _planned_once(frame: DataFrame) -> Iterator[None]:
    """Without adaptive planning, which takes a job and a plan for each shuffle. The session is the query's own."""
    settings = frame.sparkSession.conf
    before = settings.get(_ADAPTIVE)
    settings.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        settings.set(_ADAPTIVE, str(before))
