"""Test that what needs Spark runs on the session of the topology; the rest is judged in this process as Spark would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, functions as F

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder, string_scheme
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.testing.by_reference import LocalCarrier, Recorder
from kinesis_trident.bolt.testing.given_tuples import FailedTuple
from kinesis_trident.bolt.testing.local_frames import LocalSession
from kinesis_trident.bolt.testing.local_stream import Life, LocalStream
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.testing import FakeTime, run_topology
from kinesis_trident.trident import Count, MemoryMapState, TridentTopology


class Split(BasicBolt):
    fields = "word string, n int"

    def execute(self, tup: Any, collector: Any) -> None:
        for n, word in enumerate(tup["line"].split()):
            collector.emit([word, n])


class Together(Bolt):
    """Emits a tuple for each word, anchored to all tuples with it; it forgets one."""

    fields = "word string, task int"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.task = collector, context.task
        self.held: dict[str, list[Any]] = {}

    def execute(self, tup: Any) -> None:
        if tup["word"] != "az":
            self.held.setdefault(tup["word"], []).append(tup)
            self.collector.ack(tup)

    def cleanup(self) -> None:
        for word, tuples in self.held.items():
            self.collector.emit([word, self.task], tuples)
        self.held.clear()


class Refuse(BasicBolt):
    """Fails the tuples with a word; the reason tells who sent it where."""

    def __init__(self, word: str) -> None:
        self.word = word

    def prepare(self, context: Any) -> None:
        self.task = context.task

    def execute(self, tup: Any, collector: Any) -> None:
        if tup[0] == self.word:
            msg = f"{tup.get('task')} to {self.task}"
            raise ValueError(msg)


OPTIONS = {"streamName": "lines", "applicationName": "a", "zookeeper.hosts": "z:1", "region": "us-east-1"}


def spout() -> KinesisSpout:
    given: dict[str, object] = {name.replace(".", "__"): value for name, value in OPTIONS.items()}
    return KinesisSpout(scheme=string_scheme("line"), **given)


def judged(topology: TopologyBuilder, carrier: Any, convert: Callable[[Any], Any]) -> list[FailedTuple]:
    """Judge one batch on frames of some kind."""
    run = topology.check(2)
    options, failed = SourceOptions.parse(OPTIONS), list[FailedTuple]()
    fields = [run.parts["lines"].fields["line"]]
    stream = LocalStream(
        "lines", {"line": "CAST(data AS STRING)"}, fields, options, FakeTime(), 1, failed, Life(1)
    )
    stream.feed([f"{a}{b} {b}{a} {a}" for a in "abcde" for b in "vwxyz"])
    handler = BatchHandler(options, run, 0, carrier=carrier)
    stream.run(LocalSession(), lambda rows, batch: handler.process(convert(rows), batch))
    return failed


def test_a_batch_is_judged_as_spark_judges_it(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    cloudpickle.register_pickle_by_value(request.module)
    topology = TopologyBuilder()
    topology.set_spout("lines", spout())
    topology.set_bolt("split", Split(), 3).shuffle_grouping("lines")
    topology.set_bolt("together", Together(), 4).fields_grouping("split", "word")
    topology.set_bolt("end", Refuse("e"), 3).fields_grouping("together", "word", "task")
    topology.set_bolt("one", Refuse("dx")).global_grouping("split")
    topology.set_bolt("all", Refuse("cy"), 2).all_grouping("split")
    topology.set_bolt("both", Refuse("bz"), 5).fields_grouping("split", "word").fields_grouping(
        "together", "word"
    )

    def in_spark(frame: Any) -> DataFrame:
        return spark.createDataFrame(frame.toArrow(), frame.schema)

    expected = judged(topology, AccumulatorCarrier(), in_spark)
    found = judged(topology, LocalCarrier(Recorder()), lambda frame: frame)
    # Of the copies of a tuple in two tasks, the one that fails first is told.
    assert [
        one._replace(reason=one.reason.replace("None to 1 (bolt all)", "None to 0 (bolt all)"))
        for one in expected
    ] == found
    assert [(one.values[:2], one.reason.rpartition("(")[2]) for one in found] == [
        ("az", "bolt together)"),
        ("bz", "bolt both)"),
        ("cy", "bolt all)"),
        ("dx", "bolt one)"),
        *((f"e{letter}", "bolt end)") for letter in "vwxyz"),
    ]
    # The reasons tell the tasks, which both chose alike.
    assert len({one.reason for one in found}) == 5


def test_transforms_of_bolts_run_on_the_session(spark: SparkSession) -> None:
    topology = TopologyBuilder(spark)
    topology.set_spout("lines", spout())
    topology.set_bolt("split", Split()).shuffle_grouping("lines")
    topology.transform(
        "long", "split", lambda rows: rows.where("length(word) > 1").withColumn("n", F.col("n") + 10)
    )
    topology.transform("sums", "long", lambda rows: rows.groupBy("word").agg(F.sum("n").alias("sum")))
    topology.set_bolt("check", Refuse("bad"), 2).fields_grouping("long", "word")
    topology.set_bolt("sum", Refuse("bad")).shuffle_grouping("sums")
    with pytest.warns(UserWarning, match="'sums' drops the column '__anchors'"):
        result = run_topology(topology, {"lines": ["a bb", "bad", "a", "bb"]})
    assert [tuple(row) for row in result.emitted["long"]] == [("bb", 11), ("bad", 10), ("bb", 10)]
    assert sorted(map(tuple, result.emitted["sums"])) == [("bad", 10), ("bb", 21)]
    assert sorted(result.acked["lines"]) == ["a", "a bb", "bb"]
    (failed,) = result.failed
    assert (failed.values, failed.reason.partition(":")[0]) == ("bad", "ValueError")


def test_transforms_and_batch_frames_of_trident_run_on_the_session(spark: SparkSession) -> None:
    topology = TridentTopology(spark)
    names = topology.new_stream(
        "names", spark.createDataFrame([("a", "Ann"), ("b", "Ben")], "key string, name string")
    )
    lines = topology.new_stream("lines", spout()).project(["line"])
    lines.join(["line"], names, ["key"], ["line", "name"]).transform(
        lambda rows: rows.withColumn("shout", F.upper("name"))
    ).group_by(["shout"]).persistent_aggregate(MemoryMapState.opaque(), Count(), ["count"])
    for attempt in (1, 2):
        result = run_topology(topology, {"lines": ["a", "b", "a", "c"]})
        assert sorted(map(tuple, result.emitted["transform(<lambda>)"])) == [
            ("a", "Ann", "ANN"), ("a", "Ann", "ANN"), ("b", "Ben", "BEN")
        ]  # fmt: skip
        assert result.states == {"persistent_aggregate(Count)": {("ANN",): 2 * attempt, ("BEN",): attempt}}
        assert len(result.acked["lines"]) == 4
    # The batch DataFrame is Spark's again.
    assert cast(Any, names.df).count() == 2
