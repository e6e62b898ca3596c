"""Runs a few queries like those of the tests, so that the JVM loads the classes that they need: `FOLDER` is theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, functions as F


def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass Arrow batches through a Python worker."""
    yield from batches


def run(folder: Path) -> None:
    """Run them, then end Spark and its JVM."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def write(rows: DataFrame, batch: int) -> None:
        kept = rows.mapInArrow(as_they_are, rows.schema).persist()
        kept.groupBy((F.col("value") % 3).alias("third")).agg(F.count("*"), F.max("timestamp")).collect()
        kept.withColumn("text", F.col("value").cast("string")).write.parquet(str(folder / f"{batch}"))
        kept.unpersist()

    spark.range(100).withColumn("timestamp", F.now()).withColumnRenamed("id", "value").write.parquet(
        str(folder / "in")
    )
    stream = spark.readStream.schema(spark.read.parquet(str(folder / "in")).schema).parquet(
        str(folder / "in")
    )
    to_function = stream.writeStream.foreachBatch(write).option(
        "checkpointLocation", str(folder / "function")
    )
    to_files = stream.writeStream.format("parquet").option("path", str(folder / "out"))
    for out in (to_function, to_files.option("checkpointLocation", str(folder / "files"))):
        out.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    # The JVM writes the archive when it ends.
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
