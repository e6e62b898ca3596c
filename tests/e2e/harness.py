"""Starts the job of `driver.py` or of another script, kills it at a point, and reads what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from lives import HERE, PATIENCE, Lives, digest, eventually
from processes import alive

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchNode, BatchOutcome, Pin
from kinesis_trident.checkpoint.store.source_store import SourceStore

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

__all__ = [
    "A_LIFE",
    "PATIENCE",
    "RETRY_LIMIT",
    "Job",
    "Left",
    "Reached",
    "digest",
    "eventually",
    "kind",
    "layout_of",
    "look",
    "options",
    "put",
    "run_script",
]

A_LIFE = 40
RETRY_LIMIT = 2


def kind(number: int) -> str:
    """Return what becomes of a record: of each 40 two fail for good, and two at the first delivery."""
    return {7: "bad", 23: "bad", 11: "flaky", 12: "flaky"}.get(number % A_LIFE, "good")


def put(kinesis: KinesisClient, stream: str, numbers: range) -> dict[int, str]:
    """Put records into a stream: number to messageId."""
    records = [
        {"Data": json.dumps({"i": number, "kind": kind(number)}).encode(), "PartitionKey": str(number)}
        for number in numbers
    ]
    answer = kinesis.put_records(StreamName=stream, Records=records)
    assert not answer["FailedRecordCount"]
    return {
        number: f"{stream}/{one['ShardId']}:{one['SequenceNumber']}"
        for number, one in zip(numbers, answer["Records"], strict=True)
    }


def options(stream: str, zookeeper: EmbeddedZooKeeper, kinesis: EmbeddedKinesis) -> dict[str, str]:
    """Return what the job's source is given; the application is named like the stream."""
    return {
        "streamName": stream,
        "endpointUrl": kinesis.endpoint_url,
        "applicationName": stream,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
        "retryLimit": str(RETRY_LIMIT),
        "retryBackoff": "10ms..20ms x2",
        "maxFetchTime": "60s",
    }


def layout_of(kinesis: KinesisClient, stream: str) -> Layout:
    """Return where the job's state stands in ZooKeeper."""
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    created = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
    return Layout("/kinesis-trident", stream, stream, created)


def run_script(name: str, folder: Path, asked: dict[str, Any]) -> None:
    """Run one of the scripts beside this module to its end, with a Spark of its own; it reads what is asked of it."""
    (folder / "asked.json").write_text(json.dumps({"folder": str(folder), **asked}))
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, str(HERE / name), str(folder / "asked.json")],
            stdout=log,
            stderr=log,
            timeout=PATIENCE,
            check=False,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert done.returncode == 0, digest((folder / "log").read_text(errors="replace"))


@dataclass(frozen=True)
class Reached:
    """The point at which a process stopped, and the batch (and shard) it had in hand."""

    point: str
    txid: int
    shard: str
    pid: int


class Job(Lives):
    """One job over several lives: its folder, options and Spark checkpoint stay."""

    def __init__(self, folder: Path, options: dict[str, str], script: str = "driver.py") -> None:
        super().__init__(folder, HERE / script)
        self.options = options
        self.checkpoint = folder / "spark-checkpoint"
        self._marker = folder / "reached"

    def start(
        self, point: str | None = None, after: int = 0, trigger: dict[str, object] | None = None
    ) -> None:
        """Start a life, which stops at `point` with a batch above txid `after`, or runs to the stream's end."""
        self._marker = self.folder / f"reached-{uuid.uuid4().hex}"
        asked = {
            "folder": str(self.folder),
            "options": self.options,
            "checkpointLocation": str(self.checkpoint),
            "trigger": trigger or {"availableNow": True},
        }
        where = (
            {"KT_BLOCK_AT": point, "KT_AFTER": str(after), "KT_MARKER": str(self._marker)} if point else {}
        )
        self.launch(asked, where)

    def kill_at_point(self) -> Reached:
        """Wait until the point is reached, then kill everything."""
        self.until(self._marker.exists, "the point")
        reached = Reached(**json.loads(self._marker.read_text()))
        process = psutil.Process(reached.pid)
        assert alive(process)
        self.kill()
        assert not alive(process)
        return reached

    def offsets(self, checkpoint: Path | None = None) -> dict[int, dict[str, Any]]:
        """The offsets in the log of a Spark checkpoint, by batch id; by default the one in use."""
        folder = (checkpoint or self.checkpoint) / "offsets"
        return {
            int(path.name): json.loads(path.read_text().splitlines()[-1])
            for path in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))
        }

    def logged(self) -> list[int]:
        """The txids of the offsets in Spark's log."""
        return [offset["txid"] for offset in self.offsets().values()]

    def committed(self) -> list[int]:
        """The txids of the batches that Spark has committed."""
        commits = {int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")}
        return [offset["txid"] for batch, offset in self.offsets().items() if batch in commits]

    def output(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return what stands in the sink: txid to (i, messageId, attempt), with `driver.py`."""
        return {
            int(path.stem): [tuple(row) for row in json.loads(path.read_text())]
            for path in (self.folder / "out").glob("*.json")
        }

    def attempts(self) -> dict[int, list[list[tuple[int, str, int]]]]:
        """The rows that each attempt at a batch was given."""
        found: dict[int, list[list[tuple[int, str, int]]]] = {}
        for path in sorted((self.folder / "attempts").glob("*.json")):
            rows = [tuple(row) for row in json.loads(path.read_text())]
            found.setdefault(int(path.stem.partition("-")[0]), []).append(rows)
        return found

    def deliveries(self) -> dict[tuple[str, int, int], set[str]]:
        """Every delivery to the map function, (messageId, attempt, txid), and in which lives it was made."""
        found: dict[tuple[str, int, int], set[str]] = {}
        for path in (self.folder / "deliveries").glob("*.jsonl"):
            lines = path.read_text().split("\n")
            # A killed worker may have left half a line, which is no delivery that anybody relied on.
            for line in lines[:-1]:
                said = json.loads(line)
                delivery = (said["id"], said["attempt"], said["txid"])
                found.setdefault(delivery, set()).add(path.stem.partition("-")[0])
        return found


@dataclass(frozen=True)
class Left:
    """The state of the batch in hand right after a kill, wherever it is stored."""

    reached: Reached
    batch: BatchNode | None
    pins: dict[str, Pin]
    acks: BatchOutcome | None
    settled: int
    stamps: dict[str, int]
    logged: bool
    committed: bool
    written: bool
    delivered_shards: frozenset[str]
    lettered: frozenset[str]


def look(job: Job, store: SourceStore, reached: Reached, lettered: frozenset[str]) -> Left:
    """Read what a killed job has left behind."""
    txid = reached.txid
    batch = store.batches.get(txid)
    settled = store.batches.settled()
    return Left(
        reached=reached,
        batch=batch,
        pins=store.batches.get_pins(txid, batch.plan.shards) if batch else {},
        acks=store.batches.get_outcome(txid),
        settled=settled.txid if settled else 0,
        stamps={shard: node.txid for shard, node in store.shards.checkpoints().items()},
        logged=txid in job.logged(),
        committed=txid in job.committed(),
        written=txid in job.output(),
        delivered_shards=frozenset(
            id_.rpartition("/")[2].partition(":")[0] for id_, _, of in job.deliveries() if of == txid
        ),
        lettered=lettered,
    )
