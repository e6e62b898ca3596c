"""Measure what the source costs through Spark: its rate beside a plain boto3 loop, and what ZooKeeper adds to a batch.

python -m benchmarks.source [batch]
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.fetch import read_boto3
from benchmarks.filestore import FileSource
from benchmarks.processors import SPARK, Rate, spent
from benchmarks.ready import ReadySource, write_batches
from benchmarks.report import Section, publish, verdict
from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import ensure_java

PAGES = 80
BATCHES = 20
ROUNDS = 2
SMALL_BATCH = 1000
READY_BATCHES = 6

LOOP = "boto3, get_records in a loop"
OURS = "through Spark to a noop sink"
CEILING = "ready-made Arrow batches of the same rows"

TURNS = 5
"""Rounds in turns, because what else the machine does changes from minute to minute."""

SHARE = 0.5
"""Of the rate of ready-made batches, at least."""

SHARDS = 4


FEW_PROGRAMS = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""A setting with which Spark starts fewer programs for a checkpoint on a local disk: `chmod` for each file. In S3 it
starts none.
"""


def session(folder: Path, *path: Path) -> SparkSession:
    """A local session without its page and its noise; `path`: where its Python processes look for modules first."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [*path, Path(__file__).resolve().parents[1]]))
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    spark.dataSource.register(FileSource)
    spark.dataSource.register(ReadySource)
    return spark


def progress(spark: SparkSession, folder: Path, source: str, options: dict[str, str]) -> list[dict[str, Any]]:
    """The progress of each batch of a query that reads everything and throws it away."""
    stream = spark.readStream.format(source).options(**options).load()
    checkpoint = folder / uuid.uuid4().hex
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(one) for one in query.recentProgress if one["numInputRows"]]


def options(url: str, hosts: str, root: str, **more: str) -> dict[str, str]:
    """A source without the limits of a real shard."""
    return {
        "streamName": "s",
        "endpointUrl": url,
        "applicationName": uuid.uuid4().hex,
        "zookeeper.hosts": hosts,
        "zookeeper.root": root,
        "startingPosition": "TRIM_HORIZON",
        "minFetchPeriod": "0ms",
        "maxFetchRate": "100000",
        **more,
    }


def large_batches(url: str, hosts: str) -> dict[str, str]:
    """A source whose batches are as large as a task can hold."""
    return options(
        url,
        hosts,
        "/bench",
        maxFetchRecordsPerShard="500000",
        maxFetchBytesPerShard="600MiB",
        maxFetchBytesPerTask="1200MiB",
        maxFetchTime="60s",
    )


def packets(hosts: str) -> int:
    """Requests that the ZooKeeper server has received, pings included."""
    return int(monitored(hosts)["zk_packets_received"])


def monitored(hosts: str) -> dict[str, str]:
    """What the ZooKeeper server tells of itself: the answer to `mntr`."""
    host, port = hosts.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"mntr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)


def boto3_rate(url: str) -> Rate:
    """Measure a plain loop."""
    began, spent_before = perf_counter(), process_time()
    records = read_boto3(url, 5)
    return Rate(records / (perf_counter() - began), records / (process_time() - spent_before))


def spark_rate(spark: SparkSession, folder: Path, source: str, given: dict[str, str], held: Records) -> Rate:
    """Measure a query that reads all records, in its second run; its processors are those of Spark's processes.

    By the clock only batches between the first and the last count: the first pays for the start, which
    `benchmarks.small_batches` measures, and the last has what is left.
    """
    # The first run warms the JVM up.
    for _ in range(2):
        before = spent()
        done = progress(spark, folder, source, given | {"applicationName": uuid.uuid4().hex})
        after = spent()
    records = sum(one["numInputRows"] for one in done)
    assert records == held.shards * held.total, records
    full = done[1:-1]
    return Rate(
        sum(one["numInputRows"] for one in full)
        / sum(one["durationMs"]["triggerExecution"] / 1000 for one in full),
        records / sum(after[role] - before[role] for role in SPARK),
    )


def ready_rate(spark: SparkSession, folder: Path, size: int) -> Rate:
    """Measure what Spark takes at most, in as many batches as ours needs: of a shard it reads 131,072 records."""
    pages = -(-PAGES // READY_BATCHES)
    held = Records(shards=2, pages=pages * READY_BATCHES, size=size)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        given = write_batches(Path(name), held, most=pages) | {"times": "1", "batches": str(READY_BATCHES)}
        return spark_rate(spark, folder, "ready-batches", given, held)


def throughput(spark: SparkSession, folder: Path, hosts: str) -> list[list[str]]:
    """Rows of the first table: records a second, by record size."""
    rows = []
    for size in (200, 1024):
        held = Records(shards=2, pages=PAGES, size=size)
        with PreparedEndpoint(held) as endpoint:
            given = large_batches(endpoint.url, hosts)
            rounds = [
                {
                    LOOP: boto3_rate(endpoint.url),
                    OURS: spark_rate(spark, folder, "kinesis-trident", given, held),
                    CEILING: ready_rate(spark, folder, size),
                }
                for _ in range(TURNS)
            ]
        rows += rate_rows(size, rounds)
    return rows


def rate_rows(size: int, rounds: Sequence[Mapping[str, Rate]]) -> list[list[str]]:
    """Return the rows of one size of records: medians of the rounds, and ratios those of neighbours."""
    clock, processors = (
        {what: np.array([getattr(one[what], kind) for one in rounds]) for what in (LOOP, OURS, CEILING)}
        for kind in ("clock", "processors")
    )
    share = np.median(clock[OURS] / clock[CEILING])
    return [
        [
            f"{size} B: {what}",
            f"{np.median(clock[what]) / 1000:,.0f} k",
            f"{np.median(clock[what] / clock[LOOP]):.1f} x",
            part,
            bound,
            f"{np.median(processors[what]) / 1000:,.0f} k",
            f"{np.median(processors[what] / processors[LOOP]):.1f} x",
        ]
        for what, part, bound in (
            (LOOP, "", ""),
            (OURS, f"{share:.0%}", verdict(f"{SHARE:.0%}", bool(share >= SHARE))),
            (CEILING, "100%", ""),
        )
    ]


def batch_cost(spark: SparkSession, folder: Path, hosts: str) -> list[list[str]]:
    """Rows of the second table: what a small batch costs with ZooKeeper and without, in turns."""
    pages = BATCHES * SMALL_BATCH // SHARDS // 10_000
    with PreparedEndpoint(Records(shards=SHARDS, pages=max(1, pages), size=200)) as endpoint:

        def run(source: str, root: str, **more: str) -> tuple[list[float], int, int]:
            given = options(endpoint.url, hosts, root, maxRecordsPerTrigger=str(SMALL_BATCH), **more)
            before = packets(hosts)
            done = progress(spark, folder, source, given)
            # The first batches pay for imports and connections.
            return (
                [one["durationMs"]["triggerExecution"] for one in done][5:],
                packets(hosts) - before,
                len(done),
            )

        plain, with_zookeeper, added, per_batch = [], [], [], []
        # What ran first pays for the JVM's warming up.
        run("kinesis-files", str(folder / "state"))
        for _ in range(ROUNDS):
            bare = run("kinesis-files", str(folder / "state"))[0]
            ours, asked, batches = run("kinesis-trident", "/bench")
            plain += bare
            with_zookeeper += ours
            # Neighbours in time, because what else the machine does changes from minute to minute.
            added.append(statistics.median(ours) - statistics.median(bare))
            per_batch.append(asked / batches)
        _, ahead, batches_ahead = run("kinesis-trident", "/bench", prefetch="true")
        asked, batches = reliable_requests(spark, folder, hosts, options(endpoint.url, hosts, "/bench"))
    return [
        [
            "the same source without ZooKeeper, its state in files",
            f"{statistics.median(plain):.0f} ms",
            "",
        ],
        [
            "with ZooKeeper",
            f"{statistics.median(with_zookeeper):.0f} ms",
            f"{statistics.median(added):+.0f} ms",
        ],
        _requests(
            f"requests to ZooKeeper a batch of {SHARDS} shards, pings and start included",
            statistics.mean(per_batch),
        ),
        _requests("the same, with prefetch=true", ahead / batches_ahead),
        _requests("the same, with reliable() in between", asked / batches),
    ]


def _requests(what: str, each: float) -> list[str]:
    """Return a row: the requests of a batch, and their bound."""
    most = 3 * SHARDS + 10
    return [what, f"{each:.1f}", f"bound {verdict(str(most), each <= most)}"]


def reliable_requests(
    spark: SparkSession, folder: Path, hosts: str, given: dict[str, str]
) -> tuple[int, int]:
    """The requests of a query that judges every record, and its batches."""
    stream = (
        spark.readStream.format("kinesis-trident")
        .options(**given, maxRecordsPerTrigger=str(SMALL_BATCH))
        .load()
    )
    seen = []

    def write(rows: DataFrame, txid: int) -> None:
        rows.write.format("noop").mode("overwrite").save()
        seen.append(txid)

    before = packets(hosts)
    query = (
        reliable(stream)
        .map(_length, "length int")
        .for_each_batch(write)
        .start(checkpointLocation=str(folder / uuid.uuid4().hex), trigger={"availableNow": True})
    )
    query.awaitTermination()
    return packets(hosts) - before, len(seen)


def _length(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.binary_length(rows.column("data"))], names=["length"])


def main() -> None:
    """Measure and publish; a word that is `batch` leaves the rates out."""
    pretend_credentials()
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        folder = Path(name)
        spark = session(folder)
        if "batch" not in sys.argv[1:]:
            publish(
                Section(
                    name="source",
                    title="Through Spark",
                    command="python -m benchmarks.source",
                    columns=[
                        "2 shards, 2 tasks, local[2]",
                        "records/s",
                        "to boto3",
                        "to ready-made",
                        "bound",
                        "records/s of the processors",
                        "to boto3",
                    ],
                    rows=throughput(spark, folder, zookeeper.hosts),
                    note=f"Medians of {TURNS} rounds in turns, ratios those of neighbours. Whole micro-batches: "
                    "planning, pinning in ZooKeeper, Spark's logs; those between a query's first and last. The shard's "
                    "limits are lifted: Kinesis itself gives a shard 2 MB/s. The endpoint runs on the same cores; the "
                    "processor time is that of the driver, Spark's JVM and its Python processes, with the start of the "
                    "query.",
                )
            )
        publish(
            Section(
                name="batch",
                title="What a batch costs",
                command="python -m benchmarks.source",
                columns=[
                    f"{SMALL_BATCH} records a batch, {SHARDS} shards, nothing fails",
                    "median",
                    "difference",
                ],
                rows=batch_cost(spark, folder, zookeeper.hosts),
            )
        )
        spark.stop()


if __name__ == "__main__":
    main()
