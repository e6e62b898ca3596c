"""Counts what updates of a state ask of its store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass


@dataclass(slots=True)
class StateMetrics:
    """Counts of what the updates of a state have asked of its store; a task that Spark repeats counts again.

    Args:
        updates: partitions of batches that were updated, replays included.
        keys_read: keys that were read from the store; the fence and remembered keys do not count.
        keys_written: keys that were written to the store, or tried: another writer can be faster.
        retries: requests that were sent again, because the store did not answer.
        late: tuples that came after their window was closed, and were dropped.
        seconds: the time of the updates, summed over partitions that ran side by side.
        replays: batches that were updated again in place, with their txid.
    """

    updates: int = 0
    keys_read: int = 0
    keys_written: int = 0
    retries: int = 0
    late: int = 0
    seconds: float = 0.0
    replays: int = 0

    def add(self, other: StateMetrics) -> StateMetrics:
        """Add another's numbers to these."""
        for name, more in zip(self.__slots__, astuple(other), strict=True):
            setattr(self, name, getattr(self, name) + more)
        return self

    def since(self, before: StateMetrics) -> StateMetrics:
        """Return how much was added since."""
        return StateMetrics(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


_current: ContextVar[StateMetrics | None] = ContextVar("state_metrics", default=None)


def current_metrics() -> StateMetrics:
    """Return those of the current update; outside of one, some that nobody reads."""
    return _current.get() or StateMetrics()


@contextmanager
def measure() -> Iterator[StateMetrics]:
    """Count one update in this thread."""
    metrics = StateMetrics(updates=1)
    token = _current.set(metrics)
    begun = time.perf_counter()
    try:
        yield metrics
    finally:
        _current.reset(token)
        metrics.seconds = time.perf_counter() - begun
