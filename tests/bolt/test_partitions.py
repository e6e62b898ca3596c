"""Rows go to the partitions that they name, also with a Spark that moves them only by a hash."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from thorough import cases

from kinesis_trident.bolt.partitions import find_values, move_to_partitions


class Older:
    """A frame of Spark 4.0."""

    def __init__(self, frame: DataFrame) -> None:
        self.repartition = frame.repartition


@pytest.mark.parametrize("count", cases(1, 2, 7, long=(200,)))
def test_each_row_goes_to_the_partition_that_it_names(spark: SparkSession, count: int) -> None:
    frame = spark.range(count).select(F.col("id").cast("int").alias("place"))
    for one in (frame, Older(frame)):
        moved = move_to_partitions(one, count, F.col("place"))  # type: ignore[arg-type]
        assert moved.where(F.spark_partition_id() != F.col("place")).count() == 0
        assert moved.count() == count


def test_the_hash_is_spark_s(spark: SparkSession) -> None:
    values = find_values(50)
    assert len(set(values)) == 50
    rows = spark.createDataFrame([(value,) for value in values], "value int").select(
        F.expr("pmod(hash(value), 50)")
    )
    assert [row[0] for row in rows.collect()] == list(range(50))
