"""Measure the time of a record from `put_record` to the sink: `python -m benchmarks.latency [trickle | first | load]`.

`python -m benchmarks.latency prefetch` measures the time of a batch where reads are slow.

The endpoint is `ScriptedKinesis` with AWS's limits, in a process of its own. A producer stamps each record when it is
put, the sink when it has the row; both read the clock of one machine.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.endpoint import pretend_credentials, served
from benchmarks.report import Section, bounded, publish
from benchmarks.source import FEW_PROGRAMS, session
from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import ScriptedKinesis, Slow
from kinesis_trident.trident import Count, Function, TridentTopology
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.stores.memory import MemoryByteStore

STREAM = "latency"
WARM, SECONDS = 30.0, 12.0
"""Seconds of records before those that are measured: in them everything gets warm; and of those."""

TRICKLE, LOAD = 10, 1_000
"""Records a second; the second is what one shard takes."""

SINGLES = 24
IDLE = 5.0
"""Seconds without a record before a first one, after which a shard is looked at as seldom as it ever is; with a part of
a second more, a different one for each."""

SLOW = 1.5
"""Seconds of each read from the slow endpoint, and of the function of each batch, with which `prefetch` is measured."""

BATCHES = 8
SHORTER = 0.75
"""The batches whose time is measured, after three to get warm; the bound of the ratio with `prefetch` and without."""

PUTS_A_SECOND = 20
"""Calls of a producer at most; each puts as many records as the rate needs."""


@dataclass(slots=True)
class Arrivals:
    """The latencies of the records that came to a sink, in seconds, by the stamp of each."""

    seconds: dict[int, float] = field(default_factory=dict)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def add(self, stamps: Sequence[str | bytes]) -> None:
        """Note that these records, of which each is its stamp in nanoseconds, are in the sink now."""
        now = time.time_ns()
        with self._came:
            for stamp in map(int, stamps):
                self.seconds.setdefault(stamp, (now - stamp) / 1e9)
            self._came.notify_all()

    def wait_for(self, stamps: Sequence[int], seconds: float = 60.0) -> list[float]:
        """Return the latencies of these records, when all have come.

        Raises:
            RuntimeError: they have not.
        """
        with self._came:
            if not self._came.wait_for(lambda: self.seconds.keys() >= set(stamps), seconds):
                missing = len(set(stamps) - self.seconds.keys())
                msg = f"{missing} of {len(stamps)} records did not come within {seconds:g} s"
                raise RuntimeError(msg)
            return [self.seconds[stamp] for stamp in stamps]


Start = Callable[[SparkSession, DataFrame, str, Arrivals], StreamingQuery]


def plain(_: SparkSession, stream: DataFrame, checkpoint: str, arrivals: Arrivals) -> StreamingQuery:
    """A query with Spark's own `foreachBatch`."""

    def write(rows: DataFrame, _: int) -> None:
        arrivals.add(rows.select("data").toArrow().column("data").to_pylist())

    return stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()


def judged(_: SparkSession, stream: DataFrame, checkpoint: str, arrivals: Arrivals) -> StreamingQuery:
    """A query with an outcome for each record."""

    def write(rows: DataFrame, _: int) -> None:
        arrivals.add(rows.toArrow().column("stamp").to_pylist())

    parsed = reliable(stream).map(lambda record: (record.data.decode(),), "stamp string")
    return parsed.for_each_batch(write).start(checkpointLocation=checkpoint)


class Stamp(Function):
    """The text of a record."""

    def execute(self, tup: Any, collector: Any) -> None:
        """Emit it."""
        collector.emit([tup["data"].decode()])


class StampedStore(MemoryByteStore):
    """Notes when each key is written: a record counts when its count is stored."""

    arrivals: Arrivals

    def compare_and_set_many(self, keys: Sequence[str], values: Any, versions: Any) -> Any:
        """See `ByteStore.compare_and_set_many`."""
        written = super().compare_and_set_many(keys, values, versions)
        self.arrivals.add([stamp for stamp in map(digits, keys) if stamp])
        return written


def digits(key: str) -> str:
    """Return the stamp that a key of the state holds; empty for a key of its own."""
    found = "".join(filter(str.isdigit, key))
    return found if len(found) == len(str(time.time_ns())) else ""


class StampedState(MemoryMapState):
    """States in a store that stamps."""

    def __init__(self, *given: Any, arrivals: Arrivals, **options: Any) -> None:
        super().__init__(*given, **options)
        self._arrivals = arrivals

    def _connect(self) -> MemoryByteStore:
        store = StampedStore(self._target)
        store.arrivals = self._arrivals
        return store


def counted(spark: SparkSession, stream: DataFrame, checkpoint: str, arrivals: Arrivals) -> StreamingQuery:
    """A topology that counts, each record under a key of its own."""
    topology = TridentTopology(spark)
    (
        topology.new_stream("records", stream)
        .each(["data"], Stamp(), ["stamp"])
        .group_by(["stamp"])
        .persistent_aggregate(StampedState(arrivals=arrivals), Count(), ["count"])
    )
    return topology.start(checkpointLocation=checkpoint, strict=True).queries["records"]


