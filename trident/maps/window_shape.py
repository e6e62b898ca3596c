"""The shape of windows: which panes and windows a point is in. A state keeps it beside its marks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import gcd
from typing import Any

import msgspec

from kinesis_trident.common.instants import FIRST_DAY, LAST_DAY
from kinesis_trident.common.visible_text import count_noun

_DAY = timedelta(days=1) // timedelta(microseconds=1)


class Shape(msgspec.Struct, array_like=True, frozen=True):
    """Windows of `size`, which start at `offset` and every `slide` before and after.

    `by` is "time" for microseconds since 1970, or "count" for numbers of tuples. `buckets` are the parts of the groups,
    each with a watermark of its own; 0: their number does not matter.
    """

    size: int
    slide: int
    offset: int = 0
    by: str = "time"
    buckets: int = 1

    def meet(self, held: Shape | None) -> Shape | None:
        """Return this shape if a state may hold it, which holds another so far; None if that one's windows are open."""
        # A release before this one has stored none.
        return self if held in (None, self) else None

    def refuse(self, held: Shape) -> str:
        """Return why what the state holds does not fit, and what to do."""
        return (
            f"holds {held}, and the code now has {self}: the tuples of the open ones would be lost, or be counted in "
            "others. Nothing was written. Give the new windows another keyPrefix, table or folder; if the open ones "
            "are to close, run the code of before until they have"
        )

    def __str__(self) -> str:
        size, slide = (
            (count_noun(self.size, "tuple"), count_noun(self.slide, "tuple"))
            if self.by == "count"
            else (str(timedelta(microseconds=self.size)), str(timedelta(microseconds=self.slide)))
        )
        parts = f" in {self.buckets} parts" if self.buckets > 1 else ""
        return f"windows of {size} every {slide}{parts}"

    @property
    def width(self) -> int:
        """The size of a pane."""
        return gcd(self.size, self.slide)

    def pane_of(self, at: Any) -> Any:
        """Return the start of the pane that a point is in; of a column of points, that of each."""
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

    def check_calendar(self, time: str, first: int, last: int | None = None) -> None:
        """Check that windows of points have a start and an end in the calendar.

        Args:
            time: the name of the field of the points.
            first: the least of them.
            last: the greatest; None: there is one.

        Raises:
            ValueError: one has not.
        """
        least, most = FIRST_DAY * _DAY + self.size, (LAST_DAY + 1) * _DAY - self.size
        if first < least or (first if last is None else last) >= most:
            wrong = first if first < least or last is None else last
            msg = (
                f"the event time {time!r} is {wrong:,} microseconds since 1970, and its windows are outside of the "
                "years 1 to 9999. Were milliseconds taken for seconds?"
            )
            raise ValueError(msg)

    def _last_start(self, pane: int) -> int:
        return (pane - self.offset) // self.slide * self.slide + self.offset
