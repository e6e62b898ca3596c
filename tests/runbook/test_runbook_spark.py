"""The runbook's errors that need a DataFrame of Spark, or a query that runs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from command_line import Command
from lives import eventually
from night import Night, entry
from older_spark import needs_workers_without_daemon
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident import reliable, stop
from kinesis_trident.bolt.errors import NotBareStreamError
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.spout.errors import NotOurSourceError, StopTimeoutError

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def name(make_stream: Callable[..., str], kinesis: KinesisClient) -> str:
    """A stream with one record."""
    name = make_stream()
    kinesis.put_record(StreamName=name, Data=b"1", PartitionKey="ada")
    return name


@pytest.fixture
def stream(
    spark: SparkSession, kinesis_server: EmbeddedKinesis, zookeeper: EmbeddedZooKeeper, name: str, app: str
) -> DataFrame:
    """The DataFrame of an application of this test's own, on that stream."""
    options = {
        "streamName": name,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": kinesis_server.endpoint_url,
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
    }
    return spark.readStream.format("kinesis-trident").options(**options).load()


Deployed = Callable[..., StreamingQuery]


@pytest.fixture
def deployed(
    spark: SparkSession,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    make_stream: Callable[..., str],
    kinesis: KinesisClient,
    app: str,
    tmp_path: Path,
) -> Iterator[Deployed]:
    """`deployed(is_broken, seen, **options)` runs a query over 20 records, all of which fail if it is broken."""
    name, started = make_stream(), list[StreamingQuery]()
    kinesis.put_records(
        StreamName=name, Records=[{"Data": str(n).encode(), "PartitionKey": "ada"} for n in range(20)]
    )

    def deploy(is_broken: bool, seen: list[tuple[int, int]], **options: object) -> StreamingQuery:
        def parse(record):  # type: ignore[no-untyped-def]
            if is_broken:
                raise KeyError("customer")
            return int(record.data), record.attempt

        given = {
            "streamName": name,
            "startingPosition": "TRIM_HORIZON",
            "endpointUrl": kinesis_server.endpoint_url,
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
            "retryBackoff": "100ms..100ms x1",
            "maxFetchTime": "60s",
            "deadLetter": str(tmp_path / "letters"),
            **options,
        }
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        tracked = reliable(stream).map(parse, "number int, attempt int")
        sink = tracked.for_each_batch(lambda rows, _: seen.extend((row[0], row[1]) for row in rows.collect()))
        query = sink.start(checkpointLocation=str(tmp_path / "checkpoint"), batch_retries=2)
        started.append(query)
        return query

    yield deploy
    for query in started:
        query.stop()


@entry("all-fail")
def test_a_deployment_that_fails_all_records(
    night: Night, deployed: Deployed, command: Command, app: str
) -> None:
    seen: list[tuple[int, int]] = []
    query = deployed(True, seen, retryBackoff="1h..1h x1")
    eventually(lambda: "all-fail" in command("check", app, "--json")[1], "the finding")
    night.finds(command, app, "all-fail")
    code, out, _ = command("check", app)
    assert (code, out.partition(" ")[0]) == (2, "CRITICAL")
    assert 'code="all-fail",level="critical"' in command("metrics", app)[1]
    night.tries("Stop the query")
    stop(query)
    night.tries("Take back what was deployed last")
    query = deployed(False, seen)
    night.tries("`kinesis-trident retries APP now --all` delivers")
    eventually(lambda: command("retries", app, "now", "--all")[0] == 0, "the records that wait")
    eventually(lambda: len(seen) == 20, "the records")
    assert night.is_over(command, app)


