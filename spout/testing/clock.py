"""A clock for tests: time passes only in `sleep`."""

from __future__ import annotations

import threading


class FakeTime:
    """A clock that only sleeping advances; `sleeps` lists the durations. Thread-safe."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self.now = now
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now

    def milliseconds(self) -> int:
        """Return the time in epoch milliseconds."""
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self.now += seconds
            self.sleeps.append(seconds)
