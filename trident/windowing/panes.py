"""The open windows of a state: pure, so that a replay of a batch closes the same windows.

Windows that slide share panes, the greatest parts that every window has whole or not at all. A state keeps one partial
result for each pane and key, however many windows a pane is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

Key = tuple[Any, ...]


class Arrival(NamedTuple):
    """The partial result of the tuples of one pane and key, and their number."""

    pane: int
    key: Key
    tuples: int
    partial: Any


class Closed(NamedTuple):
    """A window that is over: from `start` to before `end`."""

    start: int
    end: int
    key: Key
    partial: Any


@dataclass(frozen=True, slots=True)
class Panes:
    """Windows of `size`, which start at `offset` and every `slide` before and after."""

    size: int
    slide: int
    offset: int = 0

    @property
    def width(self) -> int:
        """The size of a pane."""
        return gcd(self.size, self.slide)

    def pane_of(self, at: int) -> int:
        """Return the start of the pane that a point is in."""
        return at // self.width * self.width

    def starts_of(self, pane: int) -> Iterator[int]:
        """Yield the starts of the windows that a pane is in, the last one first."""
        start = self._last_start(pane)
        while start + self.size > pane:
            yield start
            start -= self.slide

    def last_end(self, pane: int) -> int:
        """Return the end of the last window that a pane is in."""
        return self._last_start(pane) + self.size

    def _last_start(self, pane: int) -> int:
        return (pane - self.offset) // self.slide * self.slide + self.offset


def advance(
    stored: Any,
    arrivals: Iterable[Arrival],
    mark: int,
    panes: Panes,
    combine: Callable[[Any, Any], Any],
) -> tuple[list[Any], int]:
    """Add a batch's tuples to the open windows, and close those that end at the mark or before.

    Args:
        stored: what this function returned last; None before the first batch.
        arrivals: of the batch; those that are late for all of their windows are dropped.
        mark: the point up to which nothing more is expected; it never goes back.
        panes: the windows.
        combine: combines two partial results.

    Returns:
        What to store, in types that JSON has: the mark, the open panes, the windows that this batch closed. And the
        number of late tuples.
    """
    before, held, _ = stored or (None, [], [])
    open_panes: dict[int, dict[Key, Any]] = {
        pane: {tuple(key): partial for key, partial in entries} for pane, entries in held
    }
    late = 0
    for arrival in arrivals:
        if before is not None and panes.last_end(arrival.pane) <= before:
            late += arrival.tuples
            continue
        of_pane = open_panes.setdefault(arrival.pane, {})
        known = arrival.key in of_pane
        of_pane[arrival.key] = combine(of_pane[arrival.key], arrival.partial) if known else arrival.partial
    now = mark if before is None else max(mark, before)
    closed: dict[tuple[int, Key], Any] = {}
    for pane in sorted(open_panes):
        for start in panes.starts_of(pane):
            end = start + panes.size
            if end > now or (before is not None and end <= before):
                continue
            for key, partial in open_panes[pane].items():
                at = start, key
                closed[at] = combine(closed[at], partial) if at in closed else partial
    left = [
        [pane, [[list(key), partial] for key, partial in open_panes[pane].items()]]
        for pane in sorted(open_panes)
        if panes.last_end(pane) > now
    ]
    ended = [
        [start, start + panes.size, list(key), partial]
        for (start, key), partial in sorted(closed.items(), key=lambda item: item[0][0])
    ]
    return [now, left, ended], late


def closed_windows(stored: Sequence[Any] | None) -> list[Closed]:
    """Return the windows that the last batch closed, the first one first."""
    return (
        []
        if stored is None
        else [Closed(start, end, tuple(key), partial) for start, end, key, partial in stored[2]]
    )
