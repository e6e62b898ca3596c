"""The user code of every peer: counts the records and their bytes, and prints when they came and what they cost.

It runs in the peer's own environment, which has psutil and nothing of this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from threading import Timer
from time import perf_counter

from benchmarks.processors import spent_below

__all__ = ["Count", "Outcome", "report"]

QUIET = 1.0
"""Seconds that a peer without an end of its own reads on after the last expected record: more of them are a mistake."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counted records, the moments of the first and the last expected one, and the processor seconds until then."""

    records: int
    bytes: int
    first: float
    last: float
    processor: float


class Count:
    """Counts up to `expected` records, after which it has a peer that reads for ever stop.

    Make it after the imports and before the first request: its processor time begins here.
    """

    def __init__(self, expected: int, stop: Callable[[], object] | None = None) -> None:
        self.records = 0
        self.bytes = 0
        self._expected = expected
        self._stop = stop
        self._first = self._last = 0.0
        self._before = self._after = spent_below()

    def add(self, data: bytes) -> None:
        """Count a record."""
        if not self.records:
            self._first = perf_counter()
        self.records += 1
        self.bytes += len(data)
        if self.records == self._expected:
            self._last = perf_counter()
            self._after = spent_below()
            if self._stop is not None:
                Timer(QUIET, self._stop).start()

    def outcome(self) -> Outcome:
        """Return what was counted so far."""
        return Outcome(self.records, self.bytes, self._first, self._last, self._after - self._before)


def report(*outcomes: Outcome) -> None:
    """Print the sum over the processes of a peer as a line of JSON."""
    print(
        json.dumps(
            {
                "records": sum(one.records for one in outcomes),
                "bytes": sum(one.bytes for one in outcomes),
                "seconds": max(one.last for one in outcomes) - min(one.first for one in outcomes),
                "processor": sum(one.processor for one in outcomes),
            }
        ),
        flush=True,
    )
