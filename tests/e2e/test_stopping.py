"""`kinesis_trident.stop` ends a query after the current batch: nothing is left to replay, no process is left behind."""

from __future__ import annotations

import logging
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from harness import PATIENCE
from processes import alive
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of

from kinesis_trident import stop
from kinesis_trident.bolt.cancelling import cancelling
from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.bolt.foreach_batch import BatchHandler, why_of
from kinesis_trident.spout.errors import StopTimeoutError
from kinesis_trident.spout.graceful_stop import stop_when_drained
from kinesis_trident.spout.spark_plan import source_of


def planner_of(stage: Stage) -> psutil.Process:
    """The planning process that holds the application's ephemeral node."""
    owner = stage.until(stage.store.epochs.owner, "the planning process")
    return psutil.Process(owner.pid)


def is_stop(spark: SparkSession, query: StreamingQuery, text: str) -> bool:
    """Ask Spark whether it takes the text of a batch function's error for that of a query that was stopped."""
    context, java = spark.sparkContext, spark._jvm
    assert java is not None
    streaming = java.org.apache.spark.sql.execution.streaming
    execution = (streaming.runtime if spark.version >= "4.1" else streaming).StreamExecution
    context.setLocalProperty("spark.jobGroup.id", query.runId)
    try:
        return bool(execution.isInterruptionException(java.py4j.Py4JException(text), spark._jsc.sc()))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def ends(stage: Stage) -> list[str]:
    """How the runs have ended that said so."""
    return [one.how for one in stage.store.ends.runs()]


def goes_on_and_takes(stage: Stage, taken: Taken, everything: list[str]) -> None:
    """Start the query again: with what it took before, each record was taken once."""
    ended(stage.start(stage.parsed(), taken, trigger=AVAILABLE_NOW))
    assert taken.texts == sorted(everything)
    assert ends(stage)[-1] == "finished"


def test_stop_ends_after_the_batch_in_hand(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    taken = Taken()
    in_hand, go_on = threading.Event(), threading.Event()

    def write(rows: DataFrame, txid: int) -> None:
        in_hand.set()
        assert go_on.wait(PATIENCE)
        taken(rows, txid)

    stage.put(range(10))
    query = stage.start(stage.parsed(), write)
    assert in_hand.wait(PATIENCE)
    planner = planner_of(stage)
    with pytest.raises(StopTimeoutError, match=r"did not end within 0\.1 s; the query keeps running"):
        stop(query, timeout=0.1)
    assert query.isActive

    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop, query)
        stage.until(lambda: stage.zookeeper.exists(stage.layout.stop), "the request to stop")
        assert not stopping.done()
        # What comes after the request is for the next run.
        stage.put(["later"])
        go_on.set()
        stopping.result(PATIENCE)
    assert not query.isActive
    assert query.exception() is None
    assert stage.settled == len(taken.batches)
    assert stage.store.epochs.owner() is None
    stage.until(lambda: not alive(planner), "the end of the planning process")
    assert set(taken.texts) >= {str(n) for n in range(10)}
    # What was asked for is no reason to warn.
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []
    goes_on_and_takes(stage, taken, [*map(str, range(10)), "later"])


def test_stop_drains_first_where_that_is_asked(stage: Stage) -> None:
    taken = Taken()

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data in (b"3", b"7") and record.attempt <= 1 + (record.data == b"7") * 9:
            raise ValueError
        return record.data.decode(), record.attempt

    stage.put(range(10))
    options = {"maxRecordsPerTrigger": 3, "retryLimit": 1, "deadLetter": stage.at("letters")}
    query = stage.start(stage.parsed(parse, **options), taken)
    stop(query, PATIENCE, drain=True)
    assert query.exception() is None
    assert taken.texts == [str(n) for n in range(10) if n != 7]
    assert [letter.data for letter in stage.letters()] == [b"7"]
    assert not stage.inflight_of().waiting
    assert ends(stage)[-1] == "finished"


def test_a_query_that_was_not_drained_in_time_reads_on(stage: Stage) -> None:
    taken, begun, allowed = Taken(), threading.Semaphore(0), threading.Semaphore(0)

    def write(rows: DataFrame, txid: int) -> None:
        begun.release()
        assert allowed.acquire(timeout=PATIENCE)
        taken(rows, txid)

    stage.put(range(3))
    query = stage.start(stage.parsed(maxRecordsPerTrigger=1), write)
    assert begun.acquire(timeout=PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop, query, 5, drain=True)
        stage.until(lambda: stage.zookeeper.exists(stage.layout.stop), "the request to stop")
        allowed.release()
        # The next batch is planned by a run that drains.
        assert begun.acquire(timeout=PATIENCE)
        with pytest.raises(StopTimeoutError, match=r"was not drained within 5 s; the query keeps running"):
            stopping.result(PATIENCE)
    stage.put(["later"])
    allowed.release(100)
    stage.until(lambda: taken.texts == ["0", "1", "2", "later"], "what came after the drain")
    stop(query, PATIENCE)
    # Of the planning process that Spark ends, too, if it is quick enough to say so.
    assert set(ends(stage)) == {"stopped"}


