"""Columns made without `pyarrow.array` are those that it would make."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.common.arrow_columns import (
    booleans,
    column_of,
    find_invalid_texts,
    numbers,
    repeated,
    spread,
    texts,
    values_of,
)

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


@given(st.lists(st.integers(0, 255), max_size=20))
def test_numbers_without_a_sign(values: list[int]) -> None:
    assert values_of(pa.array(values, pa.uint8())).tolist() == values


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_booleans(values: list[bool], skipped: int) -> None:
    column = booleans(np.array(values, np.bool_))
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.bool_()))
    assert values_of(column.slice(skipped)).tolist() == values[skipped:]


def test_a_column_of_nothing_has_no_values() -> None:
    assert values_of(pa.nulls(0, pa.int64())).tolist() == []


KINDS = [
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.float64(),
    pa.float32(),
    pa.int64(),
    pa.int32(),
    pa.int16(),
    pa.int8(),
    pa.timestamp("us"),
    pa.list_(pa.int64()),
]
VALUES = [
    st.text(max_size=6),
    st.binary(max_size=6),
    st.booleans(),
    st.floats(),
    st.integers(-200, 200),
    st.integers(-(2**70), 2**70),
    st.datetimes(),
    st.lists(st.integers(), max_size=3),
]


@given(st.data(), st.sampled_from(KINDS), st.booleans())
def test_a_column_of_values_is_that_of_arrow_and_so_is_its_error(
    data: st.DataObject, kind: pa.DataType, mixed: bool
) -> None:
    wanted = st.one_of(VALUES) if mixed else data.draw(st.sampled_from(VALUES))
    values = data.draw(st.lists(st.none() | wanted, max_size=20).map(tuple))
    expected, error = None, None
    try:
        expected = pa.array(values, type=kind)
    except Exception as refused:
        error = refused
    if error is not None:
        with pytest.raises(type(error)) as found:
            column_of(values, kind)
        assert str(found.value) == str(error)
        return
    column = column_of(values, kind)
    column.validate(full=True)
    assert column.type == kind
    # As texts: NaN is not equal to itself.
    assert [repr(value) for value in column.to_pylist()] == [repr(value) for value in expected.to_pylist()]
    assert column.null_count == expected.null_count


@given(st.lists(st.none() | st.binary(max_size=4), max_size=9), st.integers(0, 3))
def test_texts_that_are_none_are_those_that_python_cannot_decode(
    values: list[bytes | None], skipped: int
) -> None:
    content = pa.array(values, pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(values), content.buffers())
    expected = []
    for value in values:
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            expected.append(True)
        else:
            expected.append(False)
    found = find_invalid_texts(column.slice(skipped))
    assert (found is None) == (not any(expected[skipped:]))
    assert found is None or found.tolist() == expected[skipped:]


@given(st.lists(st.tuples(st.integers(-(10**6), 10**12), st.integers(0, 5)), max_size=12))
def test_each_span_is_spread_in_turn(spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    counts = np.array([count for _, count in spans], np.int64)
    assert spread(starts, counts).tolist() == [start + i for start, count in spans for i in range(count)]
    assert spread(0, counts).tolist() == [i for _, count in spans for i in range(count)]
