"""Measure whether anything grows under load: `python -m benchmarks.load [rate | shards] [minutes]`.

A query judges each record, and one of a hundred fails at its first delivery. `rate`: two shards without a limit, as
fast as the cores go, for an hour. `shards`: a thousand shards with the limits of a shard and a steady producer, for
ten minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bolts import is_hundredth, scattered, to_nowhere
from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials, served
from benchmarks.latency import STREAM, Producer
from benchmarks.plots import Panel, Plot
from benchmarks.processors import running
from benchmarks.report import Section, publish, verdict
from benchmarks.source import monitored, options, session
from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

EVERY = 10.0
"""Seconds from sample to sample."""

COLLECTIONS = 12
"""How often the JVM is asked for a full collection, to see what its heap has to keep."""

BOUND = 1.1
"""Times that a curve has at its end what it had before its middle, at most."""

UNLIMITED = 10**8
"""Pages of a shard: nobody comes to its end."""

SHARDS, RATE = 1_000, 1_000
"""Of the second load; the records a second."""

KEPT = 20
"""Batches of which Spark keeps offsets and progress in the second load; its hundred take longer to come together."""


def judge(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the length of each record; every hundredth fails at its first delivery."""
    failing = pc.and_(is_hundredth(scattered(rows)), pc.equal(rows.column("attempt"), 1))
    return pa.RecordBatch.from_pydict(
        {"length": pc.binary_length(rows.column("data")), "__failed": pc.if_else(failing, "hundredth", None)}
    )


