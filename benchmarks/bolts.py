"""Measure tracking against the same functions untracked: `python -m benchmarks.bolts [small] [json] [large]`.

The batches of one query are processed in turns by the ways to be compared, so each has its neighbours' source, workers
and machine; a batch's time is Spark's own, from the plan to the commit.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.report import Section, publish, verdict
from benchmarks.source import options, session
from kinesis_trident import ArrowBolt, KinesisSpout, TopologyBuilder, reliable
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.storm.addressing import BestEffortStep
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.spark_plan import source_of

SHARDS = 2
LARGE, SMALL = 200_000, 1_000
DOCUMENT = json.dumps({"order_id": "o-123456", "amount": 12.5, "items": [{"sku": "a-1", "count": 3}] * 4})
SCHEMA = "order_id string, amount double"

Handler = Callable[[DataFrame, int], None]


def scattered(rows: pa.RecordBatch) -> pa.Array:
    """A number of each record that scatters: the end of its sequence number."""
    return pc.cast(pc.utf8_slice_codeunits(rows.column("sequenceNumber"), -9), pa.int64())


def is_hundredth(number: pa.Array) -> pa.Array:
    """Tell which numbers are multiples of 100."""
    return pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 100), 100)), 0)


class Length(ArrowBolt):
    """The length of each record, and a number that scatters."""

    fields = "length int, number long"

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each."""
        number = scattered(batch)
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
            columns["__failed"] = pc.if_else(is_hundredth(batch.column("number")), "hundredth", None)
        return pa.RecordBatch.from_pydict(columns)


def two_bolts(spark: SparkSession, given: dict[str, Any], *, tracked: bool, failing: bool = False) -> Handler:
    """A topology of two Arrow bolts."""
    builder = TopologyBuilder(spark, ackers=None if tracked else 0)
    builder.set_spout("records", KinesisSpout(**given))
    builder.set_bolt("length", Length()).local_or_shuffle_grouping("records")
    builder.set_bolt("half", Half(failing)).local_or_shuffle_grouping("length")
    run, stream = builder.build()
    return BatchHandler(source_of(stream)[0], run, batch_retries=0)


def parse(record: Any) -> tuple[str, float]:
    """Parses a document a record."""
    order = json.loads(DOCUMENT)
    return order["order_id"], float(order["amount"]) + len(record.data)


def to_nowhere(rows: DataFrame, _: int) -> None:
    """Run everything, keep nothing."""
    rows.write.format("noop").mode("overwrite").save()


def parse_untracked(rows: DataFrame, batch: int) -> None:
    """The function that parses, alone."""
    to_nowhere(rows.mapInArrow(BestEffortStep(step_for(parse, SCHEMA)), SCHEMA), batch)


@dataclass(frozen=True, slots=True)
class Measured:
    """A batch: the milliseconds that Spark says it took, and its Spark jobs."""

    milliseconds: float
    jobs: int


def in_turns(
    stream: DataFrame, folder: Path, handlers: Mapping[str, Handler], order: Sequence[str], size: int
) -> dict[str, list[Measured]]:
    """Process the batches of a query, of `size` records each, by these handlers in this order; by their names.

    The records are to last for exactly as many batches.
    """
    context = stream.sparkSession.sparkContext
    group, begun = "", []

    def handle(rows: DataFrame, number: int) -> None:
        nonlocal group
        group = context.getLocalProperty("spark.jobGroup.id") or ""
        begun.append(len(context.statusTracker().getJobIdsForGroup(group)))
        # Behind the last comes one that finds the end, and no records; the source wants it judged all the same.
        if number >= len(order) and not rows.isEmpty():
            msg = f"batch {number} has records left: one of {', '.join(order)} read fewer than {size:,}"
            raise RuntimeError(msg)
        handlers[order[min(number, len(order) - 1)]](rows, number)

    query = (
        stream.writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(folder / uuid.uuid4().hex))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    begun.append(len(context.statusTracker().getJobIdsForGroup(group)))
    batches = [one for one in query.recentProgress if one["batchId"] < len(order)]
    # An operator that looks up what failed reads the source's rows once more, and Spark counts those too.
    assert {one["numInputRows"] % size for one in batches} == {0}, batches
    found: dict[str, list[Measured]] = {name: [] for name in order}
    for number, (name, batch) in enumerate(zip(order, batches, strict=True)):
        jobs = begun[number + 1] - begun[number]
        found[name].append(Measured(batch["durationMs"]["triggerExecution"], jobs))
    return found


def row(what: str, ours: Sequence[Measured], plain: Sequence[Measured], bound: float) -> list[str]:
    """A row of the table; batches at the same place are neighbours."""
    pairs = list(zip(ours, plain, strict=True))
    ratio = statistics.median(one.milliseconds / other.milliseconds for one, other in pairs)
    more = {one.jobs - other.jobs for one, other in pairs}
    return [
        what,
        *(f"{statistics.median(one.milliseconds for one in side):,.0f} ms" for side in (ours, plain)),
        f"{ratio:.2f} x",
        verdict(f"{bound} x", ratio <= bound),
        ", ".join(f"{one:+d}" for one in sorted(more)),
    ]


