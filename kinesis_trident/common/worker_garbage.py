"""Spares a Python worker of Spark most of the time that its garbage collections take."""

from __future__ import annotations

import gc
from collections.abc import Hashable
from functools import cache

from pyspark import TaskContext

_MOST = 8
"""Whatever a process loads after these goes again: it has to be collected then."""


@cache
def exempt_from_collections(user: Hashable) -> None:
    """Exempt all objects that a worker holds from its later collections, once for each `user` of what it has loaded.

    Spark's workers collect all garbage after each task (`pyspark/daemon.py`). With botocore and this package loaded
    that takes 70 ms of a processor, a large part of a small batch, and finds next to nothing.

    Call this at the end of a task, when what lives as long as the process is loaded and little else: a cycle of objects
    that is in use now and becomes garbage later stays in memory. In a process that is no worker it does nothing.
    """
    if TaskContext.get() is not None and exempt_from_collections.cache_info().currsize < _MOST:
        gc.collect()
        gc.freeze()
