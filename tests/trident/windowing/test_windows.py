"""The windows that close are those of a count by hand, whatever comes when; a replay closes the same."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
)
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.windowing.windows import (
    Arrival,
    Closed,
    advance,
    closed_windows,
    window_of,
)

SIZES = st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))
BATCHES = st.lists(
    st.lists(
        st.tuples(st.integers(-20, 60), st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=8
    ),
    max_size=8,
)


def after(
    stored: Any, batch: list[tuple[int, str, int]], panes: Shape, lateness: int = 0
) -> tuple[Any, list[Closed], int]:
    """Advance by a batch of (time, key, value), through JSON as a store would."""
    arrivals = [Arrival(panes.pane_of(at), (key,), 1, value) for at, key, value in batch]
    value, late = advance(stored, arrivals, max(at for at, *_ in batch) - lateness, panes, operator.add)
    value = msgspec.json.decode(msgspec.json.encode(value))
    return value, closed_windows(value), sum(one.tuples for one in late)


@given(SIZES, st.integers(-5, 5), BATCHES, st.integers(0, 10))
def test_windows_of_time(sizes: tuple[int, int], times: int, batches: Any, lateness: int) -> None:
    size, slide = sizes
    panes = Shape(size, slide, times * panes_width(size, slide))
    stored, watermark = None, None
    sums: dict[tuple[int, str], int] = defaultdict(int)
    emitted: set[tuple[int, str]] = set()
    for batch in batches:
        expected_late = 0
        for at, key, value in batch:
            # All windows that a tuple is in, by the definition.
            inside = [start for start in range(at - size + 1, at + 1) if (start - panes.offset) % slide == 0]
            open_ones = [start for start in inside if watermark is None or start + size > watermark]
            expected_late += not open_ones
            for start in open_ones:
                sums[start, key] += value
        now = max(at for at, *_ in batch) - lateness
        watermark = now if watermark is None else max(watermark, now)
        stored, closed, late = after(stored, batch, panes, lateness)
        due = {at: total for at, total in sums.items() if at[0] + size <= watermark and at not in emitted}
        assert {(one.start, one.key[0]): one.partial for one in closed} == due
        assert [one.start for one in closed] == sorted(one.start for one in closed)
        assert all(one.end == one.start + size for one in closed)
        assert late == expected_late
        emitted |= due.keys()
        # Nothing is kept of what is over.
        assert all(panes.last_end(pane) > watermark for pane, _ in stored[1])


def panes_width(size: int, slide: int) -> int:
    return Shape(size, slide).width


@given(SIZES, st.lists(st.integers(0, 7), max_size=6))
def test_windows_of_counts(sizes: tuple[int, int], batches: list[int]) -> None:
    size, slide = sizes
    panes = SlidingCountWindow(size, slide).shape()
    stored, seen, found = None, 0, []
    for count in batches:
        arrivals = [Arrival(panes.pane_of(at), (), 1, [at]) for at in range(seen, seen + count)]
        seen += count
        stored, late = advance(stored, arrivals, seen, panes, operator.add)
        assert late == []
        found += closed_windows(stored)
    ends = range(slide, seen + 1, slide)
    assert [(one.end, one.partial) for one in found] == [
        (end, list(range(max(0, end - size), end))) for end in ends
    ]


def test_a_pane_is_kept_once_however_many_windows_it_is_in() -> None:
    panes = Shape(60, 1)
    stored, closed, _ = after(None, [(at, "a", 1) for at in range(50)], panes)
    assert (len(stored[1]), len(closed)) == (50, 49)
    assert Counter(one.partial for one in closed) == Counter(range(1, 50))


def test_what_is_stored() -> None:
    """The form in a store: a change of it would lose the open windows."""
    stored, _, _ = after(None, [(1, "a", 5), (12, "b", 7)], Shape(10, 5))
    assert msgspec.json.encode(stored) == b'[12,[[10,[[["b"],7]]]],[[-5,5,["a"],5],[0,10,["a"],5]]]'


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingCountWindow(0), "TumblingCountWindow: size is 0. Give a number of tuples"),
        (lambda: window_of(True), "SlidingCountWindow: size is True"),
        (lambda: window_of(5, timedelta(1)), "slide is datetime.timedelta"),
        (lambda: SlidingCountWindow(2, 3), "slide, 3, is greater than size, 2"),
        (lambda: TumblingDurationWindow(timedelta(0)), "TumblingDurationWindow: size is datetime.timedelta"),
        (lambda: SlidingDurationWindow(timedelta(1), timedelta(2)), "is greater than size, 1 day"),
    ],
)
def test_a_window_that_is_not_possible(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()
