"""A job that runs until it is killed, and notes each record that it is given: `python job.py ASKED.json`.

In `folder`: `notes/<life>-<pid>.jsonl` has a line for each delivery, and one for each batch that was processed as a
whole; `out/<txid>-<epoch>.json` is the sink of a job without a state.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from job_environment import WITHOUT_CHMOD
from job_session import job_session
from pyspark.sql import DataFrame, SparkSession
from two_workers import start_cluster

from kinesis_trident import Outcomes, reliable
from kinesis_trident.checkpoint.embedded.java import ensure_java
from kinesis_trident.trident import Count, Function, RedisState, TridentTopology
from kinesis_trident.trident.maps.backing import VersionedBackingMap


class Notes:
    """Files of lines, one of each process. A line is written at once, so that a kill leaves it whole or not at all."""

    def __init__(self, folder: str, life: int) -> None:
        self._folder = folder
        self._life = life
        self._file: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def __call__(self, **said: Any) -> None:
        if self._file is None:
            path = Path(self._folder) / f"{self._life}-{os.getpid()}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, (json.dumps({"life": self._life, **said}) + "\n").encode())


def taken(notes: Notes, data: bytes, attempt: int, txid: int) -> dict[str, Any]:
    """Note a delivery: the record, or the failure that it asks for."""
    record: dict[str, Any] = json.loads(data)
    notes(n=record["n"], attempt=attempt, txid=txid)
    return record


def fail_as_asked(record: dict[str, Any], attempt: int) -> None:
    if record["kind"] == "bad" or (record["kind"] == "flaky" and attempt == 1):
        raise ValueError(record["kind"])


class Word(Function):
    """The record's word."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        record = taken(self._notes, tup["data"], tup["attempt"], tup["txid"])
        fail_as_asked(record, tup["attempt"])
        collector.emit([record["word"]])


class NotedMap(VersionedBackingMap[Any]):
    """The store's map; notes the batches that have been written."""

    def __init__(self, backing: Any, notes: Notes) -> None:
        self._backing = backing
        self._notes = notes
        self._written = False

    def begin_batch(self, txid: int | None) -> Any:
        self._written = False
        return self._backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        self._backing.end_batch(txid)
        if self._written:
            self._notes(txid=txid)

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return list(self._backing.multi_get(keys))

    def multi_get_versioned(self, keys: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        values, versions = self._backing.multi_get_versioned(keys)
        return values, versions

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self._backing.multi_put(keys, values)
        self._written = True

    def multi_compare_and_set(
        self, keys: Sequence[Any], values: Sequence[Any], versions: Sequence[Any]
    ) -> list[Any]:
        written = list(self._backing.multi_compare_and_set(keys, values, versions))
        self._written = True
        return written


class NotedRedis(RedisState):
    """Redis, with notes."""

    notes: Notes

    def make_backing(self, conf: Any) -> NotedMap:
        return NotedMap(super().make_backing(conf), self.notes)


def count(spark: SparkSession, asked: dict[str, Any], notes: Notes) -> Any:
    """Count words into Redis, through Trident, with an opaque state."""
    NotedRedis.notes = notes
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()
    topology = TridentTopology(spark)
    (
        topology.new_stream("words", stream)
        .each(["data", "attempt", "txid"], Word(notes), ["word"])
        .group_by(["word"])
        .persistent_aggregate(
            NotedRedis.opaque(asked["redis"], keyPrefix=f"{asked['options']['applicationName']}/"),
            Count(),
            ["count"],
        )
        .parallelism_hint(1)
    )
    return topology.start(checkpointLocation=asked["checkpoint"])


def write_files(spark: SparkSession, asked: dict[str, Any], notes: Notes, *, judged: bool) -> Any:
    """Write rows to a file of each batch and run; with `judged` what fails fails here, else whoever acks says so."""
    out = Path(asked["folder"]) / "out"

    def parse(record):  # type: ignore[no-untyped-def]
        said = taken(notes, record.data, record.attempt, record.txid)
        if judged:
            fail_as_asked(said, record.attempt)
        return said["n"], record.messageId, record.attempt, said["kind"]

    def write(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        found = [row.asDict() for row in rows.collect()]
        notes(txid=txid)
        path = out / f"{txid}-{outcomes.epoch}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(path)

    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()
    return (
        reliable(stream)
        .map(parse, "n int, id string, attempt int, kind string")
        .for_each_batch(write)
        .start(checkpointLocation=asked["checkpoint"])
    )


def session(asked: dict[str, Any]) -> SparkSession:
    """Start Spark, in this process or on a cluster of two workers."""
    folder = Path(asked["folder"])
    os.environ["JAVA_HOME"] = str(ensure_java())
    settings = {
        "spark.sql.shuffle.partitions": "1",
        **WITHOUT_CHMOD,
    }
    master = start_cluster(folder / "work") if asked["cluster"] else "local[2,4]"
    return job_session(master, folder, settings)


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    notes = Notes(str(Path(asked["folder"]) / "notes"), asked["life"])
    spark = session(asked)
    if asked["job"] == "counts":
        query = count(spark, asked, notes)
        query.await_termination()
    else:
        write_files(spark, asked, notes, judged=asked["job"] == "files").awaitTermination()


if __name__ == "__main__":
    main()
