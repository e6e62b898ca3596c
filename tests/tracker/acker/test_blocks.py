"""The trees of many roots in arrays, against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.tracker.acker.blocks import TreeBlock

ROOTS = st.lists(
    st.integers(-40, 40) | st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=40
)
# Few values, so that their sums are often zero.
ACKS = st.lists(st.tuples(st.integers(0, 39), st.integers(1, 3)), max_size=80)


@given(ROOTS, st.lists(ACKS, min_size=1, max_size=3), st.booleans())
def test_acks_of_a_root_are_summed_up_in_any_order_and_number(
    drawn: list[int], calls: list[list[tuple[int, int]]], consecutive: bool
) -> None:
    roots = [*range(len(drawn))] if consecutive else sorted(drawn)
    values = {root: 1 + n % 3 for n, root in enumerate(roots)}
    block = TreeBlock(np.array(roots), np.array([*values.values()]))
    for call in calls:
        acks = [(roots[n % len(roots)], value) for n, value in call]
        is_open = {root for root, value in values.items() if value}
        for root, value in acks:
            if root in is_open:
                values[root] ^= value
        asked = np.array([root for root, _ in acks], dtype=np.int64)
        places, inside = block.find(asked)
        assert inside is None
        done = block.ack(asked, places, np.array([value for _, value in acks], dtype=np.int64))
        assert done.tolist() == sorted(root for root in is_open if not values[root])
        assert block.open_roots().tolist() == [root for root, value in values.items() if value]
        assert block.pending == len(block.open_roots())


@given(ROOTS, st.data())
def test_roots_that_moved_away_are_not_found(drawn: list[int], data: st.DataObject) -> None:
    roots = np.array(sorted(drawn))
    block = TreeBlock(roots, np.ones(len(roots), dtype=np.int64))
    is_acked, is_moved = (
        np.array(data.draw(st.lists(st.booleans(), min_size=len(roots), max_size=len(roots))))
        for _ in range(2)
    )
    block.ack(roots[is_acked], np.flatnonzero(is_acked), np.ones(is_acked.sum(), dtype=np.int64))
    moved, values = block.remove(roots[is_moved], np.flatnonzero(is_moved))
    # An answered one stays, so that what comes late is known.
    assert moved.tolist() == roots[is_moved & ~is_acked].tolist()
    assert (values == 1).all()
    _, inside = block.find(roots)
    here = np.ones(len(roots), dtype=bool) if inside is None else inside
    assert np.array_equal(here, ~np.isin(roots, moved))
    assert [block.place(root) is not None for root in roots.tolist()] == here.tolist()
