"""A word count on a cluster of two hosts in which things happen: a script of its own, with its own Spark.

An executor is killed in the middle of a tree, so its shuffle files are lost and a stage is computed again; and a task
hangs until Spark has run a copy of it to its end. Spark copies a task only to another host.

In `folder`: `words/` has a file for each task that counted, `split/` one for each that split; `killed` and `slow` say
that it happened, `copied` that the copy came to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import boto3
import psutil
from job_session import job_session
from pyspark import TaskContext
from two_workers import start_cluster

from kinesis_trident import (
    BasicBolt,
    FailedException,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    string_scheme,
)
from kinesis_trident.checkpoint.embedded.java import ensure_java

PATIENCE = 120.0


def note(folder: Path, rows: list[Any]) -> None:
    """A file, whole or not at all."""
    path = folder / uuid.uuid4().hex
    path.with_suffix(".part").write_text(json.dumps(rows))
    path.with_suffix(".part").rename(path.with_suffix(".json"))


def first(marker: Path) -> bool:
    """Tell whether nobody was here before."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Split(BasicBolt):
    """The words of a sentence, numbered."""

    fields = "word string, id string, attempt int"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.rows = [context.txid, context.task, TaskContext.get().taskAttemptId()]  # type: ignore[union-attr]

    def execute(self, tup: Tuple, collector: Any) -> None:
        for n, word in enumerate(tup["sentence"].split()):
            collector.emit([word, f"{tup['sentence']}:{n}", tup["attempt"]])

    def cleanup(self) -> None:
        note(self.folder / "split", self.rows)


class Also(BasicBolt):
    """Takes all words, too."""

    def execute(self, tup: Tuple, collector: Any) -> None:
        """Nothing."""


class Count(BasicBolt):
    """Notes its words. Those that say so fail, kill their executor, or hang until a copy of the task is through."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, context: TopologyContext) -> None:
        self.rows: list[Any] = []
        self.copy = False

    def execute(self, tup: Tuple, collector: Any) -> None:
        word = tup["word"]
        self.rows.append([word, tup["id"], tup["attempt"]])
        if word == "kill" and first(self.folder / "killed"):
            # This worker's parent is the daemon that forked it, and that one's is the executor.
            os.kill(psutil.Process().parents()[1].pid, signal.SIGKILL)
            time.sleep(PATIENCE)
        if word == "slow" and tup["attempt"] == 1:
            if first(self.folder / "slow"):
                until = time.monotonic() + PATIENCE
                while not (self.folder / "copied").exists() and time.monotonic() < until:
                    time.sleep(0.05)
            else:
                self.copy = True
        if word.startswith("flaky") and tup["attempt"] == 1:
            raise FailedException(word)

    def cleanup(self) -> None:
        note(self.folder / "words", self.rows)
        if self.copy:
            (self.folder / "copied").touch()


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    for name in ("words", "split"):
        (folder / name).mkdir(exist_ok=True)
    os.environ["JAVA_HOME"] = str(ensure_java())
    settings = {
        "spark.sql.shuffle.partitions": "2",
        # A shard's task on each executor, so that each holds some of what was split.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:g}s",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
    }
    spark = job_session(start_cluster(folder / "work"), folder, settings)
    topology = TopologyBuilder(spark)
    topology.set_spout("sentences", KinesisSpout(scheme=string_scheme("sentence"), **asked["options"]))
    topology.set_bolt("split", Split(folder)).shuffle_grouping("sentences")
    topology.set_bolt("count", Count(folder), 2).fields_grouping("split", "word")
    # What two bolts take is kept in the executors' memory, and lost with one.
    topology.set_bolt("also", Also()).local_or_shuffle_grouping("split")
    client = boto3.client("kinesis", endpoint_url=asked["options"]["endpointUrl"])
    for sentences in asked["sentences"]:
        # Each in batches of its own.
        records = [{"Data": sentence.encode(), "PartitionKey": sentence} for sentence in sentences]
        client.put_records(StreamName=asked["options"]["streamName"], Records=records)
        query = topology.start(checkpointLocation=str(folder / "spark"), trigger={"availableNow": True})
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
