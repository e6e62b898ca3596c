"""A job under Spark Connect: a script of its own, because a process is either classic or a client of Connect.

In `folder`: `out/<txid>.json` is the sink, a file a batch that a replay replaces.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bolt import Outcomes, reliable
from checkpoint.java import ensure_java


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    (folder / "out").mkdir()
    os.environ["JAVA_HOME"] = str(ensure_java())
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()

    def parse(record):  # type: ignore[no-untyped-def]
        order = json.loads(record.data)
        if order["kind"] == "bad" or (order["kind"] == "flaky" and record.attempt == 1):
            raise ValueError(order["kind"])
        return order["i"], record.attempt

    def write(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        outcomes.fail(rows.where("i = 3 and attempt = 1"), "not yet")
        found = [[row.i, row.attempt] for row in rows.where("i != 3 or attempt > 1").collect()]
        (folder / "out" / f"{txid}.json").write_text(json.dumps(found))

    query = (
        reliable(stream)
        .map(parse, "i int, attempt int")
        .for_each_batch(write)
        .start(checkpointLocation=str(folder / "spark"), trigger={"availableNow": True})
    )
    query.awaitTermination()
    error = query.exception()
    spark.stop()
    if error is not None:
        raise error


if __name__ == "__main__":
    main()
