"""Finds the records for which the sums of a batch disagree: divides its turns into parts with separate sums.

A *span* is a range of neighbouring ordinals of a turn, named by the first of them. The driver requests spans from
the tasks of one job by a setting of the session, which Spark passes to each task; it requests none as long as the
sums agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

PROPERTY = "spark.kinesisTrident.spans"
"""The setting of Spark's session that requests spans."""

WHOLE = -1
"""Stands for a span: the whole turn, or the part of it that is in no span."""

Range = tuple[int, int]
"""A range of ordinals: the first, and the one after the last."""

_LIMIT = 16_384


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of `size` ordinals within `ranges`, by the shard's index in the plan: disjoint, ascending."""

    size: int
    ranges: Mapping[int, tuple[Range, ...]]

    @classmethod
    def over(cls, ranges: Mapping[int, Iterable[Range]], limit: int = _LIMIT) -> Spans:
        """Divide `ranges` as finely as `limit` spans in total allow."""
        joined = {shard: tuple(_join_ranges(some)) for shard, some in ranges.items()}
        ordinals = sum(until - first for some in joined.values() for first, until in some)
        return cls(max(1, -(-ordinals // limit)), joined)

    def of(self, shard: int, ordinals: np.ndarray) -> np.ndarray:
        """Return the spans of ordinals of a shard, as int64; WHOLE for those in none."""
        ranges = self.ranges.get(shard)
        if not ranges:
            return np.full(len(ordinals), WHOLE, dtype=np.int64)
        firsts, untils = np.array(ranges, dtype=np.int64).T
        at = np.searchsorted(firsts, ordinals, side="right") - 1
        first = firsts[at]
        inside = (at >= 0) & (ordinals < untils[at])
        return np.where(inside, first + (ordinals - first) // self.size * self.size, WHOLE)

    def range_of(self, shard: int, span: int) -> Range:
        """Return the ordinals of a span."""
        until = next(until for first, until in self.ranges[shard] if first <= span < until)
        return span, min(span + self.size, until)

    def text(self) -> str:
        """Return the value of the setting."""
        return msgspec.json.encode([self.size, self.ranges]).decode()

    @classmethod
    def parse(cls, text: str) -> Spans:
        """Parse the value of the setting."""
        return cls(*msgspec.json.decode(text, type=tuple[int, dict[int, tuple[Range, ...]]]))


def _join_ranges(ranges: Iterable[Range]) -> Iterator[Range]:
    held: Range | None = None
    for first, until in sorted(ranges):
        if held is not None and first <= held[1]:
            held = held[0], max(held[1], until)
            continue
        if held is not None:
            yield held
        held = first, until
    if held is not None:
        yield held
