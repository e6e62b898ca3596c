"""The windows that a stream can have: by count of tuples, or by event time (`org.apache.storm.trident.windowing`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.windowing.panes import Panes


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

    @property
    def panes(self) -> Panes:
        """The windows over the numbers of the tuples, from 0: each ends after a multiple of `slide` tuples."""
        return Panes(self.size, self.slide, -self.size % self.slide)


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

    @property
    def panes(self) -> Panes:
        """The windows over microseconds since 1970."""
        one = timedelta(microseconds=1)
        return Panes(self.size // one, self.slide // one)


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
