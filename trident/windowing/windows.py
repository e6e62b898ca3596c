"""The windows of a stream, by count of tuples or event time, and their panes (`org.apache.storm.trident.windowing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.errors import name_group
from kinesis_trident.trident.maps.window_shape import Shape

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


def advance(
    stored: Any,
    arrivals: Iterable[Arrival],
    mark: int,
    shape: Shape,
    combine: Callable[[Any, Any], Any],
) -> tuple[list[Any], list[Arrival]]:
    """Add a batch's tuples to the open windows, and close those that end at the mark or before.

    Args:
        stored: what this function returned last; None before the first batch.
        arrivals: of the batch; those that are late for all of their windows are dropped.
        mark: the point up to which nothing more is expected; it never goes back.
        shape: of the windows.
        combine: combines two partial results.

    Returns:
        What to store, in types that JSON has: the mark, the open panes, the windows that this batch closed. And what
        came late.
    """
    before, held, _ = stored or (None, [], [])
    open_panes: dict[int, dict[Key, Any]] = {
        pane: {hashable(key): partial for key, partial in entries} for pane, entries in held
    }
    late = []
    for arrival in arrivals:
        if before is not None and shape.last_end(arrival.pane) <= before:
            late.append(arrival)
            continue
        of_pane = open_panes.setdefault(arrival.pane, {})
        _add(of_pane, arrival.key, arrival.key, arrival.partial, combine)
    now = mark if before is None else max(mark, before)
    closed: dict[tuple[int, Key], Any] = {}
    for pane in sorted(open_panes):
        for start in shape.starts_of(pane):
            end = start + shape.size
            if end > now or (before is not None and end <= before):
                continue
            for key, partial in open_panes[pane].items():
                _add(closed, (start, key), key, partial, combine)
    left = [
        [pane, [[_listed(key), partial] for key, partial in open_panes[pane].items()]]
        for pane in sorted(open_panes)
        if shape.last_end(pane) > now
    ]
    ended = [
        [start, start + shape.size, _listed(key), partial]
        for (start, key), partial in sorted(closed.items(), key=lambda item: item[0][0])
    ]
    return [now, left, ended], late


def _add(
    found: dict[Any, Any], at: Any, group: Key, partial: Any, combine: Callable[[Any, Any], Any]
) -> None:
    """Combine a partial result of a group with what there is already; an error bears the group."""
    try:
        found[at] = combine(found[at], partial) if at in found else partial
    except BaseException as error:
        name_group(error, group)
        raise


def closed_windows(stored: Sequence[Any] | None) -> list[Closed]:
    """Return the windows that the last batch closed, the first one first."""
    return (
        []
        if stored is None
        else [Closed(start, end, hashable(key), partial) for start, end, key, partial in stored[2]]
    )


def hashable(value: Any) -> Any:
    """Return a value of a group, which can be an array: as tuples."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    """Return a key as a state stores it."""
    return list(map(_listed, value)) if type(value) is tuple else value


@dataclass(frozen=True, slots=True)
class SlidingCountWindow:
    """Every `slide` tuples, a window of the last `size` tuples; the first ones have fewer.

    Raises:
        TopologyError: a number is below 1, or `slide` is greater than `size`.
    """

    size: int
    slide: int

    def __post_init__(self) -> None:
        for name in ("size", "slide"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _wrong(self, name, "a number of tuples, 1 or more")
        _check_slide(self, self.slide <= self.size)

    def shape(self, buckets: int = 1) -> Shape:
        """Return the windows over the numbers of the tuples, from 0: each ends after a multiple of `slide` tuples."""
        return Shape(self.size, self.slide, -self.size % self.slide, "count", buckets)


@dataclass(frozen=True, slots=True, init=False)
class TumblingCountWindow(SlidingCountWindow):
    """Every `size` tuples, a window of these."""

    def __init__(self, size: int) -> None:
        SlidingCountWindow.__init__(self, size, size)


@dataclass(frozen=True, slots=True)
class SlidingDurationWindow:
    """Every `slide`, a window of the tuples whose event time is in the last `size`; both count from 1970.

    Raises:
        TopologyError: a duration is not above zero, or `slide` is greater than `size`.
    """

    size: timedelta
    slide: timedelta

    def __post_init__(self) -> None:
        for name in ("size", "slide"):
            value: object = getattr(self, name)
            if not isinstance(value, timedelta) or value <= timedelta(0):
                raise _wrong(self, name, "a timedelta above zero")
        _check_slide(self, self.slide <= self.size)

    def shape(self, buckets: int = 1) -> Shape:
        """Return the windows over microseconds since 1970."""
        one = timedelta(microseconds=1)
        return Shape(self.size // one, self.slide // one, buckets=buckets)


@dataclass(frozen=True, slots=True, init=False)
class TumblingDurationWindow(SlidingDurationWindow):
    """Every `size`, a window of the tuples whose event time is in it."""

    def __init__(self, size: timedelta) -> None:
        SlidingDurationWindow.__init__(self, size, size)


WindowConfig = SlidingCountWindow | SlidingDurationWindow


def window_of(size: int | timedelta, slide: int | timedelta | None = None) -> WindowConfig:
    """Return the windows of a size, in tuples or in time.

    Raises:
        TopologyError: they are not possible.
    """
    slide = size if slide is None else slide
    if isinstance(size, timedelta):
        return SlidingDurationWindow(size, slide)  # type: ignore[arg-type]
    return SlidingCountWindow(size, slide)  # type: ignore[arg-type]


def _wrong(window: object, name: str, what: str) -> TopologyError:
    msg = f"{type(window).__name__}: {name} is {getattr(window, name)!r}. Give {what}"
    return TopologyError(msg)


def _check_slide(window: SlidingCountWindow | SlidingDurationWindow, fits: bool) -> None:
    if not fits:
        msg = (
            f"{type(window).__name__}: slide, {window.slide}, is greater than size, {window.size}, so tuples "
            "between two windows would be in none. Give a smaller slide"
        )
        raise TopologyError(msg)
