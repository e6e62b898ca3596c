"""Measure a small batch with and without each thing that only saves time: `python -m benchmarks.savings [rounds]`.

Each query has a driver, a JVM and workers of its own, because a worker keeps what it has loaded. Queries with
everything and without one thing take turns. `without/sitecustomize.py` takes it away in all of their Python processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from benchmarks.endpoint import ROOT, PreparedEndpoint, Records, pretend_credentials
from benchmarks.processors import PYTHON, SPARK, spent
from benchmarks.report import Section, publish
from benchmarks.small_batches import Source, Start, mapped, plain
from benchmarks.source import options, session
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

BATCHES = 25
"""Of the query that is measured, and of one before it, in which all processes get warm."""

ROUNDS = 5
FOLDER = Path(__file__).parent / "without"
SAVINGS = ("prompt_sockets", "worker_garbage", "running_scan")


@dataclass(frozen=True, slots=True)
class Way:
    """A query whose batches have so many records of each shard, and what saves time in it."""

    name: str
    start: Start
    savings: Sequence[str] = SAVINGS
    shards: int = 1
    records: int = 1_000

    @property
    def size(self) -> int:
        """The records of a batch."""
        return self.shards * self.records


WAYS = (
    # Nothing of the package runs in its functions.
    Way("a plain query", plain, SAVINGS[:2]),
    Way("reliable() with a function", mapped),
    Way("reliable() with a function", mapped, records=10_000),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A batch: the median of its time by the clock, and its processor time on average, in milliseconds.

    `workers`: the processor time of Spark's Python processes alone, `processors`: that of all of a job's processes.
    """

    clock: float
    workers: float
    processors: float


def measure(way: Way, batches: int, url: str, hosts: str) -> Measured:
    """Measure a query of this process and those below it."""
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder), FOLDER)
        for _ in range(2):
            given = options(url, hosts, "/bench", maxRecordsPerTrigger=str(way.size))
            before = spent()
            query = way.start(Source(spark, "kinesis-trident", given), f"{folder}/{uuid.uuid4().hex}")
            query.awaitTermination()
            done = [one for one in query.recentProgress if one["numInputRows"]]
            assert len(done) == batches, len(done)
            clock = statistics.median(one["durationMs"]["triggerExecution"] for one in done)
            took = {
                role: (seconds - before.get(role, 0.0)) / batches * 1000 for role, seconds in spent().items()
            }
            measured = Measured(clock, took[PYTHON], sum(took[role] for role in SPARK))
        spark.stop()
    return measured


def measure_without(saving: str, number: int, url: str, hosts: str) -> Measured:
    """Measure a way, by its number, in processes that lack a saving; with an empty one they lack nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.savings", "--measure", str(number), str(BATCHES), url, hosts],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}", "WITHOUT": saving},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def rows_of(number: int, rounds: int, hosts: str) -> list[list[str]]:
    """The rows of a way: one with everything, and one without each of its savings."""
    way = WAYS[number]
    variants = ("", *way.savings)
    found: dict[str, list[Measured]] = {saving: [] for saving in variants}
    with PreparedEndpoint(Records(way.shards, BATCHES, way.records)) as endpoint:
        for turn in range(rounds):
            for saving in variants[turn % len(variants) :] + variants[: turn % len(variants)]:
                found[saving].append(measure_without(saving, number, endpoint.url, hosts))
                print(
                    f"{way.name}, {way.size:,} records, without {saving or 'nothing'}: {found[saving][-1]}",
                    flush=True,
                )
    medians = {
        saving: [f"{statistics.median(column):,.0f} ms" for column in zip(*map(astuple, each), strict=True)]
        for saving, each in found.items()
    }
    what = f"{way.name}, {way.shards} shard{'s' * (way.shards > 1)}, {way.size:,} records"
    return [
        [f"{what}: without {f'`{saving}`' if saving else 'nothing'}", *medians[saving]] for saving in variants
    ]


def main() -> None:
    """Measure and publish; a number is that of the rounds."""
    pretend_credentials()
    if "--measure" in sys.argv:
        number, batches, url, hosts = sys.argv[sys.argv.index("--measure") + 1 :]
        print(json.dumps(astuple(measure(WAYS[int(number)], int(batches), url, hosts))))
        return
    rounds = next((int(word) for word in sys.argv[1:] if word.isdecimal()), ROUNDS)
    with EmbeddedZooKeeper() as zookeeper:
        rows = [row for number in range(len(WAYS)) for row in rows_of(number, rounds, zookeeper.hosts)]
    publish(
        Section(
            name="savings",
            title="What saves time in a small batch",
            command="python -m benchmarks.savings",
            columns=["a micro-batch", "clock", "Python processes", "all processes"],
            rows=rows,
            note=f"Queries of {BATCHES} batches with everything and without one thing in turns, each in processes of "
            f"its own, {rounds} rounds: medians. Clock: the median of a query's batches. Processes: the processor time "
            "of Spark's Python processes, and with the driver's and the JVM's, of a batch; a start's is among it. "
            "`prompt_sockets`: messages between the JVM and "
            "Python are acknowledged at once. `worker_garbage`: what a worker has loaded is exempt from its "
            "collections. "
            "`running_scan`: the functions of a batch read its records themselves.",
        )
    )


if __name__ == "__main__":
    main()
