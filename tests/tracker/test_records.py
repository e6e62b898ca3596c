"""Positions compare as numbers do, also where their texts are compared, and give back the text of the service."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.tracker.records import NotDone, RecordPosition, orders_of
from kinesis_trident.tracker.runs import Runs

TEXTS = st.lists(
    st.from_regex(r"[0-9]{1,3}", fullmatch=True) | st.from_regex(r"[1-9][0-9]{0,2}(:[0-9])?", fullmatch=True)
)


@given(TEXTS | st.lists(st.integers(10**55, 10**56 - 1).map(str)))
def test_orders_compare_as_the_positions_do(texts: list[str]) -> None:
    positions, orders = RecordPosition.parse_all(texts), orders_of(texts)
    for order, position in zip(orders, positions, strict=True):
        assert order == position.order
        assert [order < other for other in orders] == [position < other for other in positions]
        assert [order == other for other in orders] == [position == other for other in positions]
    pieces = [NotDone(text, text, 1, "A") for text in texts]
    assert [piece.last for piece in Runs.sort(pieces)] == sorted(texts, key=RecordPosition.parse)


def test_what_is_no_position_has_no_order() -> None:
    for texts in ([""], ["1", ""], ["12", "1x"], ["12", "-1"]):
        with pytest.raises(ValueError, match="is not a sequence number"):
            orders_of(texts)


NUMBERS = st.integers(0, 12) | st.integers(0, 10**6) | st.integers(0, 10**56) | st.integers(0, 10**129 - 1)
WIDTHS = st.sampled_from([1, 3, 20, 56, 58, 59, 129])
SUBS = st.just(-1) | st.integers(0, 12) | st.integers(0, 2**31)


@given(NUMBERS, WIDTHS, SUBS, NUMBERS, WIDTHS, SUBS)
def test_positions_are_in_the_order_of_their_numbers_whatever_the_zeros(
    number: int, width: int, sub: int, other: int, wide: int, within: int
) -> None:
    one, two = RecordPosition(str(number).zfill(width), sub), RecordPosition(str(other).zfill(wide), within)
    assert (one < two, one == two, one > two) == (
        (number, sub) < (other, within),
        (number, sub) == (other, within),
        (number, sub) > (other, within),
    )
    assert one == RecordPosition(number, sub)
    assert hash(one) == hash(RecordPosition(number, sub))


@given(NUMBERS, WIDTHS, SUBS)
def test_the_text_of_the_service_comes_back(number: int, width: int, sub: int) -> None:
    digits = str(number).zfill(width)
    text = digits if sub < 0 else f"{digits}:{sub}"
    for one in (RecordPosition(digits, sub), RecordPosition.parse(text), *RecordPosition.parse_all([text])):
        again = pickle.loads(pickle.dumps(one))
        for position in (one, again):
            assert (str(position), position.sequence, position.sub, position.number) == (
                text,
                digits,
                sub,
                number,
            )
    assert [str(one) for one in RecordPosition.parse_all([text, text])] == [text, text]


@pytest.mark.parametrize(
    "text", ["", ":", ":1", "x", "1:x", "-1", "+1", "1_0", " 1", "\u0661", "1" * 130, "1:-1"]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a sequence number"):
        RecordPosition.parse(text)
    with pytest.raises(ValueError, match="is not a sequence number"):
        RecordPosition.parse_all([text, text])
