"""Any DataFrame as a spout: streaming or not, alone or beside others, tracked by a column of message ids."""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import (
    BasicBolt,
    Bolt,
    DataFrameSpout,
    KinesisSpout,
    OutputFieldsDeclarer,
    TopologyBuilder,
    TopologyContext,
    TopologyError,
    Tuple,
)
from kinesis_trident.bolt.storm.other_spouts import FrameHandler


@pytest.fixture(autouse=True, scope="module")
def by_value() -> None:
    """Let Spark's workers get the functions of this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Twice(BasicBolt):
    """Emits a number twice; fails those that end with 3."""

    fields = "number long, half int"

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup["number"] % 10 == 3:
            raise ValueError(f"first {tup['number']}")
        for half in range(2):
            collector.emit([tup["number"], half])


class Ends(BasicBolt):
    """Fails the second half of numbers that end with 7; writes the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.context, self.lines = context, list[list[Any]]()

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup["number"] % 10 == 7 and tup.get("half") == 1:
            raise ValueError(f"second {tup['number']}")
        self.lines.append([self.context.txid, self.context.task, tup.component, tup["number"]])

    def cleanup(self) -> None:
        (self.folder / uuid.uuid4().hex).write_text(json.dumps(self.lines))


class EndsWithoutTicks(Ends):
    """Ignores ticks."""

    def execute(self, tup: Tuple, collector: Any) -> None:
        if not tup.is_tick:
            super().execute(tup, collector)


def written(folder: Path) -> list[list[Any]]:
    return sorted(line for path in folder.iterdir() for line in json.loads(path.read_text()))


class Holds(Bolt):
    """Holds the number 5: nothing reads it again."""

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        if tup["number"] == 5:
            self.collector.hold(tup)
        else:
            self.collector.ack(tup)


class Settled:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.done: dict[int, list[str]] = {}
        self.failed: dict[int, dict[str, str]] = {}

    def __call__(self, done: DataFrame, failed: DataFrame, txid: int) -> None:
        self.done[txid] = sorted(row.id for row in done.collect())
        self.failed[txid] = {row.id: row.reason for row in failed.collect()}


def reasons(numbers: range) -> dict[str, str]:
    return {
        f"id {number}": f"ValueError: {'first' if number % 10 == 3 else 'second'} {number} "
        f"(bolt {'twice' if number % 10 == 3 else 'ends'})"
        for number in numbers
        if number % 10 in {3, 7}
    }


def topology(spark: SparkSession, spout: DataFrameSpout, folder: Path, **options: Any) -> TopologyBuilder:
    builder = TopologyBuilder(spark, **options)
    builder.set_spout("numbers", spout)
    builder.set_bolt("twice", Twice()).shuffle_grouping("numbers")
    builder.set_bolt("ends", Ends(folder), 2).fields_grouping("twice", "number")
    return builder


NUMBERS = "id AS number", "concat('id ', id) AS id"


def test_rows_with_message_ids_are_settled_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    settled = Settled()
    frame = spark.range(0, 60, 1, 3).selectExpr(*NUMBERS)
    spout = DataFrameSpout(frame, message_id="id", settle=settled)
    builder = topology(spark, spout, tmp_path)
    builder.set_bolt("holds", Holds()).shuffle_grouping("numbers")
    builder.run_batch(txid=5)
    failed = reasons(range(60)) | {"id 5": "HELD (bolt holds)"}
    assert settled.failed == {5: failed}
    assert settled.done == {5: sorted({f"id {number}" for number in range(60)} - failed.keys())}
    ends = Counter(number for *_, number in written(tmp_path))
    assert ends == {n: 1 if n % 10 == 7 else 2 for n in range(60) if n % 10 != 3}
    # Without ackers all rows are done.
    topology(spark, spout, tmp_path, ackers=0).run_batch(txid=6)
    assert settled.failed[6] == {}
    assert len(settled.done[6]) == 60


