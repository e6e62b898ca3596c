"""The daemon of Spark's Python workers, with what they import imported before they are forked.

Spark starts a daemon for each kind of worker, and forks one worker for each query and task from it. A fork of this
daemon shares the modules that every test's worker needs, and does not spend a second of processor on importing them.
"""

from __future__ import annotations

import gc
import importlib

import boto3  # noqa: F401
import kazoo.client  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.daemon
import pyspark.sql.pandas.serializers

for module in ("spout.source", "spout.reader.task", "bolt.reliable", "bolt.storm.bolt_task", "trident"):
    importlib.import_module(f"kinesis_trident.{module}")

if __name__ == "__main__":
    gc.freeze()
    pyspark.daemon.manager()