@dataclass(slots=True)
class Samples:
    """What was seen at each moment: the time in minutes, and the values of each curve, by panel and curve."""

    minutes: list[float] = field(default_factory=list)
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, minute: float, seen: Mapping[str, Mapping[str, float]]) -> None:
        """Add a moment."""
        for panel, values in seen.items():
            curves = self.curves.setdefault(panel, {})
            for name in curves.keys() | values.keys():
                # A process that was not there yet, or is gone.
                curves.setdefault(name, [0.0] * len(self.minutes)).append(values.get(name, 0.0))
        self.minutes.append(minute)

    def growths(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield the panel and the name of each curve, and the medians of its second and its last quarter."""
        quarter = max(1, len(self.minutes) // 4)
        for panel, curves in self.curves.items():
            for name, values in curves.items():
                before, after = values[quarter : 2 * quarter] or values, values[-quarter:]
                yield panel, name, statistics.median(before), statistics.median(after)


class Watch:
    """Samples a query, its processes and what it keeps.

    Args:
        spark: whose JVM is looked at.
        query: runs.
        hosts: of ZooKeeper.
        folder: with Spark's `checkpoint` of the query, and `spool`, the `retrySpool` if there is one.
        collect_every: seconds from one full collection of the JVM to the next.
    """

    def __init__(
        self, spark: SparkSession, query: StreamingQuery, hosts: str, folder: Path, collect_every: float
    ) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._query = query
        self._hosts = hosts
        self._folder = folder
        self._collect_every = collect_every
        self._batch = -1
        self._at = time.monotonic()
        self._collected = self._at - collect_every
        self._heap = 0.0
        psutil.cpu_percent()

    def look(self) -> dict[str, dict[str, float]]:
        """Return what is seen now, by panel and curve."""
        memory, files = Counter[str](), Counter[str]()
        for role, process in running():
            with suppress(psutil.NoSuchProcess):
                memory[role] += process.memory_info().rss / 2**20
                files[role] += process.num_fds()
        kept = monitored(self._hosts)
        return {
            "new and repeated records a second": {"read": self._rate()},
            "processors": {"busy, %": psutil.cpu_percent()},
            "resident memory, MiB": memory,
            "memory after a collection, MiB": {"heap of Spark's JVM": self._live()},
            "open files": files,
            "ZooKeeper": {
                "nodes": float(kept["zk_znode_count"]),
                "KiB": float(kept["zk_approximate_data_size"]) / 1024,
            },
            "Spark's checkpoint": _sizes(self._folder / "checkpoint"),
            "retrySpool": _sizes(self._folder / "spool"),
        }

    def _live(self) -> float:
        """Return the MiB of the JVM's heap that the newest full collection has left."""
        if time.monotonic() - self._collected >= self._collect_every:
            self._jvm.java.lang.System.gc()
            memory = self._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
            self._heap = memory.getHeapMemoryUsage().getUsed() / 2**20
            self._collected = time.monotonic()
        return self._heap

    def _rate(self) -> float:
        """Return the records a second of the batches that have ended since the last look."""
        if self._query.exception() is not None:
            raise RuntimeError(str(self._query.exception()))
        new = [one for one in self._query.recentProgress if one["batchId"] > self._batch]
        began, self._at = self._at, time.monotonic()
        self._batch = max((one["batchId"] for one in new), default=self._batch)
        rows: int = sum(one["numInputRows"] for one in new)
        return rows / (self._at - began)


def _sizes(folder: Path) -> dict[str, float]:
    """Return how many files are below a folder, and their size."""
    sizes = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return {"files": len(sizes), "KiB": sum(sizes) / 1024}


@contextmanager
def fast(hosts: str, folder: Path) -> Iterator[dict[str, str]]:
    """The source of the first load: failed records are read from a folder, and a batch has room for all of them."""
    with PreparedEndpoint(Records(2, UNLIMITED, size=200)) as endpoint:
        yield options(
            endpoint.url,
            hosts,
            "/bench",
            maxFetchRecordsPerShard="50000",
            maxRetryingRecords="10000",
            retrySpool=str(folder / "spool"),
        )


@contextmanager
def many(hosts: str, _folder: Path) -> Iterator[dict[str, str]]:
    """The source of the second load, while its producer writes."""
    with (
        served("benchmarks.latency", "--serve", str(SHARDS)) as url,
        served("benchmarks.load", "--produce", url),
    ):
        yield options(url, hosts, "/bench", streamName=STREAM, minFetchPeriod="200ms", maxFetchRate="2")


def produce(url: str) -> None:
    """Put records at an even rate until the standard input is closed."""
    producer = Producer(url)

    def put() -> None:
        while True:
            producer.run(RATE, 1.0)

    threading.Thread(target=put, daemon=True).start()
    print(url, flush=True)
    sys.stdin.read()


def sampled(
    spark: SparkSession, folder: Path, hosts: str, given: Mapping[str, str], minutes: float
) -> Samples:
    """Run the query for so long, and return what was seen."""
    stream = spark.readStream.format("kinesis-trident").options(**given).load()
    sink = reliable(stream).map(judge, "length int").for_each_batch(to_nowhere)
    query = sink.start(checkpointLocation=str(folder / "checkpoint"))
    try:
        watch = Watch(spark, query, hosts, folder, 60 * minutes / COLLECTIONS)
        samples, began = Samples(), time.monotonic()
        while (passed := time.monotonic() - began) < 60 * minutes:
            time.sleep(EVERY - passed % EVERY)
            samples.add((time.monotonic() - began) / 60, watch.look())
            print(f"{samples.minutes[-1]:.1f} min: {_line(samples)}", flush=True)
        return samples
    finally:
        query.stop()


def _line(samples: Samples) -> str:
    """Return the last values of all curves."""
    return ", ".join(
        f"{name} {values[-1]:,.0f}" for curves in samples.curves.values() for name, values in curves.items()
    )


@dataclass(frozen=True, slots=True)
class Load:
    """A load: its title, how long it lasts by default in minutes, its source, Spark's settings, what to know of it."""

    title: str
    minutes: float
    source: Callable[[str, Path], AbstractContextManager[dict[str, str]]]
    settings: Mapping[str, str]
    note: str


LOADS = {
    "rate": Load(
        "Under load: as fast as the cores go",
        60,
        fast,
        {},
        "Two shards without a limit, `maxFetchRecordsPerShard=50000`, `maxRetryingRecords=10000`, and a `retrySpool`.",
    ),
    "shards": Load(
        "Under load: a thousand shards",
        10,
        many,
        {
            "spark.sql.streaming.minBatchesToRetain": str(KEPT),
            "spark.sql.streaming.numRecentProgressUpdates": str(KEPT),
        },
        f"{SHARDS:,} shards with a shard's limits, {RATE:,} records a second in all; Spark keeps the offsets and the "
        f"progress of {KEPT} batches (`minBatchesToRetain`, `numRecentProgressUpdates`).",
    ),
}


def section(name: str, samples: Samples) -> Section:
    """Return the table of what grew, and the curves."""
    load = LOADS[name]
    rows: list[Sequence[str]] = []
    for panel, curve, before, after in samples.growths():
        rate = panel.startswith("new")
        if not before and not after:
            continue
        growth = after / before if before else float("inf")
        is_kept = growth >= 1 / BOUND if rate else growth <= BOUND
        bound = f"at least {1 / BOUND:.2f}" if rate else f"at most {BOUND}"
        rows.append(
            [
                f"{panel}: {curve}",
                f"{before:,.0f}",
                f"{after:,.0f}",
                f"{growth:.2f} ({verdict(bound, is_kept)})",
            ]
        )
    plot = Plot(
        f"load-{name}",
        f"{load.title}: rate, processors, memory, open files, ZooKeeper and Spark's checkpoint over time",
        "minutes",
        samples.minutes,
        [Panel(panel, curves) for panel, curves in samples.curves.items() if any(map(any, curves.values()))],
        dense=True,
    )
    return Section(
        name=f"load-{name}",
        title=load.title,
        command=f"python -m benchmarks.load {name} {samples.minutes[-1]:.0f}",
        columns=["", "second quarter", "last quarter", "growth"],
        rows=rows,
        note=f"{load.note} One of a hundred records fails at its first delivery. Medians of the samples, one in "
        f"{EVERY:g} s. What a JVM holds resident may grow up to its largest heap, 1 GiB here: the heap that a full "
        "collection leaves tells whether anything is kept.",
        plots=[plot],
    )


def main() -> None:
    """Measure and publish the loads that are named, else both; a number is that of the minutes."""
    words = sys.argv[1:]
    if words[:1] == ["--produce"]:
        produce(words[1])
        return
    minutes = next((float(word) for word in words if word.replace(".", "").isdecimal()), None)
    pretend_credentials()
    for name in [one for one in LOADS if one in words] or LOADS:
        load = LOADS[name]
        with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper() as zookeeper:
            spark = session(Path(folder))
            for key, value in load.settings.items():
                spark.conf.set(key, value)
            with load.source(zookeeper.hosts, Path(folder)) as given:
                lasting = minutes or load.minutes
                samples = sampled(spark, Path(folder), zookeeper.hosts, given, lasting)
            spark.stop()
        publish(section(name, samples))


if __name__ == "__main__":
    main()
