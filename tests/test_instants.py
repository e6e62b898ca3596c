"""Days and timestamps that the calendar does not have, against Python's own conversion."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from plain_columns import can_be_read

from kinesis_trident.common.instants import FIRST_DAY, LAST_DAY, find_outside_calendar

DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def near(first: int, last: int) -> st.SearchStrategy[list[int | None]]:
    """Draw numbers about the bounds, and any others that fit 64 bits."""
    bounds = st.sampled_from([first, last]).flatmap(lambda at: st.integers(at - 2, at + 2))
    return st.lists(st.none() | bounds | st.integers(-(2**62), 2**62), max_size=6)


def found(column: pa.Array) -> list[bool]:
    mask = find_outside_calendar(column)
    return [False] * len(column) if mask is None else mask.tolist()


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", DAY)
@given(data=st.data(), skipped=st.integers(0, 2))
def test_timestamps(unit: str, zone: str | None, data: st.DataObject, skipped: int) -> None:
    numbers = data.draw(near(FIRST_DAY * DAY[unit], (LAST_DAY + 1) * DAY[unit] - 1))
    column = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, zone)).slice(skipped)
    assert found(column) == [not can_be_read(value) for value in column]


@given(
    near(FIRST_DAY, LAST_DAY).map(
        lambda found: [one and max(-(2**31), min(one, 2**31 - 1)) for one in found]
    ),
    st.integers(0, 2),
)
def test_days(numbers: Sequence[int | None], skipped: int) -> None:
    column = pa.array(numbers, pa.int32()).cast(pa.date32()).slice(skipped)
    assert found(column) == [not can_be_read(value) for value in column]


def test_a_column_that_the_calendar_has_needs_no_mask() -> None:
    first, last = FIRST_DAY, LAST_DAY
    assert find_outside_calendar(pa.array([first, None, last], pa.int32()).cast(pa.date32())) is None
    assert find_outside_calendar(pa.nulls(3, pa.timestamp("us"))) is None
    assert find_outside_calendar(pa.array([2**62], pa.timestamp("ns"))) is None
