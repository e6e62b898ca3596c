"""A Spark session on this machine, for tests, notebooks and first steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinesis_trident.checkpoint.embedded.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def start_spark(master: str = "local[2]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a quiet Spark session on this machine, or return the one that is there.

    It runs on the Java of `ensure_java`. Its workers run the Python of this process, unless `PYSPARK_PYTHON` names
    another one. As a context manager, the session stops at the end.

    Args:
        master: Spark's master; by default two threads of this machine.
        settings: of Spark, beside those of a quiet session, or in their place.

    Raises:
        JavaMissingError: there is no Java of version 17 or newer.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ensure_java()
    builder = SparkSession.builder.master(master)
    for name, value in (_QUIET | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
