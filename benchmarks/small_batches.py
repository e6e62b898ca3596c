"""Measure a small batch beside a bare source: `python -m benchmarks.small_batches [batches] [imports] [rounds]`.

The bare source is a Python source of Spark that yields the same rows, ready-made, in one task a shard, and does nothing
else: no Kinesis, no positions, no replay. Queries of the two take turns, so that each ratio is one of neighbours. The
time of a start and what is imported are measured beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bolts import Half, Length, to_nowhere
from benchmarks.endpoint import ROOT, PreparedEndpoint, Records
from benchmarks.ready import write_batches
from benchmarks.report import Section, publish, verdict
from benchmarks.source import options
from benchmarks.word_count import Split, prepared, redis_program, words_of
from kinesis_trident import KinesisSpout, TopologyBuilder, reliable
from kinesis_trident.trident import Count, TridentTopology
from kinesis_trident.trident.stores.redis import RedisState
from tests.servers import RedisServer

BATCHES, WARM = 25, 5
"""Of a query. Its first batches pay for imports and connections."""

ROUNDS = 5
RECORDS, WORDS = 1000, 10
ONCE = {"availableNow": True}

PROCESSES = {
    "the process that plans": ("pyspark.sql.streaming.python_streaming_source_runner", "spout.planner.run"),
    "a worker that reads": ("pyspark.worker", "spout.reader.task"),
    "the driver with reliable()": ("pyspark.sql", "bolt.reliable"),
}
"""For each process, a module it has imported when it first needs the source, and the one that it needs then."""

MOST_MODULES = {"the process that plans": 392, "a worker that reads": 455, "the driver with reliable()": 438}
"""The numbers before the first of these benchmarks."""

Handle = Callable[[DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class Source:
    """A source with its options."""

    spark: SparkSession
    format: str
    options: Mapping[str, Any]

    @property
    def stream(self) -> DataFrame:
        """Its rows."""
        return self.spark.readStream.format(self.format).options(**self.options).load()


Start = Callable[[Source, str], StreamingQuery]
"""Starts a query with the checkpoint location."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to process batches of the source, and the query of the bare source beside it.

    `records`: of each shard in a batch, of `words` words each, or of 200 bytes. `bound`: of the ratio.
    """

    name: str
    bound: float | None
    ours: Start
    bare: Start
    shards: int = 1
    records: int = RECORDS
    words: int = 0

    @property
    def size(self) -> int:
        """The records of a batch."""
        return self.shards * self.records

    @property
    def held(self) -> Records:
        """The records of one query."""
        return Records(self.shards, BATCHES, self.records, size=200, words=self.words)


@dataclass(frozen=True, slots=True)
class Measured:
    """The median of a query's batches, and the time from its start to the end of the first, in milliseconds."""

    batch: float
    start: float


def plain(source: Source, checkpoint: str) -> StreamingQuery:
    """A query that throws its rows away."""
    out = source.stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return out.trigger(**ONCE).start()


def handled(handle: Handle, source: Source, checkpoint: str) -> StreamingQuery:
    """A query with a batch function."""
    out = source.stream.writeStream.foreachBatch(handle).option("checkpointLocation", checkpoint)
    return out.trigger(**ONCE).start()


def judged(source: Source, checkpoint: str) -> StreamingQuery:
    """`reliable()` without a function of its own."""
    return (
        reliable(source.stream).for_each_batch(to_nowhere).start(checkpointLocation=checkpoint, trigger=ONCE)
    )


def mapped(source: Source, checkpoint: str) -> StreamingQuery:
    """`reliable()` with a function of Arrow batches."""
    sink = reliable(source.stream).map(length, "length int").for_each_batch(to_nowhere)
    return sink.start(checkpointLocation=checkpoint, trigger=ONCE)


def mapped_bare(rows: DataFrame, number: int) -> None:
    """The same function alone."""
    to_nowhere(rows.mapInArrow(lambda batches: map(length, batches), "length int"), number)


