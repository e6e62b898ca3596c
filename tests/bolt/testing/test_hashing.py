"""A tuple goes to the same task as in Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions as F

from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.bolt.storm import frames
from kinesis_trident.bolt.testing import local_columns  # noqa: F401
from kinesis_trident.bolt.testing.hashing import repartitions_of
from kinesis_trident.bolt.testing.local_frames import LocalSession
from kinesis_trident.common.arrow_schemas import arrow_schema

FIELDS = parse_schema(
    "text string, raw binary, yes boolean, a tinyint, b smallint, c int, d bigint, e float, f double, day date, "
    "at timestamp, short decimal(10,2), long decimal(30,3), tags array<string>, inner struct<x:int,y:array<double>>"
)
NOON = dt.datetime(2024, 5, 6, 12, 0, 0, 123456, tzinfo=dt.UTC)
ROWS = [
    (
        *("the", b"\x00\xff", True, 1, -2, 3, 1 << 40, 1.5, -0.0),
        *(NOON.date(), NOON, Decimal("1.25"), Decimal(7), ["a", "b"], (1, [2.5])),
    ),
    (
        *("", b"", False, -1, 300, -(1 << 31), -1, -0.0, float("nan")),
        *(dt.date(1960, 1, 1), NOON.replace(year=1960), Decimal("-99.99"), Decimal(-128), [], (None, [])),
    ),
    (
        *("wörter sind länger als zweiunddreißig Bytes", b"x" * 100, None, 0, 0, 0, 0, 0.0, 1e300),
        *(None, None, None, Decimal(10) ** 26 + Decimal("0.123"), None, None),
    ),
]


@pytest.mark.parametrize("tasks", [7, 1_000_003])
def test_rows_go_where_spark_sends_them(spark: SparkSession, tasks: int) -> None:
    here = LocalSession().frame(
        FIELDS, [[pa.RecordBatch.from_pylist([_plain(row) for row in ROWS], arrow_schema(FIELDS))]]
    )
    there = spark.createDataFrame(ROWS, FIELDS)
    expected, found = there, here
    for names in (*([name] for name in FIELDS.names), FIELDS.names):
        columns = {f"plain {len(names)} {names[0]}": None, f"salted {len(names)} {names[0]}": 0x9E3779B9}
        expected = frames.add_hashes(expected, columns, names, tasks)
        found = frames.add_hashes(found, columns, names, tasks)
    both = expected.drop(*FIELDS.names).toArrow().to_pydict(), found.drop(*FIELDS.names).toArrow().to_pydict()
    assert len(both[0]) == 2 * len(FIELDS) + 2
    assert both[0] == both[1]


@pytest.mark.parametrize("tasks", [7, 1_000_003])
def test_rows_are_repartitioned_as_spark_does(spark: SparkSession, tasks: int) -> None:
    batch = pa.RecordBatch.from_pylist([_plain(row) for row in ROWS], arrow_schema(FIELDS))
    there = spark.createDataFrame(ROWS, FIELDS)
    by = (*([name] for name in FIELDS.names), FIELDS.names)
    expected = there.select(*(F.expr(f"pmod(hash({', '.join(names)}), {tasks})") for names in by)).collect()
    assert [list(row) for row in expected] == [
        list(row) for row in zip(*(repartitions_of(batch, names, tasks) for names in by), strict=True)
    ]


def _plain(row: tuple[Any, ...]) -> dict[str, Any]:
    *others, inner = row
    struct = dict(zip("xy", inner, strict=True)) if isinstance(inner, tuple) else None
    return dict(zip(FIELDS.names, [*others, struct], strict=True))
