"""Measure what reading costs at the limits that AWS has: `python -m benchmarks.limits [idle | full | few | fan-out]`.

The endpoint is `ScriptedKinesis` with a shard's limits, in a process of its own, which also writes the records. Each
reader begins at the tip, and its processors' time is taken once it is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from benchmarks.bare import BareSource
from benchmarks.endpoint import ROOT, pretend_credentials
from benchmarks.peers.environments import PEERS, PeerError, install
from benchmarks.processors import JVM, PYTHON, ZOOKEEPER, running, spent
from benchmarks.report import Section, publish, verdict
from benchmarks.source import FEW_PROGRAMS, session
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import ScriptedKinesis

STREAM = "s"
WARM, WARM_LOOP, SECONDS = 120.0, 5.0, 20.0
"""Seconds of a query and of a loop before those that are measured, and of these: a JVM compiles for two minutes."""

SIZE = 1000
"""Bytes of a record: with its key, 1,000 of them are what a shard takes in a second."""

TICK = 0.05
"""Seconds from one write to the next; each writes its part of a second's records to each busy shard."""

OURS, THREADS, ASYNC, BARE = (
    "kinesis-trident",
    "boto3 in 32 threads, a call a second",
    "async-kinesis, a call a second",
    "a bare source in Spark, boto3 in 32 threads, a call a second",
)
PLANNER, PROGRAMS = "the planning process", "Hadoop's programs"


@dataclass(frozen=True, slots=True)
class Case:
    """A stream and how it is read: its shards, how many get records, and how many a second each.

    `bound`: cores that ours may use. `options`: of ours. `trigger`: of the queries, as `processingTime` takes it.
    `beside`: the other readers are measured, too.
    """

    what: str
    shards: int
    busy: int = 0
    rate: int = 0
    bound: float | None = None
    options: Mapping[str, str] | None = None
    trigger: str = "1 second"
    beside: bool = True

    @property
    def records(self) -> int:
        """Return the records a second."""
        return self.busy * self.rate


