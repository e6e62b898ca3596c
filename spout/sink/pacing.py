"""The rate limit of a write: reserves a time for each request. The time is an argument."""

from __future__ import annotations

import math
import threading
from typing import Self

from kinesis_trident.spout.kinesis.put_pools import REQUEST_BYTES, REQUEST_RECORDS, RequestBound


class Pacing:
    """The rates of a task, which all its requests share. Thread-safe; times are seconds of any one clock.

    Requests that are refused count too: they were sent. Time that is not used is not saved up for later, because a
    shard refuses bursts.

    Args:
        records: the most records a second, an aggregate being one.
        size: the most bytes a second, payloads and partition keys together.
    """

    @classmethod
    def of(cls, records: float | None, size: float | None) -> Self | None:
        """Return the pacing of a write; a rate is None for no limit, the result if both are."""
        return cls(records or math.inf, size or math.inf) if records or size else None

    def __init__(self, records: float, size: float) -> None:
        self._records = records
        self._size = size
        self._free = -math.inf
        self._lock = threading.Lock()

    def bound(self) -> RequestBound:
        """Return the limits of a request, which contains what may be written in a second, or one record."""
        return RequestBound(
            max(1, int(min(REQUEST_RECORDS, self._records))), max(1, int(min(REQUEST_BYTES, self._size)))
        )

    def reserve(self, records: int, size: int, now: float) -> float:
        """Reserve the time of a request; return how long to wait before it is sent."""
        seconds = max(records / self._records, size / self._size)
        with self._lock:
            start = max(now, self._free)
            self._free = start + seconds
        return start - now
