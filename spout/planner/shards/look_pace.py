"""Decides when each shard may be looked at next: soon while records come, seldom while it is idle. Pure.

A shard allows five GetRecords calls and 2 MB a second. The looks of the planning process and the reads of the turns
share them: a look waits until it and the first read of the turn that may follow are both allowed, and the task of that
turn is told what is used up. So does what is read ahead (`prefetch`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kinesis_trident.spout.kinesis.rate_limit import (
    ROUNDED,
    SHORTEST_PERIOD,
    ShardBudget,
    Used,
    calls_a_second,
)

BUSY_MS = 200
"""Milliseconds from a look that found something to the next look."""

WARM_MS = 2_500
"""Milliseconds after a finding in which a shard is not idle: one with a record a second is hardly ever."""

WARM_GAP_MS = 250
"""Milliseconds at most between two looks at a shard that is not idle: they leave one of its five calls a second."""

IDLE_MS = 1_000
"""Milliseconds between two looks at an idle shard: each costs one of its five calls a second."""


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The calls of a turn: how many, and `busy_ms` from its pin on until the next one is allowed.

    `ago_ms`: the milliseconds that have passed since the pin, at least.
    """

    count: int
    busy_ms: int = 0
    ago_ms: int = 0


@dataclass(slots=True)
class _Shard:
    """The pace of one shard.

    Attributes:
        gap: from the last look to the next.
        budget: of the calls of looks and turns, and of their bytes.
        called: the time of the planning process's last call; None before the first.
        looked: the time of the last look; None before the first.
        found: the time of the last look that found something; None before the first.
        streak: the number of looks in a row that found something.
        reads: the calls of the last turn.
    """

    gap: int
    budget: ShardBudget
    called: int | None = None
    looked: int | None = None
    found: int | None = None
    streak: int = 0
    reads: int = 1


class LookPace:
    """The pace of the looks at all shards. Times are milliseconds of one clock that never steps back.

    After a look that found something the next follows after `BUSY_MS`. While looks find something again and again, they
    are spread so that looks and reads together leave one call a second free. After `WARM_MS` without a finding the time
    to the next look doubles with each, up to `idle`.

    Args:
        idle: seconds between two looks at an idle shard.
        period: `minFetchPeriod`, in seconds; 0 for no limit. A longer time than the shard's own is for the reads alone.
        rate: `maxFetchRate`, in bytes a second.
    """

    def __init__(self, idle: float = IDLE_MS / 1000, period: float = 0.0, rate: float = math.inf) -> None:
        self._idle = int(idle * 1000)
        self._busy = min(BUSY_MS, self._idle)
        self._apart = int(period * 1000) if period > SHORTEST_PERIOD else 0
        self._limits = min(period, SHORTEST_PERIOD), rate
        self._most = calls_a_second(self._limits[0])
        self._window = round(self._most * self._limits[0] * 1000)
        self._shards: dict[str, _Shard] = {}

    def called(self, shard: str, now: int) -> None:
        """Count a call of the planning process that begins."""
        pace = self._of(shard)
        pace.budget.called()
        pace.called = now

    def answered(self, shard: str, now: int, size: int) -> None:
        """Count the end of that call, and the bytes of its answer; 0 if there is none."""
        budget = self._of(shard).budget
        budget.ended(now / 1000)
        budget.answered(size, now / 1000)

    def may_go_on(self, shard: str, now: int) -> bool:
        """Tell whether a look may call again: the first read of a turn is to fit after it."""
        return self._free_at(self._of(shard), now) <= now

    def may_read(self, shard: str, now: int) -> int:
        """Return the time from which the planning process may read ahead; the first read of a turn fits after it."""
        pace = self._of(shard)
        at = self._free_at(pace, now)
        if self._apart and pace.called is not None:
            at = max(at, pace.called + self._apart)
        return at

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

    def spent(self, shard: str, now: int, calls: TurnCalls, txid: int) -> None:
        """Count the calls of a turn that was pinned, in place of what was said of it before."""
        pace = self._of(shard)
        pace.reads = calls.count
        pace.budget.read_by(txid, calls.count, (now - calls.ago_ms) / 1000, calls.busy_ms / 1000)

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
        # A look and a read are to fit.
        return max(pace.looked + pace.gap if pace.looked is not None else now, self._free_at(pace, now))

    def used(self, shard: str, now: int) -> Used:
        """Return what is used up of the limits, for the task of a shard's next turn."""
        pace = self._shards.get(shard)
        return pace.budget.used(now / 1000) if pace is not None else Used()

    def _free_at(self, pace: _Shard, now: int) -> int:
        """Return the time from which two calls are allowed."""
        return now + math.ceil(pace.budget.wait_of_all(now / 1000, 2) * 1000 - ROUNDED)

    def _spread(self, reads: int) -> int:
        """Return the time between looks that are each followed by so many reads, with one call left free."""
        return self._window // max(1, (self._most - 1) // (1 + reads)) if self._most else 0

    def _of(self, shard: str) -> _Shard:
        found = self._shards.get(shard)
        if found is None:
            found = self._shards[shard] = _Shard(self._idle, ShardBudget(*self._limits))
        return found
