"""Two runs of one application: the newer one wins, and whatever the older one wakes up to, it changes nothing."""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from harness import PATIENCE
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of
from thorough import cases
from waiting_task import WaitingTask

from kinesis_trident import Outcomes, begin_fenced, foreach_batch, reliable, stop
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.store.epochs import TAKEOVERS
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.options.source import SourceOptions


class Pause:
    """A place in the driver where the first one to come waits; all others pass."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._first = threading.Lock()

    def __call__(self) -> None:
        if self._first.acquire(blocking=False):
            self.reached.set()
            assert self.go_on.wait(PATIENCE), "nobody woke the driver"


@pytest.fixture
def pause() -> Iterator[Pause]:
    one = Pause()
    yield one
    one.go_on.set()


def test_the_newer_of_two_queries_wins(stage: Stage) -> None:
    older, newer = Taken(), Taken()
    stage.put(["one"])
    first = stage.start(stage.parsed(), older)
    stage.until(lambda: stage.settled == 1, "the first query's batch")
    stage.start(stage.parsed(), newer, checkpoint="other")
    said = error_of(first)
    newest = stage.store.epochs.newest_run()
    assert newest is not None
    epoch, run = newest
    assert "FencedError" in said
    assert f"a newer run of application '{stage.app}' on stream '{stage.stream}' has taken over" in said
    assert f"epoch {epoch} on {run.host}, pid {run.pid}" in said
    stage.queries.remove(first)
    # To stop the one that has lost does nothing to the one that has won.
    with pytest.raises(StreamingQueryException, match="FencedError"):
        stop(first)
    stage.put(["two"])
    stage.until(lambda: newer.texts == ["two"], "the second query's batch")
    assert older.texts == ["one"]


@pytest.mark.long
def test_two_loads_of_one_query_fence_each_other_and_are_refused(stage: Stage) -> None:
    """tests/checkpoint/store/test_fencing.py counts takeovers, tests/runbook has the refusal, both without Spark."""
    said = []
    while len(said) <= TAKEOVERS and not any("TakeoverRefusedError" in text for text in said):
        both = stage.load().union(stage.load())
        said.append(error_of(stage.start_plain(both, lambda rows, batch: None, f"spark-{len(said)}")))
    assert "FencedError" in said[0]
    assert "two load() of one query), give each its own applicationName" in said[0]
    assert f"was taken over {TAKEOVERS} times in the last 5 minutes while it ran" in said[-1]
    assert "give each its own applicationName, or stop the other one" in said[-1]


@pytest.mark.parametrize(
    "place", cases("after the write", long=("before the plan is read", "after the plan is read"))
)
def test_a_driver_that_slept_changes_nothing(
    stage: Stage, pause: Pause, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    read_plan = CurrentBatch.newest

    def newest(store: SourceStore, options: SourceOptions) -> CurrentBatch:
        if place == "before the plan is read":
            pause()
        found = read_plan(store, options)
        if place == "after the plan is read":
            pause()
        return found

    monkeypatch.setattr(CurrentBatch, "newest", newest)
    older, newer = Taken(), Taken()
    newer_waits, newer_goes_on = threading.Event(), threading.Event()

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "flaky" and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    def write_older(rows: DataFrame, txid: int) -> None:
        older(rows, txid)
        if place == "after the write":
            pause()

    def write_newer(rows: DataFrame, txid: int) -> None:
        newer(rows, txid)
        newer_waits.set()
        assert newer_goes_on.wait(PATIENCE)

    stage.put(["good", "flaky"])
    sleeping = stage.start(stage.parsed(parse), write_older)
    assert pause.reached.wait(PATIENCE)
    query = stage.start(stage.parsed(parse), write_newer, checkpoint="other", trigger=AVAILABLE_NOW)
    assert newer_waits.wait(PATIENCE)

    # The newer run has the very same batch in hand, and has published nothing yet.
    before = stage.tree()
    pause.go_on.set()
    said = error_of(sleeping)
    assert "FencedError" in said or "StaleBatchError" in said
    after = stage.tree()
    if place == "before the plan is read":
        # It reads the newer run's plan, says that it judges, and takes that back when it has no row of that run.
        note = f"{stage.layout.base}/judging"
        assert after.pop(note)[0] == before.pop(note)[0]
    assert after == before
    newer_goes_on.set()
    ended(query)
    assert newer.batches.pop(1) == [("good", 1)]
    assert [rows for rows in newer.batches.values() if rows] == [[("flaky", 2)]]
    assert not stage.inflight_of().waiting


@pytest.mark.long
@pytest.mark.parametrize("kind", cases("reliable", long=("foreach_batch",)))
def test_a_driver_that_slept_inside_its_write_is_refused_by_the_database(
    stage: Stage, pause: Pause, kind: str
) -> None:
    """tests/test_sinks.py pauses it at each step, without a query."""
    engine = sa.create_engine(f"sqlite:///{stage.folder}/sink.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE taken (text TEXT, txid INTEGER)")

    def write(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        assert (outcomes.application, outcomes.txid) == (stage.app, txid)
        texts = [bytes(row.data).decode() for row in rows.select("data").collect()]
        pause()
        with begin_fenced(engine, outcomes) as connection:
            connection.execute(sa.text("DELETE FROM taken WHERE txid = :txid"), {"txid": txid})
            for text in texts:
                connection.execute(
                    sa.text("INSERT INTO taken VALUES (:text, :txid)"), {"text": text, "txid": txid}
                )

    def start(checkpoint: str) -> StreamingQuery:
        stream = stage.load()
        if kind == "reliable":
            return stage.start(reliable(stream), write, checkpoint=checkpoint)
        return stage.start_plain(stream, foreach_batch(stream, write), checkpoint)

    stage.put(["one", "two"])
    sleeping = start("older")
    assert pause.reached.wait(PATIENCE)
    newer = start("newer")
    stage.until(lambda: stage.settled == 1, "the newer run's batch")
    with engine.begin() as connection:
        # What it wrote is recognised.
        connection.exec_driver_sql("UPDATE taken SET text = text || '!'")
    pause.go_on.set()
    said = error_of(sleeping)
    assert "FencedError" in said
    assert "its epoch is 2, this run has epoch 1" in said
    stage.queries.remove(sleeping)
    newer.stop()
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT text, txid FROM taken ORDER BY text").all()
    assert found == [("one!", 1), ("two!", 1)]
    engine.dispose()


def test_a_driver_that_slept_inside_spark_s_file_sink_adds_nothing(stage: Stage, tmp_path: Path) -> None:
    """A plain query: the batch counts as the run that came to its end first wrote it."""
    task = WaitingTask(tmp_path)
    texts = stage.load().selectExpr("CAST(data AS STRING) AS text")
    stage.put(["one", "two"])
    sleeping = stage.start_plain(texts.mapInArrow(task.function, texts.schema))
    task.reached()
    # Another driver, which Spark would not let into this session under the same id.
    shutil.copytree(stage.at("spark"), stage.at("again"), ignore=shutil.ignore_patterns("*.crc"))
    Path(stage.at("again"), "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    ended(stage.start_plain(texts, checkpoint="again", **AVAILABLE_NOW))
    task.wake()
    said = error_of(sleeping)
    # Spark's sink refuses it, or a task of it that begins later does.
    assert "Race while writing batch 0" in said or "FencedError" in said, said
    stage.queries.remove(sleeping)
    assert stage.output() == ["one", "two"]


@pytest.mark.long
@pytest.mark.parametrize("batches_before", cases(1, long=(0,)))
@pytest.mark.parametrize("kind", cases("reliable", long=("foreach_batch",)))
def test_a_driver_that_slept_before_its_batch_writes_nothing(
    stage: Stage, pause: Pause, monkeypatch: pytest.MonkeyPatch, kind: str, batches_before: int
) -> None:
    """It wakes to a batch of the newer run, whose txid it must not write under: a folder would be replaced.

    tests/bolt/test_stale_batch.py refuses such a batch without Spark.
    """
    read_plan = CurrentBatch.newest
    armed = threading.Event()

    def newest(store: SourceStore, options: SourceOptions) -> CurrentBatch:
        if armed.is_set():
            pause()
        return read_plan(store, options)

    monkeypatch.setattr(CurrentBatch, "newest", newest)
    older = Taken()
    newer = Taken()
    newer_waits, newer_goes_on = threading.Event(), threading.Event()

    def write_older(rows: DataFrame, txid: int) -> None:
        older.batches[txid] = [(bytes(row.data).decode(), 1) for row in rows.select("data").collect()]

    def write_newer(rows: DataFrame, txid: int) -> None:
        newer(rows, txid)
        if txid == batches_before + 2:
            newer_waits.set()
            assert newer_goes_on.wait(PATIENCE)

    def start_older() -> StreamingQuery:
        stream = stage.load()
        if kind == "reliable":
            return stage.start(reliable(stream), write_older)
        return stage.start_plain(stream, foreach_batch(stream, write_older))

    if batches_before:
        stage.put(["first"])
        sleeping = start_older()
        stage.until(lambda: stage.settled == 1, "the batch before")
        armed.set()
        stage.put(["second"])
    else:
        stage.put(["second"])
        armed.set()
        sleeping = start_older()
    assert pause.reached.wait(PATIENCE)
    before = dict(older.batches)

    query = stage.start(stage.parsed(), write_newer, checkpoint="other")
    stage.until(lambda: stage.settled == batches_before + 1, "the newer run's batch")
    stage.put(["third"])
    assert newer_waits.wait(PATIENCE)
    pause.go_on.set()
    said = error_of(sleeping)
    assert "FencedError" in said or "StaleBatchError" in said
    assert older.batches == before
    stage.queries.remove(sleeping)
    newer_goes_on.set()
    stage.until(lambda: stage.settled == batches_before + 2, "the newer run's next batch")
    query.stop()
    assert newer.texts == ["second", "third"]


@pytest.mark.long
def test_a_driver_that_slept_through_a_whole_run_publishes_nothing(stage: Stage, pause: Pause) -> None:
    """The batch it has in hand was settled meanwhile, and another one stands in its place.

    tests/bolt/test_stale_batch.py refuses such a batch without Spark.
    """
    taken = Taken()

    def write(rows: DataFrame, txid: int) -> None:
        rows.collect()
        pause()

    def fails(record):  # type: ignore[no-untyped-def]
        raise ValueError

    stage.put(["one"])
    sleeping = stage.start(stage.parsed(fails), write)
    assert pause.reached.wait(PATIENCE)
    ended(stage.start(stage.parsed(), taken, checkpoint="other", trigger=AVAILABLE_NOW))
    before = stage.tree()
    pause.go_on.set()
    assert "FencedError" in error_of(sleeping)
    assert stage.tree() == before
    assert taken.texts == ["one"]
    stage.put(["two"])
    ended(stage.start(stage.parsed(), taken, checkpoint="other", trigger=AVAILABLE_NOW))
    assert taken.texts == ["one", "two"]
