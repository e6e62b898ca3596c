"""A job to be killed: a script of its own, with its own Spark, that writes down everything it sees.

In `folder`: `out/<txid>.json` is the sink, a file a batch that a replay replaces; `attempts/<txid>-<run>.json` are
the rows that one attempt was given; `deliveries/<run>-<pid>.jsonl` is every record that the map function got.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from job_session import job_session
from pyspark.sql import DataFrame

from kinesis_trident import reliable


def replace(path: Path, content: Any) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


def block_at(point: str, txid: int) -> None:
    if "KT_BLOCK_AT" in os.environ:
        import crash_points

        crash_points.block_at(point, txid)


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    run = uuid.uuid4().hex[:8]
    deliveries = folder / "deliveries"
    deliveries.mkdir(parents=True, exist_ok=True)
    spark = job_session("local[2]", folder)
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()

    def parse(record):  # type: ignore[no-untyped-def]
        said = json.dumps({"id": record.messageId, "txid": record.txid, "attempt": record.attempt})
        with (deliveries / f"{run}-{os.getpid()}.jsonl").open("a") as log:
            log.write(said + "\n")
        order = json.loads(record.data)
        if order["kind"] == "bad" or (order["kind"] == "flaky" and record.attempt == 1):
            raise ValueError(order["kind"])
        return order["i"], record.messageId, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        found = [[row.i, row.id, row.attempt] for row in rows.collect()]
        replace(folder / "attempts" / f"{txid}-{run}.json", found)
        block_at("before-write", txid)
        replace(folder / "out" / f"{txid}.json", found)
        block_at("written", txid)

    query = (
        reliable(stream)
        .map(parse, "i int, id string, attempt int")
        .for_each_batch(write)
        .start(checkpointLocation=asked["checkpointLocation"], trigger=asked["trigger"])
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
