"""Imported by Python at its start where this folder is on the path: driver, planning process and workers."""

import os
import sys

import crash_points

crash_points.install()
if "KT_CLOCK" in os.environ:
    import stepped_clock

    stepped_clock.install()
if sys.orig_argv[-1] == "pyspark.worker":
    if "KT_GATES" in os.environ:
        import gates

        gates.install()
    import warm_modules

    # The executor's workers are forked from this process: they need not import it all, each of them again.
    warm_modules.import_all()
