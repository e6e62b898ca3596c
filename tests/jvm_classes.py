"""Spark's classes as a JVM has loaded them, kept in a file: a JVM that begins with it takes half the time to start.

JEP 350, "Dynamic CDS Archives". `python tests/jvm_classes.py` makes the file, in this environment; where there is none
for the Java at hand, JVMs start as ever.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpoint.java import ensure_java, find_java

BASE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most JVMs of tests live for seconds: compiling what runs once for speed costs more than it gives."""


# What it says of classes that it leaves out, or of a file that is another Java's, goes to standard output else.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def options() -> str:
    """What the JVMs of tests are started with."""
    if not any(Path(sys.prefix).glob("spark-*.jsa")):
        return BASE
    archive = _archive()
    return f"{BASE} {_QUIET} -XX:SharedArchiveFile={archive}" if archive.exists() else BASE


def _archive() -> Path:
    """The file for the Java at hand: another one could not use it."""
    asked = subprocess.run([find_java(), "-version"], check=True, capture_output=True)
    return Path(sys.prefix) / f"spark-{hashlib.sha256(asked.stderr).hexdigest()[:12]}.jsa"


def make(archive: Path) -> None:
    """Run what most tests run, a small streaming query with a batch function, and keep the classes that it took."""
    os.environ |= {
        "JAVA_HOME": str(ensure_java()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{BASE} {_QUIET} -XX:ArchiveClassesAtExit={archive}",
    }
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    def write(rows: DataFrame, batch: int) -> None:
        rows.repartition(2, "value").mapInArrow(
            lambda parts: parts, "timestamp timestamp, value long"
        ).collect()

    with TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.local.dir", folder)
            .getOrCreate()
        )
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
        out = rate.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
        query = out.trigger(processingTime="0 seconds").start()
        while query.lastProgress is None and query.isActive:
            query.awaitTermination(1)
        query.stop()
        gateway = SparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        # The file is written when the JVM ends, which is when nobody holds its input any more.
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    make(_archive())
