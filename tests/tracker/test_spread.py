"""Numbers from their first ones and counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from kinesis_trident.tracker.spread import spread


@given(st.lists(st.tuples(st.integers(-(10**6), 10**12), st.integers(0, 5)), max_size=12))
def test_each_span_is_spread_in_turn(spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    counts = np.array([count for _, count in spans], np.int64)
    assert spread(starts, counts).tolist() == [start + i for start, count in spans for i in range(count)]
    assert spread(0, counts).tolist() == [i for _, count in spans for i in range(count)]
