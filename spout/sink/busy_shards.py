"""Gives each shard that refuses records what it can take. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinesis_trident.spout.kinesis.put_entries import Entries

_RECORDS, _BYTES = 1000, 2**20
"""What a shard takes in a second."""

_APART = 0.1
"""Seconds between two requests with records of a busy shard, over all requests."""

_LONGEST_WAIT = 5.0

_LEAST, _MORE, _MOST = 1 / 64, 1.25, 4.0
"""The least share, its growth with each request that a shard takes whole, and the share from which it is not busy."""


@dataclass(slots=True)
class _Busy:
    """A shard that has refused a record.

    Attributes:
        since: when its records were sent last.
        free: the time until which none is sent.
        share: the part of what a shard takes that is left for this task, as far as it knows.
        failures: how many requests in a row it has refused whole.
    """

    since: float
    free: float = 0.0
    share: float = 1.0
    failures: int = 0


class BusyShards:
    """The busy shards of one stream, for all requests of a task. Times are seconds of any one clock.

    Args:
        jitter: draws a time between two.
    """

    def __init__(self, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self._jitter = jitter
        self._busy: dict[str, _Busy] = {}

    def find_busy(self) -> frozenset[str]:
        """Return the shards that are busy now."""
        return frozenset(self._busy)

    def settle(self, home: str, accepted: int, refused: int, now: float) -> None:
        """Learn how many records of one request a shard has accepted and refused."""
        busy = self._busy.get(home)
        if refused:
            if busy is None:
                busy = self._busy[home] = _Busy(now)
            else:
                taken = max(0.5, accepted / (accepted + refused))
                busy.share = 1.0 if accepted and busy.share > 1 else max(_LEAST, busy.share * taken)
            busy.failures = 0 if accepted else busy.failures + 1
            busy.free = now + self._jitter(
                _APART, max(_APART, min(_LONGEST_WAIT, _APART * 2 ** min(busy.failures, 9)))
            )
        elif busy is not None and accepted:
            busy.failures = 0
            busy.share *= _MORE
            if busy.share >= _MOST:
                del self._busy[home]

    def allow(self, home: str, rows: Entries, now: float, *, packed: bool = False) -> int:
        """Return how many of the first rows of a shard may be sent now, and count them as sent."""
        busy = self._busy.get(home)
        if busy is None:
            return len(rows)
        if now < busy.free:
            return 0
        seconds = min(1.0, now - busy.since) * busy.share
        busy.since, busy.free = now, now + _APART
        records = len(rows) if packed else int(_RECORDS * seconds)
        return max(1, min(records, rows.count_fitting(int(_BYTES * seconds))))

    def free(self, homes: Iterable[str]) -> float:
        """Return the time from which something may be sent to one of these shards; infinite for none."""
        return min(
            (self._busy[home].free if home in self._busy else -math.inf for home in homes), default=math.inf
        )
