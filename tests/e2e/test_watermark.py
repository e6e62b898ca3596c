"""Spark's own watermark over a backlog whose shards have unequal rates: no row is late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_blocks import PAGES, blocks_of
from harness import PATIENCE
from pyspark.sql import functions as F
from stage import start_available_now

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 10
RATES = (1, 60, 100, 1, 30, 100, 1, 100)
"""Records an hour of each shard."""


@pytest.fixture(scope="module")
def backlog() -> Iterator[ScriptedKinesis]:
    """Ten hours of records in eight shards."""
    began = time.time()
    with ScriptedKinesis(
        clock=lambda: int((time.time() - HOURS * 3600) * 1000), quotas=Quotas.none()
    ) as kinesis:
        kinesis.create_stream("orders", len(RATES))
        shards = kinesis.shards("orders")
        puts = sorted(
            ((n + 0.5) / rate, shard)
            for shard, rate in zip(shards, RATES, strict=True)
            for n in range(rate * HOURS)
        )
        at = 0.0
        for hours, shard in puts:
            kinesis.advance((hours - at) * 3600)
            at = hours
            kinesis.put("orders", shard, b"x")
        kinesis.advance((HOURS - at) * 3600)
        assert abs(kinesis.now / 1000 - began) < PATIENCE
        yield kinesis


def test_a_watermark_drops_nothing_of_a_backlog(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, backlog: ScriptedKinesis, app: str, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("kinesis-trident")
        .option("streamName", "orders")
        .option("region", "us-east-1")
        .option("endpointUrl", backlog.endpoint_url)
        .option("applicationName", app)
        .option("zookeeper.hosts", zookeeper.hosts)
        .option("startingPosition", "TRIM_HORIZON")
        .option("maxFetchRecordsPerShard", "300")
        .option("maxShardSkew", "2h")
        .option("minFetchPeriod", "0ms")
        .load()
    )
    (block,) = blocks_of(PAGES["watermarks.md"])
    # A minute more than the option.
    names = {"stream": stream, "F": F}
    exec(block.text.replace("10 minutes", "121 minutes"), names)
    out = (
        names["counts"]
        .writeStream.format("memory")
        .queryName(app.replace("-", "_"))
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
    )
    query = start_available_now(out, stream)
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    last = spark.table(app.replace("-", "_")).groupBy("window").agg(F.max("count").alias("count"))
    counted = last.agg(F.sum("count")).collect()[0][0]
    dropped = sum(p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress)
    assert (counted, dropped) == (sum(RATES) * HOURS, 0)
