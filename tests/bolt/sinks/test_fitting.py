"""The rows that fit are those of which Python can make values, as readers, databases and catalogs do."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from plain_columns import can_be_read, column
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kinesis_trident import Outcomes
from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.fitting import Fitting, Unfit, has_ids
from kinesis_trident.bolt.sinks.kinds import NAN, NOT_FINITE, checks_of
from kinesis_trident.bolt.steps.poison import Poison
from kinesis_trident.common.instants import FIRST_DAY, LAST_DAY

DAY = 86_400_000_000
LEAVES = [
    StringType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
    IntegerType(),
    BinaryType(),
    DoubleType(),
]
TYPES: st.SearchStrategy[DataType] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        inner.map(ArrayType)
        | st.tuples(st.sampled_from(LEAVES[:5]), inner).map(lambda two: MapType(*two))
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda found: StructType([StructField(f"f{i}", one) for i, one in enumerate(found)])
        )
    ),
    max_leaves=4,
)
BYTES = st.sampled_from(
    [b"", b"a", "é😀".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
) | st.binary(max_size=4)
DAYS = st.sampled_from([FIRST_DAY, LAST_DAY]).flatmap(lambda at: st.integers(at - 1, at + 1)) | st.integers(
    -9, 9
)
TIMES = DAYS.map(lambda day: day * DAY) | st.sampled_from(
    [(LAST_DAY + 1) * DAY - 1, 1_767_225_600_000_000_000]
)
NUMBERS = st.sampled_from([0.5, math.nan, math.inf, -math.inf])


def plain(kind: pa.DataType, *, null: bool = True) -> st.SearchStrategy[Any]:
    """Draw plain values of a type."""
    match kind:
        case pa.StructType():
            found = st.tuples(*(plain(field.type) for field in kind))
        case pa.ListType():
            found = st.lists(plain(kind.value_type), max_size=2)
        case pa.MapType():
            found = st.lists(st.tuples(plain(kind.key_type, null=False), plain(kind.item_type)), max_size=2)
        case _:
            named = {
                pa.string(): BYTES,
                pa.binary(): BYTES,
                pa.date32(): DAYS,
                pa.float64(): NUMBERS,
                pa.int32(): DAYS,
            }
            found = named.get(kind, TIMES)
    return st.none() | found if null else found


def fitting(schema: StructType, columns: list[str], *required: str, **strict: Poison) -> Fitting:
    return Fitting(required, checks_of(schema, columns, strict), has_ids(schema))


def ids_of(count: int) -> pa.Array:
    return pa.array([f"m{i}" for i in range(count)], pa.string())


@given(st.data(), TYPES, st.integers(0, 2))
def test_a_row_fits_if_each_of_its_values_can_be_read(
    data: st.DataObject, kind: DataType, skipped: int
) -> None:
    arrow = to_arrow_type(kind, timezone="UTC")
    values = data.draw(st.lists(plain(arrow), max_size=6))
    batch = pa.record_batch([column(values, arrow), ids_of(len(values))], ["x", "messageId"]).slice(skipped)
    schema = StructType([StructField("x", kind), StructField("messageId", StringType())])
    unfit = Unfit()
    rows = fitting(schema, ["x", "messageId"]).fit(batch, unfit)
    rows.to_pylist()
    read = {
        name
        for name, value in zip(batch["messageId"].to_pylist(), batch["x"], strict=True)
        if can_be_read(value)
    }
    assert set(rows["messageId"].to_pylist()) == read
    assert unfit.reasons.keys() == set(batch["messageId"].to_pylist()) - read


ROWS = StructType([StructField("x", DoubleType()), StructField("messageId", StringType())])


def fit(
    values: list[float | None], ids: list[str | None], *required: str, **strict: Poison
) -> tuple[list[Any], Unfit]:
    batch = pa.record_batch([pa.array(values, pa.float64()), pa.array(ids, pa.string())], ["x", "messageId"])
    unfit = Unfit()
    rows = fitting(ROWS, ["x"], *required, **strict).fit(batch, unfit)
    return rows["x"].to_pylist(), unfit


def test_all_rows_of_a_record_fail_together() -> None:
    """They come again together."""
    rows, unfit = fit([1.0, None, 2.0, 3.0], ["a", "a", "b", None], "x")
    assert rows == [2.0, 3.0]
    assert unfit.reasons == {"a": "column 'x' is null"}


@pytest.mark.parametrize(
    ("poison", "said", "rows"),
    [
        (NOT_FINITE, "column 'x' is no finite number", [0.5, None]),
        (NAN, "column 'x' is no number", [0.5, math.inf, None]),
    ],
)
def test_numbers_where_they_decide(poison: Poison, said: str, rows: list[float | None]) -> None:
    found, unfit = fit([0.5, math.nan, math.inf, None], ["a", "b", "c", "d"], x=poison)
    assert found == rows
    assert set(unfit.reasons.values()) == {said}


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (StructType([StructField("a", IntegerType(), nullable=False)]), [(1,), None, (None,)], "x.a"),
        (ArrayType(IntegerType(), containsNull=False), [[1], None, [1, None]], "x"),
        (
            MapType(StringType(), IntegerType(), valueContainsNull=False),
            [[(b"k", 1)], None, [(b"k", None)]],
            "x",
        ),
        (
            ArrayType(StructType([StructField("a", IntegerType(), nullable=False)])),
            [[(1,), None], [], [(None,)]],
            "x.a",
        ),
    ],
)
def test_a_null_within_a_column_that_has_none_there(kind: DataType, values: list[Any], said: str) -> None:
    schema = StructType([StructField("x", kind), StructField("messageId", StringType())])
    # Spark's rows may have one there.
    loose = StructType.fromJson(json.loads(schema.json().replace("false", "true")))["x"].dataType
    batch = pa.record_batch(
        [column(values, to_arrow_type(loose, timezone="UTC")), ids_of(3)], ["x", "messageId"]
    )
    unfit = Unfit()
    assert fitting(schema, ["x"]).fit(batch, unfit).num_rows == 2
    assert unfit.reasons == {"m2": f"column {said!r} is null"}


def test_a_batch_that_fits_is_passed_on_as_it_is() -> None:
    batch = pa.record_batch([pa.array([1.0]), pa.array(["a"])], ["x", "messageId"])
    unfit = Unfit()
    assert fitting(ROWS, ["x", "messageId"], "x", x=NOT_FINITE).fit(batch, unfit) is batch
    assert not unfit


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (ROWS, "column 'x' is null. Its messageId is null, as outer joins make them"),
        (StructType(ROWS.fields[:1]), "column 'x' is null. Keep the column 'messageId' in the rows"),
    ],
)
def test_a_row_that_no_record_names_refuses_the_batch(schema: StructType, said: str) -> None:
    """Also the name of a record may be no text."""
    for ids in ([None, None], column([b"\xff", None], pa.string())):
        batch = pa.record_batch([pa.nulls(2, pa.float64()), pa.array(ids, pa.string())], ["x", "messageId"])
        unfit = Unfit()
        fitting(schema, ["x"], "x").fit(batch, unfit)
        # One is enough, however many rows the batch has.
        (row,) = pa.Table.from_pylist([unfit.columns()]).to_pylist()
        again = Unfit()
        again.add(row["ids"], row["reasons"])
        assert again == unfit
        assert len(unfit.nameless) == 1
        with pytest.raises(SinkError, match=re.escape(said)):
            unfit.refuse_nameless(schema, "the table")


class Reason(str):
    """A reason that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Reason.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_reasons_that_all_differ_take_linear_time() -> None:
    """Databases quote the value."""
    count, outcomes, unfit = 2_000, Outcomes(1, "job", 1), Unfit()
    unfit.add([f"m{i}" for i in range(count)], [Reason(f"{i} is too long") for i in range(count)])
    outcomes.refuse(unfit.reasons)
    assert len(outcomes) == count
    assert Reason.compared <= count
