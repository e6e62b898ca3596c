"""A job with a task that fails once: a script of its own, because only the master's `local[2,4]` tries tasks again.

The worker of the first batch's task for one shard ends before its last row; before it does, more records arrive.
`folder/read/<shard>-<attempt>.json` are the rows that an attempt was given.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow as pa
from job_session import job_session
from pyspark import TaskContext
from pyspark.sql import DataFrame


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder, options, failing = Path(asked["folder"]), asked["options"], asked["shard"]
    read = folder / "read"
    read.mkdir()
    spark = job_session("local[2,4]", folder)

    def put_more() -> None:
        client = boto3.client("kinesis", endpoint_url=options["endpointUrl"])
        records = [{"Data": b"late", "PartitionKey": str(i)} for i in range(20)]
        client.put_records(StreamName=options["streamName"], Records=records)

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        held = list(batches)
        shard = held[0].column("shardId")[0].as_py() if held else ""
        if held and held[0].column("txid")[0].as_py() == 1:
            names = ["messageId", "attempt", "txid", "data", "__anchors"]
            rows = [str(row) for batch in held for row in batch.select(names).to_pylist()]
            path = read / f"{shard}-{attempt}.json"
            path.write_text(json.dumps(rows))
            if attempt == 0 and shard == failing:
                put_more()
                os._exit(1)
        yield from held

    def write(rows: DataFrame, _batch: int) -> None:
        done = rows.select("messageId", "txid").collect()
        with (folder / "taken.jsonl").open("a") as out:
            out.writelines(json.dumps([row.txid, row.messageId]) + "\n" for row in done)

    stream = spark.readStream.format("kinesis-trident").options(**options).load()
    query = (
        stream.mapInArrow(watched, stream.schema)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
