"""The scan of the source in the micro-batch that a query runs: its tasks, its count of rows, and its rows in a worker.

Spark passes a batch to its function as rows that its own tasks read. A batch costs less if the tasks of the function
read the records themselves: then no rows go from one Python worker through the JVM to another. No function waits
longer for its rows: a task gives the first row of a turn when it has read all of it. This needs names of Spark that
are not public; where one is missing, the rows are taken as Spark passes them.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from kinesis_trident.bolt.steps.time_zones import SETTING, known_zone
from kinesis_trident.bolt.tracking.tracked import Chain
from kinesis_trident.common.private_names import MissingNameError, is_of_connect, scan_of_batch
from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.source import read_task

log = logging.getLogger(__name__)

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
        from py4j.protocol import Py4JError

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
    try:
        is_classic = isinstance(rows, DataFrame) and not is_of_connect(rows)
        found = scan_of_batch(rows, _MOST_TASKS) if is_classic else None
    except MissingNameError:
        return None
    if found is None or len(found[0]) * sum(map(len, found[0])) > _MOST_BYTES:
        return None
    return RunningScan(*found)


_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARRIVAL = SCHEMA.names.index("approximateArrivalTimestamp")


def reading_chain(rows: DataFrame, scan: RunningScan) -> Chain:
    """Return a chain that begins with the reading of a batch's rows, for operators that follow in the same worker."""
    session = rows.sparkSession
    numbers = session.range(0, len(scan.tasks), 1, len(scan.tasks))
    read = ReadTurns(
        scan.tasks, known_zone(str(session.conf.get(SETTING))), int(session.conf.get(_MOST_ROWS) or 0)
    )
    return Chain(numbers, (read,), SCHEMA)


@dataclass(frozen=True, slots=True)
class ReadTurns:
    """Reads the turns of tasks of the source, as Spark's own tasks do.

    Args:
        tasks: all tasks of the batch, pickled; the input names those to read.
        zone: of the times, as Spark passes them to a function.
        most: rows of a batch, as Spark passes them; 0 for no limit.
    """

    tasks: tuple[bytes, ...]
    zone: str
    most: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks whose numbers come in."""
        if len(self.tasks) == 1:
            # Its number need not be waited for.
            yield from self._rows(0)
        for batch in batches:
            if len(self.tasks) > 1:
                for number in batch.column(0).to_pylist():
                    yield from self._rows(number)

    def _rows(self, task: int) -> Iterator[pa.RecordBatch]:
        for rows in map(self._time_reading, read_task(pickle.loads(self.tasks[task]))):
            most = self.most if self.most > 0 else max(1, rows.num_rows)
            for start in range(0, rows.num_rows, most):
                yield rows.slice(start, most)

    def _time_reading(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kind = pa.timestamp("us", tz=self.zone)
        columns = rows.columns
        columns[_ARRIVAL] = columns[_ARRIVAL].cast(kind)
        return pa.RecordBatch.from_arrays(
            columns, schema=rows.schema.set(_ARRIVAL, rows.schema.field(_ARRIVAL).with_type(kind))
        )
