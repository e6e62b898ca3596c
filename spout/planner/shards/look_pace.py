"""Decides when each shard may be looked at next: soon while records come, seldom while it is idle. Pure.

A shard allows five GetRecords calls a second. The looks of the planning process and the reads of the turns share them:
a look waits until it and the first read of the turn that may follow are both allowed, and the task of that turn is told
what is used up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kinesis_trident.spout.kinesis.rate_limit import SHORTEST_PERIOD, calls_a_second

__all__ = ["BUSY_MS", "IDLE_MS", "WARM_GAP_MS", "WARM_MS", "LookPace"]

BUSY_MS = 200
"""Milliseconds from a look that found something to the next look."""

WARM_MS = 2_500
"""Milliseconds after a finding in which a shard is not idle: one with a record a second is hardly ever."""

WARM_GAP_MS = 250
"""Milliseconds at most between two looks at a shard that is not idle: they leave one of its five calls a second."""

IDLE_MS = 1_000
"""Milliseconds between two looks at an idle shard: each costs one of its five calls a second."""


@dataclass(slots=True)
class _Shard:
    """The pace of one shard.

    Attributes:
        gap: from the last look to the next.
        calls: the times of the last calls, of looks and turns.
        looked: the time of the last look; None before the first.
        found: the time of the last look that found something; None before the first.
        streak: the number of looks in a row that found something.
        reads: the calls of the last turn.
        called: the planning process has called since the last turn.
    """

    gap: int
    calls: deque[int]
    looked: int | None = None
    found: int | None = None
    streak: int = 0
    reads: int = 1
    called: bool = False


class LookPace:
    """The pace of the looks at all shards. Times are milliseconds of one clock that never steps back.

    After a look that found something the next follows after `BUSY_MS`. While looks find something again and again, they
    are spread so that looks and reads together leave one call a second free. After `WARM_MS` without a finding the time
    to the next look doubles with each, up to `idle`.

    Args:
        idle: seconds between two looks at an idle shard.
        period: `minFetchPeriod`, in seconds; 0 for no limit. A longer time than the shard's own is for the reads alone.
    """

    def __init__(self, idle: float = IDLE_MS / 1000, period: float = 0.0) -> None:
        self._idle = int(idle * 1000)
        self._busy = min(BUSY_MS, self._idle)
        period = min(period, SHORTEST_PERIOD)
        self._most = calls_a_second(period)
        self._window = round(self._most * period * 1000)
        self._shards: dict[str, _Shard] = {}

    def called(self, shard: str, now: int) -> None:
        """Count a call of the planning process."""
        pace = self._of(shard)
        pace.calls.append(now)
        pace.called = True

    def may_go_on(self, shard: str, now: int) -> bool:
        """Tell whether a look may call again: the first read of a turn is to fit after it."""
        return not self._most or self._recent(self._of(shard), now) < self._most - 1

    def looked(self, shard: str, now: int, *, found: bool) -> None:
        """Note the result of a look."""
        pace = self._of(shard)
        pace.looked = now
        pace.streak = pace.streak + 1 if found else 0
        if not found:
            warm = pace.found is not None and now - pace.found < WARM_MS
            pace.gap = min(self._idle, max(self._busy, WARM_GAP_MS if warm else 2 * pace.gap))
        else:
            pace.found = now
            spread = self._spread(pace.reads) if pace.streak > 1 else 0
            pace.gap = min(self._idle, max(self._busy, spread))

    def spent(self, shard: str, now: int, calls: int) -> None:
        """Count the calls of a turn that was settled. They were made by now, exactly when is not known."""
        pace = self._of(shard)
        pace.calls.extend([now] * min(calls, self._most))
        pace.reads, pace.called = calls, False

    def read(self, shard: str, now: int, *, moved: bool) -> None:
        """Note a turn that read new records; if it has not `moved` it was refused, and the shard is left alone."""
        pace = self._of(shard)
        if not moved:
            pace.looked, pace.gap, pace.streak = now, self._idle, 0
        elif not pace.streak:
            # Read without a look before it.
            pace.gap = self._busy

    def due(self, shard: str, now: int) -> int:
        """Return the time of the next look at a shard; `now` for one that was never looked at."""
        pace = self._shards.get(shard)
        if pace is None:
            return now
        due = now if pace.looked is None else pace.looked + pace.gap
        # A look and a read are to fit.
        beyond = len(pace.calls) - 1 - max(0, self._most - 2)
        return max(due, pace.calls[beyond] + self._window) if beyond >= 0 else due

    def used(self, shard: str, now: int) -> int:
        """Return how many calls of the last second the task of a shard's next turn has to count.

        It is 0 if nobody looked since the last turn, which then left something unread: tasks pace themselves.
        """
        pace = self._shards.get(shard)
        return self._recent(pace, now) if pace is not None and pace.called else 0

    def _recent(self, pace: _Shard, now: int) -> int:
        return sum(1 for at in pace.calls if at > now - self._window)

    def _spread(self, reads: int) -> int:
        """Return the time between looks that are each followed by so many reads, with one call left free."""
        return self._window // max(1, (self._most - 1) // (1 + reads)) if self._most else 0

    def _of(self, shard: str) -> _Shard:
        found = self._shards.get(shard)
        if found is None:
            found = self._shards[shard] = _Shard(self._idle, deque(maxlen=self._most))
        return found