class ToFirst:
    def prepare(self, context: TopologyContext, component: str, stream: str, tasks: Sequence[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return [self.tasks[0]]


def test_a_bolt_with_several_inputs_takes_the_rows_by_any_grouping(
    spark: SparkSession, tmp_path: Path
) -> None:
    settled = Settled()
    spout = DataFrameSpout(spark.range(0, 20).selectExpr(*NUMBERS), message_id="id", settle=settled)
    builder = TopologyBuilder(spark)
    builder.set_spout("numbers", spout)
    builder.set_bolt("twice", Twice()).shuffle_grouping("numbers")
    folders = {kind: tmp_path / kind for kind in ("all", "key", "custom")}
    for kind, folder in folders.items():
        folder.mkdir()
        both = builder.set_bolt(kind, Ends(folder), 2).fields_grouping("twice", "number")
        if kind == "all":
            both.all_grouping("numbers")
        elif kind == "key":
            both.partial_key_grouping("numbers", "number")
        else:
            both.custom_grouping("numbers", ToFirst())
    builder.run_batch(txid=5)
    assert settled.failed[5].keys() == {"id 3", "id 7", "id 13", "id 17"}
    assert len(settled.done[5]) == 16
    for kind, folder in folders.items():
        ran = Counter(number for *_, component, number in written(folder) if component == "numbers")
        assert ran == dict.fromkeys(range(20), 2 if kind == "all" else 1)


def stream_of(spark: SparkSession, folder: Path, *files: range) -> DataFrame:
    folder.mkdir()
    for number, numbers in enumerate(files):
        lines = [json.dumps({"number": n, "id": f"id {n}"}) for n in numbers]
        (folder / f"{number}.json").write_text("\n".join(lines))
    reader = spark.readStream.schema("number long, id string").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def drain(builder: TopologyBuilder, folder: Path) -> None:
    query = builder.start(checkpointLocation=str(folder / "spark"), trigger={"availableNow": True})
    query.awaitTermination()


def test_a_stream_with_message_ids_is_settled_batch_by_batch(spark: SparkSession, tmp_path: Path) -> None:
    settled, out = Settled(), tmp_path / "out"
    out.mkdir()
    frame = stream_of(spark, tmp_path / "in", range(20), range(20, 40))
    drain(topology(spark, DataFrameSpout(frame, message_id="id", settle=settled), out), tmp_path)
    batches = {key: {*ids, *settled.failed[key]} for key, ids in settled.done.items()}
    assert sorted(map(sorted, batches.values())) == sorted(
        sorted(f"id {n}" for n in some) for some in (range(20), range(20, 40))
    )
    assert settled.failed[0] | settled.failed[1] == reasons(range(40))
    assert {line[0] for line in written(out)} == {0, 1}


def test_several_streams_are_spouts_of_one_topology(spark: SparkSession, tmp_path: Path) -> None:
    """And equal rows are spread over the tasks."""
    out = tmp_path / "out"
    out.mkdir()
    builder = TopologyBuilder(spark)
    same = stream_of(spark, tmp_path / "same", range(0)).selectExpr("1L AS number", "id AS other")
    (tmp_path / "same" / "1.json").write_text("\n".join([json.dumps({"number": 0, "id": "x"})] * 20))
    builder.set_spout("same", DataFrameSpout(same))
    builder.set_spout("numbers", DataFrameSpout(stream_of(spark, tmp_path / "in", range(10))))
    ends = builder.set_bolt("ends", Ends(out), 2)
    ends.shuffle_grouping("same").fields_grouping("numbers", "number")
    drain(builder, tmp_path)
    lines = written(out)
    assert sorted(number for _, _, component, number in lines if component == "numbers") == [*range(10)]
    tasks = Counter(task for _, task, component, number in lines if component == "same" and number == 1)
    assert tasks == {0: 10, 1: 10}


class Sorts(Bolt):
    """Emits even numbers with a map, odd ones directly to task 1, all under one key; counts at its ticks."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("number long, tags map<string, int>")
        declarer.declare_stream("odd", "number long", direct=True)
        declarer.declare_stream("keyed", "key string, number long")
        declarer.declare_stream("ticks", "number long")

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector, self.count = collector, 0

    def execute(self, tup: Tuple) -> None:
        if tup.is_tick:
            self.collector.emit([self.count], stream="ticks")
            return
        self.count += 1
        number = tup["number"]
        self.collector.emit(["same", number], tup, "keyed")
        if number % 2:
            self.collector.emit_direct(1, [number], tup, "odd")
        else:
            self.collector.emit([number, {"a": 1}], tup)
        self.collector.ack(tup)


class Both:
    """Sends every tuple to both tasks."""

    def prepare(self, context: TopologyContext, component: str, stream: str, tasks: Sequence[int]) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        return self.tasks


def test_streams_groupings_and_ticks_without_tracking(spark: SparkSession, tmp_path: Path) -> None:
    names = "shuffled", "direct", "keyed", "custom", "ticks"
    folders = {name: tmp_path / name for name in names}
    for folder in folders.values():
        folder.mkdir()
    builder = TopologyBuilder(spark, configuration={"tickInterval": "0s"})
    builder.set_spout("numbers", DataFrameSpout(spark.range(0, 20, 1, 2).toDF("number")))
    builder.set_bolt("sorts", Sorts()).shuffle_grouping("numbers")
    ends = {name: builder.set_bolt(name, EndsWithoutTicks(folders[name]), 2) for name in names}
    ends["shuffled"].shuffle_grouping("sorts")
    ends["direct"].direct_grouping("sorts", "odd")
    ends["keyed"].partial_key_grouping("sorts", "key", stream="keyed")
    ends["custom"].custom_grouping("sorts", Both(), "keyed")
    ends["ticks"].global_grouping("sorts", "ticks")
    builder.run_batch()
    found = {name: [(task, n) for _, task, _, n in written(folder)] for name, folder in folders.items()}
    assert sorted(n for _, n in found["shuffled"]) == [*range(0, 20, 2)]
    assert {task for task, _ in found["shuffled"]} == {0, 1}
    assert sorted(found["direct"]) == [(1, n) for n in range(1, 20, 2)]
    assert sorted(n for _, n in found["keyed"]) == [*range(20)]
    assert sorted(found["custom"]) == [(task, n) for task in (0, 1) for n in range(20)]
    # Both of the source's partitions have a task, and a tick after ten numbers.
    assert found["ticks"] == [(0, 10), (0, 10)]


def test_a_handler_travels_without_its_frame(spark: SparkSession, tmp_path: Path) -> None:
    """Spark Connect sends it to the server."""
    run, _ = topology(spark, DataFrameSpout(spark.range(1).toDF("number")), tmp_path).build()
    assert cloudpickle.loads(cloudpickle.dumps(FrameHandler(run))).run.parts.keys() == run.parts.keys()


def builder_with(spark: SparkSession, spout: Any) -> TopologyBuilder:
    builder = TopologyBuilder(spark)
    builder.set_spout("one", spout)
    return builder


WRONG: dict[str, tuple[Callable[[SparkSession], object], str]] = {
    "no DataFrame": (lambda s: DataFrameSpout("rows"), "DataFrameSpout got str. Give a DataFrame"),  # type: ignore[arg-type]
    "our column": (
        lambda s: DataFrameSpout(s.range(1).toDF("__x")),
        r"field '__x' begins with '__', which is reserved\. Rename it",
    ),
    "a column twice": (
        lambda s: DataFrameSpout(s.range(1).selectExpr("id", "id AS ID")),
        "field 'ID' is named twice",
    ),
    "an id that is not settled": (
        lambda s: DataFrameSpout(s.range(1), message_id="id"),
        "needs both message_id and settle",
    ),
    "an id that is no column": (
        lambda s: DataFrameSpout(s.range(1), message_id="key", settle=Settled()),
        "message_id 'key' is not a column. Name one of id",
    ),
    "a column of ours": (
        lambda s: DataFrameSpout(s.range(1).toDF("messageId"), message_id="messageId", settle=Settled()),
        "the field 'messageId' is there already",
    ),
    "beside Kinesis": (
        lambda s: builder_with(s, KinesisSpout(streamName="a")).set_spout("two", DataFrameSpout(s.range(1))),
        "'two': the topology already has the spout 'one', and a KinesisSpout must be the only one.*streamName='a,b'",
    ),
    "beside a tracked one": (
        lambda s: builder_with(s, DataFrameSpout(s.range(1), message_id="id", settle=Settled())).set_spout(
            "two", DataFrameSpout(s.range(1))
        ),
        "a DataFrameSpout with a message_id must be the only one. Unite the DataFrames",
    ),
    "a stream beside a table": (
        lambda s: builder_with(s, DataFrameSpout(s.range(1))).set_spout(
            "two", DataFrameSpout(s.readStream.format("rate").load())
        ),
        "'two' and spout 'one': one DataFrame is streaming, the other is not",
    ),
    "a table to start": (
        lambda s: topology(s, DataFrameSpout(s.range(1).toDF("number")), Path()).start(
            checkpointLocation="/nowhere"
        ),
        r"not streaming\. Call run_batch\(\)",
    ),
    "a stream to run once": (
        lambda s: topology(
            s, DataFrameSpout(s.readStream.format("rate").load().selectExpr("value AS number")), Path()
        ).run_batch(),
        r"is streaming\. Call start\(checkpointLocation=\.\.\.\)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_spout_is_refused(spark: SparkSession, what: str) -> None:
    build, said = WRONG[what]
    with pytest.raises(TopologyError, match=said):
        build(spark)
