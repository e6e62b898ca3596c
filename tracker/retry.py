"""Decides when a failed record is delivered again, and when no more: `decide` is the one rule.

The four calls of `RetryHandler` are those of Storm's `FailedMessageRetryHandler` (storm-kinesis), with the
time and the randomness as arguments.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from kinesis_trident.tracker.errors import DURATION, UNITS, BackoffError
from kinesis_trident.tracker.failure import Failure, Kind, class_of, is_behind, is_held, parse, text_of
from kinesis_trident.tracker.records import Noted, RecordPosition

DUE_GRAIN_MS = 1_000
"""Due times are multiples of this."""

_TEXT = re.compile(rf"\s*{DURATION}\s*\.\.\s*{DURATION}\s+x\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: before retry n, anything up to `min(cap, base * factor^(n-1))`.

    AWS recommends full jitter ("Exponential Backoff And Jitter", 2015): the least work for the same delay.

    Raises:
        BackoffError: `base_ms` is negative, `cap_ms` is below it, or `factor` is below 1.
    """

    base_ms: int = 1_000
    cap_ms: int = 60_000
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.base_ms <= self.cap_ms or not 1 <= self.factor < math.inf:
            msg = (
                f"backoff {self} is not valid. It needs 0 <= first delay <= longest delay, and a factor of at "
                "least 1"
            )
            raise BackoffError(msg)

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """Read `<first delay>..<longest delay> x<factor>`, such as `1s..60s x2` or `100ms..5m x1.5`.

        Raises:
            BackoffError: the text does not have that form; the message contains it.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            form = "<first delay>..<longest delay> x<factor>, in ms, s, m or h, such as '1s..60s x2'"
            msg = f"backoff {text[:200]!r} is not valid. Its form is {form}"
            raise BackoffError(msg)
        base, base_unit, cap, cap_unit, factor = found.groups()
        try:
            return cls(
                round(float(base) * UNITS[base_unit]), round(float(cap) * UNITS[cap_unit]), float(factor)
            )
        except (BackoffError, OverflowError) as e:
            msg = (
                f"backoff {text[:200]!r} is not valid. The longest delay must not be below the first, nor the factor "
                "below 1"
            )
            raise BackoffError(msg) from e

    def __str__(self) -> str:
        return f"{self.base_ms}ms..{self.cap_ms}ms x{self.factor:g}"

    def bound(self, attempt: int) -> int:
        """Return the longest delay in ms after delivery number `attempt` (from 1) failed; never overflows."""
        doublings = max(attempt, 1) - 1
        if self.base_ms == 0 or doublings == 0 or self.factor == 1:
            return self.base_ms
        # Compared as logarithms, because factor ** attempt leaves the range of a float.
        if doublings * math.log(self.factor) >= math.log(self.cap_ms / self.base_ms):
            return self.cap_ms
        return min(self.cap_ms, round(self.base_ms * self.factor**doublings))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number and the times of further deliveries of failed records.

    `limit` counts retries: 3 means four deliveries, 0 means none (a failed record is exhausted at once and
    the checkpoint still moves). `dead_letter`: exhausted records are kept as dead until they are
    dead-lettered; without it they count as done at once, as in the original spout. `hold_ms`: how long a bolt may
    hold a record, from batch to batch. `no_retry`: the classes of errors, and the words of reasons, after which no
    retry can help.

    Raises:
        BackoffError: `limit` is negative.
    """

    limit: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    dead_letter: bool = True
    hold_ms: int = 30_000
    no_retry: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.limit < 0:
            msg = f"the retry limit {self.limit} is negative. Give 0 or more; 0 means that nothing is retried"
            raise BackoffError(msg)

    def exhausted(self, attempt: int) -> bool:
        """Return whether delivery number `attempt` (from 1) is the last one."""
        return attempt > self.limit

    def gives_up(self, failure: Failure) -> bool:
        """Return whether no retry can help after this failure; one that says when it comes again does come."""
        return failure.kind in _FINAL or (not failure.after_s and class_of(failure) in self.no_retry)

    def due(self, attempt: int, now_ms: int, rng: random.Random) -> int:
        """Return when to deliver again what failed at `now_ms` in delivery number `attempt` (from 1).

        Epoch milliseconds, rounded up to a whole second: so due times coincide, and one range of the shard is read
        for many of them.
        """
        delay = math.ceil(rng.random() * self.backoff.bound(attempt))
        return _whole(now_ms + delay)

    def held_until(self, since_ms: int, now_ms: int) -> int | None:
        """Return when a record that is held since some time comes again; None if that was long enough.

        With the next second: those that wait for each other come together.
        """
        return (now_ms // DUE_GRAIN_MS + 1) * DUE_GRAIN_MS if now_ms - since_ms < self.hold_ms else None


def _whole(at: int) -> int:
    """Return a time rounded up to a whole second."""
    return -(-at // DUE_GRAIN_MS) * DUE_GRAIN_MS


KEPT_FAILURES = 16
"""Failures kept of a record, the newest: a high retry limit must not grow the stored state without bound."""

_FINAL = {Kind.EXPIRED, Kind.AGED, Kind.PERMANENT}


class State(Enum):
    """The state of a run's records. All but ACKED hold the checkpoint back."""

    PENDING = "delivered, no outcome yet"
    WAITING = "failed, to be delivered again"
    ACKED = "done"
    DEAD = "exhausted or expired, to be dead-lettered"


class Fate(NamedTuple):
    """What becomes of records: their state, the number of their deliveries, when they are due, and their failures."""

    state: State
    attempt: int
    due: int
    failures: tuple[Noted, ...]


def decide(
    failure: Failure,
    attempt: int,
    before: tuple[Noted, ...],
    policy: RetryPolicy,
    now_ms: int,
    dice: Callable[[int], int | None],
) -> Fate:
    """Return the fate of records whose delivery number `attempt` has failed, after the failures `before`.

    `dice`: when they are due after an attempt; None if it was the last one.
    """
    held = before[-1] if before and is_held(before[-1].text) else None
    if before and (is_behind(before[-1].text) or (held is not None and failure.kind is not Kind.EXPIRED)):
        # That it was held, or had to wait, is no failure of its own.
        before = before[:-1]
    # Drawn whatever the failure is, so that it does not matter which one of an attempt comes first.
    due = None if failure.kind in _FINAL else dice(attempt)
    if failure.kind is Kind.HELD:
        since = held.time if held is not None and not failure.anew else now_ms
        until = policy.held_until(since, now_ms)
        if until is not None:
            # It has not failed: the next delivery has the same number.
            return Fate(State.WAITING, attempt - 1, until, _note(before, since, failure))
        failure = Failure(Kind.TIMEOUT, where=failure.where)
    failures = _note(before, now_ms, failure)
    if failure.kind is Kind.BEHIND:
        return Fate(State.WAITING, attempt - 1, 0, failures)
    if due is None or policy.gives_up(failure):
        return Fate(State.DEAD if policy.dead_letter else State.ACKED, attempt, 0, failures)
    return Fate(State.WAITING, attempt, max(due, _whole(now_ms + 1_000 * failure.after_s)), failures)


def delay_asked(failures: tuple[Noted, ...]) -> int:
    """Return the longest delay in ms that the last of some failures can have asked for; 0 if there is none."""
    return parse(failures[-1].text).after_s * 1_000 + DUE_GRAIN_MS if failures else 0


def _note(before: tuple[Noted, ...], at: int, failure: Failure) -> tuple[Noted, ...]:
    return (*before, Noted(at, text_of(failure)))[-KEPT_FAILURES:]


class Fates:
    """Decides what becomes of the records of a shard that fail at one time.

    It draws once for an attempt what comes again: neighbours stay one run, and one range of the shard serves them.
    """

    def __init__(self, policy: RetryPolicy, now_ms: int, rng: random.Random) -> None:
        self._policy, self._now_ms, self._rng = policy, now_ms, rng
        self._dues: dict[int, int | None] = {}
        self._known: dict[tuple[int, int, str], tuple[tuple[Noted, ...], Fate]] = {}

    def _draw(self, attempt: int) -> int | None:
        if attempt not in self._dues:
            policy, now = self._policy, self._now_ms
            self._dues[attempt] = None if policy.exhausted(attempt) else policy.due(attempt, now, self._rng)
        return self._dues[attempt]

    def decide(self, failure: Failure, attempt: int, before: tuple[Noted, ...]) -> Fate:
        """Return the fate of records whose delivery number `attempt` has failed."""
        return decide(failure, attempt, before, self._policy, self._now_ms, self._draw)

    def decide_text(self, text: str, attempt: int, before: tuple[Noted, ...], due: int = 0) -> Fate:
        """Return the fate of records that failed for a stored text: those that fail together share theirs.

        `due`: when they were due. What only waits for another record stays so: that tells what was asked for again.
        """
        # Their failures are mostly the same object. It is kept, so that no other one gets its id.
        key = attempt, id(before), text
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = before, self.decide(parse(text), attempt, before)
        fate = known[1]
        return fate._replace(due=due) if due and is_behind(text) else fate


class RetryHandler(Protocol):
    """Decides which records are retried, and when: Storm's `FailedMessageRetryHandler`."""

    def failed(self, position: RecordPosition, attempt: int, now_ms: int, rng: random.Random) -> int | None:
        """Handle a failure of delivery number `attempt`: return when the record is due again, None if exhausted."""
        ...

    def acked(self, position: RecordPosition) -> None:
        """Handle the ack of a record: it must not come again. Unknown records are ignored."""
        ...

    def next(self, now_ms: int) -> RecordPosition | None:
        """Return the record to deliver again now, if any; the same one until it is emitted or acked."""
        ...

    def emitted(self, position: RecordPosition) -> None:
        """Handle the new delivery of a record: it no longer waits."""
        ...
