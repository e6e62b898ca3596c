"""What acks and fails that name records came to. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Told"]


class Told(NamedTuple):
    """What acks or fails came to, in records.

    `changed`: pending ones that are done, or failed, by them. `late`: acked ones that waited for a retry, or for the
    dead letter, and do not come again. `known`: those that changed nothing: done or failed before, or no
    records at all
    among those that were read. `unknown`: positions beyond all that was ever read.
    """

    changed: int = 0
    late: int = 0
    known: int = 0
    unknown: int = 0

    def plus(self, other: Told) -> Told:
        """Both together."""
        return Told(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))
