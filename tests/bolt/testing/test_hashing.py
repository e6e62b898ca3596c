"""A tuple goes to the same task as in Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.bolt.testing.hashing import partitions_of
from kinesis_trident.bolt.testing.local_frames import arrow

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
        *(None, None, None, Decimal(10) ** 25, None, None),
    ),
]


@pytest.mark.parametrize("partitions", [7, 1_000_003])
def test_rows_go_where_spark_sends_them(spark: SparkSession, partitions: int) -> None:
    frame = spark.createDataFrame(ROWS, FIELDS)
    one_by_one = [F.pmod(F.xxhash64(name), F.lit(partitions)).alias(name) for name in FIELDS.names]
    together = F.pmod(F.xxhash64(*FIELDS.names), F.lit(partitions)).alias("all")
    expected = frame.select(*one_by_one, together).toArrow()
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(FIELDS.names, _plain(row), strict=True)) for row in ROWS], arrow(FIELDS)
    )
    for name in FIELDS.names:
        assert partitions_of(batch, [name], partitions) == expected.column(name).to_pylist(), name
    assert partitions_of(batch, FIELDS.names, partitions) == expected.column("all").to_pylist()


def _plain(row: tuple[object, ...]) -> list[object]:
    *others, inner = row
    return [*others, dict(zip("xy", inner, strict=True)) if isinstance(inner, tuple) else None]
