"""The format `kinesis-trident`: what Spark sees of the source and of the sink.

Spark imports this module in every process that looks for a format, where nothing may fail and each import costs
time: so what it stands on is imported where it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from kinesis_trident.checkpoint.model.nodes import Plan
    from kinesis_trident.spout.options.source import Options
    from kinesis_trident.spout.planner.run import SourceRun
    from kinesis_trident.spout.sink.writer import KinesisStreamWriter, KinesisWriter

__all__ = ["KinesisTridentReader", "KinesisTridentSource"]


class KinesisTridentSource(DataSource):
    """Kinesis streams as a streaming DataFrame or as a batch, and as where one is written to.

    Options are in `spout.options.source` and `spout.options.sink`, columns in `spout.reader.rows` and
    `spout.sink.columns`.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `spark.readStream.format(...)`."""
        return "kinesis-trident"

    _loaded: int | None = None

    def schema(self) -> StructType:
        """The columns, always the same; options that neither a stream nor a batch takes fail here, at `load()`.

        Nothing says here which of the two is asked for. What only a batch can be has LATEST resolved here, once for
        all actions: Spark keeps what this object is after this call.
        """
        from kinesis_trident.spout.options.source import Options
        from kinesis_trident.spout.reader.rows import SCHEMA

        stream, batch = Options.parse_either(dict(self.options))
        if stream is None and batch is not None:
            from kinesis_trident.spout.batch_read import now_of

            self._loaded = now_of(batch)
        else:
            # Of a stream nothing is asked of Kinesis before it starts.
            self._loaded = int(time.time() * 1000)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch; it needs no ZooKeeper."""
        from kinesis_trident.spout.batch_read import KinesisBatchReader, now_of

        options = self._parsed_batch()
        return KinesisBatchReader(options, self._loaded or now_of(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader; made in processes that never plan, too, so it starts nothing."""
        return KinesisTridentReader(self._parsed())

    def writer(self, schema: StructType, overwrite: bool) -> KinesisWriter:
        """The sink of a batch; a wrong option or column fails here, before anything is written."""
        from kinesis_trident.spout.options.sink import WriteOptions
        from kinesis_trident.spout.sink.writer import KinesisWriter

        return KinesisWriter(WriteOptions.parse(dict(self.options)), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:
        """The sink of a micro-batch; `overwrite` (the output mode `complete`) writes all rows again."""
        from kinesis_trident.spout.options.sink import WriteOptions
        from kinesis_trident.spout.sink.writer import KinesisStreamWriter

        return KinesisStreamWriter(WriteOptions.parse(dict(self.options)), schema)

    def _parsed(self) -> Options:
        from kinesis_trident.spout.options.source import Options

        return Options.parse(dict(self.options))

    def _parsed_batch(self) -> Options:
        from kinesis_trident.spout.options.source import Options

        return Options.parse_batch(dict(self.options))


class KinesisTridentReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches (in the planning process) and reads them (in the executors' workers).

    Spark never runs two calls of the planning side at once. The run, with its epoch, starts in whichever of them
    comes first; a replay after a crash begins with `partitions`.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._started: SourceRun | None = None
        self._draining = False

    @property
    def _run(self) -> SourceRun:
        if self._started is None:
            from kinesis_trident.spout.planner.run import SourceRun

            self._started = SourceRun.open(self._options, on_replaced=_end_process)
        return self._started

    def _begin_anew(self) -> None:
        """Start another run, because this one is of a stream that is no more."""
        assert self._started is not None
        self._started.close()
        self._started = None
        if self._draining:
            self._run.drain_and_end()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_started": None, "_draining": False}

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxRecordsPerTrigger`, or no limit."""
        most = self._options.max_records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """From here on only what is in the stream now is read, and what of it fails is retried to the end."""
        from kinesis_trident.spout.errors import StreamRecreatedError

        self._draining = True
        try:
            self._run.drain_and_end()
        except StreamRecreatedError:
            if self._options.fail_on_data_loss:
                raise
            self._begin_anew()

    def initialOffset(self) -> dict[str, Any]:
        """Where a new Spark checkpoint starts: at ZooKeeper's positions, or at `startingPosition`."""
        from kinesis_trident.spout.planner.offsets import offset_from_plan

        return offset_from_plan(self._run.initial())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle the batch that ended at `start`, then plan the next; `start` again when there is nothing to do."""
        from kinesis_trident.spout.errors import StreamRecreatedError
        from kinesis_trident.spout.planner.offsets import offset_from_plan

        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        try:
            plan = self._run.latest(_plan(start), most)
        except StreamRecreatedError:
            if self._options.fail_on_data_loss:
                raise
            self._begin_anew()
            plan = self._run.latest(_plan(start), most)
        # Spark compares offsets as text: nothing to do must give back the very same one.
        return start if plan is None else offset_from_plan(plan)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Lag, in-flight, retrying and dead-lettered records, for the query's progress."""
        return self._started.report() if self._started is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Store the plan, now that Spark has logged it, and cut it into tasks."""
        return self._run.partitions(_plan(start), _plan(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow batches."""
        from pyspark import TaskContext

        from kinesis_trident.spout.reader.task import read_turns

        context = TaskContext.get()
        first = context is None or context.attemptNumber() == 0
        return read_turns(partition, first_attempt=first)  # type: ignore[arg-type]

    def commit(self, end: dict[str, Any]) -> None:
        """Clean up after settled batches; never called for a last batch, so nothing depends on it."""
        self._run.purge()

    def stop(self) -> None:
        """End the run; Spark calls this when the planning process ends, not when the query stops."""
        if self._started is not None:
            self._started.close()


def _plan(offset: dict[str, Any]) -> Plan:
    from kinesis_trident.spout.planner.offsets import plan_from_offset

    return plan_from_offset(offset)


def _end_process() -> None:
    """End a planning process that Spark has left behind: its query was stopped for good, nobody will call it."""
    os._exit(0)
