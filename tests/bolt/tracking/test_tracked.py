"""Operators that follow each other become one frame, when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.bolt.tracking.tracked import Chain, Tracked
from kinesis_trident.common.arrow_schemas import arrow_schema

NUMBERS = StructType().add("number", "long").add("name", "string")
TIMES = StructType().add("at", "timestamp")


class Base(LocalFrame):
    """Counts the frames that are made of it."""

    made = 0

    def mapInArrow(self, operator, schema):  # type: ignore[no-untyped-def]
        Base.made += 1
        return super().mapInArrow(operator, schema)


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [{"number": 2 * row["number"], "name": row["name"]} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, arrow_schema(NUMBERS))


def timed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        at = [datetime.fromtimestamp(row["number"], UTC) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pydict({"at": at}, arrow_schema(TIMES))


@pytest.fixture
def base() -> DataFrame:
    rows = pa.RecordBatch.from_pydict({"number": [1, 2], "name": ["a", "b"]}, arrow_schema(NUMBERS))
    Base.made = 0
    return cast(DataFrame, Base(LocalSession(), NUMBERS, 1, lambda: [[rows]]))


def numbers(tuples: Tracked) -> list[int]:
    return [row.number for row in tuples.frame.collect()]


def test_only_the_last_frame_is_made(base: DataFrame) -> None:
    first = Tracked(base, ()).through(doubled, NUMBERS, ("first",))
    second = first.through(doubled, NUMBERS, ("second",))
    assert Base.made == 0
    assert numbers(second) == [4, 8]
    assert numbers(second) == [4, 8]
    assert Base.made == 1
    assert numbers(first) == [2, 4]
    assert second.producers == ("second",)


def test_columns_are_selected_on_the_way(base: DataFrame) -> None:
    read = Tracked(base, ("source",), Chain(base, (doubled,), NUMBERS))
    assert numbers(read) == [1, 2]
    some = read.select(["number"]).through(timed, TIMES, ("timed",))
    assert [row.at.timestamp() for row in some.frame.collect()] == [2, 4]
    assert Base.made == 1
    assert read.select(["name"]).frame.columns == ["name"]
    assert Tracked(base, ()).select(["name"]).frame.columns == ["name"]


def test_times_come_back_from_spark_before_the_next_operator(base: DataFrame) -> None:
    times = Tracked(base, ()).through(timed, TIMES, ("timed",))
    assert Base.made == 1
    assert times.through(timed, TIMES, ("again",)).frame is not times.frame
    assert Base.made == 1


def test_moved_tuples_have_a_frame_of_their_own(base: DataFrame) -> None:
    made = Tracked(base, ()).through(doubled, NUMBERS, ("first",))
    moved = made.on(made.frame)
    assert numbers(moved.through(doubled, NUMBERS, ("second",))) == [4, 8]
    assert numbers(made.union(made)) == [2, 4, 2, 4]
