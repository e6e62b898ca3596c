"""The sink: `df.write` and `df.writeStream` to the format `kinesis-trident`. At least once.

A task returns when Kinesis has acknowledged all of its rows. A retried task, a replayed batch and a request whose
answer was lost are written again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc, no-redef]
        """The writer of a stream in Spark 4.0, which hands Arrow batches to any writer of the second class."""


from kinesis_trident.common.worker_garbage import exempt_from_collections
from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.kinesis.client import connection_of, kinesis_client
from kinesis_trident.spout.kinesis.put_entries import RequestBound
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.columns import WriteColumns, entries_of, streams_of
from kinesis_trident.spout.sink.known_stream import known_stream
from kinesis_trident.spout.sink.pool import Sent, WritePool
from kinesis_trident.spout.sink.targets import Pacing, StreamTarget

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The counts of what one task wrote."""

    sent: Sent


class KinesisWriter(DataSourceArrowWriter):
    """Writes a DataFrame, whatever its size, to a stream.

    Args:
        options: of the write.
        schema: of the frame.
        overwrite: the save mode is `overwrite`.

    Raises:
        WriteError: the frame's columns are wrong, or the mode would replace records.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            msg = f'records in {options.place} cannot be replaced. Write with mode("append")'
            raise WriteError(msg)
        self._options = options
        self._columns = WriteColumns.of(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task, in order of each partition key.

        Raises:
            WriteError: Kinesis would refuse a row; the error has its partition key.
            KinesisError: Kinesis refused a request, or accepted nothing for `writeTimeout`.
        """
        return _write(iterator, self._options, self._columns)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the records that finished tasks have written: they stay in the stream."""
        _say_written(messages, self._options)


class KinesisStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch to a stream; one that is replayed is written again.

    With the output mode `complete` every batch writes all rows of the result, as Spark's Kafka sink does.

    Args:
        options: of the write.
        schema: of the frame.

    Raises:
        WriteError: the frame's columns are wrong.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = WriteColumns.of(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """See `KinesisWriter.write`."""
        return _write(iterator, self._options, self._columns)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """See `KinesisWriter.abort`."""
        _say_written(messages, self._options)


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, columns: WriteColumns) -> Written:
    client = kinesis_client(options)
    rng = random.Random()
    pacing = Pacing.of(options.max_records_per_second, options.max_bytes_per_second)
    bound = RequestBound() if pacing is None else pacing.bound()

    @cache
    def target(stream: str) -> StreamTarget:
        called = options.resolve_name(stream)
        known = known_stream(client, called)
        return StreamTarget(
            lambda request: known.put(partial(client.put_entries, called), request, rng),
            known,
            f"stream {stream!r}",
            bound,
            options.max_aggregate_bytes if options.aggregate else None,
        )

    patience = Patience(options.write_timeout, time.monotonic)
    with WritePool(options.max_requests_in_flight, patience, pacing=pacing) as pool:
        for batch in batches:
            for stream, rows in streams_of(batch, columns, options.stream_name):
                to = target(stream)
                known = to.stream
                pool.add(to, entries_of(rows, columns, limit=known.limit, is_auto=known.is_auto, rng=rng))
        sent = pool.finish()
    exempt_from_collections(connection_of(options))
    return Written(sent)


def _say_written(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    done = [message.sent.records for message in messages if isinstance(message, Written)]
    _log.warning(
        "A write to %s failed; %d of its %d tasks finished and wrote %d records, which stay. A second "
        "write duplicates them.",
        options.place,
        len(done),
        len(messages),
        sum(done),
    )
