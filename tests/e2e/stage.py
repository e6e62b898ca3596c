"""One application on one stream within the shared Spark session: what a test of whole queries needs at hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import PATIENCE, eventually, layout_of
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from older_spark import NO_REPORTS
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kinesis_trident import Reliable, reliable
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.engines import find_protocol
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
from kinesis_trident.spout.graceful_stop import stop_when_drained
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.spark_plan import source_of

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

__all__ = ["AVAILABLE_NOW", "Stage", "Taken", "ended", "error_of", "start_available_now"]

AVAILABLE_NOW = {"availableNow": True}


def ended(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query has ended well."""
    try:
        assert query.awaitTermination(PATIENCE), "the query does not end"
    finally:
        query.stop()
    # With Spark 4.0 and 4.1 it settles its last batch once the query has ended. That of an example, whose ZooKeeper has
    # ended with it, waits for ever.
    for thread in threading.enumerate():
        if thread.name == f"stop-when-drained {query.runId}":
            thread.join(PATIENCE)
    return query


def start_available_now(out: DataStreamWriter, source: DataFrame | SourceOptions) -> StreamingQuery:
    """Start a query of Spark's own kind, which ends once everything is read; `source`: what `load()` returned or got.

    With Spark 4.0 and 4.1 that trigger ends after one batch of a Python source.
    """
    if find_protocol() != "4.0":
        return out.trigger(**AVAILABLE_NOW).start()
    query = out.start()
    stop_when_drained(query, source if isinstance(source, SourceOptions) else source_of(source)[0])
    return query


def error_of(query: StreamingQuery) -> str:
    """Wait until a query has failed: what its user sees."""
    try:
        query.awaitTermination(PATIENCE)
    except StreamingQueryException as error:
        return str(error)
    else:
        msg = "the query has not failed"
        raise AssertionError(msg)
    finally:
        query.stop()


@dataclass
class Taken:
    """A sink that takes everything: (text, attempt) by txid, in the order of the rows."""

    batches: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, txid: int) -> None:
        self.batches[txid] = [(row.text, row.attempt) for row in rows.select("text", "attempt").collect()]

    @property
    def texts(self) -> list[str]:
        """Return what the records said, sorted, each as often as it was taken."""
        # At once: a query's thread may add to it.
        return sorted(text for rows in list(self.batches.values()) for text, _ in rows)


