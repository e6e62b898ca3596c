"""Bounds the distinct failures of one place: a message may hold the record's own data, and never repeat. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinesis_trident.common.visible_text import make_reason, make_visible
from kinesis_trident.tracker.failure import Failure, Kind, parse, text_of
from kinesis_trident.tracker.records import Noted, Run

MAX_REASONS = 64
"""Distinct reasons kept in one place."""


class Few:
    """Keeps the first `MAX_REASONS` distinct failures, and of further ones as many classes of errors.

    What they mean for their records, and the bolts, stay.

    Args:
        place: what the failures belong to, for their readers: a batch, a shard.
    """

    def __init__(self, place: str) -> None:
        self._more = f"(more than {MAX_REASONS} reasons in this {place})"
        self._known: dict[str, str] = {}
        self._shortened: dict[Failure, str] = {}
        self._failures: dict[tuple[Noted, ...], tuple[Noted, ...]] = {}

    def keep(self, text: str) -> str:
        """Return a stored text in the form in which it is kept."""
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= MAX_REASONS:
                return self._shorten(parse(text))
            known = self._known[text] = make_visible(text.encode("utf-8", "replace").decode())
        return known

    def _shorten(self, failure: Failure) -> str:
        """Return what stands for all further failures of this kind, class and bolt."""
        # Nearly all have the same ones, and each of very many records can have a reason of its own.
        reason = ""
        if failure.kind is Kind.RETRY:
            reason = f"{make_reason(failure.reason.partition(':')[0])[:100]}: {self._more}"
        elif failure.reason:
            reason = self._more
        short = msgspec.structs.replace(failure, reason=reason)
        if short not in self._shortened and len(self._shortened) >= MAX_REASONS:
            # A power of two: each of very many records can have a delay of its own.
            after_s = 1 << (failure.after_s - 1).bit_length() if failure.after_s else 0
            short = Failure(failure.kind, reason and self._more, after_s=after_s)
        return self._shortened.setdefault(short, text_of(short))

    def limit(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Return runs with their failures in the form in which they are kept."""
        # Records that fail together share their failures, mostly as the same object.
        some = [run.failures for run in runs]
        alike = dict(zip(map(id, some), some, strict=True))
        kept = {key: self._limit_failures(failures) for key, failures in alike.items()}
        if all(kept[key] is failures for key, failures in alike.items()):
            return tuple(runs)
        return tuple([msgspec.structs.replace(run, failures=kept[id(run.failures)]) for run in runs])

    def _limit_failures(self, failures: tuple[Noted, ...]) -> tuple[Noted, ...]:
        known = self._failures.get(failures)
        if known is None:
            known = tuple(msgspec.structs.replace(one, text=self.keep(one.text)) for one in failures)
            # Most are unchanged, and then stay the same object.
            self._failures[failures] = known = failures if known == failures else known
        return known
