"""Fixtures that the tests of operators on Spark share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from batch_in_hand import batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


@pytest.fixture
def in_hand(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, request: pytest.FixtureRequest
) -> Iterator[tuple[DataFrame, CurrentBatch]]:
    """Rows of two shards, and their batch with its pins; Spark's workers get the functions of the test's module."""
    cloudpickle.register_pickle_by_value(request.module)
    with batch_in_hand(spark, zookeeper.hosts, app) as made:
        yield made


@pytest.fixture(scope="module")
def carrier(spark: SparkSession) -> AccumulatorCarrier:
    """The carrier of one module's reports."""
    return AccumulatorCarrier()
