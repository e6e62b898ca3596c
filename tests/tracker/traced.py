"""Counts the memory that the tracker holds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["traced"]


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Trace allocations; the function returns the bytes that modules of `tracker` hold.

    Only theirs: servers and clients that other tests have left in this process allocate in their threads too.
    """
    tracker = tracemalloc.Filter(inclusive=True, filename_pattern="*/kinesis_trident/tracker/*")

    def held() -> int:
        traces = tracemalloc.take_snapshot().filter_traces([tracker])
        return sum(file.size for file in traces.statistics("filename"))

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()
