"""Decides when each shard may be looked at next: soon while records come, seldom while it is idle. Pure.

The looks of the planning process and the reads of the turns share the calls and bytes of a shard: a look waits until it
and the first read of the turn that may follow are both allowed. So does what is read ahead (`prefetch`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from kinesis_trident.spout.kinesis.rate_limit import ROUNDED, Budget, ShardLimits

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


@dataclass(frozen=True)
class LookTimes:
    """The times of the looks of a run, in milliseconds.

    After a look that found something the next follows after `busy`. While looks find something again and again, they
    are spread so that looks and reads together leave one call a second free, `scarce` apart at most. After `WARM_MS`
    without a finding the time to the next look doubles with each, up to `idle`. Where looks are refused, all are
    farther apart for a while.

    Attributes:
        limits: of a shard; a longer `period` than the shard's own is not for looks.
    """

    idle: int
    busy: int
    scarce: int
    limits: ShardLimits

    @classmethod
    def of(cls, idle: float = IDLE_MS / 1000, period: float = 0.0, rate: float = math.inf) -> LookTimes:
        """Return the times for so many seconds between two looks at an idle shard.

        `period`, `rate`: `minFetchPeriod` in seconds, 0 for no limit, and `maxFetchRate` in bytes a second.
        """
        rest = int(idle * 1000)
        return cls(rest, min(BUSY_MS, rest), max(rest, min(3 * rest, SCARCE_MS)), ShardLimits(period, rate))


class Pace(msgspec.Struct, frozen=True, gc=False):
    """The pace of the looks at one shard. Times are milliseconds of one clock that never steps back.

    Attributes:
        times: of the run.
        gap: from the last look to the next, if it is not below `least`.
        least: between two looks, at the last one, because looks were refused.
        looked: the time of the last look; None before the first.
        found: the time of the last look that found something; None before the first.
        streak: the number of looks in a row that found something.
        reads: the calls of the last turn.
    """

    times: LookTimes
    gap: int
    least: float = 0.0
    looked: int | None = None
    found: int | None = None
    streak: int = 0
    reads: int = 1

    def note_look(self, now: int, budget: Budget, *, found: bool | None) -> Pace:
        """Return the pace after a look: whether it `found` something; None if it was refused."""
        times, least = self.times, self.least
        if self.looked is not None and least:
            least *= 0.5 ** ((now - self.looked) / _FORGIVEN_MS)
        if found:
            streak = self.streak + 1
            spread = budget.spread(1 + self.reads) if streak > 1 else 0.0
            gap = min(times.scarce, max(times.busy, int(spread * 1000 + ROUNDED)))
            return Pace(times, gap, least, now, now, streak, self.reads)
        if found is None:
            least = min(REFUSED_MS, max(times.busy, least) * _REFUSED)
        warm = self.found is not None and now - self.found < WARM_MS
        gap = min(times.idle, max(times.busy, WARM_GAP_MS if warm else 2 * self.gap))
        return Pace(times, gap, least, now, self.found, 0, self.reads)

    def note_turn(self, now: int, *, moved: bool) -> Pace:
        """Return the pace after a turn that read new records.

        If it has not `moved` it was refused, and the shard is left alone.
        """
        if not moved:
            return replace(self, looked=now, gap=self.times.idle, streak=0)
        # Else it was read without a look before it.
        return self if self.streak else replace(self, gap=self.times.busy)

    def next_look(self, now: int, budget: Budget) -> int:
        """Return the time of the next look; `now` for a shard that was never looked at."""
        # The quota needs room for two calls: this look, and the first read of the turn after it.
        free = add_seconds(budget.wait_of_all(now / 1000, 2), now)
        return free if self.looked is None else max(free, self.looked + max(self.gap, int(self.least)))


def add_seconds(seconds: float, now: int) -> int:
    """Return the millisecond by which so many seconds have passed."""
    return now + math.ceil(seconds * 1000 - ROUNDED)