def large_batches(spark: SparkSession, folder: Path, given: dict[str, str], rounds: int) -> list[list[str]]:
    """Two Arrow bolts over large batches: tracked and untracked, and tracked where 1 % fail."""
    # What failed is settled in the plan of the batch behind, so what that one takes more is counted too.
    order = ["warm"] + ["plain", "tracked", "failing", "behind"] * (2 * rounds)
    with PreparedEndpoint(Records(SHARDS, len(order) * LARGE // SHARDS // 10_000, size=200)) as endpoint:
        # At the default bound of failed runs the shards would read nothing new in the batch behind.
        given = given | {
            "endpointUrl": endpoint.url,
            "retryLimit": "0",
            "onExhausted": "skip",
            "maxRetryingRecords": str(LARGE // 50),
        }
        handlers = {
            "warm": two_bolts(spark, given, tracked=True),
            "plain": two_bolts(spark, given, tracked=False),
            "tracked": two_bolts(spark, given, tracked=True),
            "failing": two_bolts(spark, given, tracked=True, failing=True),
            "behind": two_bolts(spark, given, tracked=False),
        }
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        found = in_turns(stream, folder, handlers, order, LARGE)
    settled = [
        Measured(one.milliseconds + behind.milliseconds - plain.milliseconds, one.jobs)
        for one, behind, plain in zip(found["failing"], found["behind"], found["plain"], strict=True)
    ]
    return [
        row(f"two Arrow bolts, {LARGE:,} records", found["tracked"], found["plain"], 1.1),
        row("the same with 1 % that fail in the second bolt, against none", settled, found["tracked"], 1.3),
    ]


def json_batches(spark: SparkSession, folder: Path, given: dict[str, str], rounds: int) -> list[list[str]]:
    """`reliable()` with a function that parses JSON, or without one, and that function on the rows."""
    order = ["tracked", "plain"] * (rounds + 1)
    with PreparedEndpoint(Records(SHARDS, len(order) * LARGE // SHARDS // 10_000, size=200)) as endpoint:
        given = given | {"endpointUrl": endpoint.url, "maxFetchRecordsPerShard": str(LARGE // SHARDS)}
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        handlers: dict[str, Handler] = {
            "tracked": reliable(stream).map(parse, SCHEMA).for_each_batch(to_nowhere).process(),
            # It judges nothing, and says so: the source wants each batch of a query that was judged to be judged.
            "plain": reliable(stream).for_each_batch(parse_untracked).process(),
        }
        found = in_turns(stream, folder, handlers, order, LARGE)
    return [
        row(f"reliable() parsing JSON, {LARGE:,} records", found["tracked"][1:], found["plain"][1:], 1.05)
    ]


def small_batches(spark: SparkSession, folder: Path, given: dict[str, str], rounds: int) -> list[list[str]]:
    """Two Arrow bolts over small batches."""
    order = ["plain", "tracked"] * 10 * rounds
    with PreparedEndpoint(Records(SHARDS, len(order) // SHARDS, SMALL, size=200)) as endpoint:
        given = given | {"endpointUrl": endpoint.url, "maxRecordsPerTrigger": str(SMALL)}
        stream = spark.readStream.format("kinesis-trident").options(**given).load()
        handlers = {
            "plain": two_bolts(spark, given, tracked=False),
            "tracked": two_bolts(spark, given, tracked=True),
        }
        found = in_turns(stream, folder, handlers, order, SMALL)
    # The first batches pay for imports and connections.
    return [
        row(f"two Arrow bolts, {SMALL:,} records", found["tracked"][5:], found["plain"][5:], 1.2),
    ]


PARTS = {
    "small": ("What tracking costs a small batch", small_batches),
    "json": ("What tracking costs a function of one record", json_batches),
    "large": ("What tracking and failures cost a large batch", large_batches),
}


def main() -> None:
    """Measure and publish the parts that are named, else all; a number is how often large batches take turns."""
    words = sys.argv[1:]
    rounds = next((int(word) for word in words if word.isdecimal()), 3)
    pretend_credentials()
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        folder = Path(name)
        spark = session(folder)
        for part in [one for one in PARTS if one in words] or PARTS:
            given = options(
                "",
                zookeeper.hosts,
                "/bench",
                maxFetchRecordsPerShard=str(LARGE // SHARDS),
                maxFetchBytesPerShard="600MiB",
                maxFetchBytesPerTask="1200MiB",
                maxFetchTime="60s",
            )
            title, measure = PARTS[part]
            publish(
                Section(
                    name=f"bolts-{part}",
                    title=title,
                    command=f"python -m benchmarks.bolts {part}",
                    columns=["a micro-batch", "tracked", "untracked", "ratio", "bound", "Spark jobs more"],
                    rows=measure(spark, folder, given, rounds),
                    note="Batches of one query, processed in turns by the one and the other: medians, the ratio that "
                    "of neighbours. What is tracked is read in the worker that runs it, what is not in Spark's tasks.",
                )
            )
        spark.stop()


if __name__ == "__main__":
    main()
