"""The format `kinesis-trident`: Spark's interface to the source and the sink.

Spark imports this module in every process that looks up a format, where nothing may fail and each import costs time:
so functions import what they need.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.0 and 4.1 have neither limits nor Trigger.AvailableNow for a Python source.
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.private_names import PLANNING_PROCESS
from kinesis_trident.common.prompt_sockets import acknowledge_at_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from kinesis_trident.spout.batch.range_read import Loaded
    from kinesis_trident.spout.engines import Engine
    from kinesis_trident.spout.options.sink import WriteOptions
    from kinesis_trident.spout.options.source import SourceOptions
    from kinesis_trident.spout.partition import TurnsPartition
    from kinesis_trident.spout.sink.writer import KinesisStreamWriter, KinesisWriter

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Method = Callable[Concatenate["KinesisTridentReader", Parameters], Returned]


def _shorten_errors(method: Method[Parameters, Returned]) -> Method[Parameters, Returned]:
    """Raise our errors without the frames that they passed: their text says what happened, where, and what to do.

    Spark prints the traceback of this process, and its own stack below it. The run's end is noted: the error is its.
    """

    @wraps(method)
    def call(self: KinesisTridentReader, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return method(self, *args, **kwargs)
        except KinesisTridentError as error:
            log.debug("%s", error, exc_info=True)
            if self._engine.opened is not None:
                self._engine.opened.note_end("failed", f"{type(error).__name__}: {error}")
            raise error.with_traceback(None) from None

    return call


class KinesisTridentSource(DataSource):
    """Reads Kinesis streams as a streaming DataFrame or a batch, and writes to a stream.

    Options are in `spout.options.source` and `spout.options.sink`, columns in `spout.reader.rows` and
    `spout.sink.columns`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format(...)`."""
        return "kinesis-trident"

    _loaded: Loaded | None = None
    _loaded_at: int | None = None
    _load: str | None = None

    def schema(self) -> StructType:
        """Return the columns, which never vary; options invalid for both a stream and a batch fail here, at `load()`.

        This call does not know which of the two follows. If the options are only valid for a batch, it resolves LATEST,
        once for all actions: Spark keeps the state of this object after this call.
        """
        from kinesis_trident.spout.options.source import SourceOptions
        from kinesis_trident.spout.reader.rows import SCHEMA

        stream, batch = SourceOptions.parse_either(dict(self.options))
        if stream is None and batch is not None:
            from kinesis_trident.spout.batch.batch_read import load_streams

            if batch.filter_pushdown and not hasattr(DataSourceReader, "pushFilters"):
                from kinesis_trident.spout.errors import OptionsError

                msg = (
                    "option filterPushdown needs PySpark 4.1 or newer. Remove it: startingPosition and endingPosition "
                    "read a part of the stream with any PySpark"
                )
                raise OptionsError(msg)
            self._loaded, self._load = load_streams(batch), uuid4().hex
        else:
            # A stream makes no call to Kinesis before it starts.
            self._loaded_at = int(time.time() * 1000)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch; it needs no ZooKeeper."""
        from kinesis_trident.spout.batch.batch_read import (
            FilteringBatchReader,
            KinesisBatchReader,
            load_streams,
        )

        options = self._parse_batch()
        loaded = self._loaded or load_streams(options, self._loaded_at)
        # Spark refuses to read where filters can be pushed and `spark.sql.python.filterPushdown.enabled` is not set.
        if options.filter_pushdown:
            return FilteringBatchReader(options, loaded, self._load)
        return KinesisBatchReader(options, loaded)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader; processes that never plan create one too, so it starts nothing."""
        return KinesisTridentReader(self._parse())

    def writer(self, schema: StructType, overwrite: bool) -> KinesisWriter:
        """Return the sink of a batch; an invalid option or column fails here, before anything is written."""
        from kinesis_trident.spout.sink.writer import KinesisWriter

        return KinesisWriter(self._parse_write(schema), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:
        """Return the sink of a micro-batch; `overwrite` (the output mode `complete`) writes all rows again."""
        from kinesis_trident.spout.sink.writer import KinesisStreamWriter

        return KinesisStreamWriter(self._parse_write(schema), schema)

    def _parse_write(self, schema: StructType) -> WriteOptions:
        from kinesis_trident.spout.options.sink import WriteOptions
        from kinesis_trident.spout.sink.columns import has_stream_column

        return WriteOptions.parse(dict(self.options), rows_name_streams=has_stream_column(schema))

    def _parse(self) -> SourceOptions:
        from kinesis_trident.spout.options.source import SourceOptions

        return SourceOptions.parse(dict(self.options))

    def _parse_batch(self) -> SourceOptions:
        from kinesis_trident.spout.options.source import SourceOptions

        return SourceOptions.parse_batch(dict(self.options))


class KinesisTridentReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches (in the planning process) and reads them (in the executors' workers).

    Spark never runs two calls of the planning side at once. The run, with its epoch, starts in whichever of them
    comes first; a replay after a crash begins with `partitions`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @cached_property
    def _engine(self) -> Engine:
        from kinesis_trident.spout.engines import ENGINES, find_protocol
        from kinesis_trident.spout.planner.run import SourceRun

        _exit_on_termination()
        return ENGINES[find_protocol()](
            lambda offsets: SourceRun.open(self._options, on_replaced=_end_process, offsets=offsets),
            begins_anew=not self._options.fail_on_data_loss,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Executors only read partitions: one with another release must get as far as to see their version.
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker waits for its task next.
        acknowledge_at_once()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxRecordsPerTrigger`, or no limit."""
        most = self._options.max_records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @_shorten_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, read only records that are in the stream now, and retry failed ones until none are left."""
        self._engine.drain()

    @_shorten_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new Spark checkpoint: ZooKeeper's positions, or `startingPosition`."""
        return self._engine.initial()

    @_shorten_errors
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Settle the last batch, then plan the next; return the end of the last one if there is nothing to do.

        Spark 4.0 and 4.1 pass neither the end of the last batch, `start`, nor a limit.
        """
        most = self._options.max_records_per_trigger if limit is None else getattr(limit, "max_rows", None)
        return self._engine.latest(start, most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return lag, in-flight, retrying and dead-lettered records, for the query's progress."""
        return self._engine.opened.report() if self._engine.opened is not None else None

    @_shorten_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Store the plan, now that Spark has logged it, and cut it into tasks."""
        return self._engine.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches."""
        return read_task(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Clean up after settled batches; Spark never calls this for a last batch, so nothing depends on it."""
        self._engine.run().purge()

    def stop(self) -> None:
        """End the run; Spark calls this when the planning process ends, not when the query stops."""
        if self._engine.opened is not None:
            self._engine.opened.end()


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of a batch, in any task of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return _read(partition, context is None or context.attemptNumber() == 0)  # type: ignore[arg-type]


def _read(partition: TurnsPartition, first_attempt: bool) -> Iterator[pa.RecordBatch]:
    from kinesis_trident.common.worker_garbage import exempt_from_collections
    from kinesis_trident.spout.kinesis.client import connection_of
    from kinesis_trident.spout.reader.task import read_turns

    try:
        yield from read_turns(partition, first_attempt=first_attempt)
        # The connection is the key of the client of Kinesis, which is most of what was loaded.
        exempt_from_collections(connection_of(partition.options))
    except KinesisTridentError as error:
        log.debug("%s", error, exc_info=True)
        raise error.with_traceback(None) from None


def _exit_on_termination() -> None:
    """Have SIGTERM end a process of Spark's planning as an exit does: the run is ended, and says so.

    A JVM that a signal ends sends it to the planning process, as its last step. By itself Python dies of it at once,
    and such an end looks like one by SIGKILL. Ctrl-C, which a terminal sends to all processes of a job, is the driver's
    to take: it may still have a batch planned and settled. In any other process signals are the user's.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == PLANNING_PROCESS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> None:
    # Another one would break off the note of the end.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _end_process() -> None:
    """End a planning process that Spark has left behind: its query has stopped, so nothing calls it any more."""
    os._exit(0)
