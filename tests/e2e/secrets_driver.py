"""A job that shows all that Spark shows of a query, at log level INFO, and then fails: a test looks through it."""

from __future__ import annotations

import functools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from job_session import job_session
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import reliable


def _write(spark: SparkSession, asked: dict[str, Any]) -> None:
    """Writes, to the stream and to an endpoint that is not there."""
    names = ("awsAccessKeyId", "awsSecretAccessKey", "sessionToken", "streamName", "region", "endpointUrl")
    given = {name: asked["options"][name] for name in names}
    rows = spark.range(3).selectExpr("cast(id as string) as data")
    away = {"endpointUrl": "http://127.0.0.1:1", "writeTimeout": "1s", "clientNumRetries": "0"}
    for what in ("written", "not written"):
        try:
            rows.write.format("kinesis-trident").options(**given).mode("append").save()
            print(what, "to the stream")
        except Exception as error:
            print("error of a write", error)
        given |= away


def _error(spark: SparkSession, asked: dict[str, Any], more: dict[str, str]) -> object:
    """Return what a query with some other options says."""
    try:
        broken = spark.readStream.format("kinesis-trident").options(**asked["options"] | more).load()
        out = broken.writeStream.format("noop")
        out = out.option("checkpointLocation", f"{asked['folder']}/{asked['refused'].index(more)}x")
        out.trigger(availableNow=True).start().awaitTermination(120)
    except Exception as error:
        return error
    return "none"


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    more = {"spark.log.level": "INFO", "spark.python.authenticate.socketTimeout": "120s"}
    spark = job_session("local[2]", Path(asked["folder"]), more)
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()

    def fails(record):  # type: ignore[no-untyped-def]
        if record.data == b"bad":
            raise ValueError(repr(record))
        return (record.data.decode(),)

    def write(rows: DataFrame, txid: int) -> None:
        print(f"batch {txid}: {rows.count()} rows")
        for mode in ("simple", "extended", "formatted", "codegen", "cost"):
            rows.explain(mode)

    for mode in ("extended", "formatted"):
        stream.explain(mode)
    query = (
        reliable(stream)
        .map(fails, "text string")
        .for_each_batch(write)
        .start(checkpointLocation=f"{asked['folder']}/checkpoint", trigger={"availableNow": True})
    )
    with suppress(Exception):
        query.awaitTermination(300)
    print("query", query, query._jsq.toString(), query.exception())
    query.explain(True)
    for progress in query.recentProgress:
        print("progress", json.dumps(dict(progress), default=str))
    # Some wait until they give up, so a few at a time.
    with ThreadPoolExecutor(3) as pool:
        for error in pool.map(functools.partial(_error, spark, asked), asked["refused"]):
            print("error", error)
    _write(spark, asked)
    print("the end")


if __name__ == "__main__":
    main()