@entry("FailedShareError")
def test_a_batch_of_which_more_fails_than_it_may(
    night: Night, deployed: Deployed, command: Command, app: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    query = deployed(True, seen, maxFailedShare=0.5, retryLimit=0)
    with pytest.raises(StreamingQueryException) as stopped:
        query.awaitTermination(300)
    (said, *_) = [line for line in str(stopped.value).splitlines() if "FailedShareError: " in line]
    night.shows(said[said.index("kinesis_trident.bolt.errors") :])
    (finding,) = [
        one
        for one in json.loads(command("status", app, "--json")[1])["findings"]
        if one["code"] == "all-fail"
    ]
    assert "20 of 20 new records failed" in finding["sentence"]
    assert "uses up a delivery" in finding["remedy"]
    # Nothing waits, nothing is a letter, although a record may not be delivered a second time.
    assert not (tmp_path / "letters").exists()
    assert json.loads(command("retries", app, "--json")[1])["rows"] == []
    night.tries("start the query again")
    query = deployed(False, seen, maxFailedShare=0.5, retryLimit=0)
    eventually(lambda: len(seen) == 20, "the records")
    assert sorted(seen) == [(number, 1) for number in range(20)]


@entry("An exception of your own code")
def test_a_write_that_raises(
    night: Night, stream: DataFrame, command: Command, app: str, tmp_path: Path
) -> None:
    seen: list[int] = []
    is_broken = True

    def write(rows: DataFrame, _txid: int) -> None:
        if is_broken:
            raise KeyError("customer")
        seen.append(rows.count())

    def start() -> StreamingQuery:
        sink = reliable(stream).for_each_batch(write)
        return sink.start(checkpointLocation=str(tmp_path / "checkpoint"), trigger={"availableNow": True})

    with pytest.raises(StreamingQueryException, match="KeyError"):
        start().awaitTermination(300)
    findings = json.loads(command("status", app, "--json")[1])["findings"]
    night.shows(next(one["sentence"] for one in findings if one["code"] == "not-running"))
    night.tries("Mend it, and start the query again")
    is_broken = False
    start().awaitTermination(300)
    assert seen == [1]


@entry("NotOurSourceError")
def test_a_frame_of_another_source(night: Night, spark: SparkSession, stream: DataFrame) -> None:
    with night.raises(NotOurSourceError):
        reliable(spark.readStream.format("rate").load())
    night.tries("the DataFrame that `load()` returned")
    reliable(stream)


@entry("NotBareStreamError")
def test_a_stream_that_was_filtered_before(night: Night, stream: DataFrame) -> None:
    with night.raises(NotBareStreamError):
        reliable(stream.where("partitionKey = 'ada'"))
    night.tries("`.map()`")
    reliable(stream).map(lambda record: None if record.partitionKey != "ada" else record.data, "data binary")


@entry("StopTimeoutError")
def test_a_batch_that_takes_longer_than_the_patience(
    night: Night, stream: DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    in_hand, go_on = threading.Event(), threading.Event()

    def write(rows: DataFrame, _txid: int) -> None:
        if rows.isEmpty():
            return
        in_hand.set()
        assert go_on.wait(300)

    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert in_hand.wait(300)
        with night.raises(StopTimeoutError):
            stop(query, timeout=0.5)
        go_on.set()
        night.tries("Call `stop` again with more time")
        stop(query, timeout=300)
        assert not query.isActive
    finally:
        go_on.set()
        query.stop()


def has_unread(process: psutil.Process) -> bool:
    """Tell whether an end of a connection of a process has something from the other that it has not read."""
    ports = {one.laddr.port for one in process.net_connections("tcp") if one.laddr}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = row.split()
            ends = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
            if ends & ports and int(queues.rpartition(":")[2], 16):
                return True
    return False


@entry("EOFException")
def test_a_planning_process_that_is_killed(
    night: Night,
    stream: DataFrame,
    kinesis: KinesisClient,
    name: str,
    command: Command,
    tmp_path: Path,
    app: str,
) -> None:
    seen: list[bytes] = []

    def start() -> StreamingQuery:
        def write(rows: DataFrame, _txid: int) -> None:
            seen.extend(bytes(row.data) for row in rows.collect())

        return reliable(stream).for_each_batch(write).start(checkpointLocation=str(tmp_path))

    query = start()
    try:
        eventually(lambda: seen, "the first record")
        process = psutil.Process(json.loads(command("owner", app, "--json")[1])["pid"])

        def answers_no_more() -> bool:
            process.suspend()
            eventually(lambda: process.status() == psutil.STATUS_STOPPED, "the process stands still")
            if query.status["message"].startswith("Getting offsets") and not has_unread(process):
                return True
            process.resume()
            return False

        # Spark is waiting for it when it ends. A question that it has not read would be an error of the connection.
        eventually(answers_no_more, "Spark waits for an offset")
        process.kill()
        eventually(lambda: not query.isActive, "the end of the query")
        cause = query._jsq.exception().get().getCause()  # type: ignore[attr-defined]
        asked = next(frame for frame in cause.getStackTrace() if "Runner" in frame.getClassName())
    finally:
        query.stop()
    # As in the driver's log; `query.exception()` has no more to say than that there was a cause.
    night.shows(f"Caused by: {cause}\n... at {asked.getClassName()}.{asked.getMethodName()}")
    night.tries("start the query again with the same checkpointLocation")
    query = start()
    try:
        kinesis.put_record(StreamName=name, Data=b"2", PartitionKey="ada")
        eventually(lambda: len(seen) > 1, "the second record")
    finally:
        query.stop()
    assert seen == [b"1", b"2"]


@needs_workers_without_daemon
@entry("SparkException")
def test_a_python_worker_that_starts_too_late(
    night: Night,
    spark: SparkSession,
    stream: DataFrame,
    kinesis: KinesisClient,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task's worker: that of the source comes from the same place, and Spark gives it as long."""
    late, slow = tmp_path / "late", tmp_path / "python"
    late.touch()
    slow.write_text(f'#!/bin/sh\n[ -e {late} ] && exec sleep 60\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    of_spark = spark.sparkContext._jsc.sc().conf()
    seen: list[bytes] = []

    def write(rows: DataFrame, _txid: int) -> None:
        as_it_is = udf(lambda data: data, "binary")
        seen.extend(bytes(row.data) for row in rows.select(as_it_is("data").alias("data")).collect())

    def run() -> None:
        sink = reliable(stream).for_each_batch(write)
        query = sink.start(
            checkpointLocation=str(tmp_path / "checkpoint"), trigger={"availableNow": True}, batch_retries=0
        )
        try:
            query.awaitTermination(300)
        finally:
            query.stop()

    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", str(slow))
        # Without the daemon each worker is such a process, as the source's planning one always is.
        of_spark.set("spark.python.use.daemon", "false")
        try:
            with pytest.raises(
                StreamingQueryException, match="Python worker failed to connect back"
            ) as stopped:
                run()
        finally:
            of_spark.remove("spark.python.use.daemon")
    (said, *_) = [line for line in str(stopped.value).splitlines() if "failed to connect back" in line]
    night.shows(said[said.index("org.apache.spark.SparkException: Python worker") :])
    assert seen == []
    night.tries("Start the query again with the same checkpointLocation")
    late.unlink()
    run()
    assert seen == [b"1"]
