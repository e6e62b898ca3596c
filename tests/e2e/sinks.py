"""Applications that differ in their sink alone: Spark's own, a batch function, `reliable`, bolts, Trident."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, foreach_batch, reliable
from kinesis_trident.checkpoint.store.source_home import find_home
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import read_turns
from kinesis_trident.spout.shard_rules import describe_streams
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.trident import Count, TridentTopology
from kinesis_trident.trident.stores import MemoryMapState

__all__ = ["AVAILABLE_NOW", "SINKS", "Application", "Trigger", "making_applications"]

AVAILABLE_NOW = {"availableNow": True}
Trigger = dict[str, Any] | None


class Swallow(BasicBolt):
    """A bolt that takes everything."""

    fields = ""

    def execute(self, tup: Any, collector: Any) -> None:
        pass


@dataclass
class Application:
    """One application with a stream of its own, before or after it has read something."""

    spark: SparkSession
    kinesis: ScriptedKinesis
    keeper: KazooClient
    folder: Path
    hosts: str
    name: str
    sink: str
    more: dict[str, str]
    position: str = "TRIM_HORIZON"
    queries: list[StreamingQuery] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return {
            "streamName": self.name,
            "region": "us-east-1",
            "endpointUrl": self.kinesis.endpoint_url,
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
            "applicationName": self.name,
            "zookeeper.hosts": self.hosts,
            "startingPosition": self.position,
            "minFetchPeriod": "10ms",
            **self.more,
        }

    @property
    def store(self) -> SourceStore:
        options = SourceOptions.parse(self.options)
        infos = describe_streams(kinesis_client(options), options.streams)
        created = {name: info.created for name, info in infos.items()}
        return SourceStore(
            self.keeper, find_home(self.keeper, options.zookeeper_root, options.application_name, created)
        )

    def load(self) -> DataFrame:
        return self.spark.readStream.format("kinesis-trident").options(**self.options).load()

    def at(self, name: str) -> str:
        return str(self.folder / self.name / name)

    def start(self, trigger: Trigger = None) -> StreamingQuery:
        """Start the query with this application's sink."""
        self.queries.append(SINKS[self.sink](self, trigger))
        return self.queries[-1]

    def has_settled(self, sequence: int) -> bool:
        """Tell whether the safe checkpoint is at a record, while all queries live."""
        for query in self.queries:
            error = query.exception()
            assert error is None, f"{self.name}: {error}"
        return self.done() == sequence

    def put(self, text: str) -> int:
        """Put a record: its sequence number."""
        (shard,) = self.kinesis.shards(self.name)
        return self.kinesis.put(self.name, shard, text.encode())

    def read_everything(self) -> None:
        """Read and settle all there is, as another Spark checkpoint would have."""
        run = SourceRun.open(SourceOptions.parse(self.options))
        try:
            run.drain_and_end()
            start = run.initial()
            while (plan := run.latest(start, None)) is not None:
                for part in run.partitions(start, plan):
                    list(read_turns(part, first_attempt=True))
                start = plan
        finally:
            run.close()

    def done(self) -> int | None:
        """The safe checkpoint; None before the first."""
        with suppress(NoNodeError):
            for node in self.store.shards.checkpoints().values():
                return int(node.checkpoint) if node.checkpoint else None
        return None

    def committed(self) -> list[str]:
        """The batches that Spark has committed."""
        return sorted(path.name for path in (self.folder / self.name).glob("spark/**/commits/[0-9]*"))


Sink = Callable[[Application, Trigger], StreamingQuery]


def _plain(app: Application, trigger: Trigger, form: str, **options: str) -> StreamingQuery:
    out = app.load().select(F.col("data").cast("string").alias("text")).writeStream.format(form)
    out = out.options(checkpointLocation=app.at("spark"), **options)
    return (out.trigger(**trigger) if trigger else out).start()


def to_noop(app: Application, trigger: Trigger) -> StreamingQuery:
    return _plain(app, trigger, "noop")


def to_parquet(app: Application, trigger: Trigger) -> StreamingQuery:
    return _plain(app, trigger, "parquet", path=app.at("out"))


def to_batches(app: Application, trigger: Trigger) -> StreamingQuery:
    stream = app.load()
    out = stream.writeStream.foreachBatch(foreach_batch(stream, lambda rows, _txid: rows.collect()))
    out = out.option("checkpointLocation", app.at("spark"))
    return (out.trigger(**trigger) if trigger else out).start()


def to_reliable(app: Application, trigger: Trigger) -> StreamingQuery:
    sink = reliable(app.load()).for_each_batch(lambda rows, _txid: rows.collect())
    return sink.start(checkpointLocation=app.at("spark"), trigger=trigger)


def to_bolts(app: Application, trigger: Trigger) -> StreamingQuery:
    builder = TopologyBuilder(app.spark)
    builder.set_spout("in", KinesisSpout(**app.options))
    builder.set_bolt("swallow", Swallow()).shuffle_grouping("in")
    return builder.start(checkpointLocation=app.at("spark"), trigger=trigger)


def to_trident(app: Application, trigger: Trigger) -> StreamingQuery:
    topology = TridentTopology(app.spark)
    words = topology.new_stream(app.name, app.load()).group_by(["data"])
    words.persistent_aggregate(MemoryMapState.opaque(app.name), Count(), ["count"])
    (query,) = topology.start(checkpointLocation=app.at("spark"), trigger=trigger).queries.values()
    return query


SINKS: dict[str, Sink] = {
    "noop": to_noop,
    "parquet": to_parquet,
    "batches": to_batches,
    "reliable": to_reliable,
    "bolts": to_bolts,
    "trident": to_trident,
}


@contextmanager
def making_applications(
    spark: SparkSession, hosts: str, folder: Path, app: str
) -> Iterator[Callable[..., Application]]:
    """`make(sink)`: an application with a stream of its own; its queries are stopped in the end."""
    # Spark's workers cannot import the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    keeper = connect(ZooKeeperConfig(hosts))
    made: list[Application] = []
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:

        def make(sink: str, **options: str) -> Application:
            name = f"{app}-{sink}-{len(made)}"
            kinesis.create_stream(name)
            made.append(Application(spark, kinesis, keeper, folder, hosts, name, sink, options))
            return made[-1]

        yield make
        for one in made:
            for query in one.queries:
                query.stop()
        keeper.stop()
        keeper.close()
