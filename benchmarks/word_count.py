"""Streaming word count: a topology with its counts in Redis beside Spark's own states.

    python -m benchmarks.word_count

All read the same records through the same source, in batches of the same size, and split them into words in bulk.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.processors import spent
from benchmarks.report import Section, publish, verdict
from benchmarks.source import options, session
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.trident import ArrowFunction, Count, TridentTopology
from kinesis_trident.trident.stores.redis import RedisState
from tests.server_programs import find
from tests.servers import RedisServer

WORDS_A_RECORD = 10
SHARDS = 2
WARM = 2
"""Batches of each query before those that are measured: in them everything gets warm."""

ROUNDS = 5
"""The number of times each way is measured, in turns, because what else the machine does changes from minute to minute.

A round that does not count comes before them: who comes first pays for the JVM's warming up.
"""


@dataclass(frozen=True, slots=True)
class Size:
    """So many batches of so many pages a shard, after some that warm up."""

    pages: int
    batches: int
    warm: int = WARM

    @property
    def held(self) -> Records:
        """Return what the endpoint holds for one query."""
        return Records(shards=SHARDS, pages=self.pages * (self.warm + self.batches), words=WORDS_A_RECORD)

    @property
    def records(self) -> int:
        """Of a batch."""
        return SHARDS * self.pages * self.held.page

    @property
    def words(self) -> int:
        """Of a batch."""
        return self.records * WORDS_A_RECORD


SIZES = (Size(pages=5, batches=2), Size(pages=10, batches=1))
"""Two million words each."""

ONE = Size(pages=5, batches=1, warm=0)
"""For what is too slow for all of them: one batch. Starting its workers is a small part of it."""

ROCKSDB = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

Start = Callable[[DataFrame, str], StreamingQuery]

STEPS = {
    "planned: Kinesis looked at, the last batch settled, the plan pinned": ("latestOffset", "getBatch"),
    "planned by Spark": ("queryPlanning",),
    "Spark's jobs: read, split, count, store, verdict": ("addBatch",),
    "Spark's log": ("walCommit", "commitOffsets", "commitBatch"),
}
"""The steps of a batch, in the words of Spark's progress."""

BOUND = 1.15
"""So many times as long as ours takes Spark's own count at least."""

SIDES = ("RedisState.opaque", "Spark's RocksDB")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a batch: in each step that Spark reports, and of the processors, by the role of a process."""

    steps: Mapping[str, float]
    processors: Mapping[str, float]

    @property
    def batch(self) -> float:
        """Return how long the batch takes."""
        return self.steps["triggerExecution"]

    @property
    def processor(self) -> float:
        """Return the processor seconds of all processes but the endpoint."""
        return sum(self.processors.values())


def median(measured: Sequence[Costs]) -> Costs:
    """Return the median of each cost of several runs."""

    def medians(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {
            name: statistics.median(part.get(name, 0.0) for part in parts) for part in parts for name in part
        }

    return Costs(medians([one.steps for one in measured]), medians([one.processors for one in measured]))


class Split(ArrowFunction):
    """The words of a batch of sentences."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Each word with the row it comes from."""
        words = pc.split_pattern(batch.column(0).cast(pa.string()), " ")
        flat = pc.list_flatten(words)
        return pa.RecordBatch.from_arrays([flat], names=["word"]), pc.list_parent_indices(words).to_numpy()


def words_of(stream: DataFrame) -> DataFrame:
    """The words, split by Spark."""
    return stream.select(F.explode(F.split(F.decode("data", "utf-8"), " ")).alias("word"))


def in_spark(stream: DataFrame, checkpoint: str) -> StreamingQuery:
    """Spark's own count."""
    return _started(words_of(stream).groupBy("word").count(), checkpoint)


def in_pandas(stream: DataFrame, checkpoint: str) -> StreamingQuery:
    """A count in Python, with a state of Spark's."""
    counted = (
        words_of(stream)
        .groupBy("word")
        .applyInPandasWithState(
            _counted, "word string, count bigint", "count bigint", "update", GroupStateTimeout.NoTimeout
        )
    )
    return _started(counted, checkpoint)


