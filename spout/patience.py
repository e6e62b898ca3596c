"""Bounds how long is waited: for a whole answer, and for any progress at all. Pure: the clock is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable

_LEAST_RATE = 64 * 1024
"""Bytes a second; a shard gives 2 MB. At 150 a second the time is up when the first seconds are."""


class Deadline:
    """The time for an answer: some seconds, and more for each byte that has arrived.

    A timeout of a socket bounds only the silence between two bytes: a body that trickles would hold a task for hours.

    Args:
        seconds: of an answer of no size.
        clock: seconds that never step back; asked at once for the beginning.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()

    def seconds_left(self, size: int) -> float:
        """Return the seconds that are left when `size` bytes have arrived.

        Raises:
            TimeoutError: none are.
        """
        passed = self._clock() - self._began
        left = self._seconds + size / _LEAST_RATE - passed
        if left > 0:
            return left
        msg = f"the answer is too slow: {size} bytes in {passed:.0f} s"
        raise TimeoutError(msg)


class Patience:
    """Limits the time without progress. Thread-safe; progress of one thread counts for all.

    Args:
        seconds: the longest time without an accepted record, or an answer to a read.
        clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._since = clock()

    def excuse(self, seconds: float, since: float) -> float:
        """Return from when the time of one of several counts, up to now `since`, without some seconds."""
        return min(self._clock(), max(self._since, since) + seconds)

    def renew(self) -> None:
        """Restart the time: a record was accepted, or is sent for the first time."""
        self._since = self._clock()

    def is_spent(self, since: float = -math.inf) -> bool:
        """Return whether it is time to give up; `since`: from when the time counts at most."""
        return self._clock() - max(self._since, since) >= self.seconds
