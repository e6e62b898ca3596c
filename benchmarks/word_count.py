"""Streaming word count: a topology with its counts in Redis beside Spark's own states.

    python -m benchmarks.word_count

All read the same records through the same source, in batches of the same size, and split them into words in bulk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.endpoint import PreparedEndpoint, Records
from benchmarks.report import Section, publish
from benchmarks.source import options, session
from checkpoint.embedded import EmbeddedZooKeeper
from tests.server_programs import find
from tests.servers import RedisServer
from trident import ArrowFunction, Count, TridentTopology
from trident.stores.redis import RedisState

WORDS_A_RECORD = 10
SHARDS = 2
PAGES_A_BATCH = 5
BATCHES = 2
"""Of a query that are measured: two million words."""

WARM = 2
"""Batches of each query before those: in them everything gets warm."""

ROUNDS = 2
"""How often each way is measured, in turns, because what else the machine does changes from minute to minute.

A round that does not count comes before them: who comes first pays for the JVM's warming up.
"""

HELD = Records(shards=SHARDS, pages=PAGES_A_BATCH * (WARM + BATCHES), words=WORDS_A_RECORD)
ONE = Records(shards=SHARDS, pages=PAGES_A_BATCH, words=WORDS_A_RECORD)
"""For what is too slow for all of them: one batch. Starting its workers is a small part of it."""

ROCKSDB = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

Start = Callable[[DataFrame, str], StreamingQuery]


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
        return topology.start(checkpoint, trigger={"availableNow": True}, strict=True).queries["lines"]

    return start


def seconds(start: Start, stream: DataFrame, held: Records, folder: Path) -> float:
    """Of a batch, without those that warm up where there are more."""
    query = start(stream, str(folder / uuid.uuid4().hex))
    query.awaitTermination()
    done = [dict(one) for one in query.recentProgress if one["numInputRows"]]
    rows = [one["numInputRows"] for one in done]
    assert rows == [SHARDS * PAGES_A_BATCH * held.page] * (held.pages // PAGES_A_BATCH), rows
    taken = [one["durationMs"]["triggerExecution"] / 1000 for one in done]
    return float(statistics.fmean(taken[WARM:] or taken))


def run(spark: SparkSession, folder: Path, hosts: str) -> list[list[str]]:
    """The table's rows."""
    program = find("redis-server").path
    if program is None:
        msg = "this measures redis-server: install it with make servers"
        raise SystemExit(msg)
    in_topologies, in_sparks = [], []
    for _ in range(1 + ROUNDS):
        # Each query counts from nothing.
        with RedisServer(program) as server:
            state = RedisState.opaque(server.url)
            in_topologies.append(measured(spark, folder, hosts, in_topology(spark, state), HELD))
            check(state)
        in_sparks.append(measured(spark, folder, hosts, in_spark, HELD))
    ours, theirs = statistics.fmean(in_topologies[1:]), statistics.fmean(in_sparks[1:])
    pandas = measured(spark, folder, hosts, in_pandas, ONE)
    return [
        row("persistent_aggregate(RedisState.opaque, Count)", ours, ours),
        row("Spark's groupBy().count(), RocksDB, changelog checkpointing", theirs, ours),
        row("Spark's applyInPandasWithState, the same store; one batch only", pandas, ours),
    ]


def measured(spark: SparkSession, folder: Path, hosts: str, start: Start, held: Records) -> float:
    """Seconds a batch of one way to count."""
    with PreparedEndpoint(held) as endpoint:
        given = options(
            endpoint.url,
            hosts,
            "/words",
            maxFetchRecordsPerShard=str(PAGES_A_BATCH * held.page),
            maxFetchTime="60s",
        )
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        batch = seconds(start, stream, held, folder)
    print(f"{start.__qualname__}: {batch:.2f} s a batch", flush=True)
    return batch


def check(state: RedisState) -> None:
    """Every word was counted, and once each time."""
    words = [(f"word-{word:06}",) for word in range(HELD.distinct)]
    counts = set(state.make_state({}, 0, 1).multi_get(words))
    assert counts == {2 * HELD.shards * HELD.pages}, counts


def row(what: str, batch: float, ours: float) -> list[str]:
    """One way to count."""
    words = SHARDS * PAGES_A_BATCH * HELD.page * WORDS_A_RECORD
    return [what, f"{batch:,.2f} s", f"{words / batch / 1000:,.0f} k", f"{batch / ours:.1f} x"]


def main() -> None:
    """Measure, print, and write the section."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(variable, "bench")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        spark = session(Path(name))
        for setting, value in ROCKSDB.items():
            spark.conf.set(setting, value)
        rows = run(spark, Path(name), zookeeper.hosts)
        publish(
            Section(
                "word-count",
                "Streaming word count",
                "python -m benchmarks.word_count",
                [
                    f"{HELD.distinct / 1e3:,.0f} k distinct words, local[2]",
                    "a batch",
                    "words/s",
                    "ours is faster by",
                ],
                rows,
                note=(
                    f"The same source for all: {BATCHES} batches of "
                    f"{SHARDS * PAGES_A_BATCH * HELD.page * WORDS_A_RECORD / 1e6:,.0f} M words, after {WARM} in which "
                    f"everything gets warm; {ROUNDS} rounds in turns, after one for the JVM."
                    " Redis and the endpoint run on the same cores."
                ),
            )
        )
        spark.stop()


def _started(counts: DataFrame, checkpoint: str) -> StreamingQuery:
    out = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    return out.option("checkpointLocation", checkpoint).start()


def _counted(key: Sequence[Any], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((total,))
    yield pd.DataFrame({"word": [key[0]], "count": [total]})


if __name__ == "__main__":
    main()
