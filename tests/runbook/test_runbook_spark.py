"""The runbook's errors that need a DataFrame of Spark, or a query that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from night import Night, entry
from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import reliable, stop
from kinesis_trident.bolt.errors import NotBareStreamError
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.spout.errors import NotOurSourceError, StopTimeoutError

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def stream(
    spark: SparkSession,
    kinesis_server: EmbeddedKinesis,
    zookeeper: EmbeddedZooKeeper,
    kinesis: KinesisClient,
    make_stream: Callable[..., str],
    app: str,
) -> DataFrame:
    """The DataFrame of an application of this test's own, on a stream with one record."""
    name = make_stream()
    kinesis.put_record(StreamName=name, Data=b"1", PartitionKey="ada")
    options = {
        "streamName": name,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": kinesis_server.endpoint_url,
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
    }
    return spark.readStream.format("kinesis-trident").options(**options).load()


@entry("NotOurSourceError")
def test_a_frame_of_another_source(night: Night, spark: SparkSession, stream: DataFrame) -> None:
    with night.raises(NotOurSourceError):
        reliable(spark.readStream.format("rate").load())
    night.tries("the DataFrame that `load()` returned")
    reliable(stream)


@entry("NotBareStreamError")
def test_a_stream_that_was_filtered_before(night: Night, stream: DataFrame) -> None:
    with night.raises(NotBareStreamError):
        reliable(stream.where("partitionKey = 'ada'"))
    night.tries("`.map()`")
    reliable(stream).map(lambda record: None if record.partitionKey != "ada" else record.data, "data binary")


@entry("StopTimeoutError")
def test_a_batch_that_takes_longer_than_the_patience(
    night: Night, stream: DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    in_hand, go_on = threading.Event(), threading.Event()

    def write(rows: DataFrame, _txid: int) -> None:
        if rows.isEmpty():
            return
        in_hand.set()
        assert go_on.wait(300)

    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert in_hand.wait(300)
        with night.raises(StopTimeoutError):
            stop(query, timeout=0.5)
        night.tries("Call `stop` again")
        go_on.set()
        stop(query, timeout=300)
        assert not query.isActive
    finally:
        go_on.set()
        query.stop()
