"""Makes reasons of failures fit to store and to show: short, few, and without control characters. Pure.

A message can hold the record's own data, which may be anything: it must not fill the store, nor drive a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kinesis_trident.common.visible_text import REASON_LENGTH, make_visible
from kinesis_trident.tracker.records import Failure, Run

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


def error_class(reason: str) -> str:
    """Return the class of the error in a reason, for counting: a message may hold anything, and never repeat."""
    name = reason.partition(":")[0].partition(_HOLDER)[0].strip()
    return name if _CLASS.fullmatch(name) else OTHER


def is_held(reason: str) -> bool:
    """Return True for the reason of a record that a bolt holds."""
    # Nearly all reasons are others, and there may be very many.
    return reason.startswith(HELD) and reason.partition(_HOLDER)[0] in (HELD, HELD_ANEW)


def is_held_run(run: Run) -> bool:
    """Return True for records that a bolt holds."""
    return bool(run.failures) and is_held(run.failures[-1].reason)


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
        self._failures: dict[tuple[Failure, ...], tuple[Failure, ...]] = {}

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

    def limit_reasons(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Return runs with the reasons of their failures in the form in which they are kept."""
        # Records that fail together share their failures, mostly as the same object.
        alike = {id(run.failures): run.failures for run in runs}
        kept = {key: self._limit_failures(failures) for key, failures in alike.items()}
        if all(kept[key] is failures for key, failures in alike.items()):
            return tuple(runs)
        return tuple([msgspec.structs.replace(run, failures=kept[id(run.failures)]) for run in runs])

    def _limit_failures(self, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        known = self._failures.get(failures)
        if known is None:
            known = tuple(Failure(failure.time, self.keep_reason(failure.reason)) for failure in failures)
            # Most are unchanged, and then stay the same object.
            self._failures[failures] = known = failures if known == failures else known
        return known
