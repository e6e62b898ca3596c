"""Positions compare as numbers do, also where their texts are compared."""

from __future__ import annotations

from hypothesis import given, strategies as st

from kinesis_trident.tracker.records import (
    NotDone,
    RecordPosition,
    are_comparable,
    sort_in_shard_order,
)

TEXTS = st.lists(
    st.from_regex(r"[0-9]{1,3}", fullmatch=True) | st.from_regex(r"[1-9][0-9]{0,2}(:[0-9])?", fullmatch=True)
)


@given(TEXTS | st.lists(st.integers(10**55, 10**56 - 1).map(str)))
def test_places_are_ordered_and_equal_as_the_positions_are(texts: list[str]) -> None:
    positions = RecordPosition.parse_all(texts)
    places = texts if are_comparable(texts) else positions
    for place, position in zip(places, positions, strict=True):
        assert [place < other for other in places] == [position < other for other in positions]
        assert [place == other for other in places] == [position == other for other in positions]
    pieces = [NotDone(text, text, 1, "A") for text in texts]
    assert [piece.last for piece in sort_in_shard_order(pieces)] == sorted(texts, key=RecordPosition.parse)


def test_the_numbers_of_kinesis_are_compared_without_parsing_them() -> None:
    numbers = [str(10**55 + 7**at) for at in range(60)]
    assert are_comparable(numbers)
    assert are_comparable([])
    for other in ("9", f"0{numbers[0][1:]}", f"{numbers[0][:-2]}:0", ""):
        assert not are_comparable([*numbers, other])
