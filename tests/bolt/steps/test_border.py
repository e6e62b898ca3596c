"""A type, values and a path into and out of functions are drawn: equal values come back, or a record fails alone."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from border_paths import ARROW, CASES, READS, Path, matrix_rows, schema_of
from border_values import STRAY, TYPES, UTC, Drawn, equal
from doc_tables import BORDER_TABLE
from hypothesis import given, settings, strategies as st
from pyspark.sql import Row, types as T
from thorough import examples

from kinesis_trident.bolt.steps.border import column, fitting, read, rows_that_fit
from kinesis_trident.bolt.steps.schemas import parse_type
from kinesis_trident.bolt.steps.time_zones import ZONE, in_session


@settings(max_examples=examples(300))
@given(st.data(), TYPES, st.sampled_from([*READS, *ARROW]))
def test_what_fits_comes_back_equal_on_each_path(data: st.DataObject, drawn: Drawn, name: str) -> None:
    of, content = drawn
    values = data.draw(st.lists(st.none() | content, max_size=6))
    given_, unfit = column(values, schema_of(of).field("x"))
    assert unfit == {}
    seen: list[Any] = []
    found, failed = (READS | ARROW)[name](of, given_, None, seen)
    assert failed == {}
    assert len(found) == len(values)
    assert all(map(equal, values, found.values()))
    if name in READS and name != "pandas":
        assert all(map(equal, values, seen))


@settings(max_examples=examples(300))
@given(st.data(), TYPES)
def test_a_value_comes_back_equal_or_its_record_fails_alone(data: st.DataObject, drawn: Drawn) -> None:
    of, content = drawn
    values = data.draw(st.lists(st.none() | content | STRAY, min_size=1, max_size=6))
    given_ = pa.nulls(len(values), schema_of(of).field("x").type)
    answers = []
    for path in READS.values():
        found, failed = path(of, given_, values, [])
        assert found.keys() | failed.keys() == set(range(len(values)))
        assert not found.keys() & failed.keys()
        assert all(equal(values[row], value) for row, value in found.items()), (values, found)
        assert all("the field 'x" in reason for reason in failed.values())
        answers.append((found, failed))
    assert all(answer == answers[0] for answer in answers), answers


def spoiled(kind: pa.DataType, values: Sequence[Any], bad: Sequence[int]) -> pa.Array:
    """Return a column with values that Python cannot have in some rows."""
    if pa.types.is_string(kind):
        return pa.array([b"\xff\xfe" if row in bad else b"a" for row in range(len(values))]).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array([1782900000000 * 10**6 if row in bad else 0 for row in range(len(values))]).view(kind)
    days = pa.array([10**8 if row in bad else 0 for row in range(len(values))], pa.int32())
    return days.view(kind)


@settings(max_examples=examples(100))
@given(
    st.sampled_from(["string", "date", "timestamp", "timestamp_ntz"]),
    st.sampled_from(["", "array", "map", "struct"]),
    st.sampled_from([*READS]),
    st.integers(1, 12),
    st.data(),
)
def test_what_python_cannot_have_fails_its_record_alone(
    name: str, within: str, path: str, count: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    of = parse_type(name)
    values = spoiled(schema_of(of).field("x").type, range(count), [*bad])
    ends = pa.array(range(count + 1), pa.int32())
    if within == "array":
        of, values = T.ArrayType(of), pa.ListArray.from_arrays(ends, values)
    elif within == "map":
        of = T.MapType(T.StringType(), of)
        values = pa.MapArray.from_arrays(ends, pa.array(["k"] * count), values)
    elif within == "struct":
        of, values = T.StructType([T.StructField("f", of)]), pa.StructArray.from_arrays([values], ["f"])
    found, failed = READS[path](of, values, None, [])
    assert failed.keys() == bad
    where = "x.f" if within == "struct" else "x"
    words = "no valid UTF-8" if name == "string" else "no time of the years 1 to 9999"
    assert set(failed.values()) <= {
        f"the field '{where}' is {words}",
        f"ValueError: the field '{where}' is {words}",
    }
    assert found.keys() == set(range(count)) - bad


@pytest.mark.parametrize("path", [READS["function of a record"], READS["Trident"], READS["bolt"]])
def test_a_time_has_the_zone_of_the_session_on_each_path(path: Path) -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    of = parse_type("timestamp")
    try:
        for zone in ("America/New_York", "UTC", "+03:00"):
            for made in ("UTC", zone):
                seen: list[Any] = []
                given_ = pa.array([noon], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", made))
                [batch] = in_session(zone, [pa.RecordBatch.from_arrays([given_], ["x"])])
                assert path(of, batch.column(0), None, seen) == ({0: noon}, {})
                hours = -4 if "/" in zone else 3 if "+" in zone else 0
                assert seen[0].utcoffset() == timedelta(hours=hours)
    finally:
        ZONE.name = "UTC"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "+03:00", "-03:00"])
@pytest.mark.parametrize("path", READS)
def test_a_time_that_the_sessions_zone_has_no_more_is_given_in_utc(path: str, zone: str) -> None:
    times = [datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    times.append(datetime(2026, 7, 1, tzinfo=UTC))
    within = [{"at": [one]} for one in times]
    try:
        for of, values in (
            (parse_type("timestamp"), times),
            (parse_type("struct<at:array<timestamp>>"), within),
        ):
            given_, _ = column([*values, None], schema_of(of).field("x"))
            [batch] = in_session(zone, [pa.RecordBatch.from_arrays([given_], ["x"])])
            assert READS[path](of, batch.column(0), None, []) == (dict(enumerate([*values, None])), {})
    finally:
        ZONE.name = "UTC"


@pytest.mark.parametrize("path", READS)
def test_a_map_with_keys_that_no_dict_has_is_a_list_of_pairs(path: str) -> None:
    for name, keys in {"struct<a:bigint>": [{"a": 1}, {"a": 2}], "array<bigint>": [[1], [2]]}.items():
        of, seen = parse_type(f"map<{name},bigint>"), list[Any]()
        pairs = [(key, number) for number, key in enumerate(keys)]
        made = pa.array([pairs, [], None], schema_of(of).field("x").type)
        assert READS[path](of, made, None, seen) == ({0: pairs, 1: [], 2: None}, {})
        twice = [(keys[0], 1), (keys[0], 2)]
        found, failed = READS[path](of, made.slice(0, 1), [twice], [])
        assert found == {}
        assert "a map with one key twice" in failed[0]


@pytest.mark.parametrize("path", READS)
def test_a_time_as_a_date_is_its_day_in_its_own_zone(path: str) -> None:
    late = datetime(2026, 1, 1, 20, tzinfo=ZoneInfo("America/New_York"))
    nulls = pa.nulls(1, pa.date32())
    assert READS[path](parse_type("date"), nulls, [late], []) == ({0: date(2026, 1, 1)}, {})
    ntz = parse_type("timestamp_ntz")
    there = datetime(2026, 1, 2, 1)  # noqa: DTZ001
    assert READS[path](ntz, pa.nulls(1, pa.timestamp("us")), [late], []) == ({0: there}, {})
    zoned = pa.array([late], pa.timestamp("us", "America/New_York"))
    assert read(column(zoned, pa.field("x", pa.date32()))[0]) == [date(2026, 1, 1)]
    assert read(column(zoned, pa.field("x", pa.timestamp("us")))[0]) == [there]


def test_integers_beside_a_null_keep_their_last_digits_through_pandas() -> None:
    values = [2**60 + 1, None, 2**53 + 1]
    for name, whole in {
        "bigint": values,
        "array<bigint>": [values, None, [None]],
        "struct<a:bigint>": [{"a": one} for one in values],
        "map<string,bigint>": [{"a": 2**60 + 1, "b": None}, {}, None],
    }.items():
        of = parse_type(name)
        given_, _ = column(whole, schema_of(of).field("x"))
        assert READS["pandas"](of, given_, None, []) == (dict(enumerate(whole)), {})


@pytest.mark.parametrize("text", ["Infinity", "NaN", "sNaN", "1E+999999"])
def test_a_decimal_that_is_no_integer_is_refused_by_its_value(text: str) -> None:
    whole = pa.field("x", pa.int64())
    assert column([Decimal(text)], whole)[1] == {
        0: f"the field 'x' is bigint, but a value is Decimal('{text}')"
    }


Point = namedtuple("Point", "b a")


@pytest.mark.parametrize("value", [{"b": 2, "a": 1}, Row(b=2, a=1), Point(b=2, a=1), (1, 2)])
@pytest.mark.parametrize("path", READS)
def test_parts_go_by_name_where_a_value_has_names(value: Any, path: str) -> None:
    of = parse_type("struct<a:bigint,b:bigint>")
    answer = READS[path](of, pa.nulls(1, schema_of(of).field("x").type), [value], [])
    assert answer == ({0: {"a": 1, "b": 2}}, {})


def test_a_column_of_arrow_fits_by_the_same_rule() -> None:
    kinds = [pa.array([1.0, 2.5, None, 3e300]), pa.array([{"b": 1, "a": 2}] * 4)]
    schema = pa.schema([("x", pa.int64()), ("y", pa.struct([("a", pa.int64()), ("b", pa.int32())]))])
    made, places, unfit = fitting(kinds, 4, schema)
    assert made.to_pydict() == {"x": [1, None], "y": [{"a": 2, "b": 1}] * 2}
    assert places is not None
    assert places.tolist() == [0, 2]
    assert set(unfit) == {1, 3}
    for given_, kind in (
        (pa.array([1782900000000]), pa.timestamp("us", "UTC")),
        (pa.array([19000]), pa.date32()),
        (pa.array(["12"]), pa.int64()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1.5]), pa.decimal128(10, 2)),
        (pa.array([True]), pa.int64()),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
        (pa.array([[1.5]]), pa.list_(pa.int64())),
        (pa.array([[None]], pa.list_(pa.int64())), pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ):
        made, unfit = column(given_, pa.field("x", kind))
        assert len(made) == 0
        assert "the field 'x" in unfit[0]


def test_rows_that_do_not_fit_are_found_by_halves() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    rows = [(row if row % 100 else "no", "x" if row % 77 else 5) for row in range(1000)]
    made, places, unfit = rows_that_fit(rows, schema)
    assert set(unfit) == {row for row in range(1000) if not row % 100 or not row % 77}
    assert places == [row for row in range(1000) if row not in unfit]
    assert made.column("n").to_pylist() == places
    assert unfit[0] == "the field 'n' is bigint, but a value is 'no'"


def test_the_table_of_the_page_is_what_the_paths_give() -> None:
    assert len(matrix_rows()) == len(CASES)
    assert BORDER_TABLE.read() == BORDER_TABLE.render()
