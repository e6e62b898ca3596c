"""Reshards on Spark, against the scripted endpoint: a batch between two places, and what `availableNow` drains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import PATIENCE

from kinesis_trident import reliable
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST = "shardId-000000000000"


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        server.create_stream("payments", 1)
        yield server


def put(server: ScriptedKinesis, stream: str, *numbers: int) -> list[str]:
    """Write numbers, each under a key of its own: their sequence numbers."""
    client = server.client()
    return [
        client.put_record(StreamName=stream, Data=b"%d" % n, PartitionKey=str(n))["SequenceNumber"]
        for n in numbers
    ]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.data) for row in frame.select("data").collect())


def access(server: ScriptedKinesis) -> dict[str, str]:
    return {
        "region": "us-east-1",
        "endpointUrl": server.endpoint_url,
        "awsAccessKeyId": "testing",
        "awsSecretAccessKey": "testing",
        "minFetchPeriod": "0ms",
    }


def test_a_batch_between_two_places_is_exact_across_reshards(
    spark: SparkSession, server: ScriptedKinesis
) -> None:
    """Of both streams the first half hour is before the place, the last after it; orders is split and merged."""

    def read(streams: str, **places: str) -> list[int]:
        options = access(server) | {"streamName": streams} | places
        return numbers(spark.read.format("kinesis-trident").options(**options).load())

    put(server, "orders", *range(10))
    put(server, "payments", 100)
    server.split("orders", FIRST)
    server.advance(1800)
    begin = server.now
    left, right = server.shards("orders")
    put(server, "orders", *range(10, 20))
    put(server, "payments", 101)
    server.merge("orders", left, right)
    inside = put(server, "orders", *range(20, 30))
    server.advance(1800)
    end = server.now
    put(server, "orders", *range(30, 40))
    put(server, "payments", 102)
    times = {"startingPosition": f"AT_TIMESTAMP {begin}", "endingPosition": f"AT_TIMESTAMP {end}"}
    assert read("orders", **times) == list(range(10, 30))
    # What was closed before the place is not even asked for.
    assert not [call for call, shard in server.calls if shard == FIRST]
    assert read("orders,payments", **times) == [*range(10, 30), 101]
    assert read("orders", endingPosition=f"AT_TIMESTAMP {begin}") == list(range(10))
    assert read("orders", startingPosition=f"AT_TIMESTAMP {end}") == list(range(30, 40))
    child = server.shards("orders")[0]
    # By sequence numbers in the child: what it came from is behind the start, and before the end.
    after = json.dumps({child: f"AFTER_SEQUENCE_NUMBER {inside[2]}"})
    before = json.dumps({child: f"AT_SEQUENCE_NUMBER {inside[5]}", "*": "LATEST"})
    assert read("orders", startingPosition=after) == list(range(23, 40))
    assert read("orders", startingPosition=after, endingPosition=before) == [23, 24]


@pytest.mark.long
def test_available_now_drains_closed_shards_and_retries_and_ends(
    spark: SparkSession, server: ScriptedKinesis, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    """Two generations of closed shards at the start, a reshard in between, and some records fail twice.

    tests/spout/test_scripted_source.py has each of this without Spark.
    """
    put(server, "orders", *range(20))
    server.split("orders", FIRST)
    put(server, "orders", *range(20, 40))
    server.merge("orders", *server.shards("orders"))
    put(server, "orders", *range(40, 60))
    options = access(server) | {
        "streamName": "orders",
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
        "describeShardInterval": "100ms",
        "retryBackoff": "10ms..10ms x1",
        "retryLimit": "3",
        "maxRecordsPerTrigger": "25",
    }
    came: Counter[int] = Counter()
    attempts: dict[int, int] = {}
    resharded = False

    def parse(record):  # type: ignore[no-untyped-def]
        number = int(record.data)
        if number % 7 == 0 and record.attempt < 3:
            msg = "not yet"
            raise ValueError(msg)
        return number, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        nonlocal resharded
        for row in rows.collect():
            came[row.number] += 1
            attempts[row.number] = row.attempt
        if not resharded:
            server.split("orders", server.shards("orders")[0])
            resharded = True

    stream = spark.readStream.format("kinesis-trident").options(**options).load()
    query = (
        reliable(stream)
        .map(parse, "number int, attempt int")
        .for_each_batch(write)
        .start(checkpointLocation=str(tmp_path), trigger={"availableNow": True})
    )
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    assert came == Counter(range(60))
    assert attempts == {n: 3 if n % 7 == 0 else 1 for n in range(60)}