def length(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The length of each record."""
    return pa.RecordBatch.from_arrays([pc.binary_length(rows.column("data"))], names=["length"])


def two_bolts(source: Source, checkpoint: str) -> StreamingQuery:
    """A topology of two Arrow bolts."""
    builder = TopologyBuilder(source.spark)
    builder.set_spout("records", KinesisSpout(**source.options))
    builder.set_bolt("length", Length()).local_or_shuffle_grouping("records")
    builder.set_bolt("half", Half(failing=False)).local_or_shuffle_grouping("length")
    return builder.start(checkpointLocation=checkpoint, trigger=ONCE)


def counted(url: str, source: Source, checkpoint: str) -> StreamingQuery:
    """A Trident topology that counts words in Redis."""
    topology = TridentTopology(source.spark)
    state = RedisState.opaque(url, keyPrefix=uuid.uuid4().hex)
    words = topology.new_stream("lines", source.stream).each(["data"], Split(), ["word"])
    words.group_by(["word"]).persistent_aggregate(state, Count(), ["count"])
    return topology.start(checkpointLocation=checkpoint, trigger=ONCE, strict=True).queries["lines"]


def counted_bare(rows: DataFrame, number: int) -> None:
    """The same counts by Spark, without a state."""
    to_nowhere(words_of(rows).groupBy("word").count(), number)


def ways(redis: str) -> list[Way]:
    """All that is measured. A batch function of the bare source does nothing but take the rows."""
    taken, count = partial(handled, to_nowhere), partial(counted, redis)
    lines = {"records": RECORDS // WORDS, "words": WORDS}
    return [
        Way("a plain query", 1.15, plain, plain),
        Way("a plain query", 1.15, plain, plain, shards=4),
        Way("reliable()", 1.35, judged, taken),
        Way("reliable()", 1.35, judged, taken, shards=4),
        Way("reliable() with a function", None, mapped, partial(handled, mapped_bare), shards=4),
        Way("two bolts", 1.6, two_bolts, taken),
        Way("two bolts", 1.6, two_bolts, taken, shards=4),
        Way("Trident word count", 2.0, count, taken, **lines),
        Way("Trident word count, to Spark's", None, count, partial(handled, counted_bare), **lines),
    ]


class Bench:
    """Measures queries of a way and of the bare source in turns."""

    def __init__(self, spark: SparkSession, folder: Path, hosts: str) -> None:
        self._spark = spark
        self._folder = folder
        self._hosts = hosts

    def rounds(self, way: Way, rounds: int) -> tuple[list[Measured], list[Measured]]:
        """Ours and the bare ones, after a round that does not count: who comes first warms up the JVM."""
        ours, bare = [], []
        with tempfile.TemporaryDirectory(dir=self._folder) as name, PreparedEndpoint(way.held) as endpoint:
            ready = write_batches(Path(name), way.held, most=1) | {"times": "1", "batches": str(BATCHES)}
            for _ in range(rounds + 1):
                given = options(endpoint.url, self._hosts, "/bench", maxRecordsPerTrigger=str(way.size))
                bare.append(self._measured(way, way.bare, Source(self._spark, "ready-batches", ready)))
                ours.append(self._measured(way, way.ours, Source(self._spark, "kinesis-trident", given)))
        return ours[1:], bare[1:]

    def _measured(self, way: Way, start: Start, source: Source) -> Measured:
        began = time.time()
        query = start(source, str(self._folder / uuid.uuid4().hex))
        query.awaitTermination()
        done = [dict(one) for one in query.recentProgress if one["numInputRows"]]
        # The first row of a run may be read once more.
        assert [one["numInputRows"] % way.size for one in done] in (
            [0] * BATCHES,
            [1, *[0] * (BATCHES - 1)],
        ), done
        took = [one["durationMs"]["triggerExecution"] for one in done]
        first = datetime.fromisoformat(done[0]["timestamp"]).timestamp() + took[0] / 1000
        return Measured(statistics.median(took[WARM:]), (first - began) * 1000)


def row(way: Way, ours: Sequence[Measured], bare: Sequence[Measured]) -> list[str]:
    """A row of the table; queries at the same place are neighbours."""
    ratio = statistics.median(one.batch / other.batch for one, other in zip(ours, bare, strict=True))
    bound = "" if way.bound is None else verdict(f"{way.bound}", ratio <= way.bound)
    return [
        f"{way.name}, {way.shards} shard{'s' * (way.shards > 1)}, {way.size:,} records",
        *(f"{statistics.median(one.batch for one in side):,.0f} ms" for side in (ours, bare)),
        f"{ratio:.2f} x",
        bound,
        *(f"{statistics.median(one.start for one in side):,.0f} ms" for side in (ours, bare)),
    ]


def import_rows() -> list[list[str]]:
    """Return what importing the source costs each process, in CPU time, and how many modules it brings."""
    rows = []
    for process, (before, module) in PROCESSES.items():
        code = (
            f"import sys, time, {before}, kinesis_trident.spout.source\n"
            "known, began = len(sys.modules), time.process_time()\n"
            f"import kinesis_trident.{module}\n"
            "print(time.process_time() - began, len(sys.modules) - known)"
        )
        command = [sys.executable, "-c", code]
        runs = [
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(5)
        ]
        seconds, modules = min(tuple(map(float, one.stdout.split())) for one in runs)
        most = MOST_MODULES[process]
        bound = verdict(f"{most}", modules <= most)
        rows.append([process, f"{seconds * 1000:,.0f} ms", f"{modules:.0f}", bound])
    return rows


def batches(rounds: int) -> Section:
    """The section of the batches."""
    rows = []
    with prepared() as (spark, folder, hosts), RedisServer(redis_program()) as redis:
        bench = Bench(spark, folder, hosts)
        for way in ways(redis.url):
            rows.append(row(way, *bench.rounds(way, rounds)))
            print(*rows[-1], sep=" | ", flush=True)
    return Section(
        name="small-batches",
        title="Small batches",
        command="python -m benchmarks.small_batches batches",
        columns=["a micro-batch", "ours", "bare", "ratio", "bound", "start", "bare start"],
        rows=rows,
        note="Bare: a Python source of Spark that yields the same rows, ready-made, in a task a shard; where a bound "
        f"is given, its query takes the rows and does nothing with them. Queries of {BATCHES} batches in turns, "
        f"{rounds} rounds: medians, the ratio that of neighbours. Start: from `start()` until the first batch is "
        "processed.",
    )


def imports(_rounds: int) -> Section:
    """The section of the imports."""
    return Section(
        name="imports",
        title="What is imported",
        command="python -m benchmarks.small_batches imports",
        columns=["for a query, beside Spark's own", "CPU time", "modules", "bound"],
        rows=import_rows(),
        note="The shortest of five.",
    )


PARTS = {"batches": batches, "imports": imports}


def main() -> None:
    """Measure and publish the parts that are named, else both; a number is that of the rounds."""
    words = sys.argv[1:]
    rounds = next((int(word) for word in words if word.isdecimal()), ROUNDS)
    for part in [one for one in PARTS if one in words] or PARTS:
        publish(PARTS[part](rounds))


if __name__ == "__main__":
    main()
