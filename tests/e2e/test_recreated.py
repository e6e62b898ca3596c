"""A stream that is deleted and created again under a running query: it goes on with the new one, whatever its sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import eventually
from pyspark.sql import SparkSession
from sinks import making_applications
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


@pytest.mark.parametrize(
    "sink",
    cases("reliable", long=("noop", "trident", "parquet", "batches", "bolts")),
)
def test_a_query_goes_on_with_the_new_stream_where_a_loss_is_put_up_with(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path: Path, app: str, sink: str
) -> None:
    with making_applications(spark, zookeeper.hosts, tmp_path, app) as make:
        one = make(sink, failOnDataLoss="false", describeShardInterval="200ms")
        old = one.put("old")
        query = one.start()
        eventually(lambda: one.has_settled(old), "the batch of the old stream")
        one.kinesis.recreate(one.name)
        new = one.put("new")
        eventually(lambda: one.has_settled(new), "the batch of the new stream")
        another = one.put("another")
        eventually(lambda: one.has_settled(another), "a further batch of the new stream")
        assert query.isActive
