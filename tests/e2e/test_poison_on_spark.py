"""The border of users' functions on Spark: what Python cannot have fails its record alone, on every path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE
from pyspark.sql import SparkSession
from stage import AVAILABLE_NOW, Stage, ended

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, Tuple, string_scheme
from kinesis_trident.bolt.steps.time_zones import SETTING
from kinesis_trident.trident import Count, MemoryMapState, MultiReducer, ReducerAggregator, TridentTopology

NO_TEXT = "the field 'text' is no valid UTF-8"


@pytest.fixture
def session(stage: Stage) -> Iterator[SparkSession]:
    """The shared session, in New York; its time zone is restored."""
    before = stage.spark.conf.get(SETTING)
    stage.spark.conf.set(SETTING, "America/New_York")
    yield stage.spark
    stage.spark.conf.set(SETTING, str(before))


def spout(stage: Stage) -> KinesisSpout:
    letters = stage.options(retryLimit=0, deadLetter=stage.at("letters"))
    options = {name.replace(".", "__"): value for name, value in letters.items()}
    return KinesisSpout(**options, scheme=string_scheme("text"))


def put(stage: Stage) -> None:
    """Put five good records around one that is no text."""
    stage.put(["a", "b", "a"])
    stage.client.put_record(StreamName=stage.stream, Data=b"\xff\xfe", PartitionKey="p")
    stage.put(["c", "a"])


def reasons(stage: Stage) -> list[str]:
    return [reason.reason for letter in stage.letters() for reason in letter.reasons]


def run(stage: Stage, topology: TridentTopology) -> None:
    running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(PATIENCE)


class Joined(ReducerAggregator):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, tup: Any) -> str:
        return current + str(tup["text"])


@pytest.mark.parametrize("aggregator", [Count(), Joined()], ids=["in Spark", "in Python"])
def test_a_key_that_is_no_text_fails_its_record_before_the_state_is_updated(
    stage: Stage, aggregator: Any
) -> None:
    put(stage)
    topology, counts = TridentTopology(stage.spark), MemoryMapState.opaque(f"border-{stage.app}")
    stream = topology.new_stream("texts", spout(stage))
    stream.group_by(["text"]).persistent_aggregate(counts, aggregator, ["found"])
    run(stage, topology)
    found = counts.make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)])
    assert found == ([3, 1, 1] if isinstance(aggregator, Count) else ["aaa", "b", "c"])
    assert reasons(stage) == [f"{NO_TEXT} (in new_stream(texts))"]


class Balance(MultiReducer[dict[str, Any]]):
    def init(self, collector: Any) -> dict[str, Any]:
        return {"hours": set(), "whole": []}

    def execute(self, value: dict[str, Any], stream: int, tup: Any, collector: Any) -> None:
        value["hours"].add(tup["at"].utcoffset().total_seconds() // 3600)
        if stream == 0:
            value["whole"].append(tup["whole"]["name"])

    def complete(self, value: dict[str, Any], collector: Any) -> None:
        collector.emit([len(value["whole"]), sorted(value["hours"])])


def test_streams_with_times_and_full_structs_are_reduced_together(
    stage: Stage, session: SparkSession, tmp_path: Path
) -> None:
    stage.put(["a", "b", "a"])
    topology = TridentTopology(session)
    source = topology.new_stream("texts", spout(stage))
    ours = source.map(
        lambda tup: [tup["text"], {"name": tup["text"]}, tup["approximateArrivalTimestamp"]],
        "text string, whole struct<name string not null>, at timestamp",
    )
    theirs = source.map(
        lambda tup: [tup["text"], tup["approximateArrivalTimestamp"]], "text string, at timestamp"
    )
    counts = MemoryMapState.opaque(f"border-{stage.app}")
    reduced = topology.multi_reduce(
        [ours.group_by("text"), theirs.group_by("text")], Balance(), "wholes bigint, hours array<double>"
    )
    reduced.filter(lambda tup: set(tup["hours"]) <= {-4.0, -5.0}).group_by(["wholes"]).persistent_aggregate(
        counts, Count(), ["n"]
    )
    run(stage, topology)
    assert counts.make_state({}, 0, 1).multi_get([(1,), (2,)]) == [1, 1]
    assert reasons(stage) == []


class TwoStreams(BasicBolt):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("text string, whole struct<name string not null>, at timestamp")
        declarer.declare_stream("other", "at timestamp")

    def execute(self, tup: Tuple, collector: Any) -> None:
        at = tup["approximateArrivalTimestamp"]
        collector.emit([tup["text"], {"name": tup["text"]}, at])
        collector.emit([at], "other")


class Keep(BasicBolt):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def execute(self, tup: Tuple, collector: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        hours = int(tup["at"].utcoffset().total_seconds() // 3600)
        name = tup["whole"]["name"] if tup.contains("whole") else "other"
        (self.folder / f"{name} {hours in (-4, -5)} {id(tup)}").touch()


def test_a_bolt_with_two_streams_of_times_and_full_structs(stage: Stage, session: SparkSession) -> None:
    put(stage)
    builder = TopologyBuilder(session)
    builder.set_spout("texts", spout(stage))
    builder.set_bolt("two", TwoStreams(), 2).shuffle_grouping("texts")
    keep = builder.set_bolt("keep", Keep(stage.at("kept")), 1).shuffle_grouping("two")
    keep.shuffle_grouping("two", "other")
    ended(builder.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW))
    found = {" ".join(path.name.split()[:2]) for path in Path(stage.at("kept")).iterdir()}
    assert found == {"a True", "b True", "c True", "other True"}
    assert reasons(stage) == [f"ValueError: {NO_TEXT} (bolt two)"]
