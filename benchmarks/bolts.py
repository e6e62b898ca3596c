"""What tracking costs, against the same functions untracked, in turns: `python -m benchmarks.bolts`."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.endpoint import PreparedEndpoint, Records
from benchmarks.report import Section, publish
from benchmarks.source import options, session
from bolt import ArrowBolt, KinesisSpout, TopologyBuilder, reliable
from bolt.functions import step_for
from bolt.running import Untracked
from checkpoint.embedded import EmbeddedZooKeeper

SHARDS, PAGES = 2, 50
SMALL = 1_000
ROUNDS = 5
DOCUMENT = json.dumps({"order_id": "o-123456", "amount": 12.5, "items": [{"sku": "a-1", "count": 3}] * 4})
SCHEMA = "order_id string, amount double"

Start = Callable[[SparkSession, dict[str, str], str], StreamingQuery]


class Length(ArrowBolt):
    """The length of each record, and a number that scatters."""

    fields = "length int, number long"

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each."""
        number = pc.cast(pc.utf8_slice_codeunits(batch.column("sequenceNumber"), -9), pa.int64())
        return pa.RecordBatch.from_pydict(
            {"length": pc.binary_length(batch.column("data")), "number": number}
        )


class Half(ArrowBolt):
    """Half of the length; where asked, every hundredth record fails at its first delivery."""

    fields = "half int"

    def __init__(self, failing: bool) -> None:
        self.failing = failing

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each."""
        columns = {"half": pc.divide(batch.column("length"), 2)}
        if self.failing:
            number = batch.column("number")
            hundredth = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 100), 100)), 0)
            columns["__failed"] = pc.if_else(hundredth, "hundredth", None)
        return pa.RecordBatch.from_pydict(columns)


def two_bolts(*, tracked: bool, failing: bool = False) -> Start:
    """A topology of two Arrow bolts."""

    def start(spark: SparkSession, given: dict[str, str], checkpoint: str) -> StreamingQuery:
        builder = TopologyBuilder(spark, ackers=None if tracked else 0)
        more: dict[str, Any] = {"retryLimit": 0, "onExhausted": "skip"} if failing else {}
        builder.set_spout("records", KinesisSpout(**given, **more))
        builder.set_bolt("length", Length()).local_or_shuffle_grouping("records")
        builder.set_bolt("half", Half(failing)).local_or_shuffle_grouping("length")
        return builder.start(checkpointLocation=checkpoint, trigger={"availableNow": True})

    return start


def parse(record: Any) -> tuple[str, float]:
    """Parses a document a record."""
    order = json.loads(DOCUMENT)
    return order["order_id"], float(order["amount"]) + len(record.data)


def to_nowhere(rows: DataFrame, _: int) -> None:
    """Run everything, keep nothing."""
    rows.write.format("noop").mode("overwrite").save()


def parsing(*, tracked: bool) -> Start:
    """`reliable()` with a function that parses JSON, or that function alone."""

    def start(spark: SparkSession, given: dict[str, str], checkpoint: str) -> StreamingQuery:
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        trigger = {"availableNow": True}
        if tracked:
            return (
                reliable(stream)
                .map(parse, SCHEMA)
                .for_each_batch(to_nowhere)
                .start(checkpointLocation=checkpoint, trigger=trigger)
            )
        operator = Untracked(step_for(parse, SCHEMA))
        return (
            stream.writeStream.foreachBatch(
                lambda rows, batch: to_nowhere(rows.mapInArrow(operator, SCHEMA), batch)
            )
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    return start


def measured(
    spark: SparkSession, folder: Path, start: Start, given: dict[str, str]
) -> tuple[list[float], int]:
    """The milliseconds of each batch with records, and the Spark jobs of the run."""
    tracker = spark.sparkContext.statusTracker()
    query = start(spark, {**given, "applicationName": uuid.uuid4().hex}, str(folder / uuid.uuid4().hex))
    query.awaitTermination()
    jobs = len(tracker.getJobIdsForGroup(str(query.runId)))
    return [
        one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]
    ], jobs


def compared(
    spark: SparkSession, folder: Path, what: str, ours: Start, plain: Start, given: dict[str, str], bound: str
) -> list[str]:
    """One row: both in turns, since what else the machine does changes from minute to minute."""
    measured(spark, folder, plain, given)
    measured(spark, folder, ours, given)
    with_, without, ratios, jobs = [], [], [], []
    for _ in range(ROUNDS):
        (one, our_jobs), (other, their_jobs) = (measured(spark, folder, it, given) for it in (ours, plain))
        with_.append(statistics.median(one))
        without.append(statistics.median(other))
        ratios.append(with_[-1] / without[-1])
        jobs.append(our_jobs - their_jobs)
    return [
        what,
        f"{min(with_):,.0f} ms",
        f"{min(without):,.0f} ms",
        f"{statistics.median(ratios):.2f} x",
        bound,
        f"{max(jobs):+d}",
    ]


def main() -> None:
    """Measure and publish."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "bench")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        folder = Path(name)
        spark = session(folder)
        with PreparedEndpoint(Records(shards=SHARDS, pages=PAGES, size=200)) as endpoint:
            whole = options(
                endpoint.url,
                zookeeper.hosts,
                "/bench",
                maxFetchRecordsPerShard="500000",
                maxFetchBytesPerShard="600MiB",
                maxFetchBytesPerTask="1200MiB",
                maxFetchTime="60s",
            )
            total = SHARDS * PAGES * 10_000
            rows = [
                compared(
                    spark,
                    folder,
                    f"two Arrow bolts, {total:,} records",
                    two_bolts(tracked=True),
                    two_bolts(tracked=False),
                    whole,
                    "1.10",
                ),
                compared(
                    spark,
                    folder,
                    "the same, 1 % fail in the second bolt, against none",
                    two_bolts(tracked=True, failing=True),
                    two_bolts(tracked=True),
                    whole,
                    "1.3",
                ),
            ]
        with PreparedEndpoint(Records(shards=SHARDS, pages=10, size=200)) as endpoint:
            given = whole | {"endpointUrl": endpoint.url}
            rows.append(
                compared(
                    spark,
                    folder,
                    f"reliable() parsing JSON, {SHARDS * 100_000:,} records",
                    parsing(tracked=True),
                    parsing(tracked=False),
                    given,
                    "1.05",
                )
            )
        with PreparedEndpoint(Records(shards=SHARDS, pages=1, size=200)) as endpoint:
            given = whole | {"endpointUrl": endpoint.url, "maxRecordsPerTrigger": str(SMALL)}
            rows.append(
                compared(
                    spark,
                    folder,
                    f"two Arrow bolts, batches of {SMALL:,} records",
                    two_bolts(tracked=True),
                    two_bolts(tracked=False),
                    given,
                    "1.2",
                )
            )
        publish(
            Section(
                name="bolts",
                title="What tracking costs",
                command="python -m benchmarks.bolts",
                columns=["a micro-batch", "tracked", "untracked", "ratio", "bound", "Spark jobs more"],
                rows=rows,
                note="The shortest of five runs; the ratio is the median of pairs of neighbours.",
            )
        )
        spark.stop()


if __name__ == "__main__":
    main()
