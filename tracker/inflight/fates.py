"""The fate of records after a delivery: when they come again, or that they are exhausted. Pure."""

from __future__ import annotations

import random

from kinesis_trident.tracker.inflight.entries import Fate, State
from kinesis_trident.tracker.reasons import HELD_ANEW, is_held, make_reason, timeout_reason
from kinesis_trident.tracker.records import Failure
from kinesis_trident.tracker.retry import RetryPolicy

KEPT_FAILURES = 16
"""Failures kept of a record, the newest: a high retry limit must not grow the stored state without bound."""

Failures = tuple[Failure, ...]


class Fates:
    """The fates of the records of one shard that fail. Those that fail together for the same reason share theirs."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._known: dict[tuple[int, int, str], tuple[Failures, Fate]] = {}
        self._dues: dict[int, int | None] = {}
        self._now: int | None = None

    def decide(self, attempt: int, before: Failures, reason: str, now_ms: int, rng: random.Random) -> Fate:
        """Return the fate of records that had the failures `before` delivery number `attempt`, and failed in it."""
        if now_ms != self._now:
            self._known, self._dues, self._now = {}, {}, now_ms
        # Their failures are mostly the same object. It is kept, so that no other one gets its id.
        key = attempt, id(before), reason
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = before, self._fate(attempt, before, reason, now_ms, rng)
        return known[1]

    def _fate(self, attempt: int, before: Failures, reason: str, now_ms: int, rng: random.Random) -> Fate:
        policy = self._policy
        if attempt not in self._dues:
            # One draw for all that fails together for the same time: neighbours stay one run, and one range of the
            # shard serves all of them.
            self._dues[attempt] = None if policy.exhausted(attempt) else policy.due(attempt, now_ms, rng)
        due = self._dues[attempt]
        failures = _failures_after(before, now_ms, reason, policy)
        if is_held(failures[-1].reason):
            # It has not failed: the next delivery has the same number.
            attempt, due = attempt - 1, policy.held_until(failures[-1].time, now_ms)
        if due is None:
            return exhausted_state(policy), attempt, 0, failures
        return State.WAITING, attempt, due, failures


def exhausted_state(policy: RetryPolicy) -> State:
    """Return the state of records that are not retried any more."""
    return State.DEAD if policy.dead_letter else State.ACKED


def add_failure(failures: Failures, now_ms: int, reason: str) -> Failures:
    """Return the failures of a record after one more."""
    return (*failures, Failure(now_ms, make_reason(reason)))[-KEPT_FAILURES:]


def _failures_after(before: Failures, now_ms: int, reason: str, policy: RetryPolicy) -> Failures:
    """Return the failures of a record after one more, or after it was held: then with the time since when."""
    held = before[-1] if before and is_held(before[-1].reason) else None
    if held is not None:
        before = before[:-1]
    if not is_held(reason):
        return add_failure(before, now_ms, reason)
    since = held.time if held is not None and not reason.startswith(HELD_ANEW) else now_ms
    if policy.held_until(since, now_ms) is None:
        return add_failure(before, now_ms, timeout_reason(reason))
    return add_failure(before, since, reason)
