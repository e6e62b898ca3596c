"""Reads the source's rows in the worker that processes them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from kinesis_trident.bolt.tracking.running_scan import RunningScan
from kinesis_trident.bolt.tracking.tracked import Chain
from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.source import read_task

__all__ = ["ReadTurns", "reading_chain"]

_ZONE = "spark.sql.session.timeZone"
_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ARRIVAL = SCHEMA.names.index("approximateArrivalTimestamp")


def reading_chain(rows: DataFrame, scan: RunningScan) -> Chain:
    """Return a chain that begins with the reading of a batch's rows, for operators that follow in the same worker."""
    session = rows.sparkSession
    numbers = session.range(0, len(scan.tasks), 1, len(scan.tasks))
    read = ReadTurns(scan.tasks, str(session.conf.get(_ZONE)), int(session.conf.get(_MOST_ROWS) or 0))
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
        for rows in map(self._timed, read_task(pickle.loads(self.tasks[task]))):
            most = self.most if self.most > 0 else max(1, rows.num_rows)
            for start in range(0, rows.num_rows, most):
                yield rows.slice(start, most)

    def _timed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kind = pa.timestamp("us", tz=self.zone)
        columns = rows.columns
        columns[_ARRIVAL] = columns[_ARRIVAL].cast(kind)
        return pa.RecordBatch.from_arrays(
            columns, schema=rows.schema.set(_ARRIVAL, rows.schema.field(_ARRIVAL).with_type(kind))
        )
