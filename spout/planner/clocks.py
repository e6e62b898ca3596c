"""A wall clock that never steps back, and the repair of times set by a clock that was ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from kinesis_trident.checkpoint.model.nodes import InflightNode

__all__ = ["SteadyClock", "due_in_time"]


class SteadyClock:
    """Epoch milliseconds that never step back. Thread-safe.

    If the wall clock steps back, time continues from its latest value at the pace of the monotonic clock: what is due
    in a second stays due in a second.

    Args:
        wall: epoch seconds.
        steady: seconds of a clock that never steps back.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._read_at = steady()
        self._latest = wall()

    def __call__(self) -> int:
        """The time."""
        with self._lock:
            read_at = self._steady()
            self._latest = max(self._wall(), self._latest + read_at - self._read_at)
            self._read_at = read_at
            return int(self._latest * 1000)


def due_in_time(inflight: InflightNode, now: int, longest_delay: int, timeout: int) -> InflightNode:
    """Return the records in flight with implausibly late times corrected. Pure; times are milliseconds.

    Another process has set these times, by a clock that may have been hours ahead of `now`. A retry that is due later
    than the longest delay from now becomes due; an ack with more than two timeouts left (clocks differ) gets one.
    """
    waiting = tuple(
        msgspec.structs.replace(run, due=now) if run.due > now + longest_delay else run
        for run in inflight.waiting
    )
    pending = tuple(
        msgspec.structs.replace(run, due=now + timeout) if run.due > now + 2 * timeout else run
        for run in inflight.pending
    )
    if (waiting, pending) == (inflight.waiting, inflight.pending):
        return inflight
    return msgspec.structs.replace(inflight, waiting=waiting, pending=pending)
