"""A job to be killed: the records of each hour, counted with a watermark of Spark's own of 21 minutes.

In `folder`: `out/<batch>.json` is the sink, a file a batch that a replay replaces, of hours since 1970 and their counts
so far; `dropped` is how many rows each batch of the last life has dropped as late.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from driver import block_at, replace
from job_session import job_session
from pyspark.sql import DataFrame, functions as F

from kinesis_trident.spout.graceful_stop import stop_when_drained
from kinesis_trident.spout.spark_plan import source_of

ARRIVAL = "approximateArrivalTimestamp"


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    spark = job_session("local[2]", folder)
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()
    hours = stream.withWatermark(ARRIVAL, "21 minutes").groupBy(F.window(ARRIVAL, "1 hour")).count()

    def write(rows: DataFrame, batch: int) -> None:
        hour = (F.unix_timestamp("window.start") / 3600).cast("int")
        found = [list(row) for row in rows.select(hour, "count").collect()]
        block_at("before-write", batch)
        replace(folder / "out" / f"{batch}.json", found)
        block_at("written", batch)

    query = (
        hours.writeStream.outputMode("update")
        .option("checkpointLocation", asked["checkpointLocation"])
        .foreachBatch(write)
        .start()
    )
    stop_when_drained(query, source_of(stream)[0])
    query.awaitTermination()
    dropped = [p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress]
    (folder / "dropped").write_text("\n".join(map(str, dropped)))
    spark.stop()


if __name__ == "__main__":
    main()
