"""Spark's own sinks: a batch is acked when Spark has committed it; where reading starts, how much, and how idle."""

from __future__ import annotations

import gc
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from moto_in_hand import MotoInHand
from pyspark.sql import DataFrame, functions
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col
from pyspark.sql.types import StructField, StructType
from stage import Stage, Taken, ended, start_available_now
from thorough import cases

from kinesis_trident.spout.batch.batch_read import KinesisBatchReader
from kinesis_trident.spout.batch.range_read import Loaded
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.pace import IDLE_MS, WARM_GAP_MS, WARM_MS
from kinesis_trident.spout.source import KinesisTridentReader, KinesisTridentSource

_ALWAYS_NULLABLE = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"


def text_of(rows: DataFrame) -> DataFrame:
    return rows.select(col("data").cast("string").alias("text"))


@pytest.mark.parametrize("state", cases("groupBy", long=("dropDuplicates",)))
def test_a_state_with_the_partition_key_of_1_0_0_goes_on_without_nulls(
    stage: Stage, state: str, request: pytest.FixtureRequest
) -> None:
    class Stream(KinesisTridentReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            for batch in super().read(partition):
                schema = batch.schema.set(0, batch.schema.field(0).with_nullable(False))
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    class Release100(KinesisTridentSource):
        @classmethod
        def name(cls) -> str:
            return "release100"

        def schema(self) -> StructType:
            key, *others = super().schema()
            return StructType([StructField(key.name, key.dataType, nullable=False), *others])

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Stream(SourceOptions.parse(dict(self.options)))

    stage.spark.dataSource.register(Release100)
    found: dict[str, int] = {}

    def run(rows: DataFrame) -> None:
        counts = (
            rows.groupBy("partitionKey").count()
            if state == "groupBy"
            else rows.dropDuplicates(["partitionKey"])
        )

        def write(batch: DataFrame, _: int) -> None:
            for row in batch.collect():
                key = row.partitionKey
                found[key] = row["count"] if state == "groupBy" else found.get(key, 0) + 1

        out = counts.writeStream.foreachBatch(write).option("checkpointLocation", stage.at("spark"))
        query = out.outputMode("update").trigger(availableNow=True).start()
        stage.queries.append(query)
        ended(query)

    # Spark before 4.3, and a query that began there, keep what may be null with a state.
    stage.spark.conf.set(_ALWAYS_NULLABLE, "false")
    request.addfinalizer(lambda: stage.spark.conf.unset(_ALWAYS_NULLABLE))
    stage.put(["a", "a", "b"])
    run(stage.spark.readStream.format("release100").options(**stage.options()).load())
    stage.put(["a", "c"])
    with pytest.raises(Exception, match="STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"):
        run(stage.load())
    names = {"orders": stage.load(), "F": functions}
    page = Path(__file__).parents[2] / "docs" / "deploying.md"
    (said,) = re.findall(r"`(orders\.withColumn.*)`", page.read_text())
    run(eval(said, names))
    assert found == ({"a": 3, "b": 1, "c": 1} if state == "groupBy" else {"a": 1, "b": 1, "c": 1})


def later_than(stage: Stage, moment: float) -> None:
    """Wait for the next second: a time in an iterator request may be cut to whole ones."""
    stage.until(lambda: time.time() > moment + 1.2, "the next second")


@pytest.mark.parametrize("spout", cases("opaque", long=("transactional", "nontransactional")))
def test_a_batch_is_acked_when_spark_has_committed_it(make_stage: Callable[..., Stage], spout: str) -> None:
    stage = make_stage(2)
    put = stage.put(range(12))
    query = stage.start_plain(text_of(stage.load(spout=spout, maxRecordsPerTrigger=6)))

    def done() -> dict[str, str | None]:
        return {shard: node.checkpoint for shard, node in stage.store.shards.checkpoints().items()}

    last = {id_.partition("/")[2].partition(":")[0]: id_.partition(":")[2] for id_ in put}
    stage.until(lambda: done() == last, "checkpoints at the last records")
    commits = Path(stage.at("spark"), "commits")
    assert len(list(commits.glob("[0-9]*"))) >= stage.settled
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(sizes) == 12
    assert max(sizes) <= 6
    query.stop()
    assert stage.output() == sorted(map(str, range(12)))

    stage.put(["later"])
    ended(stage.start_plain(text_of(stage.load(spout=spout)), availableNow=True))
    assert stage.output() == sorted([*map(str, range(12)), "later"])


def test_a_worker_that_has_read_does_not_collect_what_it_has_loaded(stage: Stage) -> None:
    told = Path(stage.at("told"))

    def telling(rows: Iterator[pa.RecordBatch], way: str) -> Iterator[pa.RecordBatch]:
        """Write down how many objects the worker has exempted from its collections in a task."""
        before = gc.get_freeze_count()
        yield from rows
        with told.open("a") as file:
            print(way, os.getpid(), gc.get_freeze_count() - before, file=file)

    class Batch(KinesisBatchReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return telling(super().read(partition), "batch")

    class Stream(KinesisTridentReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return telling(super().read(partition), "stream")

    class Telling(KinesisTridentSource):
        @classmethod
        def name(cls) -> str:
            return "telling"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Batch(SourceOptions.parse_batch(dict(self.options)), Loaded(int(time.time() * 1000)))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Stream(SourceOptions.parse(dict(self.options)))

    stage.spark.dataSource.register(Telling)
    stage.put(range(6))
    options = stage.options(maxRecordsPerTrigger=2)
    rows = text_of(stage.spark.readStream.format("telling").options(**options).load()).writeStream
    out = (
        rows.format("parquet").option("path", stage.at("out")).option("checkpointLocation", stage.at("spark"))
    )
    ended(start_available_now(out, SourceOptions.parse(options)))
    batch = stage.spark.read.format("telling").options(**stage.options()).load()
    assert [len(batch.collect()) for _ in range(4)] == [6] * 4
    tasks, ways = defaultdict(list), set()
    for line in told.read_text().splitlines():
        way, worker, exempted = line.split()
        ways.add(way)
        tasks[worker].append(int(exempted))
    assert ways == {"stream", "batch"}
    # The first task makes the worker's client of Kinesis, of some thousand objects, or fewer where the worker has had
    # one of another server before; the tasks of both ways find it.
    for first, *others in tasks.values():
        assert first > 0, tasks
        assert all(other < 1_000 for other in others), tasks


@pytest.mark.long
def test_latest_takes_what_comes_after_the_first_start(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_scripted_source.py."""
    stage.put(["before"])
    later_than(stage, time.time())
    query = stage.start_plain(text_of(stage.load(startingPosition="LATEST")))
    stage.until(stage.started, "the start position")
    query.stop()
    assert stage.settled == 0

    # Nothing was read yet, but the first start stands.
    stage.put(["while stopped"])
    later_than(stage, time.time())
    ended(stage.start_plain(text_of(stage.load(startingPosition="LATEST")), availableNow=True))
    assert stage.output() == ["while stopped"]
    ended(stage.start_plain(text_of(stage.load(startingPosition="LATEST")), availableNow=True))
    assert stage.output() == ["while stopped"]


@pytest.mark.long
def test_a_time_to_start_at(stage: Stage) -> None:
    """Spark does not see where reading starts; tests/spout/planner/shards/test_lister.py says where."""
    stage.put(["before"])
    later_than(stage, time.time())
    moment = datetime.now(UTC)
    stage.put(["after"])
    position = f"AT_TIMESTAMP {moment.isoformat()}"
    ended(stage.start_plain(text_of(stage.load(startingPosition=position)), availableNow=True))
    assert stage.output() == ["after"]


def test_one_task_reads_several_shards(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(3)
    put = stage.put(range(30))
    tasks: dict[int, int] = {}
    taken: list[str] = []

    def write(rows: DataFrame, batch: int) -> None:
        tasks[batch] = rows.rdd.getNumPartitions()
        taken.extend(row.messageId for row in rows.select("messageId").collect())

    ended(stage.start_plain(stage.load(shardsPerTask=2), write, availableNow=True))
    assert tasks[0] == 2
    assert sorted(taken) == sorted(put)
    assert len({id_.partition(":")[0] for id_ in put}) == 3


@pytest.mark.long
def test_available_now_drains_retries_and_stops(stage: Stage) -> None:
    """test_failing_records.py drains a record that fails more often."""
    taken = Taken()

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"flaky" and record.attempt <= 2:
            raise ValueError
        return record.data.decode(), record.attempt

    stage.put(["good", "flaky"])
    stage.drained(stage.parsed(parse), taken)
    assert [row for rows in taken.batches.values() for row in rows] == [("good", 1), ("flaky", 3)]
    assert not stage.inflight_of().waiting


@pytest.mark.long
def test_an_idle_query_runs_no_batches_and_looks_as_often_as_its_shards_are_idle(
    own_stage: Callable[..., Stage], moto: MotoInHand
) -> None:
    """Without Spark this is in tests/spout/test_scripted_source.py."""
    stage = own_stage(2)
    put = stage.put(range(10))
    assert len({id_.partition(":")[0] for id_ in put}) == 2
    query = stage.start_plain(text_of(stage.load()))

    def batches() -> int:
        return len(list(Path(stage.at("spark"), "offsets").glob("[0-9]*")))

    stage.until(
        lambda: 0 < stage.settled == batches() and sum(p["numInputRows"] for p in query.recentProgress) == 10,
        "the batches of all records",
    )
    settled = stage.settled

    def look(times: int) -> tuple[dict[str, int], float]:
        counts, at = moto.reads(stage.stream)
        assert len(counts) == 2
        stage.until(
            lambda: all(now >= counts[shard] + times for shard, now in moto.reads(stage.stream)[0].items()),
            "looks",
        )
        return counts, at

    # Those that come sooner, because of the last record.
    look(WARM_MS // WARM_GAP_MS)
    before, since = look(4)
    shards = sorted(before)
    after, until = moto.reads(stage.stream)
    for shard in shards:
        assert after[shard] - before[shard] <= (until - since) * 1000 / IDLE_MS + 2
    assert stage.settled == batches() == settled

    stage.put(["news"], 0)
    stage.until(lambda: stage.settled > settled, "the batch of a new record")
    query.stop()
    assert stage.output() == sorted([*map(str, range(10)), "news"])


def test_an_idle_query_does_not_fall_behind_its_trigger_interval(stage: Stage) -> None:
    """Spark warns of each trigger that takes longer: an idle one once waited for a second, also where Spark waits."""
    every_trigger = "spark.sql.streaming.noDataProgressEventInterval"
    stage.put(["first"])
    stage.spark.conf.set(every_trigger, "0")
    try:
        query = stage.start_plain(text_of(stage.load()), processingTime="1 second")
    finally:
        stage.spark.conf.unset(every_trigger)

    def took() -> list[int]:
        idle = [one for one in query.recentProgress if not one["numInputRows"]]
        return [one["durationMs"]["triggerExecution"] for one in idle]

    stage.until(lambda: len(took()) >= 5 and max(took()[-3:]) < 1000, "triggers within their interval")
    stage.put(["second"])
    stage.until(lambda: stage.settled == 2, "the batch of a new record")
    query.stop()
    assert stage.output() == ["first", "second"]
