"""Failures as bare texts, as they were before they were values: the twin of `tracker.failure` and `Failed`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.common.visible_text import REASON_LENGTH, make_reason, make_visible
from kinesis_trident.tracker.records import Noted
from kinesis_trident.tracker.retry import KEPT_FAILURES, RetryPolicy, State

MAX_REASONS = 64
"""Distinct reasons kept in one place."""

OTHER = "other"
"""The class of a reason that names no class of errors."""

TIMEOUT = "TIMEOUT"
"""The reason of records that nobody has acked in time."""

HELD = "HELD"
"""The reason of records that did not fail: a bolt holds them until others come. What follows it names the bolt."""

HELD_ANEW = "HELD_ANEW"
"""The same, and the time until their timeout begins again."""

_HOLDER = " (bolt "

_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


Failures = tuple[Noted, ...]
Fate = tuple[State, int, int, Failures]


def is_held(reason: str) -> bool:
    """Return True for the reason of a record that a bolt holds."""
    # Nearly all reasons are others, and there may be very many.
    return reason.startswith(HELD) and reason.partition(_HOLDER)[0] in (HELD, HELD_ANEW)


def join_reasons(known: str | None, reason: str) -> str:
    """Return the reason of a record that has two: the first failure counts, a hold never does; several holds all do."""
    if known is None or known == reason or not is_held(known):
        return reason if known is None else known
    if not is_held(reason):
        return reason
    kind = HELD_ANEW if HELD_ANEW in (known.partition(_HOLDER)[0], reason.partition(_HOLDER)[0]) else HELD
    bolts = holders_in(known), holders_in(reason)
    joined = kind + "".join(f"{_HOLDER}{bolt})" for bolt in dict.fromkeys([*bolts[0], *bolts[1]]))
    # Cut off, it would hide a bolt. Without any, they are not known.
    return joined if all(bolts) and len(joined) <= REASON_LENGTH else kind


def holders_in(held: str) -> list[str]:
    """Return the bolts that hold a record for this reason; none if they are not known."""
    return [bolt.removesuffix(")") for bolt in held.split(_HOLDER)[1:]]


def timeout_reason(held: str) -> str:
    """Return the reason of a record that was held for too long."""
    _, *holder = held.partition(_HOLDER)
    return TIMEOUT + "".join(holder)


class FewReasons:
    """Keeps the first `MAX_REASONS` distinct reasons, and of further ones as many classes of errors.

    Args:
        place: what the reasons belong to, for their readers: a batch, a shard.
    """

    def __init__(self, place: str) -> None:
        self._more = f"(more than {MAX_REASONS} reasons in this {place})"
        self._known: dict[str, str] = {}
        self._shortened: dict[str, str] = {}

    def keep_reason(self, reason: str) -> str:
        """Return a reason in the form in which it is kept."""
        if reason in self._known:
            return self._known[reason]
        if len(self._known) >= MAX_REASONS:
            return self._shorten(reason.partition(":")[0][:100])
        text = make_visible(reason.encode("utf-8", "replace").decode())
        self._known[reason] = text
        return text

    def _shorten(self, name: str) -> str:
        """Return what stands for all further reasons that begin with this name of an error."""
        # Nearly all have the same name, and each of very many records can have a reason of its own.
        known = self._shortened.get(name)
        if known is None:
            if len(self._shortened) >= MAX_REASONS:
                return self._more
            text = make_visible(name.encode("utf-8", "replace").decode())[:100]
            known = self._shortened[name] = f"{text}: {self._more}"
        return known


def few_reasons(pieces: Mapping[str, Iterable[NotDone]]) -> dict[str, tuple[NotDone, ...]]:
    kept = FewReasons("batch").keep_reason
    return {
        shard: tuple(NotDone(p.first, p.last, p.count, kept(p.text), p.prev) for p in runs)
        for shard, runs in pieces.items()
    }


class FailedRun(NamedTuple):
    """Records with neighbouring ordinals that failed for the same reason.

    `first_ordinal` to `last_ordinal` in the turn, both included. `first` and `last` are their positions as
    `sequence[:sub]`, `prev` that of the record just before; all empty if the operator did not see the source's
    rows.
    """

    first_ordinal: int
    last_ordinal: int
    first: str
    last: str
    prev: str | None
    reason: str

    def not_done(self) -> NotDone:
        """Return the run in the form in which it is published."""
        count = self.last_ordinal - self.first_ordinal + 1
        return NotDone(self.first, self.last, count, self.reason, self.prev)


def merge_runs(runs: Iterable[FailedRun]) -> Iterator[FailedRun]:
    """Yield the union of runs, sorted; overlapping ones become one, with the first one's reason.

    If several bolts hold some of the records, the reason names all of them.
    """
    found = list(runs)
    if all(before.last_ordinal < run.first_ordinal for before, run in pairwise(found)):
        # As one run over the rows reports them, and they may be very many.
        yield from found
        return
    held: FailedRun | None = None
    for run in sorted(found, key=lambda run: (*run[:4], run.prev or "", run.reason)):
        if held is None:
            held = run
        elif run.first_ordinal <= held.last_ordinal:
            held = held._replace(reason=join_reasons(held.reason, run.reason))
            if run.last_ordinal > held.last_ordinal:
                held = held._replace(last_ordinal=run.last_ordinal, last=run.last)
        else:
            yield held
            held = run
    if held is not None:
        yield held


def exhausted_state(policy: RetryPolicy) -> State:
    return State.DEAD if policy.dead_letter else State.ACKED


def add_failure(failures: Failures, now_ms: int, reason: str) -> Failures:
    return (*failures, Noted(now_ms, make_reason(reason)))[-KEPT_FAILURES:]


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
        if is_held(failures[-1].text):
            # It has not failed: the next delivery has the same number.
            attempt, due = attempt - 1, policy.held_until(failures[-1].time, now_ms)
        if due is None:
            return exhausted_state(policy), attempt, 0, failures
        return State.WAITING, attempt, due, failures


def _failures_after(before: Failures, now_ms: int, reason: str, policy: RetryPolicy) -> Failures:
    """Return the failures of a record after one more, or after it was held: then with the time since when."""
    held = before[-1] if before and is_held(before[-1].text) else None
    if held is not None:
        before = before[:-1]
    if not is_held(reason):
        return add_failure(before, now_ms, reason)
    since = held.time if held is not None and not reason.startswith(HELD_ANEW) else now_ms
    if policy.held_until(since, now_ms) is None:
        return add_failure(before, now_ms, timeout_reason(reason))
    return add_failure(before, since, reason)
