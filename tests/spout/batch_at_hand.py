"""A batch as Spark reads it, without Spark: loaded once, planned for each action, and read by tasks in any order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.source import KinesisTridentSource
from kinesis_trident.spout.testing import ScriptedKinesis


class Action:
    """One action on a frame: its tasks, each of which is read when it is asked for."""

    def __init__(self, reader: DataSourceReader) -> None:
        self.parts: list[InputPartition] = list(reader.partitions())
        # Another process reads them.
        self._reader: DataSourceReader = pickle.loads(pickle.dumps(reader))

    def task(self, number: int) -> Iterator[bytes]:
        """Yield the data of a task's records."""
        batches: Iterator[pa.RecordBatch] = self._reader.read(pickle.loads(pickle.dumps(self.parts[number])))
        for batch in batches:
            yield from batch.column("data").to_pylist()

    def rows(self) -> list[bytes]:
        """Return the data of all tasks, one after the other."""
        return [data for number in range(len(self.parts)) for data in self.task(number)]


class Frame:
    """What `spark.read...load()` returns, of one stream of an endpoint."""

    def __init__(self, server: ScriptedKinesis, stream: str = "orders", **given: str) -> None:
        source = KinesisTridentSource(
            {
                "streamName": stream,
                "endpointUrl": server.endpoint_url,
                "region": "us-east-1",
                "minFetchPeriod": "0ms",
            }
            | given
        )
        source.schema()
        self._source = pickle.dumps(source)

    def act(self) -> Action:
        """Plan an action, as Spark does for each."""
        source: KinesisTridentSource = pickle.loads(self._source)
        return Action(source.reader(SCHEMA))

    def rows(self) -> list[bytes]:
        """Return what one action reads."""
        return self.act().rows()
