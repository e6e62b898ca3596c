"""Measure what a record costs the writing process: a plain put_records loop, and the sink without and with aggregates.

python -m benchmarks.sink
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from time import process_time
from typing import Any

import boto3
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.report import Section, publish, verdict
from kinesis_trident.spout.kinesis.put_entries import REQUEST_RECORDS
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.sink.writer import KinesisWriter

BOUND = 2.5
"""The bound: records a CPU second of the sink, as a multiple of the loop's."""

PLAIN = "boto3, put_records in a loop"
COUNT, ROUNDS = 10_000, 12
SCHEMA = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])


def batches(size: int) -> list[pa.RecordBatch]:
    """Return what Spark hands to a sink."""
    rng = random.Random(size)
    keys = pa.array([f"key-{rng.randrange(10**6)}" for _ in range(COUNT)])
    data = pa.array([rng.randbytes(size) for _ in range(COUNT)], pa.binary())
    return [pa.record_batch([keys, data], names=SCHEMA.names)]


def plain_loop(url: str, rows: list[pa.RecordBatch]) -> Callable[[], int]:
    client = boto3.client("kinesis", endpoint_url=url)

    def write() -> int:
        written = 0
        for batch in rows:
            records: list[Any] = [
                {"PartitionKey": key, "Data": data}
                for key, data in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]
            for start in range(0, len(records), REQUEST_RECORDS):
                request = records[start : start + REQUEST_RECORDS]
                answer = client.put_records(StreamName="s", Records=request)
                assert not any(result.get("ErrorCode") for result in answer["Records"])
                written += len(request)
        return written

    return write


def sink(url: str, rows: list[pa.RecordBatch], **options: str) -> Callable[[], int]:
    given = {"streamName": "s", "endpointUrl": url, **options}
    writer = KinesisWriter(WriteOptions.parse(given), SCHEMA, overwrite=False)
    return lambda: writer.write(iter(rows)).sent.records


def measured(size: int) -> dict[str, float]:
    """Records a CPU second of this process, for payloads of `size` bytes.

    The writers take turns, and the shortest of their times count: whatever else the machine does disturbs all of them.
    """
    rows = batches(size)
    with PreparedEndpoint(Records(shards=4, pages=1, page=1)) as endpoint:
        writers = {
            PLAIN: plain_loop(endpoint.url, rows),
            "the sink": sink(endpoint.url, rows),
            "the sink, maxRequestsInFlight=1": sink(endpoint.url, rows, maxRequestsInFlight="1"),
            "the sink, aggregate=true": sink(endpoint.url, rows, aggregate="true"),
        }
        seconds = dict.fromkeys(writers, float("inf"))
        for _ in range(ROUNDS):
            for what, write in writers.items():
                start = process_time()
                assert write() == COUNT
                seconds[what] = min(seconds[what], process_time() - start)
    return {what: COUNT / shortest for what, shortest in seconds.items()}


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        # With the endpoint on the same core: a second thread of a core slows the first one, in the time that it counts.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pretend_credentials()
    table, missed = [], []
    for size in (200, 1024):
        rates = measured(size)
        for what, rate in rates.items():
            ratio = rate / rates[PLAIN]
            is_missed = what != PLAIN and ratio < BOUND
            missed += [f"{size} B, {what}"] * is_missed
            table.append(
                [
                    f"{size} B, {what}",
                    f"{rate / 1000:,.0f} k",
                    f"{1e6 / rate:.1f}",
                    f"{ratio:.1f} x",
                    "" if what == PLAIN else verdict(f"{BOUND} x", not is_missed),
                ]
            )
    note = (
        "The CPU time of the process that writes, from the Arrow batches that Spark hands to a sink; the endpoint is "
        "another process on the same core, accepts everything, and is not counted."
    )
    publish(
        Section(
            name="sink",
            title="Writing to Kinesis",
            command="python -m benchmarks.sink",
            columns=[f"{COUNT:,} rows, 4 shards", "records/s of CPU", "µs of CPU", "to boto3", "bound"],
            rows=table,
            note=note + (f" Missed: {'; '.join(missed)}." if missed else ""),
        )
    )


if __name__ == "__main__":
    main()