def in_topology(spark: SparkSession, state: RedisState) -> Start:
    """A topology's count."""

    def start(stream: DataFrame, checkpoint: str) -> StreamingQuery:
        topology = TridentTopology(spark)
        (
            topology.new_stream("lines", stream)
            .each(["data"], Split(), ["word"])
            .group_by(["word"])
            .persistent_aggregate(state, Count(), ["count"])
            .parallelism_hint(2)
        )
        return topology.start(
            checkpointLocation=checkpoint, trigger={"availableNow": True}, strict=True
        ).queries["lines"]

    return start


def costs(start: Start, stream: DataFrame, size: Size, folder: Path) -> Costs:
    """Measure a batch, without those that warm up."""
    query = start(stream, str(folder / uuid.uuid4().hex))
    while size.warm and not _finished(query, size.warm):
        query.awaitTermination(0.02)  # type: ignore[arg-type]  # it takes parts of a second
    before = spent()
    query.awaitTermination()
    after = spent()
    done = [dict(one) for one in query.recentProgress if one["numInputRows"]]
    rows = [one["numInputRows"] for one in done]
    assert rows == [size.records] * (size.warm + size.batches), rows
    wall: Counter[str] = Counter()
    for one in done[size.warm :]:
        for step, milliseconds in one["durationMs"].items():
            wall[step] += milliseconds / 1000
    return Costs(
        {step: taken / size.batches for step, taken in wall.items()},
        {role: (after[role] - before[role]) / size.batches for role in after},
    )


def _finished(query: StreamingQuery, batches: int) -> bool:
    """Tell whether so many batches are done, or all are."""
    last = query.lastProgress
    return not query.isActive or (last is not None and last["batchId"] >= batches - 1)


def redis_program() -> Path:
    """The program of redis-server, or an end that says what to install."""
    program = find("redis-server").path
    if program is None:
        msg = "this measures redis-server: install it with make servers"
        raise SystemExit(msg)
    return program


@contextmanager
def prepared() -> Iterator[tuple[SparkSession, Path, str]]:
    """Spark with its best store of states, a folder, and the hosts of a ZooKeeper."""
    pretend_credentials()
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        spark = session(Path(name))
        for setting, value in ROCKSDB.items():
            spark.conf.set(setting, value)
        yield spark, Path(name), zookeeper.hosts
        spark.stop()


