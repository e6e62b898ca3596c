"""`spark.read`: a batch of what is in the streams, the same for every action, without ZooKeeper."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
import pytest
from older_spark import needs_filters
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from stage import Stage

from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


def texts(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.data).decode() for row in frame.select("data").collect())


def test_a_batch_reads_closed_shards_and_several_streams_and_is_the_same_for_each_action(
    spark: SparkSession,
) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("split")
        kinesis.create_stream("other")
        (parent,) = kinesis.shards("split")
        for text in (b"a", b"b"):
            kinesis.put("split", parent, text)
        _, child = kinesis.split("split", parent)
        kinesis.put("split", child, b"c")
        kinesis.put("other", kinesis.shards("other")[0], b"d")
        check_batches(
            spark,
            {
                "streamName": "split,other",
                "region": "us-east-1",
                "endpointUrl": kinesis.endpoint_url,
                "minFetchPeriod": "10ms",
            },
        )


def check_batches(spark: SparkSession, options: dict[str, str]) -> None:
    """Read what is there, some of it, and what cannot be read."""
    frame = spark.read.format("kinesis-trident").options(**options).load()
    assert frame.schema == SCHEMA
    assert texts(frame) == ["a", "b", "c", "d"]
    rows = frame.select("messageId", "attempt", "txid").collect()
    assert len({row.messageId for row in rows}) == 4
    assert {(row.attempt, row.txid) for row in rows} == {(1, 0)}

    sequence = rows[0].messageId
    stream, _, place = sequence.partition("/")
    shard, _, number = place.partition(":")
    after = f'{{"{stream}": {{"{shard}": "AFTER_SEQUENCE_NUMBER {number}"}}, "*": "TRIM_HORIZON"}}'
    rest = spark.read.format("kinesis-trident").options(**options, startingPosition=after).load()
    assert rest.filter(rest.messageId == sequence).count() == 0
    latest = {"startingPosition": "LATEST", "consumerMode": "efo", "maxFetchTime": "5s"}
    assert texts(spark.read.format("kinesis-trident").options(**options, **latest).load()) == []
    with pytest.raises(
        AnalysisException, match=r"a batch reads all records .* use limit\(\) of the DataFrame"
    ):
        spark.read.format("kinesis-trident").options(**options, maxRecordsPerTrigger=10).load()


def test_the_options_of_an_application_do_for_a_batch_too(stage: Stage) -> None:
    stage.put(["a"])
    given = stage.options(startingPosition="TRIM_HORIZON")
    ended = given | {"endingPosition": "LATEST"}
    named = {key: value for key, value in given.items() if not key.startswith("zookeeper.")}
    for options in (given, ended, named):
        assert texts(stage.spark.read.format("kinesis-trident").options(**options).load()) == ["a"]


@pytest.mark.long
def test_what_arrives_after_a_frame_was_loaded_is_not_in_it(stage: Stage) -> None:
    """Without Spark this is in tests/spout/test_batch_read.py."""
    stage.put(["a"])
    options = {"streamName": stage.stream, "endpointUrl": stage.endpoint, "minFetchPeriod": "10ms"}
    frame = stage.spark.read.format("kinesis-trident").options(**options).load()
    # The first action waits until nothing that belongs to it can still arrive.
    assert texts(frame) == ["a"]
    stage.put(["late"])
    assert texts(frame) == ["a"]
    again = stage.spark.read.format("kinesis-trident").options(**options).load()
    assert texts(again) == ["a", "late"]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that pushes filters into Python sources, in a time zone of its own."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@needs_filters
def test_filters_choose_what_is_read(pushing: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    ago = 7_200_000
    left = set(Path(tempfile.gettempdir()).glob("kinesis-trident-filters-*"))
    with ScriptedKinesis(quotas=Quotas.none(), clock=lambda: int(time.time() * 1000) - ago) as kinesis:
        kinesis.create_stream("orders", 2)
        first, second = kinesis.shards("orders")
        arrived = []
        for minute in range(120):
            arrived.append(kinesis.now)
            kinesis.put("orders", first, str(minute).encode())
            kinesis.put("orders", second, b"other")
            kinesis.advance(60)
        options = {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": kinesis.endpoint_url,
            "minFetchPeriod": "10ms",
            "maxRecordsPerFetch": "5",
            "filterPushdown": "true",
        }

        def orders() -> DataFrame:
            return pushing.read.format("kinesis-trident").options(**options).load()

        edge = pushing.createDataFrame([(arrived[60] / 1000, arrived[90] / 1000)], "a double, b double")
        begin, end = edge.selectExpr("string(timestamp_seconds(a))", "string(timestamp_seconds(b))").first()
        hour = f"approximateArrivalTimestamp >= '{begin}' AND approximateArrivalTimestamp < '{end}'"
        found = orders().filter(f"{hour} AND shardId = '{first}' AND length(data) > 0")
        assert sorted(int(text) for text in texts(found)) == list(range(60, 90))
        calls = kinesis.calls["GetRecords", first]
        assert calls <= 8
        assert kinesis.calls["GetRecords", second] == 0
        found.explain("formatted")
        plan = capsys.readouterr().out
        assert "PushedFilters: [" in plan
        assert f"EqualTo(shardId,{first})" in plan
        assert "length(data" in plan.split("Condition", 1)[1]

        orders().createOrReplaceTempView("orders")
        one, other = f"shardId = '{first}'", f"shardId = '{second}'"
        assert pushing.sql(f"SELECT * FROM orders WHERE {one}").count() == 120
        # This Spark would give the rows of one of them twice.
        frame = orders()
        if not hasattr(DataSourceReader, "pushLimit"):
            with pytest.raises(Exception, match=r"Call load\(\) for each filter"):
                frame.filter(one).union(frame.filter(other)).count()
        assert orders().filter(one).union(orders().filter(other)).count() == 240
        pushing.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
            orders().filter(one).count()
        plain = {key: value for key, value in options.items() if key != "filterPushdown"}
        frame = pushing.read.format("kinesis-trident").options(**plain).load()
        assert frame.filter(one).union(frame.filter(other)).count() == 240
        pushing.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        assert frame.filter(one).union(frame.filter(other)).count() == 240
        assert (frame.filter(one).count(), frame.count()) == (120, 240)
    # What is noted of a load is in a folder of Spark, which goes with the session.
    assert set(Path(tempfile.gettempdir()).glob("kinesis-trident-filters-*")) <= left


def load(spark: SparkSession, kinesis: ScriptedKinesis, **given: str) -> DataFrame:
    options = {"streamName": "orders", "region": "us-east-1", "endpointUrl": kinesis.endpoint_url}
    return spark.read.format("kinesis-trident").options(**options, minFetchPeriod="10ms", **given).load()


def test_what_a_split_moves_before_the_end_is_in_each_action(spark: SparkSession) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", 1)
        (shard,) = kinesis.shards("orders")
        kinesis.put("orders", shard, b"a")
        frame = load(spark, kinesis, endingPosition=f"AT_TIMESTAMP {kinesis.now + 600_000}")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(texts, frame)
            while not kinesis.calls["GetRecords", shard]:
                wait([first], 0.05)
            left, right = kinesis.split("orders", shard)
            kinesis.put("orders", left, b"b")
            kinesis.put("orders", right, b"c")
            kinesis.advance(601)
            assert first.result() == ["a", "b", "c"]
        assert texts(frame) == ["a", "b", "c"]


def test_a_batch_that_loses_records_is_an_error(spark: SparkSession) -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", 1)
        (shard,) = kinesis.shards("orders")
        for hour in range(24):
            kinesis.put("orders", shard, f"{hour:02}".encode())
            kinesis.advance(3600)
        frame = load(spark, kinesis)
        lenient = load(spark, kinesis, failOnDataLoss="false")
        assert len(texts(frame)) == 23
        kinesis.advance(36_000)
        with pytest.raises(PythonException, match=r"DataLossError: .* may have expired unread"):
            frame.count()
        assert len(texts(lenient)) == 13
        again = load(spark, kinesis)
        assert len(texts(again)) == 13
        kinesis.recreate("orders")
        with pytest.raises(PythonException, match=r"StreamRecreatedError: .* was deleted and created again"):
            again.count()


@pytest.mark.long
@pytest.mark.parametrize("windows", [24, 200])
def test_a_worker_that_reads_many_windows_keeps_one_client(spark: SparkSession, windows: int) -> None:
    """Without Spark, and always with 200 windows, this is in tests/spout/test_many_windows.py."""

    def measure(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = sum(batch.num_rows for batch in rows)
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        yield pa.RecordBatch.from_pydict(
            {"pid": [os.getpid()], "count": [count], "pages": [pages], "descriptors": [descriptors]}
        )

    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", 1)
        (shard,) = kinesis.shards("orders")
        kinesis.put("orders", shard, b"a")
        begun = kinesis.now
        kinesis.advance(2)
        used: dict[int, list[tuple[int, int]]] = {}
        for window in range(windows):
            start = f"AT_TIMESTAMP {begun - 1000 - window}"
            frame = load(
                spark, kinesis, startingPosition=start, endingPosition=f"AT_TIMESTAMP {begun + 1000}"
            )
            (row,) = frame.mapInArrow(measure, "pid long, count long, pages long, descriptors long").collect()
            assert row["count"] == 1
            used.setdefault(row.pid, []).append((row.pages, row.descriptors))
        for each in used.values():
            # The first tasks of a worker load what all need.
            assert each[-1][0] - each[min(3, len(each) - 1)][0] < 30 * 2**20 // 4096
            assert each[-1][1] - each[min(3, len(each) - 1)][1] <= 4


def test_the_first_rows_leave_after_the_first_page(spark: SparkSession) -> None:
    """A second page would take 5 minutes: neither `limit` nor `show` waits for one, or for other shards."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 4)
        first, *others = kinesis.shards("orders")
        for shard in (first, *others):
            for _ in range(100):
                kinesis.put("orders", shard, bytes(10_000))
        options = {"streamName": "orders", "region": "us-east-1", "endpointUrl": kinesis.endpoint_url}
        frame = (
            spark.read.format("kinesis-trident")
            .options(**options, maxRecordsPerFetch="20", minFetchPeriod="5m")
            .load()
        )
        for look in (lambda: frame.limit(10).collect(), lambda: frame.show(9), lambda: frame.take(1)):
            kinesis.calls.clear()
            look()
            assert kinesis.calls["GetRecords", first] == 1
            assert sum(kinesis.calls["GetRecords", shard] for shard in others) == 0
