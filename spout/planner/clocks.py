"""Times of the wall clock that do not step back, and what was due by one that has."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from kinesis_trident.checkpoint.model.nodes import InflightNode

__all__ = ["SteadyClock", "due_in_time"]


class SteadyClock:
    """Epoch milliseconds that never step back. Safe for several threads.

    Where the wall clock steps back, time goes on from its latest as the monotonic clock has it: what is due in a second
    is due in a second.

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
    """What is in flight, with nothing due later than it can be by this clock. Pure; times are milliseconds.

    Another process has set these times, by a clock that may have been ahead of `now` by hours. A retry that is due
    later than the longest delay from now is due; an ack that is waited for longer than two timeouts (clocks differ)
    is waited for one timeout.
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
