"""Trident's word count: read sentences from Kinesis and count their words in a state, each record exactly once.

    python examples/trident_word_count.py --stream lines --zookeeper localhost:2181 --redis redis://localhost

Without `--redis` the counts are kept in memory. `--try` needs nothing but Python: it starts a ZooKeeper and a Kinesis,
writes some sentences to a stream, one of which fails at first, and counts their words.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from kinesis_trident import ensure_java
from kinesis_trident.testing import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.trident import (
    Count,
    Function,
    MapStateFactory,
    MemoryMapState,
    RedisState,
    RunningTopology,
    State,
    StateFactory,
    StateType,
    StateUpdater,
    TridentCollector,
    TridentTopology,
    TridentTuple,
)

SENTENCES = (
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "fails at first",
)


class Split(Function):
    """Splits a sentence into words."""

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Emit each word; the sentence that fails at first comes back in a later batch, and counts once."""
        sentence = tup["data"].decode()
        if sentence == "fails at first" and tup["attempt"] == 1:
            raise ValueError(sentence)
        for word in sentence.split():
            collector.emit([word])


class Newest(State):
    """Keeps the newest count of each word in a dictionary of the driver, to print it."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def begin_commit(self, txid: int | None) -> None:
        """Nothing to do."""

    def commit(self, txid: int | None) -> None:
        """Nothing to do."""


class NewestFactory(StateFactory):
    """Makes states that share one dictionary."""

    driver_local = True
    # A replay sets the same words again.
    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Newest:
        """Make the state, with the same dictionary for all."""
        return Newest(self.counts)


class Remember(StateUpdater[Newest]):
    """Takes the new values of the counts."""

    def update_state(self, state: Newest, tuples: Sequence[TridentTuple], collector: Any) -> None:
        """Replace each word's count with its newest one."""
        state.counts.update((tup["word"], tup["count"]) for tup in tuples)


def counted(
    spark: SparkSession,
    options: dict[str, str],
    state: MapStateFactory,
    newest: NewestFactory,
    checkpoint: str,
) -> RunningTopology:
    """Start the topology that counts the words in the stream, batch by batch."""
    topology = TridentTopology(spark)
    counts = (
        topology.new_stream("spout1", spark.readStream.format("kinesis-trident").options(**options).load())
        .each(["data", "attempt"], Split(), ["word"])
        .group_by(["word"])
        .persistent_aggregate(state, Count(), ["count"])
        .parallelism_hint(2)
    )
    counts.new_values_stream().partition_persist(newest, ["word", "count"], Remember())
    return topology.start(checkpointLocation=checkpoint, trigger={"availableNow": True}, strict=True)


def fill(stream: str, endpoint: str | None, region: str) -> None:
    """Create a stream with the sentences, unless it is there."""
    import boto3

    client: Any = boto3.client("kinesis", endpoint_url=endpoint, region_name=region)
    try:
        client.create_stream(StreamName=stream, ShardCount=2)
    except client.exceptions.ResourceInUseException:
        return
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    records = [{"Data": text.encode(), "PartitionKey": text} for text in SENTENCES]
    client.put_records(StreamName=stream, Records=records)


@contextmanager
def started_here(stream: str) -> Iterator[dict[str, str]]:
    """Run a ZooKeeper and a Kinesis with sentences in a stream, and yield the source's options for them."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(variable, "example")
    with EmbeddedZooKeeper() as zookeeper, EmbeddedKinesis() as kinesis:
        fill(stream, kinesis.endpoint_url, "us-east-1")
        yield {"zookeeper.hosts": zookeeper.hosts, "endpointUrl": kinesis.endpoint_url}


def main() -> None:
    """Count the words in the stream, print the most frequent ones, and end."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--try", action="store_true", dest="embedded", help="start all servers on this machine"
    )
    arguments.add_argument("--stream", default="lines")
    arguments.add_argument(
        "--fill", action="store_true", help="create the stream with some sentences, unless it is there"
    )
    arguments.add_argument("--application", default="trident-word-count")
    arguments.add_argument("--zookeeper", default="localhost:2181")
    arguments.add_argument("--endpoint", help="an endpoint other than AWS's")
    arguments.add_argument("--region", default="us-east-1")
    arguments.add_argument("--redis", help="the Redis that keeps the counts: redis://host:6379/0")
    arguments.add_argument(
        "--checkpoint", help="Spark's checkpoint; needed if a later run is to continue the counts"
    )
    arguments.add_argument("--master", default="local[2]")
    asked = arguments.parse_args()

    # Spark's workers run this Python, which has the packages installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ensure_java()
    options = {
        "streamName": asked.stream,
        "applicationName": asked.application,
        "zookeeper.hosts": asked.zookeeper,
        "region": asked.region,
        "startingPosition": "TRIM_HORIZON",
    }
    if asked.endpoint:
        options["endpointUrl"] = asked.endpoint
    state: MapStateFactory = RedisState.opaque(asked.redis) if asked.redis else MemoryMapState.opaque()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = asked.checkpoint or f"{folder}/checkpoint"
        if asked.embedded:
            with started_here(asked.stream) as here:
                show(asked, options | here, state, checkpoint)
        else:
            if asked.fill:
                fill(asked.stream, asked.endpoint, asked.region)
            show(asked, options, state, checkpoint)


def show(asked: argparse.Namespace, options: dict[str, str], state: MapStateFactory, checkpoint: str) -> None:
    """Run the topology to the end of the stream, and print the most frequent words."""
    spark = SparkSession.builder.master(asked.master).appName(asked.application).getOrCreate()
    newest = NewestFactory()
    counted(spark, options, state, newest, checkpoint).await_termination()
    for word, count in sorted(newest.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:20]:
        print(count, word)
    spark.stop()


if __name__ == "__main__":
    main()
