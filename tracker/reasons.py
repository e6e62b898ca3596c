"""Limits the reasons of many failures: messages with the record's own data must not fill the store. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinesis_trident.tracker.records import Failure, Run

__all__ = ["MAX_REASONS", "FewReasons"]

MAX_REASONS = 64
"""Distinct reasons kept in one place."""


class FewReasons:
    """Keeps the first `MAX_REASONS` distinct reasons, and of further ones as many classes of errors.

    Args:
        place: what the reasons belong to, for their readers: a batch, a shard.
    """

    def __init__(self, place: str) -> None:
        self._more = f"(more than {MAX_REASONS} reasons in this {place})"
        self._known: dict[str, str] = {}
        self._shortened: set[str] = set()
        self._failures: dict[tuple[Failure, ...], tuple[Failure, ...]] = {}

    def kept(self, reason: str) -> str:
        """Return a reason in the form in which it is kept."""
        if reason in self._known:
            return self._known[reason]
        # ZooKeeper's JSON is UTF-8, which cannot contain half a surrogate pair.
        text = reason.encode("utf-8", "replace").decode()
        if text in self._shortened:
            return text
        if len(self._known) >= MAX_REASONS:
            short = f"{text.partition(':')[0][:100]}: {self._more}"
            if short not in self._shortened and len(self._shortened) >= MAX_REASONS:
                return self._more
            self._shortened.add(short)
            return short
        self._known[reason] = text
        return text

    def of(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Return runs with the reasons of their failures in the form in which they are kept."""
        return tuple(
            run
            if (kept := self._all(run.failures)) is run.failures
            else msgspec.structs.replace(run, failures=kept)
            for run in runs
        )

    def _all(self, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
        known = self._failures.get(failures)
        if known is None:
            known = tuple(Failure(failure.time, self.kept(failure.reason)) for failure in failures)
            # Most are unchanged, and then stay the same object.
            self._failures[failures] = known = failures if known == failures else known
        return known
