"""Decides when each shard may be looked at next: soon while records come, seldom while it is idle. Pure.

The looks of the planning process and the reads of the turns share the calls and bytes of a shard: a look waits until it
and the first read of the turn that may follow are both allowed. So does what is read ahead (`prefetch`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from twins.old_sight.rate_limit import ROUNDED, ShardBudget

BUSY_MS = 200
"""Milliseconds from a look that found something to the next look."""

WARM_MS = 2_500
"""Milliseconds after a finding in which a shard is not idle: one with a record a second is hardly ever."""

WARM_GAP_MS = 250
"""Milliseconds at most between two looks at a shard that is not idle: they leave one of its five calls a second."""

SCARCE_MS = 1_000
"""Milliseconds between two looks, at most, where the turns of a shard take many of its calls.

Thrice the interval of idle shards, if that is shorter.
"""

REFUSED_MS = 2_000
"""Milliseconds between two looks, at most, where others take so many of the calls of a shard that looks are refused."""

_REFUSED = 1.5
_FORGIVEN_MS = 30_000
"""Each refusal makes the least time between two looks so much longer, and it halves in so many milliseconds.

Multiplicative increase and slow decrease, as of TCP's window: two readers that look every 400 ms come to 500 ms each,
and 2 to 5 % of their looks are refused in place of a quarter.
"""

IDLE_MS = 400
"""Milliseconds between two looks at an idle shard: they cost half of its five calls a second."""


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
        gap: from the last look to the next, if it is not below `least`.
        budget: of the calls of looks and turns, and of their bytes.
        least: between two looks, at the last one, because looks were refused.
        looked: the time of the last look; None before the first.
        found: the time of the last look that found something; None before the first.
        streak: the number of looks in a row that found something.
        reads: the calls of the last turn.
    """

    gap: int
    budget: ShardBudget
    least: float = 0.0
    looked: int | None = None
    found: int | None = None
    streak: int = 0
    reads: int = 1


class LookPace:
    """The pace of the looks at all shards. Times are milliseconds of one clock that never steps back.

    After a look that found something the next follows after `BUSY_MS`. While looks find something again and again, they
    are spread so that looks and reads together leave one call a second free. After `WARM_MS` without a finding the time
    to the next look doubles with each, up to `idle`. Where looks are refused, all are farther apart for a while.

    Args:
        idle: seconds between two looks at an idle shard.
        period: `minFetchPeriod`, in seconds; 0 for no limit. A longer time than the shard's own is not for looks.
        rate: `maxFetchRate`, in bytes a second.
    """

    def __init__(self, idle: float = IDLE_MS / 1000, period: float = 0.0, rate: float = math.inf) -> None:
        self._idle = int(idle * 1000)
        self._busy = min(BUSY_MS, self._idle)
        self._scarce = max(self._idle, min(3 * self._idle, SCARCE_MS))
        self._limits = period, rate
        self._shards: dict[str, _Shard] = {}

    def budget(self, shard: str) -> ShardBudget:
        """Return the calls and bytes of a shard; times are those of the pace, in seconds."""
        return self._pace_of(shard).budget

    def may_read(self, shard: str, now: int) -> int:
        """Return the time from which the planning process may read ahead; the first read of a turn fits after it."""
        return _add_seconds(self.budget(shard).wait(now / 1000, 2), now)

    def note_look(self, shard: str, now: int, *, found: bool | None) -> None:
        """Note the result of a look: whether it `found` something; None if it was refused."""
        pace = self._pace_of(shard)
        if pace.looked is not None:
            pace.least *= 0.5 ** ((now - pace.looked) / _FORGIVEN_MS)
        if found is None:
            pace.least = min(REFUSED_MS, max(self._busy, pace.least) * _REFUSED)
        pace.looked = now
        pace.streak = pace.streak + 1 if found else 0
        if not found:
            warm = pace.found is not None and now - pace.found < WARM_MS
            pace.gap = min(self._idle, max(self._busy, WARM_GAP_MS if warm else 2 * pace.gap))
        else:
            pace.found = now
            spread = pace.budget.spread(1 + pace.reads) if pace.streak > 1 else 0.0
            pace.gap = min(self._scarce, max(self._busy, int(spread * 1000 + ROUNDED)))

    def note_calls(self, shard: str, now: int, calls: TurnCalls, txid: int) -> None:
        """Count the calls of a turn that was pinned, in place of what was said of it before."""
        pace = self._pace_of(shard)
        pace.reads = calls.count
        pace.budget.read_by(txid, calls.count, (now - calls.ago_ms) / 1000, calls.busy_ms / 1000)

    def note_turn(self, shard: str, now: int, *, moved: bool) -> None:
        """Note a turn that read new records; if it has not `moved` it was refused, and the shard is left alone."""
        pace = self._pace_of(shard)
        if not moved:
            pace.looked, pace.gap, pace.streak = now, self._idle, 0
        elif not pace.streak:
            # Read without a look before it.
            pace.gap = self._busy

    def next_look(self, shard: str, now: int) -> int:
        """Return the time of the next look at a shard; `now` for one that was never looked at."""
        pace = self._shards.get(shard)
        if pace is None:
            return now
        # The quota needs room for two calls: this look, and the first read of the turn after it.
        free = _add_seconds(pace.budget.wait_of_all(now / 1000, 2), now)
        return free if pace.looked is None else max(free, pace.looked + max(pace.gap, int(pace.least)))

    def forget(self, shards: Iterable[str]) -> None:
        """Drop what is known of shards that are gone."""
        for shard in shards:
            self._shards.pop(shard, None)

    def _pace_of(self, shard: str) -> _Shard:
        found = self._shards.get(shard)
        if found is None:
            found = self._shards[shard] = _Shard(self._idle, ShardBudget(*self._limits))
        return found


def _add_seconds(seconds: float, now: int) -> int:
    return now + math.ceil(seconds * 1000 - ROUNDED)
