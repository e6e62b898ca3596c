"""Columns made without `pyarrow.array` are those that it would make."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.spout.kinesis.arrow_columns import numbers, repeated, texts, values_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTEGERS = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(TEXTS, max_size=20))
def test_texts(values: list[str]) -> None:
    column = texts(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.string()))


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(UnicodeEncodeError):
        texts(["a", "\ud800"])


@given(TEXTS, st.integers(0, 9))
def test_a_text_that_is_repeated(text: str, count: int) -> None:
    column = repeated(text, count)
    column.validate(full=True)
    assert column.equals(pa.array([text] * count, pa.string()))


@given(st.lists(INTEGERS, max_size=20), st.sampled_from([np.int32, np.int64]), st.integers(0, 20))
def test_numbers_and_back_whatever_part_of_them_is_taken(
    values: list[int], kind: type[np.signedinteger], skipped: int
) -> None:
    column = numbers(np.array(values, kind)[::-1])
    column.validate(full=True)
    assert column.equals(pa.array(values[::-1], pa.from_numpy_dtype(kind)))
    assert values_of(column.slice(skipped)).tolist() == values[::-1][skipped:]
    assert values_of(column).dtype == kind


def test_times_are_numbers() -> None:
    kind = pa.timestamp("us", tz="UTC")
    column = numbers(np.array([1, 2]), kind)
    assert column.equals(pa.array([1, 2], pa.int64()).cast(kind))
    assert values_of(column).tolist() == [1, 2]


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_booleans(values: list[bool], skipped: int) -> None:
    assert values_of(pa.array(values, pa.bool_()).slice(skipped)).tolist() == values[skipped:]


def test_a_column_of_nothing_has_no_values() -> None:
    assert values_of(pa.nulls(0, pa.int64())).tolist() == []
