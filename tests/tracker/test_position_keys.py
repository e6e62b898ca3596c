"""Positions as keys: their order, looking them up, and as texts."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from bomb import half_a_gibibyte
from hypothesis import given, strategies as st

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.position_keys import (
    Keys,
    count_through,
    counts,
    find,
    key_of,
    keys_of,
    keys_of_texts,
    merge_keys,
    pack,
    pack_in_parts,
    unpack,
)
from kinesis_trident.tracker.records import RecordPosition

NUMBERS = st.one_of(st.integers(0, 30), st.integers(10**54, 10**56), st.integers(0, 10**129 - 1))
POSITIONS = st.builds(RecordPosition, NUMBERS, st.one_of(st.just(-1), st.integers(0, 2**31 - 1)))
SEVERAL = st.lists(POSITIONS, unique=True, max_size=20).map(sorted)


def made(positions: list[RecordPosition]) -> Keys:
    return keys_of([position.sequence for position in positions], [position.sub for position in positions])


@given(SEVERAL)
def test_keys_stand_for_positions_and_compare_as_they_do(positions: list[RecordPosition]) -> None:
    keys = made(positions)
    assert keys.positions == positions
    assert sorted(keys.array.tolist()) == keys.array.tolist()
    assert keys_of_texts(list(map(str, positions))).positions == positions


@given(SEVERAL, SEVERAL)
def test_find_names_those_that_are_there_whatever_the_widths(
    here: list[RecordPosition], wanted: list[RecordPosition]
) -> None:
    at, found = find(made(here), made(wanted))
    assert [here[i] for i in at] == [position for position in wanted if position in here]
    assert found.tolist() == [position in here for position in wanted]
    both = merge_keys([made(here), made(wanted)])
    assert both.positions == sorted({*here, *wanted})
    for through in (False, True):
        assert counts(made(here), made(wanted), through=through).tolist() == [
            sum(each < position or (through and each == position) for each in here) for position in wanted
        ]
    for position in wanted[:1]:
        assert count_through(made(here), position) == sum(each <= position for each in here)


@given(SEVERAL, SEVERAL)
def test_packed_keys_come_back(one: list[RecordPosition], other: list[RecordPosition]) -> None:
    texts = [pack(made(one)), pack(made(other))]
    assert unpack(*texts).positions == [*one, *other]


PADDED = st.integers(2, 60).flatmap(
    lambda digits: (
        st.lists(
            st.builds(
                lambda number, sub: RecordPosition(str(number).zfill(digits), sub),
                NUMBERS,
                st.just(-1) | st.integers(0, 12),
            ),
            unique=True,
            min_size=1,
            max_size=20,
        )
        .map(sorted)
        .filter(lambda some: some[0].sequence[0] == "0")
    )
)


@given(PADDED, PADDED)
def test_the_zeros_of_a_service_come_back(one: list[RecordPosition], other: list[RecordPosition]) -> None:
    texts = list(map(str, one))
    for keys in (made(one), keys_of_texts(texts), unpack(pack(made(one)))):
        assert [str(position) for position in keys.positions] == texts
        assert [str(position) for position in keys[1:].positions] == texts[1:]
    assert unpack(pack(made(one)), pack(made(other))).positions == [*one, *other]
    assert [str(at) for at in merge_keys([made(one[:1]), made(one)]).positions] == texts


def test_only_keys_with_zeros_of_a_service_have_the_mark_that_an_older_release_refuses() -> None:
    assert pack(made([RecordPosition(9), RecordPosition(10)])).startswith("2x12:")
    assert pack(made([RecordPosition("09"), RecordPosition("10")])).startswith("2x12p2:")
    assert pack(made([RecordPosition(0)])).startswith("1x11:")


def test_packed_parts_hold_all_and_fit_a_node() -> None:
    r = np.random.default_rng(7)
    digits = r.integers(0, 10, (45_000, 129), dtype=np.uint8) + ord("0")
    worst = np.sort(np.ascontiguousarray(digits).view("S129").reshape(-1))
    parts = pack_in_parts(keys_of(worst))
    assert max(map(len, parts)) <= 512 * 1024
    assert np.array_equal(unpack(*parts).array, keys_of(worst).array)


@pytest.mark.parametrize(
    "text", ["", "3", "1x11:", "1x11:%%%", "2x11:eJwzMDSCAQAHLgGH", f"9{pack(key_of(RecordPosition(5)))}"]
)
def test_what_is_not_packed_keys_is_an_error(text: str) -> None:
    with pytest.raises(OrderError, match="packed positions"):
        unpack(text)


@pytest.mark.parametrize(
    "shape", ["20000x139", "1x11", "999999x999", "536870912x1", "1x536870912", "20000x10", "2x011"]
)
def test_what_unpacks_to_more_than_it_says_takes_no_memory(shape: str) -> None:
    bomb = f"{shape}:{half_a_gibibyte()}"
    assert 600_000 < len(bomb) < 800_000
    tracemalloc.start()
    try:
        with pytest.raises(OrderError, match="cannot be read"):
            unpack(bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


@given(st.text("0123456789x:=+/eJw", max_size=80) | st.text(max_size=40))
def test_any_text_is_unpacked_or_refused(text: str) -> None:
    try:
        keys = unpack(text)
    except OrderError:
        return
    assert all(position.number >= 0 for position in keys.positions)
