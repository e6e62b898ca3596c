"""The Spark of a job that is a process of its own: small, silent, and with all its files in the job's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from kinesis_trident.checkpoint.embedded.java import ensure_java

__all__ = ["job_session"]


def job_session(
    master: str, folder: Path, more: Mapping[str, str] | None = None, *, connect: bool = False
) -> SparkSession:
    """Start Spark with `more` settings, or one that is a client of Connect."""
    os.environ["JAVA_HOME"] = str(ensure_java())
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        **(more or {}),
    }
    builder = SparkSession.builder.remote(master) if connect else SparkSession.builder.master(master)
    return builder.config(map=settings).getOrCreate()
