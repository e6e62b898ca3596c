"""However an attempt at a batch ends, Spark keeps none of its rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from batch_in_hand import batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from samples_topology import a_stream, graph_of

from kinesis_trident import BasicBolt, DataFrameSpout, KinesisSpout, TopologyBuilder, Tuple
from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.storm.other_spouts import FrameHandler
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.trident import Count, MemoryMapState, TridentTuple
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.stream import Stream

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def in_hand(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str
) -> Iterator[tuple[DataFrame, CurrentBatch]]:
    """Rows of two shards and their batch; nothing of them is kept in the end."""
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        spark.catalog.clearCache()
        before = held_in(spark)
        yield rows, batch
        assert held_in(spark) <= before
        assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def held_in(spark: SparkSession) -> set[int]:
    """Return the RDDs that are kept: those that are cached, and checkpoints."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())  # type: ignore[attr-defined]


class Parse:
    """Gives the number of a record; fails those that are bad."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def __call__(self, tup: TridentTuple) -> list[Any]:
        number = int(bytes(tup["data"]).split()[0])
        if number in self.bad:
            raise ValueError(number)
        return [number]


def refuse(tup: TridentTuple) -> list[Any]:
    raise ValueError(tup[0])


def counted(stream: Stream, parse: Parse) -> Stream:
    """Two states of one function's tuples, and one of the source's."""
    parsed = stream.map(parse, "number long")
    parsed.group_by(["number"]).persistent_aggregate(MemoryMapState.opaque("one"), Count(), ["n"])
    parsed.persistent_aggregate(MemoryMapState.opaque("all"), Count(), ["m"])
    made = stream.group_by(["partitionKey"]).persistent_aggregate(
        MemoryMapState.opaque("key"), Count(), ["n"]
    )
    return made.new_values_stream()


def attempt(rows: DataFrame, batch: CurrentBatch, stream: Stream) -> None:
    spout = stream.node
    assert isinstance(spout, SpoutNode)
    assert spout.options is not None
    handler = BatchHandler(spout.options, lambda *_: None, 0)
    TopologyAttempts(spout, graph_of(stream), 2)(rows, batch, handler)


@pytest.mark.parametrize("bad", [(), (3, 4, 9)])
@pytest.mark.parametrize("tracking", [True, False])
def test_after_a_batch(in_hand: tuple[DataFrame, CurrentBatch], bad: tuple[int, ...], tracking: bool) -> None:
    rows, batch = in_hand
    stream = a_stream(rows=rows, tracking=tracking)
    values = counted(stream, Parse(*bad))
    values.map(lambda tup: [tup["n"]], "m long").map(lambda tup: [tup["m"]], "k long")
    if bad and not tracking:
        with pytest.raises(Exception, match="ValueError"):
            attempt(rows, batch, stream)
    else:
        attempt(rows, batch, stream)
        assert batch.verdict is not None
        assert bool(batch.verdict) is bool(bad)


def test_after_a_function_below_a_state_fails_the_batch(in_hand: tuple[DataFrame, CurrentBatch]) -> None:
    rows, batch = in_hand
    stream = a_stream(rows=rows)
    below = counted(stream, Parse()).map(refuse, "m long")
    for _ in range(2):
        below.map(lambda tup: [tup["m"]], "k long")
    with pytest.raises(Exception, match="belongs to no single record"):
        attempt(rows, batch, stream)


@pytest.mark.parametrize("tracking", [True, False])
def test_after_a_newer_run_has_taken_over(in_hand: tuple[DataFrame, CurrentBatch], tracking: bool) -> None:
    rows, batch = in_hand
    stream = a_stream(rows=rows, tracking=tracking)
    counted(stream, Parse())
    batch._store.epochs.raise_epoch("there", 2, 2)
    with pytest.raises(FencedError):
        attempt(rows, batch, stream)


@pytest.mark.parametrize("tracking", [True, False])
def test_after_a_replay(in_hand: tuple[DataFrame, CurrentBatch], tracking: bool) -> None:
    rows, batch = in_hand
    batch.publish(Verdict())
    stream = a_stream(rows=rows, tracking=tracking)
    counted(stream, Parse())
    attempt(rows, batch, stream)
    again = a_stream(rows=rows, tracking=tracking)
    counted(again, Parse(3))
    with pytest.raises(Exception, match="failed"):
        attempt(rows, batch, again)


def test_after_zookeeper_says_nothing_of_states(
    in_hand: tuple[DataFrame, CurrentBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, batch = in_hand

    def away(_: CurrentBatch) -> dict[str, int]:
        raise ConnectionError("away")

    monkeypatch.setattr(CurrentBatch, "applied_to_states", away)
    stream = a_stream(rows=rows, tracking=False)
    counted(stream, Parse())
    with pytest.raises(ConnectionError):
        attempt(rows, batch, stream)


class Numbers(BasicBolt):
    """Emits the numbers of records; fails the bad ones."""

    fields = "number long"

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def execute(self, tup: Tuple, collector: Any) -> None:
        number = int(tup["number"])
        if number in self.bad:
            raise ValueError(number)
        collector.emit([number])


@pytest.mark.parametrize("ackers", [None, 0])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("bad", [(), (3, 4)])
def test_after_a_batch_of_bolts(
    spark: SparkSession,
    in_hand: tuple[DataFrame, CurrentBatch],
    ackers: int | None,
    fails: bool,
    bad: tuple[int, ...],
) -> None:
    rows, batch = in_hand
    builder = TopologyBuilder(spark, ackers=ackers)
    options = {"streamName": "lines", "region": "us-east-1", "applicationName": "a", "zookeeper.hosts": "z"}
    builder.set_spout("in", KinesisSpout(scheme={"number": "split(cast(data as string), ' ')[0]"}, **options))
    builder.set_bolt("one", Numbers()).shuffle_grouping("in")
    for name in ("two", "three"):
        builder.set_bolt(name, Numbers(*bad), 2).fields_grouping("one", "number")
    built = []

    def transform(frame: DataFrame) -> DataFrame:
        if built and fails:
            raise ValueError("no frame")
        return frame

    builder.transform("last", "one", transform)
    run, _ = builder.build()
    built.append(run)
    handler = BatchHandler(SourceOptions.parse(options), run, 0)
    if fails:
        with pytest.raises(ValueError, match="no frame"):
            run(rows, batch, handler)
    else:
        verdict = run(rows, batch, handler)
        assert bool(verdict) is (bool(bad) and ackers is None)


@pytest.mark.parametrize("settles", [True, False])
def test_after_a_batch_of_a_data_frame(
    spark: SparkSession, in_hand: tuple[DataFrame, CurrentBatch], settles: bool
) -> None:
    ids: list[int] = []

    def settle(done: DataFrame, failed: DataFrame, txid: int) -> None:
        ids.extend(row[0] for row in done.collect())
        if not settles:
            raise BatchFailedError("not now")

    rows = spark.range(20).withColumnRenamed("id", "number")
    builder = TopologyBuilder(spark)
    builder.set_spout("in", DataFrameSpout(rows, message_id="number", settle=settle))
    for name in ("one", "two"):
        builder.set_bolt(name, Numbers(3)).shuffle_grouping("in")
    run, _ = builder.build()
    handler = FrameHandler(run, "number", settle)
    if settles:
        handler(rows, 1)
    else:
        with pytest.raises(BatchFailedError):
            handler(rows, 1)
    assert sorted(ids) == [number for number in range(20) if number != 3]
