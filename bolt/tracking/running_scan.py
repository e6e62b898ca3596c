"""The scan of the source in the micro-batch that a query runs, in the driver: its tasks, and its count of rows.

Spark passes a batch to its function as rows that its own tasks read. A batch costs less if the tasks of the function
read the records themselves: then no rows go from one Python worker through the JVM to another. No function waits
longer for its rows: a task gives the first row of a turn when it has read all of it. This needs names of Spark 4.2
and 4.3 that are not public; where one is missing, the rows are taken as Spark passes them.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from kinesis_trident.spout.spark_plan import pickled_task

__all__ = ["RunningScan", "running_scan"]

log = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"
_ROWS = "numOutputRows"

_MOST_TASKS = 32
"""Each task gets all of them, with its function."""

_MOST_BYTES = 16 << 20
"""Of what all tasks get together: with `prefetch`, a task holds records."""


class RunningScan:
    """The scan of the current batch.

    Args:
        tasks: the tasks of the batch, pickled, in order.
        counted: Spark's count of the rows that its own tasks have read; the query's progress shows it.
    """

    def __init__(self, tasks: tuple[bytes, ...], counted: Any) -> None:
        self.tasks = tasks
        self._counted = counted

    def count(self, rows: int) -> None:
        """Set the number of rows in the query's progress, whatever Spark's own tasks have read, once or again."""
        try:
            self._counted.set(rows)
        except (Py4JError, TypeError) as error:
            # A number for people to see is no reason to repeat a batch.
            log.warning("the query's progress lacks the %d rows of this batch: %s", rows, error)


def running_scan(rows: DataFrame) -> RunningScan | None:
    """Return the scan behind the rows that a query's thread passes to its batch function; call it in that thread.

    Returns:
        None if the rows are not all those of one Python source as they were loaded, if there are very many or very
        large tasks, or if this version of Spark does not show it.
    """
    if not hasattr(rows, "_jdf"):
        return None
    try:
        return _found(rows)
    except (Py4JError, TypeError, AttributeError) as error:
        log.debug("Spark does not show the scan of the batch: %s", error)
        return None


def _found(rows: DataFrame) -> RunningScan | None:
    session = rows.sparkSession
    query = session.sparkContext.getLocalProperty(_QUERY)
    if query is None or not _is(rows._jdf.queryExecution().logical(), "LogicalRDD"):
        return None
    jvm = session._jvm
    assert jvm is not None
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    execution = queries.get(jvm.java.util.UUID.fromString(query)).lastExecution()
    write = execution.logical()
    if not (
        _is(write, "WriteToMicroBatchDataSourceV1")
        and _is(write.child(), "StreamingDataSourceV2ScanRelation")
    ):
        return None
    scan = execution.executedPlan().collectLeaves().apply(0)
    parts = scan.inputPartitions()
    if not 0 < parts.size() <= _MOST_TASKS:
        return None
    tasks = tuple(pickled_task(parts.apply(i)) for i in range(parts.size()))
    if len(tasks) * sum(map(len, tasks)) > _MOST_BYTES:
        return None
    return RunningScan(tasks, scan.metrics().apply(_ROWS))


def _is(plan: Any, name: str) -> bool:
    return bool(plan.getClass().getSimpleName() == name)
