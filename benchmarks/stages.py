"""Measure where the processor time of a record goes on its way to Spark: `python -m benchmarks.stages`.

Each stage of a task runs in this process together with the stages before it, and the difference is its own. Spark's
part is what the processes of a whole query take beyond that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pyarrow as pa
import pybase64

from benchmarks.endpoint import PreparedEndpoint, Records, pages, pretend_credentials
from benchmarks.fetch import PAGES, read_client, read_raw, read_turns
from benchmarks.report import Section, best, publish
from benchmarks.source import PAGES as LARGE, large_batches, ready_rate, session, spark_rate
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import Segment, TurnRows

SIZES = (200, 1024)
DECODED = 10
"""Pages that are decoded again and again: together they do not fit into the processor's cache."""


def microseconds(run: Callable[[], object], records: int) -> float:
    """Return the processor time of a record, the least of five runs."""
    return best(run, 5, process_time) / records * 1e6


def in_task(size: int) -> dict[str, float]:
    """Return the microseconds of each stage of a task that reads records of `size` bytes."""
    held = Records(pages=PAGES, size=size)
    count = PAGES * held.page
    bodies = list(pages(held, DECODED))
    decoded = DECODED * held.page
    with PreparedEndpoint(held) as endpoint:
        given = SourceOptions(stream_name="s", endpoint_url=endpoint.url)
        client = BotoKinesis(given)
        socket = microseconds(lambda: read_raw(endpoint.url), count)
        reading = microseconds(lambda: read_client(client), count)
        turns = microseconds(lambda: read_turns(client, given), count)
    columns = microseconds(lambda: sum(page_of(body).size for body in bodies), decoded)
    turn = [page_of(body).records for body in bodies]
    texts = [pybase64.b64encode(batch.column("data").buffers()[2]) for batch in turn]
    base64 = microseconds(
        lambda: sum(len(pybase64.b64decode(text, validate=True)) for text in texts), decoded
    )
    rows = TurnRows("s", "shardId-000000000000", 0, 1, 1, [Segment(turn, attempt=1)])
    made = microseconds(lambda: (list(rows.record_batches()), rows.xor(), rows.digest()), decoded)
    batches = list(rows.record_batches())
    return {
        "the socket: answers read and thrown away": socket,
        "JSON, cut into Arrow columns of a page": columns - base64,
        "base64": base64,
        "botocore, limits, positions": reading - socket - columns + (turns - reading),
        "rows: messageId, ids, anchors, digest": made,
        "written as Arrow's stream": microseconds(lambda: written(batches), decoded),
    }


def written(batches: list[pa.RecordBatch]) -> int:
    """Write batches as a worker does; return the bytes."""
    out = pa.MockOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return int(out.size())


def in_spark(hosts: str, folder: Path) -> dict[int, tuple[float, float]]:
    """Return the microseconds of all of Spark's processes for a record of each size: ours, and a ready-made one."""
    spark = session(folder)
    found = {}
    for size in SIZES:
        held = Records(shards=2, pages=LARGE, size=size)
        with PreparedEndpoint(held) as endpoint:
            given = large_batches(endpoint.url, hosts)
            ours = spark_rate(spark, folder, "kinesis-trident", given, held)
        ready = ready_rate(spark, folder, size)
        found[size] = (1e6 / ours.processors, 1e6 / ready.processors)
    spark.stop()
    return found


def main() -> None:
    """Measure and publish."""
    pretend_credentials()
    stages = [in_task(size) for size in SIZES]
    with tempfile.TemporaryDirectory() as name, EmbeddedZooKeeper() as zookeeper:
        whole = in_spark(zookeeper.hosts, Path(name))
    rows = [[stage, *(f"{column[stage]:,.2f} µs" for column in stages)] for stage in stages[0]]
    totals = [sum(column.values()) for column in stages]
    rows += [
        ["a task, together", *(f"{total:,.2f} µs" for total in totals)],
        [
            "Spark: start, workers, transfer, JVM, planning",
            *(f"{whole[size][0] - total:,.2f} µs" for size, total in zip(SIZES, totals, strict=True)),
        ],
        ["all of Spark's processes", *(f"{whole[size][0]:,.2f} µs" for size in SIZES)],
        ["all of them for ready-made Arrow batches", *(f"{whole[size][1]:,.2f} µs" for size in SIZES)],
    ]
    publish(
        Section(
            name="stages",
            title="Where the time of a record goes",
            command="python -m benchmarks.stages",
            columns=["processor time of a record", *(f"{size} B" for size in SIZES)],
            rows=rows,
            note="Pages of 10,000 records, nothing fails. The stages of a task run in one process, the rest is the "
            "difference to a whole query of two shards; the endpoint's own time is left out.",
        )
    )


if __name__ == "__main__":
    main()
