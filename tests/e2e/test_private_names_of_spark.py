"""The private names of Spark: each is there, and where all are missing a query runs, by public ways."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import eventually
from pyspark.sql import SparkSession
from stage import AVAILABLE_NOW, Stage, Taken, ended
from test_private_names import absent

from kinesis_trident import foreach_batch, reliable, stop
from kinesis_trident.bolt.tracking import running_scan
from kinesis_trident.bolt.tracking.held import has_lost_held_rows
from kinesis_trident.common import private_names
from kinesis_trident.common.private_names import (
    HELD_ROWS_LOST,
    INTERRUPTED,
    WAITING_FOR_TRIGGER,
    WORKER_EXITED,
    MissingNameError,
    collect_partitions,
    free_rows,
    is_below_jvm,
    is_interrupted,
    scan_of_batch,
    sources_of_frame,
    sources_of_query,
)
from kinesis_trident.spout.errors import NotOurSourceError
from kinesis_trident.trident.run.frames import run_partitions

HOURLY = {"processingTime": "1 hour"}


def test_each_name_is_there(stage: Stage, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_names, "_said", set())
    scans: list[Any] = []

    def scan(*args: Any) -> Any:
        scans.append(scan_of_batch(*args))
        return scans[-1]

    monkeypatch.setattr(running_scan, "scan_of_batch", scan)
    stage.put(range(5))
    stream = stage.load()
    (options,), is_bare = sources_of_frame(stream, "kinesis-trident")
    assert options.items() >= stage.options().items()
    assert is_bare
    assert sources_of_frame(stream.where("txid > 0"), "kinesis-trident") == ([options], False)
    taken = Taken()
    query = stage.start(stage.parsed(), taken, trigger=HOURLY)
    stage.until(lambda: len(taken.texts) == 5, "the batch")
    eventually(lambda: query.status["message"] == WAITING_FOR_TRIGGER, "the end of the trigger")
    found = sources_of_query(query, 60)
    assert found is not None
    assert [one["streamName"] for one in found] == [stage.stream]
    newest = stage.store.epochs.newest_run()
    assert newest is not None
    assert is_below_jvm(newest[1].pid)
    assert not is_below_jvm(os.getpid())
    assert not is_interrupted()
    stop(query)
    assert all(scans)
    assert len(scans) == len(taken.batches) == 1
    assert private_names._said == set()


def test_each_text_is_there(spark: SparkSession) -> None:
    held = spark.range(2).localCheckpoint()
    assert collect_partitions(held.rdd, range(held.rdd.getNumPartitions()))
    free_rows(held)
    with pytest.raises(Exception, match=HELD_ROWS_LOST) as lost:
        held.collect()
    assert has_lost_held_rows(lost.value)

    def leave(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(1)
        yield

    with pytest.raises(Exception, match=WORKER_EXITED):
        spark.range(1).mapInArrow(leave, "id long").collect()
    for name in INTERRUPTED:
        assert spark._jvm.java.lang.Class.forName(name).getName() == name  # type: ignore[union-attr]


@pytest.mark.parametrize("is_there", [True, False])
def test_partitions_are_run_for_what_their_tasks_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if not is_there:
        monkeypatch.setattr(private_names, "using", absent)
    folder = str(tmp_path)

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch.column("id").to_pylist()
            Path(folder, "-".join(map(str, ids))).touch()
            yield batch.filter(pa.array([one > 3 for one in ids]))

    frame = spark.range(0, 6, 1, 3).mapInArrow(note, "id long")
    assert run_partitions(frame, [0, 2])
    assert {path.name for path in tmp_path.iterdir()} == {"0-1", "4-5"}
    assert not run_partitions(frame, [1])
    assert {path.name for path in tmp_path.iterdir()} == {"0-1", "2-3", "4-5"}


def test_a_query_needs_no_private_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_names, "using", absent)

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "3" and record.attempt == 1:
            raise ValueError(text)
        return text, record.attempt

    stage.put(range(5))
    stream = stage.load()
    for make in (lambda: reliable(stream), lambda: foreach_batch(stream, print)):
        with pytest.raises(NotOurSourceError, match=r"reliable\(stream, options={...}\)"):
            make()
    mapped = reliable(stream, options=stage.options()).map(parse, "text string, attempt int")
    taken = Taken()
    query = ended(stage.start(mapped, taken, trigger=AVAILABLE_NOW))
    assert taken.texts == [str(n) for n in range(5)]
    assert [row for rows in taken.batches.values() for row in rows if row[0] == "3"] == [("3", 2)]
    with pytest.raises(NotOurSourceError, match=r"stop\(query, stream=stream\), or call query.stop\(\)"):
        stop(query)


def unknown(_pid: int) -> bool:
    raise MissingNameError


def test_a_query_is_stopped_without_the_text_and_the_process_that_show_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_trident.spout.graceful_stop.WAITING_FOR_TRIGGER", "Resting")
    monkeypatch.setattr("kinesis_trident.spout.graceful_stop.is_below_jvm", unknown)
    stage.put(["one"])
    taken = Taken()
    query = stage.start(stage.parsed(), taken, trigger=HOURLY)
    stage.until(lambda: taken.texts == ["one"], "the batch")
    stop(query, timeout=60)
    assert not query.isActive
    stage.put(["two"])
    ended(stage.start(stage.parsed(), taken, trigger=AVAILABLE_NOW))
    assert taken.texts == ["one", "two"]
