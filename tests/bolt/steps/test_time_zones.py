"""Times come to functions in the session's time zone, whatever name of it Spark takes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import available_timezones

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Columns, Record
from kinesis_trident.bolt.steps.time_zones import in_known_zones, known_zone

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)  # noqa: UP017
FORMS = ("{sign}{hours:02}:{minutes:02}", "{sign}{hours:02}{minutes:02}", "{sign}{hours:02}:{minutes:02}:00")


def times_in(zone: str) -> pa.RecordBatch:
    """Return a batch with a time in this zone, also within other types."""
    time = pa.timestamp("us", zone)
    kinds = {
        "plain": time,
        "list": pa.list_(time),
        "struct": pa.struct([("at", time), ("other", pa.int64())]),
        "map": pa.map_(pa.string(), pa.list_(time)),
        "none": pa.timestamp("us"),
        "text": pa.string(),
    }
    values = {
        "plain": NOON,
        "list": [NOON],
        "struct": {"at": NOON, "other": 1},
        "map": [("k", [NOON])],
        "none": NOON.replace(tzinfo=None),
        "text": "x",
    }
    schema = pa.schema(list(kinds.items()))
    utc = pa.schema(
        [(name, pa.timestamp("us", "UTC") if name == "plain" else kind) for name, kind in kinds.items()]
    )
    arrays = [
        pa.array([NOON.timestamp() * 1_000_000], pa.int64()).cast(utc.field("plain").type).cast(time),
        *(
            pa.nulls(1, kind) if name not in ("none", "text") else pa.array([values[name]], kind)
            for name, kind in list(kinds.items())[1:]
        ),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@given(
    st.sampled_from(["", "UTC", "GMT", "UT"]),
    st.sampled_from("+-"),
    st.integers(0, 17),
    st.integers(0, 59),
    st.sampled_from(FORMS),
)
def test_an_offset_is_an_offset_in_each_of_its_forms(
    before: str, sign: str, hours: int, minutes: int, form: str
) -> None:
    zone = before + form.format(sign=sign, hours=hours, minutes=minutes)
    (time,) = in_known_zones(times_in(zone)).column("plain").to_pylist()
    ahead = timedelta(hours=hours, minutes=minutes)
    assert time == NOON
    assert time.utcoffset() == (ahead if sign == "+" else -ahead)


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("GMT+3", 3), ("UTC-11", -11), ("Z", 0), ("UT", 0), ("PST", -7), ("IST", 5.5), ("-3", -3)],
)
def test_javas_own_names_are_known(zone: str, hours: float) -> None:
    (time,) = in_known_zones(times_in(zone)).column("plain").to_pylist()
    assert (time, time.utcoffset()) == (NOON, timedelta(hours=hours))


def test_times_within_other_types_are_in_the_zone_too() -> None:
    schema = in_known_zones(times_in("GMT+3")).schema
    time = pa.timestamp("us", "+03:00")
    assert schema.field("list").type == pa.list_(time)
    assert schema.field("struct").type == pa.struct([("at", time), ("other", pa.int64())])
    assert schema.field("map").type == pa.map_(pa.string(), pa.list_(time))
    assert schema.field("none").type == pa.timestamp("us")


@given(st.sampled_from(sorted(available_timezones() - {"localtime", "EST", "MST", "HST"})))
def test_what_python_knows_stays(zone: str) -> None:
    batch = times_in(zone)
    assert in_known_zones(batch) is batch


@pytest.mark.parametrize("zone", ["SystemV/PST8PDT", "+03:00:30", "../x", "", "GMT+1234567"])
def test_what_python_does_not_know_is_refused_by_the_name_of_the_setting(zone: str) -> None:
    with pytest.raises(OperatorError, match=r"spark\.sql\.session\.timeZone is .*Set it to a region"):
        known_zone(zone)


class Broken:
    """A column whose values cannot be made."""

    names = ("at",)

    def values(self, name: str) -> list[Any]:
        raise KeyError(f"the time zone of {name} is not known")


def test_an_error_of_a_value_is_not_taken_for_a_missing_column() -> None:
    with pytest.raises(KeyError, match="is not known"):
        _ = Record(cast(Columns, Broken()), 0).at
    with pytest.raises(AttributeError, match="there is no column 'other'"):
        _ = Record(Columns(times_in("UTC")), 0).other
