"""Watermarks of Spark and of Trident over a backlog of unequal, resharded shards: no row is late."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_blocks import PAGES, blocks_of
from harness import PATIENCE, Job
from pyspark.sql import DataFrame, functions as F
from stage import AVAILABLE_NOW, Stage, ended, start_available_now
from thorough import cases

from kinesis_trident import Acks, Outcomes, reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.trident import Count, TridentTopology
from kinesis_trident.trident.stores import MemoryMapState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
HOURS = 10
RATES = (1, 60, 100, 1, 30, 100, 1, 100)
"""Records an hour of each shard."""


@dataclass(frozen=True)
class Backlog:
    """Ten hours of records in eight shards, of which one is split and two are merged, and their number by the hour."""

    kinesis: ScriptedKinesis
    hourly: Counter[int]

    def options(self, zookeeper: str, app: str, skew: str) -> dict[str, str]:
        return {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": self.kinesis.endpoint_url,
            "applicationName": app,
            "zookeeper.hosts": zookeeper,
            "startingPosition": "TRIM_HORIZON",
            "maxFetchRecordsPerShard": "300",
            "maxShardSkew": skew,
            "minFetchPeriod": "0ms",
        }

    def load(self, spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, skew: str) -> DataFrame:
        given = self.options(zookeeper.hosts, app, skew)
        return spark.readStream.format("kinesis-trident").options(**given).load()


@pytest.fixture(scope="module")
def backlog() -> Iterator[Backlog]:
    began = int((time.time() - HOURS * 3600) * 1000)
    with ScriptedKinesis(clock=lambda: began, quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", len(RATES))
        places = [[shard] for shard in kinesis.shards("orders")]
        puts = sorted(
            ((n + 0.5) / rate, place, n) for place, rate in enumerate(RATES) for n in range(rate * HOURS)
        )
        hourly: Counter[int] = Counter()
        at = 0.0
        for hours, place, n in puts:
            kinesis.advance((hours - at) * 3600)
            if at < 4 <= hours:
                places[2] = [*kinesis.split("orders", *places[2])]
            if at < 7 <= hours:
                places[5] = places[6] = [kinesis.merge("orders", *places[5], *places[6])]
            at = hours
            kinesis.put("orders", places[place][n % len(places[place])], b"x")
            hourly[kinesis.now // HOUR_MS] += 1
        kinesis.advance((HOURS - at) * 3600)
        yield Backlog(kinesis, hourly)


@pytest.mark.parametrize("skew", cases("2h", long=("off",)))
def test_a_watermark_drops_nothing_of_shards_in_step(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, backlog: Backlog, app: str, tmp_path: Path, skew: str
) -> None:
    stream = backlog.load(spark, zookeeper, app, skew)
    block, _ = blocks_of(PAGES["watermarks.md"])
    # A minute more than the option.
    names = {"stream": stream, "F": F}
    exec(block.text.replace("10 minutes", "121 minutes"), names)
    out = (
        names["counts"]
        .writeStream.format("memory")
        .queryName(app.replace("-", "_"))
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
    )
    query = ended(start_available_now(out, stream))
    last = spark.table(app.replace("-", "_")).groupBy("window").agg(F.max("count").alias("count"))
    rows = last.select(F.unix_timestamp("window.start").alias("second"), "count").collect()
    counted = {row["second"] * 1000 // HOUR_MS: row["count"] for row in rows}
    dropped = sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress)
    assert (counted == backlog.hourly, dropped > 0) == ((True, False) if skew == "2h" else (False, True))


@pytest.mark.long
@pytest.mark.parametrize("skew", ["2h", "off"])
def test_no_tuple_is_late_for_the_windows_of_trident(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, backlog: Backlog, app: str, tmp_path: Path, skew: str
) -> None:
    """tests/spout/test_in_step.py has no late row, and tests/trident/windowing the windows, both without Spark."""
    stream = backlog.load(spark, zookeeper, app, skew)
    topology = TridentTopology(spark)
    topology.new_stream("orders", stream).tumbling_window(
        timedelta(hours=1),
        MemoryMapState.opaque(),
        Count(),
        ["count"],
        lateness=timedelta(minutes=121),
    )
    running = topology.start(checkpointLocation=str(tmp_path), trigger=AVAILABLE_NOW)
    try:
        assert running.await_termination(PATIENCE)
    finally:
        running.stop()
    (metrics,) = running.state_metrics().values()
    assert (metrics.late > 0) == (skew == "off")


def test_what_comes_again_keeps_its_arrival_and_tells_the_attempt(stage: Stage) -> None:
    _, block = blocks_of(PAGES["watermarks.md"])
    stage.put(["once", "twice"])
    names = {"stream": stage.load(), "reliable": reliable}
    exec(block.text, names)
    taken: list[tuple[str, int, datetime]] = []

    def write(rows: DataFrame, _txid: int, outcomes: Outcomes) -> None:
        taken.extend((row.text, row.attempt, row.arrived) for row in rows.collect())
        outcomes.fail(rows.where("text = 'twice' and attempt = 1"), "not yet")

    ended(stage.start(names["rows"], write, trigger=AVAILABLE_NOW))
    assert [row[:2] for row in sorted(taken)] == [("once", 1), ("twice", 1), ("twice", 2)]
    assert len({arrived for text, _, arrived in taken if text == "twice"}) == 1


@pytest.fixture
def two_hours() -> Iterator[ScriptedKinesis]:
    """A shard with two records, of which the first arrived two hours before the second."""
    with ScriptedKinesis(clock=lambda: int((time.time() - 2 * 3600) * 1000), quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders")
        (shard,) = kinesis.shards("orders")
        kinesis.put("orders", shard, b"early")
        kinesis.advance(2 * 3600)
        kinesis.put("orders", shard, b"late")
        yield kinesis


def test_a_watermark_drops_what_a_plain_query_delivers_again(
    stage: Stage, two_hours: ScriptedKinesis
) -> None:
    """Its window keeps the count of the first delivery."""
    backlog, taken = Backlog(two_hours, Counter()), stage.app.replace("-", "_")
    given = backlog.options(stage.hosts, stage.app, "off")
    given |= {"ackMode": "explicit", "messageTimeout": "1h", "retryBackoff": "100ms..200ms x2"}
    stream = stage.spark.readStream.format("kinesis-trident").options(**given).load()
    block, _ = blocks_of(PAGES["watermarks.md"])
    names = {"stream": stream, "F": F}
    exec(block.text, names)
    out = names["counts"].writeStream.format("memory").queryName(taken).outputMode("update")
    query = out.option("checkpointLocation", stage.at("spark")).start()
    stage.queries.append(query)

    def count(what: str) -> int:
        return sum(int(p["stateOperators"][0][what]) for p in query.recentProgress if p["stateOperators"])

    stage.until(lambda: stage.spark.table(taken).count() == 2, "both windows")
    early = stage.spark.read.format("kinesis-trident").options(**given).load().where("data = 'early'")
    with Acks(stage.app, given) as acks:
        assert acks.fail([early.first().messageId], "not yet") == 1
    stage.until(lambda: count("numRowsDroppedByWatermark") == 1, "the row is dropped")
    query.stop()
    assert query.exception() is None
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 3
    assert [row["count"] for row in stage.spark.table(taken).collect()] == [1, 1]


def test_reliable_delivers_again_late_and_the_attempt_tells_which(
    stage: Stage, two_hours: ScriptedKinesis
) -> None:
    """No frame drops it; whoever reads the sink with a watermark drops it, and finds it by its attempt."""
    _, block = blocks_of(PAGES["watermarks.md"])
    given = Backlog(two_hours, Counter()).options(stage.hosts, stage.app, "off")
    given["retryBackoff"] = "100ms..200ms x2"
    two_hours.put("orders", two_hours.shards("orders")[0], b"later")
    stream = stage.spark.readStream.format("kinesis-trident").options(**given).load()
    names = {"stream": stream, "reliable": reliable}
    exec(block.text, names)
    sink = stage.at("sink")

    def write(rows: DataFrame, _txid: int, outcomes: Outcomes) -> None:
        fails = F.expr("text = 'early' and attempt = 1")
        outcomes.fail(rows.where(fails), "not yet")
        # A file each: Spark drops what is late by the watermark of the batch before the last one.
        for text in ("late", "later", "early"):
            if (row := rows.where(~fails).where(F.col("text") == text)).count():
                row.coalesce(1).write.mode("append").parquet(sink)

    ended(stage.start(names["rows"], write, trigger=AVAILABLE_NOW))
    rows = stage.spark.read.parquet(sink)
    assert sorted((row.text, row.attempt) for row in rows.collect()) == [
        ("early", 2),
        ("late", 1),
        ("later", 1),
    ]
    counts = (
        stage.spark.readStream.schema(rows.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(sink)
        .withWatermark("arrived", "10 minutes")
        .groupBy(F.window("arrived", "1 hour"))
        .agg(F.count("text").alias("count"), F.max("attempt").alias("attempt"))
    )
    taken = stage.app.replace("-", "_")
    out = counts.writeStream.format("memory").queryName(taken).outputMode("update")
    query = ended(out.option("checkpointLocation", stage.at("downstream")).trigger(**AVAILABLE_NOW).start())
    counted = stage.spark.table(taken).groupBy("window").agg(F.max("count"), F.max("attempt")).collect()
    assert (sum(row[1] for row in counted), {row[2] for row in counted}) == (2, {1})
    assert sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress) == 1
    assert [row.text for row in rows.where("attempt > 1").collect()] == ["early"]


POINTS = ("planned", "before-pin", "after-pin", "stored", "before-write", "written", "committed", "settling")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("skew", ["20m", "off"])
def test_no_row_is_late_however_often_the_job_is_killed(
    zookeeper: EmbeddedZooKeeper, backlog: Backlog, app: str, tmp_path: Path, skew: str
) -> None:
    # For as many batches as there are deaths, and some between them.
    options = backlog.options(zookeeper.hosts, app, skew) | {"maxFetchRecordsPerShard": "30"}
    job = Job(tmp_path, options, "watermark_driver.py")
    points, after = (POINTS, 2) if skew == "20m" else ((), 0)
    for point in points:
        job.start(point, after)
        after = job.kill_at_point().txid + 1
    job.start()
    assert job.finish() == 0, job.tail()
    counted = {hour: count for _, rows in sorted(job.output().items()) for hour, count in rows}
    dropped = [int(line) for line in (tmp_path / "dropped").read_text().split()]
    assert (counted == backlog.hourly, any(dropped)) == ((True, False) if points else (False, True))
