"""A small module of a user's, for `mypy --strict`: nothing runs it.

Each comment about an error is one of a wrong use: mypy says that it is unused where the types let that use pass.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident import (
    Acks,
    BasicBolt,
    BasicOutputCollector,
    KinesisSpout,
    KinesisTridentError,
    Outcomes,
    OutputFieldsDeclarer,
    TopologyBuilder,
    Tuple,
    reliable,
    status,
    stop,
)
from kinesis_trident.testing import MemoryKinesis, ScriptedKinesis, run_topology
from kinesis_trident.trident import (
    Count,
    Function,
    RedisState,
    TridentCollector,
    TridentTopology,
    TridentTuple,
)


def double(frame: DataFrame) -> DataFrame:
    """Return the rows, twice."""
    return frame.union(frame)


class Words(BasicBolt):
    """Emits the words of a line."""

    fields = "word string"

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit each word."""
        for word in tup["line"].split():
            collector.emit([word])


class Split(Function):
    """Emits the words of a line to a Trident stream."""

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Emit each word."""
        for word in tup["line"].split():
            collector.emit([word])


def write(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
    """Fail the rows without an amount."""
    outcomes.fail(df.filter("amount IS NULL"), "no amount")
    outcomes.fail(txid, "a number")  # type: ignore[arg-type]


def run(spark: SparkSession) -> StreamingQuery:
    """Start a reliable query, and stop it."""
    orders = spark.readStream.format("kinesis-trident").option("streamName", "orders").load()
    steps = reliable(orders).map(lambda record: (1,), "amount int")
    print(steps.mapp)  # type: ignore[attr-defined]
    query = steps.for_each_batch(write).start(checkpointLocation="checkpoint")
    try:
        stop(query)
    except KinesisTridentError as error:
        print(error)
    return query


def build(spark: SparkSession) -> None:
    """Build a topology of bolts and one of Trident."""
    bolts = TopologyBuilder(spark)
    bolts.set_spout("lines", KinesisSpout(streamName="lines", applicationName="app"))
    bolts.set_bolt("words", Words(), 2).shuffle_grouping("lines")
    bolts.set_bolt("words", 2, Words())  # type: ignore[arg-type]
    trident = TridentTopology(spark)
    lines = trident.new_stream("lines", KinesisSpout(streamName="lines", applicationName="app"))
    words = lines.each(["line"], Split(), "word string")
    words.group_by("word").persistent_aggregate(RedisState.opaque("redis://localhost"), Count(), "count")


NAMES = (Acks, MemoryKinesis, OutputFieldsDeclarer, ScriptedKinesis, run_topology, status)