@dataclass(slots=True)
class Producer:
    """Puts stamped records; Kinesis spreads them over the shards by their keys."""

    url: str
    client: Any = None

    def __post_init__(self) -> None:
        self.client = boto3.client("kinesis", endpoint_url=self.url)

    def put(self, count: int = 1) -> list[int]:
        """Put records that were not refused; return their stamps."""
        stamps = [time.time_ns() + number for number in range(count)]
        records = [{"Data": b"%d" % stamp, "PartitionKey": str(stamp)} for stamp in stamps]
        answer = self.client.put_records(StreamName=STREAM, Records=records)
        done = zip(stamps, answer["Records"], strict=True)
        return [stamp for stamp, result in done if "ErrorCode" not in result]

    def run(self, rate: int, seconds: float) -> list[int]:
        """Put records at an even rate, so many a second; return the stamps of those that were not refused."""
        calls = min(rate, PUTS_A_SECOND)
        stamps: list[int] = []
        begun = time.monotonic()
        for call in range(int(seconds * calls)):
            time.sleep(max(0.0, begun + call / calls - time.monotonic()))
            stamps += self.put(rate // calls)
        return stamps


@dataclass(frozen=True, slots=True)
class Way:
    """A query with its options, and the bounds in seconds of its median and 99th percentile.

    `at_any_rate`: they are not only those of the trickle. `conf`: a setting of Spark.
    """

    what: str
    start: Start
    options: Mapping[str, str] = field(default_factory=dict)
    p50: float | None = None
    p99: float | None = None
    at_any_rate: bool = False
    conf: tuple[str, str] | None = None


class Bench:
    """Spark, ZooKeeper and a folder for all ways; an endpoint of its own for each."""

    def __init__(self, spark: SparkSession, folder: Path, hosts: str) -> None:
        self._spark = spark
        self._folder = folder
        self._hosts = hosts

    @contextmanager
    def running(self, way: Way, shards: int, seconds: float = 0.0) -> Iterator[tuple[Producer, Arrivals]]:
        """The way's query, after its first record; each read takes so many seconds."""
        with served("benchmarks.latency", "--serve", str(shards), str(seconds)) as url:
            producer, arrivals = Producer(url), Arrivals()
            given = {
                "streamName": STREAM,
                "endpointUrl": url,
                "applicationName": uuid.uuid4().hex,
                "zookeeper.hosts": self._hosts,
                "startingPosition": "TRIM_HORIZON",
                **way.options,
            }
            stream = self._spark.readStream.format("kinesis-trident").options(**given).load()
            if way.conf is not None:
                self._spark.conf.set(*way.conf)
            query = way.start(self._spark, stream, str(self._folder / uuid.uuid4().hex), arrivals)
            try:
                arrivals.wait_for(producer.put())
                yield producer, arrivals
                tell_batches(query)
            finally:
                query.stop()
                if way.conf is not None:
                    self._spark.conf.unset(way.conf[0])

    def streamed(self, way: Way, rate: int, shards: int) -> list[str]:
        """The row of records that come at a rate."""
        with self.running(way, shards) as (producer, arrivals):
            arrivals.wait_for(producer.run(rate, WARM))
            seconds = arrivals.wait_for(producer.run(rate, SECONDS))
        p50, p99 = (way.p50, way.p99) if rate == TRICKLE or way.at_any_rate else (None, None)
        return row(f"{rate:,} records/s, {shards} shard{'s'[: shards - 1]}: {way.what}", seconds, p50, p99)

    def first(self, way: Way) -> list[str]:
        """The row of records that come after nothing came for a while."""
        rng = random.Random(1)
        seconds = []
        with self.running(way, 1) as (producer, arrivals):
            arrivals.wait_for(producer.run(TRICKLE, WARM))
            for part in rng.sample(range(SINGLES), SINGLES):
                time.sleep(IDLE + (part + rng.random()) / SINGLES)
                seconds += arrivals.wait_for(producer.put())
        return row(f"first record after idleness, 1 shard: {way.what}", seconds, way.p50, None)

    def beside(self) -> list[list[str]]:
        """The rows of batches whose functions take as long as a read, without and with `prefetch`."""
        found = []
        for prefetch in ("false", "true"):
            begun: list[float] = []

            def slow(
                _: SparkSession,
                stream: DataFrame,
                checkpoint: str,
                arrivals: Arrivals,
                begun: list[float] = begun,
            ) -> StreamingQuery:
                def write(rows: DataFrame, _: int) -> None:
                    begun.append(time.monotonic())
                    arrivals.add(rows.select("data").toArrow().column("data").to_pylist())
                    time.sleep(SLOW)

                return stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

            way = Way(f"`prefetch={prefetch}`", slow, {"prefetch": prefetch})
            with self.running(way, 1, SLOW) as (producer, arrivals):
                stamps: list[int] = []
                while len(begun) < BATCHES + 3:
                    stamps += producer.run(TRICKLE, 1.0)
                arrivals.wait_for(stamps)
            found.append((way.what, statistics.median(np.diff(begun[2 : BATCHES + 3]))))
        ratio = found[1][1] / found[0][1]
        ratios = ["1", bounded(f"{ratio:.2f}", str(SHORTER), ratio <= SHORTER)]
        rows = [[what, f"{seconds:.2f} s", text] for (what, seconds), text in zip(found, ratios, strict=True)]
        for one in rows:
            print(": ".join(one), flush=True)
        return rows


def row(what: str, seconds: Sequence[float], p50: float | None, p99: float | None) -> list[str]:
    """The figures of one way, each with its bound."""
    half, most = np.percentile(seconds, [50, 99])
    figures = [milliseconds(half, p50), milliseconds(most, p99), milliseconds(max(seconds), None)]
    print(f"{what}: {', '.join(figures)}", flush=True)
    return [what, f"{len(seconds):,}", *figures]


def milliseconds(seconds: float, bound: float | None) -> str:
    """A figure with its bound, if it has one, and whether it was missed."""
    text = f"{seconds * 1000:,.0f} ms"
    return text if bound is None else bounded(text, f"{bound * 1000:,.0f}", seconds <= bound)


def tell_batches(query: StreamingQuery) -> None:
    """Print where the time of a batch goes, by Spark."""
    done = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][-50:]
    parts = sorted({part for one in done for part in one})
    medians = {part: statistics.median(one.get(part, 0) for one in done) for part in parts}
    told = ", ".join(f"{part} {milliseconds:.0f} ms" for part, milliseconds in medians.items())
    print(f"  {len(done)} batches, medians: {told}", flush=True)


