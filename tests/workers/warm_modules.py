"""Imports what Spark's Python processes need in tests, so that those forked from this process share it."""

from __future__ import annotations

import functools
import gc
import importlib

import botocore.session

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
    """Import them, and read the descriptions of Kinesis for all sessions of botocore."""
    # Nothing of this is garbage.
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.enable()
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    botocore.session.Session().create_client("kinesis", region_name="us-east-1")
