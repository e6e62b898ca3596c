"""Schemas as text are read alike with and without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from kinesis_trident.bolt.steps.schemas import _Reader, parse_schema, parse_type

PLAIN = [
    "word string",
    "word STRING, n BigInt,at timestamp",
    "a tinyint, b smallint, c int, d long, e byte, f short, g integer",
    "a float, b real, c double, d boolean, e binary, f date, g timestamp_ntz",
    "a decimal, b decimal(10,2), c dec( 5 ), d numeric(38, 38)",
    "tags array<string>, counts map<string, array<bigint>>, at struct<x: int, y: double>",
    "`a name` string NOT NULL, b: int",
    "nested array<struct<a:array<map<int,string>>,b:int>>",
]
BROKEN = [
    "word",
    "word strange",
    "string word,",
    "a array<int",
    "a int b int",
    "a decimal(39)",
    "a decimal(3,4)",
    "a-b int",
    "a int)",
]


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_schema_is_read_as_spark_reads_it(spark: SparkSession, text: str) -> None:
    assert _Reader(text).schema() == StructType.fromDDL(text) == parse_schema(text)


@pytest.mark.parametrize("text", BROKEN)
def test_what_spark_refuses_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read at"):
        _Reader(text).schema()
    with pytest.raises(Exception, match=r"SQLSTATE|DECIMAL|Decimal"):
        parse_schema(text)


@pytest.mark.parametrize("text", ["bigint", "decimal(10,2)", "array<map<string,int>>"])
def test_a_type_is_read_as_spark_reads_it(spark: SparkSession, text: str) -> None:
    assert parse_type(text) == DataType.fromDDL(text)
    with pytest.raises(ValueError, match="cannot be read"):
        parse_type(f"{text} x")
