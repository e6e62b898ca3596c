"""Measure what very many shards cost a query, with its Spark and its ZooKeeper: `python -m benchmarks.many_shards`.

The endpoint is `ScriptedKinesis` with AWS's limits, in a process of its own that is not counted. Each shard has had a
record before anything is measured, so that its position is a sequence number. Each size is measured in a process of
its own: a JVM compiles less and less.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import msgspec
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_trident
from benchmarks.endpoint import ROOT, pretend_credentials, served
from benchmarks.latency import STREAM
from benchmarks.limits import PLANNER, used_by_query
from benchmarks.processors import JVM, ZOOKEEPER, running
from benchmarks.report import Section, publish
from benchmarks.source import FEW_PROGRAMS, session
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

SHARDS = (5_000, 10_000)
BUSY = 100
"""One of so many shards gets a record for a batch."""

ROUNDS, IDLE = 2, 60.0
"""How often they get one, after one time to get warm; the seconds without a record that are measured."""

TRIGGER = "5 seconds"
"""The looks of many shards find their new records one after the other: a batch has those of so long."""

AT_ONCE = 500
"""Records of one call."""

LOGGED, CHECKPOINT, HEAP = (
    "written to ZooKeeper's log",
    "written to Spark's checkpoint",
    "heap that Spark keeps",
)
ROLES = (PLANNER, JVM, ZOOKEEPER)

Spent = Mapping[str, float]
"""Seconds of the processor by role, and bytes."""


class Costs(msgspec.Struct, frozen=True):
    """What an idle minute costs, a batch, and a restart until its first batch is done."""

    idle: Spent
    batch: Spent
    restart: Spent


class Rows:
    """Counts the rows of a query, and its batches that have any."""

    def __init__(self) -> None:
        self.batches = 0
        self._rows = 0
        self._came = threading.Condition()

    def __call__(self, frame: DataFrame, _: int) -> None:
        """Count those of a batch."""
        rows = frame.count()
        with self._came:
            self._rows += rows
            self.batches += rows > 0
            self._came.notify_all()

    def wait_for(self, query: StreamingQuery, rows: int) -> None:
        """Wait until there were so many.

        Raises:
            RuntimeError: the query has failed.
        """
        with self._came:
            while not self._came.wait_for(lambda: self._rows >= rows, 10.0):
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))


class Bench:
    """A stream of so many shards, and the query of it in a folder, which has the folder of ZooKeeper too."""

    def __init__(self, spark: SparkSession, folder: Path, hosts: str, url: str, shards: int) -> None:
        self._spark, self._folder, self._shards = spark, folder, shards
        self._client = boto3.client("kinesis", endpoint_url=url)
        self._options = {
            "streamName": STREAM,
            "endpointUrl": url,
            "applicationName": uuid.uuid4().hex,
            "zookeeper.hosts": hosts,
            "startingPosition": "TRIM_HORIZON",
        }
        self._put, self.rows = 0, Rows()

    def start(self) -> None:
        """Start the query, or start it again."""
        stream = self._spark.readStream.format("kinesis-trident").options(**self._options).load()
        out = stream.writeStream.foreachBatch(self.rows).trigger(processingTime=TRIGGER)
        self.query = out.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def stop(self) -> None:
        """Stop the query, and wait until its planning process has ended: its seconds are no others'."""
        kinesis_trident.stop(self.query)
        while any(_plans(process) for _, process in running()):
            time.sleep(0.1)

    def put(self, each: int) -> None:
        """Put a record into one of so many shards."""
        # The middle of its hash keys, of which each has as many.
        keys = [str((2 * number + 1) * 2**127 // self._shards) for number in range(0, self._shards, each)]
        for at in range(0, len(keys), AT_ONCE):
            records: list[Any] = [
                {"Data": b"data", "PartitionKey": "key", "ExplicitHashKey": key}
                for key in keys[at : at + AT_ONCE]
            ]
            self._client.put_records(StreamName=STREAM, Records=records)
        self._put += len(keys)

    def read(self) -> None:
        """Wait until all that was put is read."""
        self.rows.wait_for(self.query, self._put)

    def batches(self, rounds: int) -> None:
        """Have batches read a record of every few shards, as often."""
        for _ in range(rounds):
            self.put(BUSY)
            self.read()

    def spent(self) -> Spent:
        """Return what was spent so far."""
        seconds = used_by_query()
        logs = (self._folder / "zookeeper").glob("data/version-2/log.*")
        files = [path for path in (self._folder / "checkpoint").rglob("*") if path.is_file()]
        return {
            **{role: seconds[role] for role in ROLES},
            # The files are as large as they may become, filled up with zeros.
            LOGGED: sum(len(log.read_bytes().rstrip(b"\0")) for log in logs),
            CHECKPOINT: sum(path.stat().st_size for path in files),
            HEAP: self._heap(),
        }

    def measured(self, work: Callable[[], object]) -> Spent:
        """Return what work costs."""
        before = self.spent()
        work()
        return {what: value - before[what] for what, value in self.spent().items()}

    def _heap(self) -> float:
        jvm: Any = self._spark.sparkContext._jvm
        jvm.java.lang.System.gc()
        memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        return float(memory.getHeapMemoryUsage().getUsed())


def _plans(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        # One that has just ended has no command line any more.
        return "source_runner" in " ".join(process.cmdline())
    return False


@contextmanager
def prepared(shards: int) -> Iterator[Bench]:
    """A query that has read a record of each shard, and some more of a few."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedZooKeeper(Path(name) / "zookeeper") as zookeeper,
        served("benchmarks.latency", "--serve", str(shards)) as url,
    ):
        spark = session(Path(name))
        spark.conf.set(*FEW_PROGRAMS)
        bench = Bench(spark, Path(name), zookeeper.hosts, url, shards)
        bench.put(1)
        bench.start()
        bench.read()
        bench.batches(1)
        yield bench
        bench.stop()
        spark.stop()


def measure(shards: int) -> Costs:
    """Return what a query of so many shards costs."""
    with prepared(shards) as bench:
        idle = bench.measured(lambda: time.sleep(IDLE))
        before = bench.rows.batches
        batches = bench.measured(lambda: bench.batches(ROUNDS))
        done = bench.rows.batches - before
        bench.stop()
        bench.put(BUSY)

        def restart() -> None:
            bench.start()
            bench.read()

        return Costs(idle, {what: value / done for what, value in batches.items()}, bench.measured(restart))


def measured_apart(shards: int) -> Costs:
    """Return what a query of so many shards costs, in processes of its own."""
    command = [sys.executable, "-m", "benchmarks.many_shards", "--shards", str(shards)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    print(done.stdout.decode(), flush=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Costs)


def rows(costs: Sequence[Costs]) -> Iterator[list[str]]:
    """Yield the rows: each cost at both sizes, and how many times it is of the larger one."""
    units = dict.fromkeys((LOGGED, CHECKPOINT, HEAP), 1024.0)
    for when, name in (
        ("an idle minute", "idle"),
        ("a batch", "batch"),
        ("a restart, to the end of its first records", "restart"),
    ):
        for what in (*ROLES, LOGGED, CHECKPOINT, HEAP):
            if (what == HEAP) != (name == "batch") and what == HEAP:
                continue
            small, large = (getattr(one, name)[what] / units.get(what, 1.0) for one in costs)
            form = "{:,.0f} KiB" if what in units else "{:,.2f} s"
            ratio = f"{large / small:.1f} x" if small > 0 else ""
            yield [f"{when}: {what}", *map(form.format, (small, large)), ratio]


def main() -> None:
    """Measure and publish; one size is measured for the process that asks for it."""
    parser = argparse.ArgumentParser(description="Measure what very many shards cost a query.")
    parser.add_argument("--shards", type=int, help="measure this number alone, and print it")
    parser.add_argument("--dry-run", action="store_true", help="print the section instead of writing it")
    given = parser.parse_args()
    pretend_credentials()
    if given.shards:
        print(msgspec.json.encode(measure(given.shards)).decode())
        return
    found = [measured_apart(shards) for shards in SHARDS]
    publish(
        Section(
            name="many-shards",
            title="A query of very many shards",
            command="python -m benchmarks.many_shards",
            columns=["", *(f"{shards:,} shards" for shards in SHARDS), "ratio"],
            rows=list(rows(found)),
            note=f"Through Spark in `local[2]`, with a trigger of {TRIGGER}; in a batch one of {BUSY} shards has a "
            "record. Seconds are of the processor, looks that find nothing included. The endpoint, `ScriptedKinesis` "
            "with AWS's limits, is a process that is not counted. Spark keeps what its last 100 batches told of "
            "themselves: the heap is what a batch adds.",
        )
    )


if __name__ == "__main__":
    main()
