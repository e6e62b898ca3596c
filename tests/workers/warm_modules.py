"""Imports what Spark's Python processes need in tests, so that those forked from this process share it."""

from __future__ import annotations

import importlib

__all__ = ["import_all"]

MODULES = (
    "boto3",
    "kazoo.client",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "kinesis_trident.spout.source",
    "kinesis_trident.spout.planner.run",
    "kinesis_trident.spout.reader.task",
    "kinesis_trident.bolt.reliable",
    "kinesis_trident.bolt.storm.bolt_task",
    "kinesis_trident.trident",
)


def import_all() -> None:
    """Import them."""
    for module in MODULES:
        importlib.import_module(module)
