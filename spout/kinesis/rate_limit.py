"""ShardLimits the calls and bytes of one shard by a token bucket, with full jitter after a throttle.

Kinesis allows a shard 5 GetRecords calls and 2 MB a second over all its readers; an answer of 10 MiB blocks the
shard for the next 5 seconds ("Quotas and limits" of Kinesis Data Streams). Delays after a throttle are drawn with full
jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
from msgspec.structs import replace

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.options.source import SourceOptions

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


@dataclass(frozen=True, slots=True)
class Used:
    """What the planning process knows to be used up of a shard's limits, in milliseconds.

    Each entry names the turn by its txid, 0 for a look of the planning process.

    Attributes:
        calls: the time since the end of each call that counts.
        blocks: the time for which the bytes that were read allow no call.
    """

    calls: tuple[tuple[int, int], ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ShardLimits:
    """What a shard allows, and the own options of its reader; one value for all shards.

    Attributes:
        period: average seconds between calls; 0 for no limit.
        rate: bytes a second.
        first, longest: the bound of the wait after the first refusal, and its maximum, in seconds.
    """

    period: float
    rate: float
    first: float = 0.2
    longest: float = 10.0

    @cached_property
    def most(self) -> int:
        """Return the calls that the shard allows in a `window`; 0: no limit."""
        return calls_a_second(min(self.period, SHORTEST_PERIOD))

    @cached_property
    def own_most(self) -> int:
        """Return the calls of this reader in an `own_window`."""
        return calls_a_second(self.period)

    @cached_property
    def kept(self) -> int:
        """Return the number of own calls that may count."""
        return max(self.most, self.own_most)

    @cached_property
    def window(self) -> float:
        """Return the seconds in which calls count."""
        return self.most * min(self.period, SHORTEST_PERIOD)

    @cached_property
    def own_window(self) -> float:
        """Return the seconds in which calls of this reader count."""
        return self.own_most * self.period


class Budget(msgspec.Struct, frozen=True, gc=False):
    """The remaining calls and bytes of a shard; pure, times are seconds of any one clock.

    A call counts from its beginning until a second after its end: when in between it has reached the service is not
    known, and so no second of the service has more than `1 / period` calls (5 with 0.2 s). With a longer period the
    calls of others that are known leave it the rest of the shard's 5. Bytes are charged afterwards: an answer of n
    bytes blocks for n / `rate` seconds. Unused calls and bytes do not accumulate: the service refuses bursts.

    Attributes:
        limits: what is allowed.
        ends: of the own calls that count, in order; `others`: of those that others are known to have made.
        blocks: until when the bytes of each turn of others allow no call; `free`: from when on the own ones allow one.
        begun: the newest turns that were read here.
        under_way: the own calls that have not ended.
        turn: the mark of the own calls that follow.
        failures: the refusals in a row.
    """

    limits: ShardLimits
    # Tuples: there may be very many shards, and an empty deque takes 600 bytes.
    ends: tuple[tuple[float, _Turn], ...] = ()
    others: tuple[tuple[float, _Turn], ...] = ()
    blocks: tuple[tuple[_Turn, float], ...] = ()
    begun: tuple[_Turn, ...] = ()
    under_way: int = 0
    turn: _Turn = ("", 0)
    free: float = -math.inf
    failures: int = 0

    @classmethod
    def of(cls, period: float, rate: float, first: float = 0.2, longest: float = 10.0) -> Budget:
        """Return the unused budget of one shard, as `ShardLimits`."""
        return cls(ShardLimits(period, rate, first, longest))

    def wait(self, now: float, calls: int = 1) -> float:
        """Return the seconds until the own period and the shard allow so many calls, 0 for at once."""
        limits = self.limits
        own = self._wait(self.ends, limits.own_most, limits.own_window, 1, now)
        return max(self.wait_of_all(now, calls), own)

    def wait_of_all(self, now: float, calls: int = 1) -> float:
        """Return the seconds until the shard allows so many calls, one after the other, whatever the own period."""
        # Asked of each idle shard, again and again: it has no others.
        ends = sorted((*self.ends, *self.others)) if self.others else self.ends
        limits = self.limits
        return max(0.0, self._free_at - now, self._wait(ends, limits.most, limits.window, calls, now))

    def spread(self, calls: int) -> float:
        """Return the seconds between the beginnings of so many calls that come evenly, and leave one of all free."""
        limits = self.limits
        return limits.window / max(1, (limits.most - 1) // calls) if limits.most else 0.0

    @property
    def _free_at(self) -> float:
        return max(self.free, *(until for _, until in self.blocks)) if self.blocks else self.free

    def _wait(
        self, ends: Sequence[tuple[float, _Turn]], most: int, window: float, calls: int, now: float
    ) -> float:
        if not most:
            return 0.0
        left = max(0, most - self.under_way - calls)
        if self.under_way and self.under_way + calls > most:
            return _UNDER_WAY
        return ends[-1 - left][0] + window - now if len(ends) > left else 0.0

    def report_usage(self, now: float) -> Used:
        """Return what is used up, for another process; times are rounded to the safe side."""
        most, window = self.limits.most, self.limits.window
        ends = [*self.ends, *self.others, *[(now, self.turn)] * self.under_way] if most else []
        blocks = ((self.free, self.turn[1]), *((until, turn) for (_, turn), until in self.blocks))
        return Used(
            tuple(
                (int((now - end) * 1000 + ROUNDED), turn)
                for end, (_, turn) in sorted(ends)[-most:]
                if now - end < window
            ),
            tuple(
                (wait, turn)
                for until, turn in blocks
                if until > now and (wait := math.ceil((until - now) * 1000 - ROUNDED))
            ),
        )

    def begin_call(self) -> Budget:
        """Return the budget with a call under way."""
        return replace(self, under_way=self.under_way + 1)

    def end_call(self, now: float) -> Budget:
        """Return the budget after the end of a call, answered or not."""
        left, most = self.under_way - 1, self.limits.kept
        if not most:
            return replace(self, under_way=left)
        return replace(self, under_way=left, ends=(*self.ends, (now, self.turn))[-most:])

    def join(self, late: Budget) -> Budget:
        """Return the budget after a call that is under way, of which a copy has seen the end."""
        ends = tuple(sorted({*self.ends, *late.ends})[-self.limits.kept :])
        # Of a shard that was forgotten meanwhile, and is listed again, none is.
        return replace(self, under_way=max(0, self.under_way - 1), ends=ends, free=max(self.free, late.free))

    def begin_turn(self, turn: int, used: Used, at: float, home: str = "") -> Budget:
        """Return the budget with what the planning process knew at a time of the calls of others.

        It counts in place of what was said before; the calls of turns that were read here are known better. `turn`
        marks the own calls that follow; it is a txid of the source with this home.
        """
        told = ((at - ago / 1000, (home, mark)) for ago, mark in used.calls)
        others = (one for one in self.others if one[1][0] != home and at - one[0] < self.limits.window)
        said = dict(self.blocks)
        blocks = (((home, mark), at + wait / 1000) for wait, mark in used.blocks)
        said |= {mark: until for mark, until in blocks if mark not in self.begun}
        mark = home, turn
        return replace(
            self,
            others=(*others, *(one for one in told if one[1] not in self.begun)),
            blocks=tuple(one for one in said.items() if one[1] > at),
            turn=mark,
            begun=(*self.begun, mark)[-_REMEMBERED:],
        )

    def count_turn(self, turn: int, calls: int, at: float, wait: float) -> Budget:
        """Return the budget with the calls of a turn in another process, in place of what was said of that turn before.

        It has ended at a time, `wait` seconds before the next call.
        """
        if not calls:
            return self
        most, mark = self.limits.most, ("", turn)
        count = min(calls, most)
        others = [one for one in self.others if one[1] != mark]
        ends = [(at, mark)] * count
        if count and count == most:
            # The first of them is what the next call waits for.
            ends[0] = min(at, at + wait - self.limits.window), mark
        blocks = {one: until for one, until in self.blocks if until > at} | {mark: at + wait}
        return replace(
            self,
            others=tuple(sorted([*others, *ends])[-most:]) if count else (),
            blocks=tuple(blocks.items()),
        )

    def count_bytes(self, size: int, now: float) -> Budget:
        """Return the budget after an answer of so many bytes."""
        if not size:
            return replace(self, failures=0) if self.failures else self
        return replace(self, failures=0, free=max(self._free_at, now) + size / self.limits.rate)

    def spend(self, size: int, now: float) -> Budget:
        """Return the budget after a call that has ended, with an answer of so many bytes, in one copy."""
        most, free = self.limits.kept, self.free
        ends = (*self.ends, (now, self.turn))[-most:] if most else self.ends
        if size:
            free = max(self._free_at, now) + size / self.limits.rate
        return replace(self, ends=ends, free=free)

    def count_refusal(self, now: float, rng: random.Random) -> Budget:
        """Return the budget after a throttled or temporarily failed call: the more in a row, the longer the wait."""
        failures, limits = self.failures + 1, self.limits
        wait = full_jitter(failures, rng, base=limits.first, cap=limits.longest)
        return replace(self, failures=failures, free=max(self.free, now + wait))


class ShardLimiter:
    """A budget with a clock: waits until a call is allowed. Thread-safe."""

    def __init__(
        self,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._budget = budget
        self.wall = wall
        self.sleep = sleep
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self.clock = clock

    def acquire(self, patience: float = math.inf) -> bool:
        """Wait until the next call is allowed; return False at once if that takes longer than `patience` seconds.

        The call is under way until `note_end`.
        """
        deadline = self.clock() + patience
        while True:
            with self._lock:
                now = self.clock()
                wait = self._budget.wait(now)
                if wait <= 0:
                    self._budget = self._budget.begin_call()
                    return True
            if now + wait > deadline:
                return False
            self.sleep(wait)

    def note_end(self) -> None:
        """See `Budget.end_call`."""
        with self._lock:
            self._budget = self._budget.end_call(self.clock())

    def begin_turn(self, turn: int, used: Used, told: int, home: str = "") -> None:
        """See `Budget.begin_turn`; `told`: epoch milliseconds.

        The wall clocks of two machines differ: a call that is allowed too early may be refused, and is tried again.
        """
        with self._lock:
            # The wall clock first: a pause between the two makes the calls of others younger, not older.
            ago = max(0.0, self.wall() - (told + 1) / 1000)
            self._budget = self._budget.begin_turn(turn, used, self.clock() - ago, home)

    def wait_of_all(self) -> float:
        """See `Budget.wait_of_all`."""
        with self._lock:
            return self._budget.wait_of_all(self.clock())

    def note_answer(self, size: int) -> None:
        """See `Budget.count_bytes`."""
        with self._lock:
            self._budget = self._budget.count_bytes(size, self.clock())

    def note_refusal(self) -> None:
        """See `Budget.count_refusal`."""
        with self._lock:
            self._budget = self._budget.count_refusal(self.clock(), self._rng)


_IDLE = 600.0
"""Seconds after which what is used up of a shard's limits is over, whoever read it and however it was refused."""

_limiters: PerProcess[tuple[object, ...], ShardLimiter] = PerProcess(idle=_IDLE)


def shard_limiter(options: SourceOptions, stream: str, shard: str) -> ShardLimiter:
    """Return this process's limiter for a shard; all turns share it."""
    limits = (
        options.min_fetch_period,
        options.max_fetch_rate,
        options.client_retry_interval,
        options.client_max_retry_interval,
    )
    key = (options.endpoint_url, options.region, *_account_of(options, stream), stream, shard, *limits)
    return _limiters.get(key, lambda: ShardLimiter(Budget.of(*limits)))


def _account_of(options: SourceOptions, stream: str) -> tuple[str | None, ...]:
    """Return what tells the accounts of two streams of one name apart, as far as the options do."""
    return options.arns.get(stream), options.profile, options.role_arn, options.aws_access_key_id
