"""The fate of records after a delivery: when they come again, or that they are exhausted. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kinesis_trident.tracker.inflight.entries import State
from kinesis_trident.tracker.inflight.ledger import with_failure
from kinesis_trident.tracker.reasons import HELD_ANEW, is_held, timed_out
from kinesis_trident.tracker.records import Failure
from kinesis_trident.tracker.retry import RetryPolicy

Fate = tuple[State, int, int, tuple[Failure, ...]]
"""State, attempt, due time and failures of records."""


class Fates:
    """The fates of the records of one shard, after any of their deliveries."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._of: dict[tuple[int, int], FatesOfDelivery] = {}
        self._dues: dict[int, int | None] = {}
        self._now: int | None = None

    def after(
        self, attempt: int, before: tuple[Failure, ...], now_ms: int, rng: random.Random
    ) -> FatesOfDelivery:
        """Return the fates of records that had these failures `before` delivery number `attempt`."""
        if now_ms != self._now:
            self._of, self._dues, self._now = {}, {}, now_ms
        policy = self._policy
        if attempt not in self._dues:
            # One draw for all that fails together for the same time: neighbours stay one run, and one range of the
            # shard serves all of them.
            self._dues[attempt] = None if policy.exhausted(attempt) else policy.due(attempt, now_ms, rng)
        # Records that fail together share their failures, mostly as the same object.
        key = attempt, id(before)
        if key not in self._of:
            self._of[key] = FatesOfDelivery(policy, attempt, self._dues[attempt], before, now_ms)
        return self._of[key]


@dataclass(slots=True)
class FatesOfDelivery:
    """The fates of records after their delivery number `attempt`: one for all that have the same reason.

    `due`: when the failed ones come again; None if they are exhausted. `before`: their failures so far.
    """

    policy: RetryPolicy
    attempt: int
    due: int | None
    before: tuple[Failure, ...]
    now_ms: int
    _known: dict[str, Fate] = field(default_factory=dict)

    def of(self, reason: str) -> Fate:
        """Return the fate of what failed for a reason; PENDING: it is done."""
        fate = self._known.get(reason)
        if fate is None:
            fate = self._known[reason] = self._of(reason)
        return fate

    def _of(self, reason: str) -> Fate:
        failures = _failures_after(self.before, self.now_ms, reason, self.policy)
        attempt, due = self.attempt, self.due
        if is_held(failures[-1].reason):
            # It has not failed: the next delivery has the same number.
            attempt, due = attempt - 1, self.policy.held_until(failures[-1].time, self.now_ms)
        if due is None:
            return exhausted(self.policy), attempt, 0, failures
        return State.WAITING, attempt, due, failures


def exhausted(policy: RetryPolicy) -> State:
    """Return the state of records that are not retried any more; PENDING: they are done."""
    return State.DEAD if policy.dead_letter else State.PENDING


def _failures_after(
    before: tuple[Failure, ...], now_ms: int, reason: str, policy: RetryPolicy
) -> tuple[Failure, ...]:
    """Return the failures of a record after one more, or after it was held: then with the time since when."""
    held = before[-1] if before and is_held(before[-1].reason) else None
    if held is not None:
        before = before[:-1]
    if not is_held(reason):
        return with_failure(before, now_ms, reason)
    since = held.time if held is not None and not reason.startswith(HELD_ANEW) else now_ms
    if policy.held_until(since, now_ms) is None:
        return with_failure(before, now_ms, timed_out(reason))
    return with_failure(before, since, reason)