SETTING = "`FileSystemBasedCheckpointFileManager`"
FAN_OUT = Way("plain, fan-out", plain, {"consumerMode": "efo"}, p50=0.3, at_any_rate=True)
WAYS = (
    Way("plain", plain, p50=0.35, p99=0.7),
    Way("`reliable`", judged, p50=0.35, p99=0.7),
    Way("a Trident count", counted),
    FAN_OUT,
    replace(FAN_OUT, what=f"{FAN_OUT.what}, {SETTING}", p99=0.4, conf=FEW_PROGRAMS),
)
FIRST = (
    Way("plain", plain, p50=0.35),
    Way(f"plain, {SETTING}", plain, p50=0.35, conf=FEW_PROGRAMS),
    Way("`idlePollInterval=1s`", plain, {"idlePollInterval": "1s"}),
)


COLUMNS = ["default options, no trigger, local[2]", "records", "p50", "p99", "longest"]
BESIDE_COLUMNS = [
    f"each read and each batch's function take {SLOW:g} s",
    "from batch to batch, median",
    "ratio",
]

PARTS: dict[str, tuple[str, Callable[[Bench], list[list[str]]]]] = {
    "first": (
        "From put_record to the sink: the first record after idleness",
        lambda bench: [bench.first(way) for way in FIRST],
    ),
    "trickle": (
        "From put_record to the sink: a trickle",
        lambda bench: [bench.streamed(way, TRICKLE, shards) for shards in (1, 4) for way in WAYS],
    ),
    "load": (
        "From put_record to the sink: as much as one shard takes",
        lambda bench: [bench.streamed(way, LOAD, shards) for shards in (1, 4) for way in WAYS],
    ),
    "prefetch": ("Reading beside the running batch", lambda bench: bench.beside()),
}

NOTE = (
    "The endpoint has AWS's limits: 5 GetRecords calls and 2 MiB a second of a shard. It, the producer, ZooKeeper and "
    "Spark share the cores, and the time of a batch is a large part of each figure: measure on a machine that does "
    "nothing else. When this began, {busy:.1f} processes were running or waiting for a core."
)


def serve(count: int, seconds: float = 0.0) -> None:
    """Serve a stream until the standard input is closed; each read takes so many seconds."""
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream(STREAM, count)
        if seconds:
            kinesis.script("GetRecords", Slow(seconds), times=None)
        print(kinesis.endpoint_url, flush=True)
        sys.stdin.read()


def main() -> None:
    """Measure and publish."""
    if "--serve" in sys.argv:
        count, *seconds = sys.argv[sys.argv.index("--serve") + 1 :]
        serve(int(count), *map(float, seconds))
        return
    pretend_credentials()
    named = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        spark = session(Path(name))
        bench = Bench(spark, Path(name), zookeeper.hosts)
        for part, (title, measure) in PARTS.items():
            if part in (named or PARTS):
                busy = os.getloadavg()[0]
                publish(
                    Section(
                        name=f"latency-{part}",
                        title=title,
                        command=f"python -m benchmarks.latency {part}",
                        columns=BESIDE_COLUMNS if part == "prefetch" else COLUMNS,
                        rows=measure(bench),
                        note=NOTE.format(busy=busy),
                    )
                )
        spark.stop()


if __name__ == "__main__":
    main()
