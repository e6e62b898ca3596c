"""Limits the calls and bytes of one shard by a token bucket, with full jitter after a throttle.

Kinesis allows a shard 5 GetRecords calls and 2 MB a second over all its readers; an answer of 10 MiB blocks the
shard for the next 5 seconds ("Quotas and limits" of Kinesis Data Streams). Delays after a throttle are drawn with full
jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from kinesis_trident.per_process import PerProcess
from kinesis_trident.spout.options.source import SourceOptions

__all__ = [
    "SHORTEST_PERIOD",
    "ShardBudget",
    "ShardLimiter",
    "calls_a_second",
    "full_jitter",
    "shard_limiter",
]


SHORTEST_PERIOD = 0.2
"""Seconds: a shard allows five calls in each one."""


def calls_a_second(period: float) -> int:
    """Return how many calls a second are allowed with `period` seconds between them on the average; 0: no limit."""
    return max(1, math.floor(1 / period + 1e-9)) if period > 0 else 0


def full_jitter(failures: int, rng: random.Random, *, base: float = 0.2, cap: float = 10.0) -> float:
    """Draw the seconds to wait after the `failures`-th consecutive failure (from 1), up to base * 2^(failures - 1)."""
    return rng.random() * min(cap, base * 2.0 ** min(failures - 1, 32))


class ShardBudget:
    """The remaining calls and bytes of a shard; pure, times are seconds of any one clock.

    Any window of a second has at most `1 / period` calls (5 with 0.2 s), so a few short reads need not wait for each
    other; with a longer period the calls of others that are known leave it the rest of the shard's 5. Bytes are charged
    afterwards: an answer of n bytes blocks for n / `rate` seconds. Unused calls and bytes do not accumulate, because
    the service refuses bursts.

    Args:
        period: average seconds between calls; 0 for no limit.
        rate: bytes a second.
        first, longest: the bound of the wait after the first refusal, and its maximum, in seconds.
    """

    def __init__(self, period: float, rate: float, first: float = 0.2, longest: float = 10.0) -> None:
        calls = calls_a_second(period)
        self._window = calls * period
        self._calls: deque[float] = deque(maxlen=calls)
        shortest = min(period, SHORTEST_PERIOD)
        self._all: deque[float] = deque(maxlen=calls_a_second(shortest))
        self._own: deque[float] = deque(maxlen=calls_a_second(shortest))
        self._shard_window = calls_a_second(shortest) * shortest
        self._rate = rate
        self._free = -math.inf
        self._failures = 0
        self._first, self._longest = first, longest

    def wait(self, now: float) -> float:
        """Return the seconds until the next call is allowed, 0 for at once."""
        free = self._free
        if self._calls and len(self._calls) == self._calls.maxlen:
            free = max(free, self._calls[0] + self._window)
        if self._all and len(self._all) == self._all.maxlen:
            free = max(free, self._all[0] + self._shard_window)
        return max(0.0, free - now)

    def called(self, now: float) -> None:
        """Count a call."""
        self._calls.append(now)
        self._all.append(now)
        self._own.append(now)

    def shared(self, calls: int, now: float, busy: float = 0.0) -> None:
        """Count so many calls in the last second in all, with those of others; 0 if nothing is known of these.

        When the others called is not known: they count from now on, in place of those that were told before. `busy`:
        the seconds for which the bytes that they have read allow no call.
        """
        self._free = max(self._free, now + busy) if busy else self._free
        if calls:
            own = [at for at in self._own if at > now - self._shard_window]
            self._all.clear()
            self._all.extend([*own, *[now] * (calls - len(own))])

    def answered(self, size: int, now: float) -> None:
        """Count the `size` bytes of an answer."""
        self._failures = 0
        self._free = max(self._free, now) + size / self._rate

    def refused(self, now: float, rng: random.Random) -> None:
        """Count a throttled or temporarily failed call: the more in a row, the longer the wait."""
        self._failures += 1
        self._free = max(
            self._free, now + full_jitter(self._failures, rng, base=self._first, cap=self._longest)
        )


class ShardLimiter:
    """A budget with a clock: waits until a call is allowed. Thread-safe."""

    def __init__(
        self,
        budget: ShardBudget,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._budget = budget
        self.sleep = sleep
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self.clock = clock

    def acquire(self, patience: float = math.inf) -> bool:
        """Wait until the next call is allowed; return False at once if that takes longer than `patience` seconds."""
        deadline = self.clock() + patience
        while True:
            with self._lock:
                now = self.clock()
                wait = self._budget.wait(now)
                if wait <= 0:
                    self._budget.called(now)
                    return True
            if now + wait > deadline:
                return False
            self.sleep(wait)

    def shared(self, calls: int, busy: float = 0.0) -> None:
        """See `ShardBudget.shared`."""
        with self._lock:
            self._budget.shared(calls, self.clock(), busy)

    def answered(self, size: int) -> None:
        """See `ShardBudget.answered`."""
        with self._lock:
            self._budget.answered(size, self.clock())

    def refused(self) -> None:
        """See `ShardBudget.refused`."""
        with self._lock:
            self._budget.refused(self.clock(), self._rng)


_limiters: PerProcess[tuple[object, ...], ShardLimiter] = PerProcess()


def shard_limiter(options: SourceOptions, stream: str, shard: str) -> ShardLimiter:
    """Return this process's limiter for a shard; all turns share it."""
    limits = (
        options.min_fetch_period,
        options.max_fetch_rate,
        options.client_retry_interval,
        options.client_max_retry_interval,
    )
    key = (options.endpoint_url, options.region, stream, shard, *limits)
    return _limiters.get(key, lambda: ShardLimiter(ShardBudget(*limits)))
