"""A batch has the same rows whoever reads it again, although records keep arriving."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE, run_script
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended
from thorough import cases

from kinesis_trident import reliable
from kinesis_trident.bolt.tracking import tracking
from kinesis_trident.bolt.tracking.running_scan import RunningScan, running_scan
from kinesis_trident.checkpoint.model.nodes import Pin
from kinesis_trident.checkpoint.store.batches import BatchStore
from kinesis_trident.common import private_names
from kinesis_trident.common.private_names import pickled_task
from kinesis_trident.common.prompt_sockets import PromptLines
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import read_turns


def test_actions_on_one_batch_see_the_same_rows(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    stage.put(range(20))
    readings: dict[int, list[list[Any]]] = {}

    def read(rows: DataFrame) -> list[Any]:
        return [tuple(row) for row in rows.select("messageId", "attempt", "txid", "text").collect()]

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text.endswith("7") and record.attempt == 1:
            raise ValueError(text)
        return record.messageId, record.attempt, record.txid, text

    def write(rows: DataFrame, txid: int) -> None:
        mine = readings.setdefault(txid, [])
        mine.append(read(rows))
        # They land where this batch ended: a reading that is not bound to its pin would find them.
        stage.put(f"{txid}.{n}" for n in range(10))
        mine.append(read(rows))
        assert rows.count() == len(mine[0])
        stage.put(f"{txid}.{n}" for n in range(10, 15))
        mine.append(read(rows.union(rows)))

    stream = reliable(stage.load()).map(parse, "messageId string, attempt int, txid bigint, text string")
    ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    assert len(readings) >= 2
    for first, second, twice in readings.values():
        assert second == first
        assert sorted(twice) == sorted(first + first)
    firsts = [row for rows in readings.values() for row in rows[0]]
    assert len({row[0] for row in firsts}) == len(firsts)
    assert {row[1] for row in firsts if row[3] in ("7", "17")} == {2}
    assert {row[3] for row in readings[1][0]} == {str(n) for n in range(20)} - {"7", "17"}


@pytest.mark.parametrize(
    ("shards", "options", "most", "tasks"),
    cases(
        (2, {"maxRecordsPerTrigger": 4}, {}, {1, 2}),
        (2, {}, {"_MOST_BYTES": 1000}, {0}),
        long=(
            # The size of the first batch is unknown, so it has a task for each shard that has records.
            (9, {}, {}, {5, 6, 7, 8, 9}),
            (2, {}, {"_MOST_TASKS": 0}, {0}),
        ),
    ),
    ids=["small", "too large tasks", "large", "too many tasks"],
)
def test_a_batch_is_read_where_its_functions_run(
    make_stage: Callable[..., Stage],
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
    options: dict[str, Any],
    most: dict[str, int],
    tasks: set[int],
) -> None:
    stage = make_stage(shards)
    stage.put(range(12))
    found: list[int] = []

    def find(rows: DataFrame) -> RunningScan | None:
        scan = running_scan(rows)
        found.append(len(scan.tasks) if scan else 0)
        return scan

    def parse(record):  # type: ignore[no-untyped-def]
        if record.data == b"5" and record.attempt == 1:
            raise ValueError(record.data)
        return record.data.decode(), record.attempt, record.approximateArrivalTimestamp

    taken: list[Any] = []

    def write(rows: DataFrame, _txid: int) -> None:
        taken.extend(rows.collect())

    decoded: list[bytes] = []

    def decode(text: str) -> bytes:
        decoded.append(b64decode(text))
        return decoded[-1]

    def pickled(partition: Any) -> bytes:
        connection = partition._gateway_client.get_thread_connection()
        lines = connection.stream
        before = len(prompt)
        task = pickled_task(partition)
        assert len(prompt) == before + 1
        assert connection.stream is lines
        # Not as py4j does, but the same.
        assert task is decoded[-1]
        assert task == bytes(partition.pickedPartition())
        return task

    prompt: list[bytes] = []
    read_line = PromptLines.readline

    def readline(lines: PromptLines) -> bytes:
        prompt.append(read_line(lines))
        return prompt[-1]

    monkeypatch.setattr(PromptLines, "readline", readline)
    monkeypatch.setattr(private_names, "b64decode", decode)
    monkeypatch.setattr(private_names, "pickled_task", pickled)
    monkeypatch.setattr(tracking, "running_scan", find)
    for name, value in most.items():
        monkeypatch.setattr(f"kinesis_trident.bolt.tracking.running_scan.{name}", value)
    stream = reliable(stage.load(**options)).map(parse, "text string, attempt int, arrival timestamp")
    query = ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    assert found[0] in tasks
    assert all(found) == (not most)
    assert sorted((row.text, row.attempt) for row in taken) == sorted(
        (str(n), 2 if n == 5 else 1) for n in range(12)
    )
    arrivals = {
        row.text: row.arrival
        for row in stage.read()
        .selectExpr("string(data) as text", "approximateArrivalTimestamp as arrival")
        .collect()
    }
    assert {row.text: row.arrival for row in taken} == arrivals
    # Without a scan Spark counts, also the first row at which the driver has looked.
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == (14 if most else 13)


@pytest.mark.long
def test_a_failed_task_sees_the_same_rows_again(make_stage: Callable[..., Stage], tmp_path: Path) -> None:
    """The task's code runs twice below, and in tests/spout/test_scripted_source.py; here Spark runs it again."""
    stage = make_stage(2)
    put = stage.put(range(20))
    shard = stage.shard(0)
    run_script("attempts_driver.py", tmp_path, {"shard": shard, "options": stage.options()})
    first, second = (json.loads((tmp_path / "read" / f"{shard}-{n}.json").read_text()) for n in (0, 1))
    assert first
    assert second == first
    taken = [json.loads(line)[1] for line in (tmp_path / "taken.jsonl").read_text().splitlines()]
    assert sorted(set(taken)) == sorted(taken)
    assert set(put) <= set(taken)


@pytest.mark.parametrize("winner", ["the one that found less", "the one that found more"])
def test_a_speculative_task_and_its_original_see_the_same_rows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, winner: str
) -> None:
    """Spark copies a task only to another host, so here the two are threads, with all else real."""
    stage.put(range(10))
    run = SourceRun.open(SourceOptions.parse(stage.options()))
    try:
        start = run.initial()
        plan = run.latest(start, None)
        assert plan is not None
        (partition,) = run.partitions(start, plan)
        fetched, both, pinned = threading.Event(), threading.Barrier(2), threading.Event()
        create_pin = BatchStore.create_pin

        def ordered(store: BatchStore, shard: str, pin: Pin, epoch: int) -> tuple[Pin, bool]:
            less = pin.count == 10
            if less:
                fetched.set()
            both.wait(PATIENCE)
            if less == (winner == "the one that found less"):
                done = create_pin(store, shard, pin, epoch)
                pinned.set()
                return done
            assert pinned.wait(PATIENCE)
            return create_pin(store, shard, pin, epoch)

        def read(first_attempt: bool) -> list[dict[str, Any]]:
            return [
                row
                for batch in read_turns(partition, first_attempt=first_attempt)
                for row in batch.to_pylist()
            ]

        monkeypatch.setattr(BatchStore, "create_pin", ordered)
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(read, True)
            assert fetched.wait(PATIENCE)
            stage.put(range(10, 25))
            other = pool.submit(read, False)
            rows, copied = one.result(PATIENCE), other.result(PATIENCE)
    finally:
        run.close()
    assert copied == rows
    assert len(rows) == (10 if winner == "the one that found less" else 25)
