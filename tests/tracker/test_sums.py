"""Finding numbers among many, and summing up the values of each, against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.tracker.sums import Roots, order_of, sums_of

LOW, HIGH = -(2**63), 2**63 - 1
ENDS = st.sampled_from([LOW, LOW + 1, -1, 0, 1, HIGH - 1, HIGH])


@st.composite
def scattered(draw: st.DrawFn) -> list[int]:
    """Numbers in runs of any length, near each other or anywhere."""
    near = st.integers(-300, 300) | st.integers(2**40, 2**40 + 300)
    firsts = draw(st.lists(near | ENDS | st.integers(LOW, HIGH), min_size=1, max_size=60))
    lengths = draw(st.lists(st.integers(1, 5), min_size=len(firsts), max_size=len(firsts)))
    spread = (first + n for first, length in zip(firsts, lengths, strict=True) for n in range(length))
    return sorted({number for number in spread if number <= HIGH})


@given(
    scattered(), st.lists(ENDS | st.integers(LOW, HIGH) | st.integers(-310, 310), max_size=40), st.randoms()
)
def test_every_number_is_found_and_no_other(numbers: list[int], others: list[int], order) -> None:  # type: ignore[no-untyped-def]
    runs = Roots(np.array(numbers, dtype=np.int64))
    wanted = {number: place for place, number in enumerate(numbers)}
    asked = [*numbers, *others]
    order.shuffle(asked)
    places, inside = runs.find(np.array(asked, dtype=np.int64))
    found = inside.tolist()
    assert found == [number in wanted for number in asked]
    assert [p for p, here in zip(places.tolist(), found, strict=True) if here] == [
        wanted[number] for number in asked if number in wanted
    ]
    assert runs.numbers(np.arange(len(numbers))).tolist() == numbers


@pytest.mark.parametrize("spread", ["even", "random", "crowded"])
def test_many_numbers_in_any_order(spread: str) -> None:
    rng, count = np.random.default_rng(7), 200_000
    numbers = {
        "even": np.arange(count) * 3 - count,
        "random": np.unique(rng.integers(LOW, HIGH, count)),
        # All but one in the first slot of a directory.
        "crowded": np.append(np.arange(count) * 2, HIGH),
    }[spread]
    runs = Roots(numbers)
    order = rng.permutation(len(numbers))
    places, inside = runs.find(numbers[order])
    assert inside.all()
    assert np.array_equal(places, order)
    between = numbers[:-1] + 1
    _, inside = runs.find(between)
    assert np.array_equal(inside, np.isin(between, numbers))


KEYS = st.lists(st.integers(0, 4) | st.just(7), max_size=40) | st.lists(
    ENDS | st.integers(LOW, HIGH), max_size=40
)


@given(KEYS, st.integers(0, 2**32))
def test_each_key_has_the_number_of_its_values_and_their_xor(keys: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).integers(LOW, HIGH, len(keys))
    sums: dict[int, tuple[int, int]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        count, xor = sums.get(key, (0, 0))
        sums[key] = count + 1, xor ^ value
    found = list(sums_of(np.array(keys, dtype=np.int64), values))
    assert found == [(key, sums[key]) for key in sorted(sums)]


@given(KEYS.filter(bool) | scattered())
def test_numbers_are_sorted_whatever_their_span(numbers: list[int]) -> None:
    array = np.array(numbers, dtype=np.int64)
    for one in (array, array[::-1].copy()):
        assert one[order_of(one)].tolist() == sorted(numbers)


def test_numbers_that_differ_in_their_lowest_bits_alone_are_sorted() -> None:
    numbers = np.random.default_rng(3).permutation(70_000) + np.where(np.arange(70_000) % 2, 2**62, -(2**62))
    assert np.array_equal(numbers[order_of(numbers)], np.sort(numbers))