CASES = {
    "idle": [Case("1,000 idle shards, no trigger", 1000, bound=0.25, trigger="0 seconds")],
    "full": [
        Case("10 shards, 1,000 records/s each", 10, 10, 1000, beside=False),
        Case("20 shards, 1,000 records/s each", 20, 20, 1000, 0.35),
        Case("20 shards, 1,000 records/s each, no trigger", 20, 20, 1000, trigger="0 seconds", beside=False),
    ],
    "few": [Case("1,000 shards, of which 50 get 100 records/s each", 1000, 50, 100, 0.5)],
    "fan-out": [
        Case(
            "20 shards, 1,000 records/s each, fan-out",
            20,
            20,
            1000,
            options={"consumerMode": "efo"},
            beside=False,
        )
    ],
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a reader used: cores by role; and the GetRecords calls and the records a second."""

    cores: Mapping[str, float]
    calls: float
    records: float

    @property
    def total(self) -> float:
        """Return the cores of all its processes."""
        return sum(self.cores.values())

    @property
    def python(self) -> float:
        """Return the cores of its Python processes."""
        return sum(cores for role, cores in self.cores.items() if role not in (JVM, PROGRAMS, ZOOKEEPER))


class Endpoint:
    """A stream of a case in a process of its own, as a context manager; `url` is where it listens."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.url = ""

    def __enter__(self) -> Endpoint:
        given = map(str, (self._case.shards, self._case.busy, self._case.rate))
        command = [sys.executable, "-m", "benchmarks.limits", "--serve", *given]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("", timeout=20)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def calls(self) -> int:
        """Return the GetRecords calls so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line())


def serve(shards: int, busy: int, rate: int) -> None:
    """Serve a stream, write to its first shards, and answer each line of the standard input with the calls so far."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream(STREAM, shards)
        data = os.urandom(SIZE)

        def write() -> None:
            targets = kinesis.shards(STREAM)[:busy]
            begun, written = time.monotonic(), 0
            while True:
                time.sleep(TICK)
                wanted = int((time.monotonic() - begun) * rate)
                for shard in targets:
                    for number in range(written, wanted):
                        kinesis.put(STREAM, shard, data, f"key-{number % 10_000:04}")
                written = wanted

        if busy:
            threading.Thread(target=write, daemon=True).start()
        print(kinesis.endpoint_url, flush=True)
        for _ in sys.stdin:
            called = sum(count for (call, _), count in list(kinesis.calls.items()) if call == "GetRecords")
            print(called, flush=True)


def measure(
    endpoint: Endpoint,
    used: Callable[[], Mapping[str, float]],
    read: Callable[[], int],
    warm: float,
) -> Cost:
    """Return what a reader uses that has just begun. `used`: its seconds by role; `read`: its records; both so far."""
    while not endpoint.calls():
        time.sleep(0.5)
    time.sleep(warm)
    before = used(), endpoint.calls(), read(), time.monotonic()
    time.sleep(SECONDS)
    after = used(), endpoint.calls(), read(), time.monotonic()
    seconds = after[3] - before[3]
    return Cost(
        {role: (total - before[0].get(role, 0.0)) / seconds for role, total in after[0].items()},
        (after[1] - before[1]) / seconds,
        (after[2] - before[2]) / seconds,
    )


def used_by_query() -> dict[str, float]:
    """Return the seconds of this process, Spark and ZooKeeper; those of the planning process apart.

    So are those of the programs that Spark's JVM has waited for: while a query runs, its Python processes do not end.
    """
    seconds, planning, programs = spent(), 0.0, 0.0
    for role, process in running():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            if role == JVM:
                programs += times.children_user + times.children_system
            elif role == PYTHON and "source_runner" in " ".join(process.cmdline()):
                planning += times.user + times.system
    return {**seconds, PLANNER: planning, PROGRAMS: programs, PYTHON: seconds[PYTHON] - planning - programs}


@contextmanager
def counted(
    spark: SparkSession, source: str, options: Mapping[str, str], trigger: str
) -> Iterator[Callable[[], int]]:
    """Run a query that throws its rows away; yield what tells how many there were so far."""
    stream = spark.readStream.format(source).options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        writer = stream.writeStream.format("noop").trigger(processingTime=trigger)
        query = writer.option("checkpointLocation", folder).start()
        batches: dict[int, int] = {}
        has_ended = threading.Event()

        def watch() -> None:
            while not has_ended.wait(2.0):
                batches.update((one["batchId"], one["numInputRows"]) for one in query.recentProgress)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield lambda: sum(batches.values())
            failed = query.exception()
            if failed is not None:
                raise RuntimeError(str(failed))
        finally:
            has_ended.set()
            watching.join()
            query.stop()


def loop(endpoint: Endpoint, python: Path, kind: str) -> Cost:
    """Measure a reader that is a process of its own."""
    process = subprocess.Popen(
        [str(python), "-m", "benchmarks.peers.at_limits", kind],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        | {"AWS_ENDPOINT_URL_KINESIS": endpoint.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = ["0"]

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines[0] = line

    threading.Thread(target=follow, daemon=True).start()
    try:
        of = psutil.Process(process.pid)
        return measure(endpoint, lambda: {kind: sum(of.cpu_times()[:2])}, lambda: int(lines[0]), WARM_LOOP)
    finally:
        process.kill()
        process.wait()


def readers(spark: SparkSession, hosts: str, case: Case) -> dict[str, Callable[[Endpoint], Cost]]:
    """Return what measures each reader."""

    def ours(endpoint: Endpoint) -> Cost:
        given = {
            "streamName": STREAM,
            "endpointUrl": endpoint.url,
            "applicationName": uuid.uuid4().hex,
            "zookeeper.hosts": hosts,
            "startingPosition": "LATEST",
            **(case.options or {}),
        }
        with counted(spark, "kinesis-trident", given, case.trigger) as read:
            return measure(endpoint, used_by_query, read, WARM)

    def bare(endpoint: Endpoint) -> Cost:
        given = {"streamName": STREAM, "endpointUrl": endpoint.url}
        with counted(spark, "bare-kinesis", given, case.trigger) as read:
            return measure(endpoint, used_by_query, read, WARM)

    found: dict[str, Callable[[Endpoint], Cost]] = {OURS: ours}
    if case.beside:
        found |= {THREADS: lambda endpoint: loop(endpoint, Path(sys.executable), "boto3"), BARE: bare}
        try:
            python = install(next(peer for peer in PEERS if peer.module == "async_kinesis"))
        except PeerError as error:
            print(f"async-kinesis is not measured: {error}", flush=True)
        else:
            found[ASYNC] = lambda endpoint: loop(endpoint, python, "async-kinesis")
    return found


def rows(case: Case, costs: Mapping[str, Cost]) -> Iterator[list[str]]:
    """Yield the rows of a case."""
    for who, cost in costs.items():
        bound = case.bound if who == OURS else None
        yield [
            f"{case.what}: {who}",
            f"{cost.total:.2f}",
            "" if bound is None else verdict(f"{bound} cores", cost.total <= bound),
            *(
                f"{max(0.0, cost.cores[role]):.2f}" if role in cost.cores else ""
                for role in (PLANNER, PYTHON, JVM, PROGRAMS, ZOOKEEPER)
            ),
            f"{cost.calls:,.0f}",
            f"{cost.records:,.0f}",
            f"{1e6 * cost.python / cost.calls:,.0f} µs" if cost.calls > 1 else "",
        ]


COLUMNS = (
    "",
    "cores",
    "bound",
    PLANNER,
    "tasks",
    JVM,
    PROGRAMS,
    ZOOKEEPER,
    "GetRecords a second",
    "records a second",
    "Python a call",
)


NOTE = (
    "The endpoint, `ScriptedKinesis`, gives a shard 5 GetRecords calls and 2 MiB a second; it and what writes its "
    f"records of {SIZE:,} bytes are another process, which is not counted. Cores: the processor's time of all others a "
    f"second, for {SECONDS:g} s once queries ran for {WARM:g} s and loops for {WARM_LOOP:g}; queries run in `local[2]` "
    "with default options, a trigger of a second where nothing else is said, and a noop sink. The boto3 loops and the "
    "bare source keep no positions and repeat nothing. Where a reader made fewer calls or read fewer records than it "
    "should, the machine had no more time for it: when this began, {busy:.1f} processes were running or waiting for a "
    "core."
)


def main() -> None:
    """Measure and publish; words name the cases, else all are."""
    if "--serve" in sys.argv:
        serve(*map(int, sys.argv[sys.argv.index("--serve") + 1 :]))
        return
    pretend_credentials()
    parser = argparse.ArgumentParser(description="Measure what reading costs at the limits that AWS has.")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all, if none is named")
    parser.add_argument("--only", default="", help="part of the name of the readers that are measured")
    parser.add_argument("--dry-run", action="store_true", help="print the section instead of writing it")
    given = parser.parse_args()
    busy = os.getloadavg()[0]
    found: list[Sequence[str]] = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper() as zookeeper:
        spark = session(Path(folder))
        spark.dataSource.register(BareSource)
        spark.conf.set(*FEW_PROGRAMS)
        for case in [case for name in given.cases or CASES for case in CASES[name]]:
            costs = {}
            for who, cost in readers(spark, zookeeper.hosts, case).items():
                if given.only in who:
                    with Endpoint(case) as endpoint:
                        costs[who] = cost(endpoint)
                    print(
                        json.dumps([case.what, who, costs[who].cores, costs[who].calls, costs[who].records]),
                        flush=True,
                    )
            found += rows(case, costs)
        spark.stop()
    publish(
        Section(
            name="limits",
            title="At the limits that AWS has",
            command="python -m benchmarks.limits",
            columns=COLUMNS,
            rows=found,
            note=NOTE.format(busy=busy),
        )
    )


if __name__ == "__main__":
    main()
