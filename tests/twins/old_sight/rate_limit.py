"""Limits the calls and bytes of one shard by a token bucket, with full jitter after a throttle.

Kinesis allows a shard 5 GetRecords calls and 2 MB a second over all its readers; an answer of 10 MiB blocks the
shard for the next 5 seconds ("Quotas and limits" of Kinesis Data Streams). Delays after a throttle are drawn with full
jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from kinesis_trident.spout.kinesis.rate_limit import Used

SHORTEST_PERIOD = 0.2
"""Seconds: a shard allows five calls in each one."""

_UNDER_WAY = 0.05
"""Seconds until it is seen again whether one of as many calls as are allowed has ended."""

_REMEMBERED = 64
"""The newest turns whose own calls a budget knows."""


def calls_a_second(period: float) -> int:
    """Return how many calls a second are allowed with `period` seconds between them on the average; 0: no limit."""
    return max(1, math.floor(1 / period + 1e-9)) if period > 0 else 0


def full_jitter(failures: int, rng: random.Random, *, base: float = 0.2, cap: float = 10.0) -> float:
    """Draw the seconds to wait after the `failures`-th consecutive failure (from 1), up to base * 2^(failures - 1)."""
    return rng.random() * min(cap, base * 2.0 ** min(failures - 1, 32))


_Turn = tuple[str, int]
"""The home of a source, empty in its planning process, and a txid: applications share a worker, and its budgets."""

ROUNDED = 0.001
"""Milliseconds that may be lost where a time in milliseconds becomes one in seconds, and back."""


class ShardBudget:
    """The remaining calls and bytes of a shard; pure, times are seconds of any one clock.

    A call counts from its beginning until a second after its end: when in between it has reached the service is not
    known, and so no second of the service has more than `1 / period` calls (5 with 0.2 s). With a longer period the
    calls of others that are known leave it the rest of the shard's 5. Bytes are charged afterwards: an answer of n
    bytes blocks for n / `rate` seconds. Unused calls and bytes do not accumulate: the service refuses bursts.

    Args:
        period: average seconds between calls; 0 for no limit.
        rate: bytes a second.
        first, longest: the bound of the wait after the first refusal, and its maximum, in seconds.
    """

    def __init__(self, period: float, rate: float, first: float = 0.2, longest: float = 10.0) -> None:
        shortest = min(period, SHORTEST_PERIOD)
        self._most, self._own_most = calls_a_second(shortest), calls_a_second(period)
        self._window, self._own_window = self._most * shortest, self._own_most * period
        # Tuples: there may be very many shards, and an empty deque takes 600 bytes.
        self._ends: tuple[tuple[float, _Turn], ...] = ()
        self._others: list[tuple[float, _Turn]] = []
        self._blocks: dict[_Turn, float] = {}
        self._begun: tuple[_Turn, ...] = ()
        self._under_way = 0
        self._turn = "", 0
        self._rate = rate
        self._free = -math.inf
        self._failures = 0
        self._first, self._longest = first, longest

    def wait(self, now: float, calls: int = 1) -> float:
        """Return the seconds until the own period and the shard allow so many calls, 0 for at once."""
        own = self._wait(self._ends, self._own_most, self._own_window, 1, now)
        return max(self.wait_of_all(now, calls), own)

    def wait_of_all(self, now: float, calls: int = 1) -> float:
        """Return the seconds until the shard allows so many calls, one after the other, whatever the own period."""
        # Asked of each idle shard, again and again: it has no others.
        ends = sorted((*self._ends, *self._others)) if self._others else self._ends
        return max(0.0, self._free_at - now, self._wait(ends, self._most, self._window, calls, now))

    def spread(self, calls: int) -> float:
        """Return the seconds between the beginnings of so many calls that come evenly, and leave one of all free."""
        return self._window / max(1, (self._most - 1) // calls) if self._most else 0.0

    @property
    def _free_at(self) -> float:
        return max(self._free, *self._blocks.values()) if self._blocks else self._free

    def _wait(
        self, ends: Sequence[tuple[float, _Turn]], most: int, window: float, calls: int, now: float
    ) -> float:
        if not most:
            return 0.0
        left = max(0, most - self._under_way - calls)
        if self._under_way and self._under_way + calls > most:
            return _UNDER_WAY
        return ends[-1 - left][0] + window - now if len(ends) > left else 0.0

    def report_usage(self, now: float) -> Used:
        """Return what is used up, for another process; times are rounded to the safe side."""
        ends = [*self._ends, *self._others, *[(now, self._turn)] * self._under_way] if self._most else []
        blocks = ((self._free, self._turn[1]), *((until, turn) for (_, turn), until in self._blocks.items()))
        return Used(
            tuple(
                (int((now - end) * 1000 + ROUNDED), turn)
                for end, (_, turn) in sorted(ends)[-self._most :]
                if now - end < self._window
            ),
            tuple(
                (wait, turn)
                for until, turn in blocks
                if until > now and (wait := math.ceil((until - now) * 1000 - ROUNDED))
            ),
        )

    def note_call(self) -> None:
        """Count a call that begins."""
        self._under_way += 1

    def note_end(self, now: float) -> None:
        """Count the end of a call, answered or not."""
        self._under_way -= 1
        if most := max(self._most, self._own_most):
            self._ends = (*self._ends, (now, self._turn))[-most:]

    def begin_turn(self, turn: int, used: Used, at: float, home: str = "") -> None:
        """Count what the planning process knew at a time of the calls of others, in place of what it said before.

        The calls of turns that were read here are known better. `turn` marks the own calls that follow; it is a txid of
        the source with this home.
        """
        told = ((at - ago / 1000, (home, mark)) for ago, mark in used.calls)
        others = (one for one in self._others if one[1][0] != home and at - one[0] < self._window)
        self._others = [*others, *(one for one in told if one[1] not in self._begun)]
        blocks = (((home, mark), at + wait / 1000) for wait, mark in used.blocks)
        self._blocks |= {mark: until for mark, until in blocks if mark not in self._begun}
        self._blocks = {mark: until for mark, until in self._blocks.items() if until > at}
        self._turn = home, turn
        self._begun = (*self._begun, self._turn)[-_REMEMBERED:]

    def read_by(self, turn: int, calls: int, at: float, wait: float) -> None:
        """Count the calls of a turn in another process: it has ended at a time, `wait` seconds before the next call.

        What was said of that turn before no longer counts.
        """
        if not calls:
            return
        count = min(calls, self._most)
        mark = "", turn
        others = [one for one in self._others if one[1] != mark]
        ends = [(at, mark)] * count
        if count and count == self._most:
            # The first of them is what the next call waits for.
            ends[0] = min(at, at + wait - self._window), mark
        self._others = sorted([*others, *ends])[-self._most :] if count else []
        self._blocks = {one: until for one, until in self._blocks.items() if until > at} | {mark: at + wait}

    def note_answer(self, size: int, now: float) -> None:
        """Count the `size` bytes of an answer."""
        self._failures = 0
        if size:
            self._free = max(self._free_at, now) + size / self._rate

    def note_refusal(self, now: float, rng: random.Random) -> None:
        """Count a throttled or temporarily failed call: the more in a row, the longer the wait."""
        self._failures += 1
        self._free = max(
            self._free, now + full_jitter(self._failures, rng, base=self._first, cap=self._longest)
        )