def test_a_query_that_is_to_drain_ends_with_its_own_error(stage: Stage) -> None:
    stream = stage.load(streamName="missing")
    query = stream.writeStream.format("noop").option("checkpointLocation", stage.at("spark")).start()
    stop_when_drained(query, source_of(stream)[0])
    assert "StreamMissingError" in error_of(query)


def test_stop_between_two_triggers_settles_the_last_batch(stage: Stage) -> None:
    taken = Taken()
    stage.put(["one"])
    # Spark's triggers are at multiples of their interval since 1970: at a full hour the next one would come at once.
    query = stage.start(stage.parsed(), taken, trigger={"processingTime": "36500 days"})
    stage.until(lambda: query.status["message"] == "Waiting for next trigger", "the long wait")
    assert taken.texts == ["one"]
    assert stage.settled == 0
    planner = planner_of(stage)
    stop(query, timeout=PATIENCE)
    assert stage.settled == 1
    assert stage.store.epochs.owner() is None
    # Of the planning process that Spark ends, too, if it is quick enough to say so.
    assert set(ends(stage)) == {"stopped"}
    stage.until(lambda: not alive(planner), "the end of the planning process")
    stage.put(["two"])
    goes_on_and_takes(stage, taken, ["one", "two"])


def test_a_query_stopped_by_spark_replays_the_batch_in_hand(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, free = stage.folder / "running", stage.folder / "free"
    taken = Taken()
    told: list[str] = []
    handle = BatchHandler.__call__

    def handle_and_tell(handler: BatchHandler, rows: DataFrame, number: int) -> None:
        try:
            handle(handler, rows, number)
        except Exception:
            # What Spark gets of it.
            told.append(traceback.format_exc())
            raise

    monkeypatch.setattr(BatchHandler, "__call__", handle_and_tell)

    def parse(record):  # type: ignore[no-untyped-def]
        import time

        running.touch()
        while not free.exists():
            time.sleep(0.05)
        return record.data.decode(), record.attempt

    stage.put(["one", "two"])
    query = stage.start(stage.parsed(parse), taken)
    stage.until(running.exists, "a task")
    query.stop()
    assert not taken.batches
    assert stage.settled == 0
    [text] = told
    assert "BoltError: the batch is not finished: its Spark jobs were cancelled" in text
    assert is_stop(stage.spark, query, text)
    # Spark leaves the planning process running for a while: it may have said by now that a batch is in hand.
    assert ends(stage) in ([], ["interrupted"])
    free.touch()
    stage.put(["three"])
    ended(stage.start(stage.parsed(parse), taken, trigger=AVAILABLE_NOW))
    assert [text for text, _ in taken.batches[1]] == ["one", "two"]
    assert taken.texts == ["one", "three", "two"]


def test_an_error_of_the_jvm_reaches_a_query_that_is_stopped_meanwhile(stage: Stage) -> None:
    """Spark searches the error of a batch for an interruption then, and its search takes the stack of the JVM."""
    told: list[str] = []

    def write(rows: DataFrame, txid: int) -> None:
        java = rows.sparkSession._jvm
        assert java is not None
        try:
            java.java.util.Optional.empty().get()
        except Exception as error:
            try:
                raise RuntimeError("the lookup has no answer") from error
            except RuntimeError:
                told.append(traceback.format_exc())
                raise

    stage.put(["one"])
    query = stage.start(stage.parsed(), write)
    text = error_of(query)
    with pytest.raises(Py4JJavaError, match="StackOverflowError"):
        is_stop(stage.spark, query, told[0] * 8)
    assert not is_stop(stage.spark, query, text * 8)
    assert "RuntimeError: the lookup has no answer" in text
    assert "java.util.NoSuchElementException" in text
    java = stage.spark._jvm
    assert java is not None
    with (
        pytest.raises(BoltError, match="Spark failed as follows") as raised,
        cancelling(stage.spark.range(1)),
    ):
        java.java.util.Optional.empty().get()
    assert not is_stop(stage.spark, query, "".join(traceback.format_exception(raised.value)) * 8)


def test_a_stop_is_told_by_the_cause_of_an_error_too(stage: Stage) -> None:
    rows, group = stage.spark.range(1), "group-of-a-query"
    stage.spark.sparkContext.setLocalProperty("spark.jobGroup.id", group)
    try:
        with pytest.raises(BoltError, match="its Spark jobs were cancelled"), cancelling(rows):
            raise RuntimeError("cannot write") from ValueError(f"job group {group} was cancelled")
        with pytest.raises(RuntimeError, match="cannot write"), cancelling(rows):
            raise RuntimeError("cannot write") from ValueError("no job was cancelled")
    finally:
        stage.spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.long
def test_a_query_that_changes_its_kind_with_a_batch_in_hand_takes_each_record_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """First to a plain query and then back, each time once the sink has the batch: it replaces by txid.

    tests/model/test_kinds.py changes each kind to each other one at each step, without Spark.
    """
    taken = Taken()

    def die(rows: DataFrame, txid: int) -> None:
        taken(rows, txid)
        msg = "the driver is killed"
        raise OSError(msg)

    def write_plain(rows: DataFrame, _batch_id: int) -> None:
        first = rows.head()
        if first is not None:
            texts = rows.selectExpr("cast(data as string) text", "attempt")
            (die if first.txid == 2 else taken)(texts, first.txid)

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "three" and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    stage.put(["one", "two"])
    assert "is killed" in error_of(stage.start(stage.parsed(parse), die))
    ended(stage.start_plain(stage.load(), write_plain, availableNow=True))
    stage.put(["three"])
    assert "is killed" in error_of(stage.start_plain(stage.load(), write_plain))
    assert stage.store.judging.get() is None
    ended(stage.start(stage.parsed(parse), taken, trigger=AVAILABLE_NOW))
    assert {txid: sorted(rows) for txid, rows in taken.batches.items()} == {
        1: [("one", 1), ("two", 1)],
        2: [],
        3: [("three", 2)],
    }
    assert "batch 2 was begun by a plain query" in caplog.text


def test_a_query_that_fails_says_why_where_others_look(stage: Stage) -> None:
    def write(_rows: DataFrame, _txid: int) -> None:
        msg = "the sink is down"
        raise ConnectionError(msg)

    stage.put(["one"])
    query = stage.start(stage.parsed(), write)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.awaitTermination(PATIENCE)
    (end,) = stage.store.ends.runs()
    assert (end.epoch, end.how, end.why) == (1, "failed", "ConnectionError: the sink is down")


def test_a_batch_that_waits_for_its_next_attempt_is_stopped(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def parse(record):  # type: ignore[no-untyped-def]
        raise KeyError(record.data)

    stage.put(range(20))
    stream = stage.parsed(parse, maxFailedShare=0.5, retryBackoff="1h..1h x1")
    query = stage.start(stream, Taken(), batch_retries=5)
    stage.until(lambda: "fails as a whole" in caplog.text, "the first attempt")
    query.stop()
    assert not query.isActive
    assert "failed" not in ends(stage)
    ended(stage.start(stage.parsed(maxFailedShare=0.5), taken := Taken(), trigger=AVAILABLE_NOW))
    assert [attempt for rows in taken.batches.values() for _, attempt in rows] == [1] * 20


def test_why_a_call_of_the_jvm_failed_is_in_its_second_line() -> None:
    said = "An error occurred while calling o65.save.\n: org.apache.spark.SparkException: Job aborted.\n\tat org..."
    assert why_of(RuntimeError(said)) == "RuntimeError: org.apache.spark.SparkException: Job aborted."
    assert why_of(ValueError("\n a\nb")) == "ValueError:  a"
    # Half a surrogate, as in the name of a file that is not UTF-8, has no place in a node.
    assert why_of(ValueError("\udce9")) == "ValueError: ?"


class EndsAtOnce(DataSource):
    """A format whose queries end before Spark has made their plans."""

    @classmethod
    def name(cls) -> str:
        return "ends-at-once"

    def schema(self) -> str:
        return "partitionKey string"

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        msg = "no reader today"
        raise RuntimeError(msg)


def test_stop_of_a_query_that_never_came_to_its_plan_tells_why(stage: Stage) -> None:
    stage.spark.dataSource.register(EndsAtOnce)
    other = stage.spark.readStream.format("ends-at-once").load()
    query = stage.start_plain(stage.load().select("partitionKey").union(other))
    with pytest.raises(StreamingQueryException, match="no reader today"):
        stop(query)
    assert not query.isActive
    with pytest.raises(StreamingQueryException, match="no reader today"):
        stop(query)


def test_stop_right_after_start(stage: Stage) -> None:
    taken = Taken()
    stage.put(range(3))
    for _ in range(3):
        query = stage.start(stage.parsed(), taken)
        stop(query, timeout=PATIENCE)
        assert not query.isActive
        assert query.exception() is None
        assert stage.settled == len(taken.batches)
    goes_on_and_takes(stage, taken, ["0", "1", "2"])


def test_stop_finds_the_source_beside_others(stage: Stage) -> None:
    rows: list[str] = []

    def write(frame: DataFrame, _: int) -> None:
        rows.extend(row.text for row in frame.where("text not like 'rate%'").collect())

    stage.put(range(5))
    ours = stage.load().selectExpr("decode(data, 'utf-8') AS text")
    rate = stage.spark.readStream.format("rate").load().selectExpr("concat('rate', value) AS text")
    query = stage.start_plain(rate.union(ours).union(ours), write)
    stage.until(lambda: len(rows) == 10, "the records, twice")
    stop(query, timeout=PATIENCE)
    assert not query.isActive
    assert stage.settled == 1
    assert stage.store.epochs.owner() is None