@dataclass
class Stage:
    """A stream, an application and a folder, all of them this test's own."""

    spark: SparkSession
    client: KinesisClient
    endpoint: str
    zookeeper: KazooClient
    hosts: str
    folder: Path
    stream: str
    app: str
    queries: list[StreamingQuery] = field(default_factory=list)
    layouts: dict[tuple[str, str], Layout] = field(default_factory=dict)
    """By endpoint and stream: `until` looks often, and when a stream was created is asked for once."""

    def put(self, texts: Iterable[object], shard: int | None = None) -> list[str]:
        """Put records that say these texts, the keys' choice of shard unless one is given: their messageIds."""
        shards = self.client.list_shards(StreamName=self.stream)["Shards"]
        where = {} if shard is None else {"ExplicitHashKey": shards[shard]["HashKeyRange"]["StartingHashKey"]}
        records: list[Any] = [
            {"Data": str(text).encode(), "PartitionKey": str(text), **where} for text in texts
        ]
        answer = self.client.put_records(StreamName=self.stream, Records=records)
        assert not answer["FailedRecordCount"]
        return [f"{self.stream}/{one['ShardId']}:{one['SequenceNumber']}" for one in answer["Records"]]

    def options(self, **options: object) -> dict[str, str]:
        """The source's options: short backoffs and the oldest record unless told otherwise."""
        return {
            "streamName": self.stream,
            "endpointUrl": self.endpoint,
            "applicationName": self.app,
            "zookeeper.hosts": self.hosts,
            "startingPosition": "TRIM_HORIZON",
            "retryBackoff": "100ms..200ms x2",
            "minFetchPeriod": "10ms",
            # What is there by then is one batch, however slow the machine.
            "maxFetchTime": "60s",
            **{name.replace("__", "."): str(value) for name, value in options.items()},
        }

    def load(self, **options: object) -> DataFrame:
        """The source, with these options besides."""
        return self.spark.readStream.format("kinesis-trident").options(**self.options(**options)).load()

    def read(self, **options: object) -> DataFrame:
        """A batch of what is in the stream by now, with these options besides."""
        return self.spark.read.format("kinesis-trident").options(**self.options(**options)).load()

    def parsed(self, parse: Callable[[Any], object] | None = None, **options: object) -> Reliable:
        """The source through `parse`, which gives (text, attempt) unless told otherwise."""

        def as_it_is(record):  # type: ignore[no-untyped-def]
            return record.data.decode(), record.attempt

        return reliable(self.load(**options)).map(parse or as_it_is, "text string, attempt int")

    def start(
        self,
        stream: Reliable,
        write: Callable[..., object],
        checkpoint: str = "spark",
        trigger: dict[str, Any] | None = None,
        **more: Any,
    ) -> StreamingQuery:
        """Start a query that is ended with the test."""
        query = stream.for_each_batch(write, **more).start(
            checkpointLocation=self.at(checkpoint), trigger=trigger
        )
        self.queries.append(query)
        return query

    def start_plain(
        self,
        stream: DataFrame,
        write: Callable[[DataFrame, int], None] | None = None,
        checkpoint: str = "spark",
        **trigger: Any,
    ) -> StreamingQuery:
        """Start a query of Spark's own kind, to a batch function or else to `out` as Parquet."""
        out = stream.writeStream.option("checkpointLocation", self.at(checkpoint))
        out = (
            out.format("parquet").option("path", self.at("out")) if write is None else out.foreachBatch(write)
        )
        if trigger == AVAILABLE_NOW:
            query = start_available_now(out, stream)
        else:
            query = (out.trigger(**trigger) if trigger else out).start()
        self.queries.append(query)
        return query

    def at(self, name: str) -> str:
        """A path in this test's folder."""
        return str(self.folder / name)

    def output(self) -> list[str]:
        """Return what was written to `out`, sorted, each record as often as it is there."""
        return sorted(row.text for row in self.spark.read.parquet(self.at("out")).collect())

    @property
    def layout(self) -> Layout:
        """Return where the application stands in ZooKeeper."""
        place = self.endpoint, self.stream
        if place not in self.layouts:
            self.layouts[place] = layout_of(self.client, self.stream)
        return replace(self.layouts[place], application=self.app)

    @property
    def store(self) -> SourceStore:
        """The application in ZooKeeper."""
        return SourceStore(self.zookeeper, self.layout)

    def started(self) -> bool:
        """Tell whether LATEST of the stream has been resolved."""
        layout = self.layout
        return self.store.streams.start(layout.stream, layout.created) is not None

    @property
    def settled(self) -> int:
        """The newest settled txid, 0 for none."""
        node = self.store.batches.settled()
        return node.txid if node else 0

    def shard(self, number: int = 0) -> str:
        """A shard's id."""
        return self.client.list_shards(StreamName=self.stream)["Shards"][number]["ShardId"]

    def checkpoint_of(self, number: int = 0) -> CheckpointNode:
        """A shard's checkpoint."""
        return self.store.shards.checkpoints()[self.shard(number)]

    def inflight_of(self, number: int = 0) -> InflightNode:
        """Return what is not done in a shard."""
        return self.store.shards.inflight()[self.shard(number)]

    def letters(self, folder: str = "letters") -> list[DeadLetter]:
        """Return what is in a dead-letter folder of this test."""
        return list(read_dead_letters(self.at(folder))) if Path(self.at(folder)).exists() else []

    def tree(self) -> dict[str, tuple[bytes, int]]:
        """All of the application in ZooKeeper: path to content and version."""
        return dict(self._below(self.layout.base))

    def _below(self, path: str) -> Iterator[tuple[str, tuple[bytes, int]]]:
        try:
            data, stat = self.zookeeper.get(path)
            names = self.zookeeper.get_children(path)
        except NoNodeError:
            return
        yield path, (data, stat.version)
        for name in names:
            yield from self._below(f"{path}/{name}")

    def drained(self, stream: Reliable, write: Callable[..., object] | None = None, **more: Any) -> Taken:
        """Run a query until nothing is left, and what its sink took."""
        taken = Taken()
        ended(self.start(stream, write or taken, trigger=AVAILABLE_NOW, **more))
        return taken

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """Wait for something while all queries run."""

        def seen() -> object:
            for query in self.queries:
                if not query.isActive and query.exception() is not None:
                    raise AssertionError(str(query.exception()))
            return look()

        return eventually(seen, what)

    def progress(self, query: StreamingQuery) -> dict[str, Any]:
        """Return what the source says of itself in a query's last progress; empty before the first."""
        if find_protocol() == "4.0":
            pytest.skip(NO_REPORTS)
        last = query.lastProgress
        return dict(json.loads(last.json)["sources"][0]["latestOffset"] or {}) if last else {}

    def end(self) -> None:
        """Stop what still runs."""
        for query in self.queries:
            query.stop()
