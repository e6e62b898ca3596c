"""Imported by Python at its start where this folder is on the path: driver, planning process and workers."""

import importlib
import os
import sys

import crash_points

crash_points.install()
if "KT_GATES" in os.environ and sys.orig_argv[-1] == "pyspark.worker":
    import gates

    gates.install()
    # The executor's workers are forked from this process: they need not import it all, each of them again.
    for module in (
        "kinesis_trident.spout.reader.task",
        "kinesis_trident.trident.stores.redis",
        "kinesis_trident.trident.run.state_updates",
    ):
        importlib.import_module(module)
