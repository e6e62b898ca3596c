"""Failing records through Spark: the speed of a query of `reliable()` some of whose records fail.

python -m benchmarks.failing_queries
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.bolts import to_nowhere
from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.failures import DRAINED, RECORDS, SHARDS, SHARES, SLOWEST
from benchmarks.report import Section, publish, verdict
from benchmarks.source import options, session
from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

BATCHES = 40
"""Of new records: a failed one waits up to two seconds, which is to be a small part of the whole."""


class Speed(NamedTuple):
    """What a share of failing records costs a query.

    `rate`: new records a second from the second batch to the last one, in which nothing waits any more. `batches`: of
    all with rows. `drained`: those after the last with new records, empty ones too. `duration`: of a batch, in
    milliseconds, their median.
    """

    rate: float
    batches: int
    drained: int
    duration: float


def judged(share: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function of which each record fails with such a likelihood, each time it comes."""

    def judge(rows: pa.RecordBatch) -> pa.RecordBatch:
        fails = pa.array(np.random.default_rng().random(rows.num_rows) < share)
        reasons = pc.if_else(fails, "ValueError: not what it should be", pa.scalar(None, pa.string()))
        return pa.RecordBatch.from_pydict(
            {"length": pc.binary_length(rows.column("data")), "__failed": reasons}
        )

    return judge


def speed(spark: SparkSession, folder: Path, hosts: str, url: str, share: float) -> Speed:
    """Run a query until everything is done, or has failed for good."""
    given = options(
        url,
        hosts,
        "/bench",
        maxFetchRecordsPerShard=str(RECORDS),
        retryBackoff="1ms..1ms x1",
        retryBytesPerShard="4MiB",
        onExhausted="skip",
    )
    stream = spark.readStream.format("kinesis-trident").options(**given).load()
    sink = reliable(stream).map(judged(share), "length int").for_each_batch(to_nowhere)
    query = sink.start(checkpointLocation=str(folder / uuid.uuid4().hex), trigger={"availableNow": True})
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    began = datetime.fromisoformat(batches[1]["timestamp"]).timestamp()
    last = batches[-1]
    ended = datetime.fromisoformat(last["timestamp"]).timestamp() + last["batchDuration"] / 1000
    return Speed(
        rate=(BATCHES - 1) * SHARDS * RECORDS / (ended - began),
        batches=len(batches),
        drained=drained(query.recentProgress),
        duration=statistics.median(one["batchDuration"] for one in batches[1:]),
    )


def drained(batches: Sequence[Mapping[str, Any]]) -> int:
    """Return how many batches came after the last that read new records, which its positions in the shards tell."""
    ends = [json.loads(one["sources"][0]["endOffset"])["positions"] for one in batches]
    return len(ends) - 1 - ends.index(ends[-1])


def main() -> None:
    """Measure the shares in turns, and publish the medians."""
    parser = argparse.ArgumentParser(description="Measure what failing records cost a query.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true")
    rounds = parser.parse_args().rounds
    pretend_credentials()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedZooKeeper() as zookeeper,
        PreparedEndpoint(Records(SHARDS, BATCHES, RECORDS)) as endpoint,
    ):
        spark = session(Path(folder))
        measured = [
            [speed(spark, Path(folder), zookeeper.hosts, endpoint.url, share) for share in SHARES]
            for _ in range(rounds)
        ]
        spark.stop()
    of_each = list(zip(*measured, strict=True))
    longest = max(one.drained for some in of_each for one in some)
    ratio = statistics.median(one[-1].rate / one[0].rate for one in measured)
    publish(
        Section(
            name="failing-queries",
            title="Failing records through Spark",
            command="python -m benchmarks.failing_queries",
            columns=[
                f"{SHARDS} shards, {BATCHES} batches of {RECORDS:,} new records a shard",
                *(f"{share:.0%} fail" for share in SHARES),
                "50% to 0%",
            ],
            rows=[
                [
                    "new records/s until nothing waits any more",
                    *(f"{statistics.median(one.rate for one in some):,.0f}" for some in of_each),
                    f"{ratio:.2f} ({verdict(f'at least {SLOWEST:.2f}', ratio >= SLOWEST)})",
                ],
                [
                    "batches",
                    *(f"{statistics.median(one.batches for one in some):.0f}" for some in of_each),
                    "",
                ],
                [
                    "after the last with new records, empty ones too",
                    *(f"{statistics.median(one.drained for one in some):.0f}" for some in of_each),
                    verdict(f"at most {DRAINED}", longest <= DRAINED),
                ],
                [
                    "a batch",
                    *(f"{statistics.median(one.duration for one in some):,.0f} ms" for some in of_each),
                    "",
                ],
            ],
            note="`reliable()` with a function over Arrow batches, `local[2]`; each record fails with that likelihood "
            "each time it comes, up to `retryLimit=3`. Medians of "
            f"{rounds} round{'s' if rounds != 1 else ''}.",
        )
    )


if __name__ == "__main__":
    main()