def run(spark: SparkSession, folder: Path, hosts: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of both tables: the ways to count, and where a batch of the first size spends its time."""
    program = redis_program()
    rows, spends = [], []
    turns(spark, folder, hosts, program, SIZES[0], 1)
    for size in SIZES:
        ours, theirs = turns(spark, folder, hosts, program, size, ROUNDS)
        what = f"{size.words / 1e6:,.0f} M words"
        spends += spending(what, median(ours), median(theirs))
        rows += [
            row(f"{what}: persistent_aggregate(RedisState.opaque, Count)", size, ours, ours),
            row(
                f"{what}: Spark's groupBy().count(), RocksDB, changelog checkpointing",
                size,
                theirs,
                ours,
                bounded=True,
            ),
        ]
        if size.words == ONE.words:
            pandas = measured(spark, folder, hosts, in_pandas, ONE)
            rows.append(
                row(
                    f"{what}: Spark's applyInPandasWithState, the same store; one batch only",
                    ONE,
                    [pandas] * len(ours),
                    ours,
                )
            )
    return rows, spends


def spending(what: str, *sides: Costs) -> list[list[str]]:
    """Return the rows that say where a batch of each side spends its time."""
    rows = [
        [f"{what}: {step}", *(f"{sum(side.steps.get(name, 0.0) for name in names):,.2f} s" for side in sides)]
        for step, names in STEPS.items()
    ]
    roles = list(dict.fromkeys(role for side in sides for role in side.processors))
    return rows + [
        [f"{what}: processors, {role}", *(f"{side.processors.get(role, 0.0):,.2f} s" for side in sides)]
        for role in roles
    ]


def turns(
    spark: SparkSession, folder: Path, hosts: str, program: Path, size: Size, rounds: int
) -> tuple[list[Costs], list[Costs]]:
    """Measure a batch of a topology and of Spark's own count, in turns; each query counts from nothing."""
    ours, theirs = [], []
    for _ in range(rounds):
        with RedisServer(program) as server:
            state = RedisState.opaque(server.url)
            ours.append(measured(spark, folder, hosts, in_topology(spark, state), size))
            check(state, size.held)
        theirs.append(measured(spark, folder, hosts, in_spark, size))
    return ours, theirs


def measured(spark: SparkSession, folder: Path, hosts: str, start: Start, size: Size) -> Costs:
    """Measure a batch of one way to count."""
    with PreparedEndpoint(size.held) as endpoint:
        given = options(
            endpoint.url,
            hosts,
            "/words",
            maxFetchRecordsPerShard=str(size.records // SHARDS),
            maxFetchBytesPerShard="64MiB",
            maxFetchTime="60s",
        )
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        found = costs(start, stream, size, folder)
    print(
        f"{start.__qualname__}: {found.batch:.2f} s a batch of {size.words / 1e6:.0f} M words, "
        f"{found.processor:.2f} s of the processors",
        flush=True,
    )
    return found


def check(state: RedisState, held: Records) -> None:
    """Every word was counted, and once each time."""
    words = [(f"word-{word:06}",) for word in range(held.distinct)]
    counts = set(state.make_state({}, 0, 1).multi_get(words))
    assert counts == {2 * held.shards * held.pages}, counts


def row(
    what: str, size: Size, taken: Sequence[Costs], ours: Sequence[Costs], *, bounded: bool = False
) -> list[str]:
    """Return the row of one way to count: medians, and ratios those of neighbours."""
    rounds = list(zip(taken, ours, strict=True))
    ratio = statistics.median(one.batch / our.batch for one, our in rounds)
    batch = statistics.median(one.batch for one in taken)
    return [
        what,
        f"{batch:,.2f} s",
        f"{size.words / batch / 1000:,.0f} k",
        f"{ratio:.2f} x",
        verdict(f"{BOUND} x", ratio >= BOUND) if bounded else "",
        f"{statistics.median(one.processor for one in taken):,.2f} s",
        f"{statistics.median(one.processor / our.processor for one, our in rounds):.2f} x",
    ]


def main() -> None:
    """Measure, print, and write the sections."""
    with prepared() as given:
        rows, spends = run(*given)
    command = "python -m benchmarks.word_count"
    publish(
        Section(
            "word-count",
            "Streaming word count",
            command,
            [
                f"batches of; {ONE.held.distinct / 1e3:,.0f} k distinct words, local[2]",
                "a batch",
                "words/s",
                "ours is faster by",
                "bound",
                "processors",
                "ours takes less by",
            ],
            rows,
            note=(
                f"The same source for all. Of each query 2 M words are measured, after {WARM} batches in which "
                f"everything gets warm; medians of {ROUNDS} rounds in turns, after one for the JVM, and ratios those "
                "of neighbours. Redis and the endpoint run on the same cores. Processors: seconds a batch of the "
                "driver, Spark's JVM, its Python processes, ZooKeeper and Redis, without the endpoint."
            ),
        )
    )
    publish(
        Section(
            "word-count-spent",
            "Where a batch of the word count spends its time",
            command,
            ["seconds a batch", *SIDES],
            spends,
            note=(
                "Medians. Steps are those of Spark's progress, by the clock; processors are processor time. Ours check "
                "that each word that becomes a key is text, and that each count fits its field, before anything is "
                "written."
            ),
        )
    )


def _started(counts: DataFrame, checkpoint: str) -> StreamingQuery:
    out = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    return out.option("checkpointLocation", checkpoint).start()


def _counted(key: Sequence[Any], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((total,))
    yield pd.DataFrame({"word": [key[0]], "count": [total]})


if __name__ == "__main__":
    main()
