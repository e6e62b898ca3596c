"""Whole queries that read by enhanced fan-out, against the scripted endpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import eventually, layout_of
from kazoo.client import KazooClient
from stage import ended, start_available_now

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.testing import Cut, Quotas, Refuse, ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = [
    "messageId",
    "partitionKey",
    "data",
    "shardId",
    "sequenceNumber",
    "approximateArrivalTimestamp",
    "attempt",
]
STREAM = "orders"


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in df.select(*COLUMNS).collect()]


def test_polling_and_fan_out_give_the_same_rows_and_every_action_of_a_batch_too(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    with ScriptedKinesis(quotas=Quotas(None, None, None, None, resubscribe_ms=300)) as kinesis:
        kinesis.create_stream(STREAM, 2)
        client = kinesis.client()

        def put(numbers: range) -> None:
            client.put_records(
                StreamName=STREAM,
                Records=[{"Data": b"%d" % n, "PartitionKey": str(n % 7)} for n in numbers],
            )

        def start(mode: str, sink: Callable[[DataFrame, int], None]) -> StreamingQuery:
            stream = (
                spark.readStream.format("kinesis-trident")
                .option("streamName", STREAM)
                .option("region", "us-east-1")
                .option("endpointUrl", kinesis.endpoint_url)
                .option("applicationName", f"{app}-{mode}")
                .option("zookeeper.hosts", zookeeper.hosts)
                .option("startingPosition", "TRIM_HORIZON")
                .option("minFetchPeriod", "0ms")
                .option("describeShardInterval", "100ms")
                .option("consumerMode", mode)
                .load()
            )
            out = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / mode))
            return start_available_now(out, stream)

        polled: list[tuple[Any, ...]] = []
        pushed: list[tuple[Any, ...]] = []
        later = iter((range(60, 80),))

        def twice(df: DataFrame, _: int) -> None:
            first = rows_of(df)
            # A subscription that began now would find these too.
            for numbers in later:
                put(numbers)
            assert rows_of(df) == first
            assert df.count() == len(first)
            pushed.extend(first)

        put(range(30))
        parent = kinesis.shards(STREAM)[0]
        kinesis.split(STREAM, parent)
        put(range(30, 60))
        faults = (Cut(), Refuse("InternalFailureException"))
        for fault in faults:
            kinesis.script("SubscribeToShardEvent", fault)
        ended(start("efo", twice))
        assert kinesis.faults_left == 0
        # Read again by polling; new records by subscription alone, but for the looks of the planning process.
        assert kinesis.calls["SubscribeToShard", parent] >= 1
        ended(start("efo", lambda df, _: pushed.extend(rows_of(df))))
        ended(start("polling", lambda df, _: polled.extend(rows_of(df))))
    assert len(pushed) == 80
    assert sorted(pushed) == sorted(polled)
    order = [row[4] for row in pushed if row[3] == parent]
    assert order == sorted(order, key=int)


def shared(
    spark: SparkSession, kinesis: ScriptedKinesis, consumer: str, zookeeper: EmbeddedZooKeeper, app: str
) -> DataFrame:
    """The stream, read with the consumer that its owner has registered."""
    given = {
        "consumerARN": consumer,
        "consumerMode": "efo",
        "endpointUrl": kinesis.endpoint_url,
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
        "minFetchPeriod": "0ms",
        "describeShardInterval": "100ms",
    }
    return spark.readStream.format("kinesis-trident").options(**given).load()


def registered(kinesis: ScriptedKinesis, stream: str) -> str:
    """Register a consumer with a stream, and return its ARN."""
    made = kinesis.client().register_stream_consumer(StreamARN=stream, ConsumerName="theirs")
    return made["Consumer"]["ConsumerARN"]


THEIRS, OURS = (
    f"arn:aws:kinesis:us-east-1:{account}:stream/orders" for account in ("999988887777", "123456789012")
)


@pytest.mark.long
def test_a_query_with_a_consumer_of_another_account_goes_on_after_a_restart(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    """Without Spark this is in tests/spout/test_scripted_source.py."""
    with ScriptedKinesis(
        owner="999988887777", quotas=Quotas(None, None, None, None, resubscribe_ms=300)
    ) as kinesis:
        kinesis.create_stream(STREAM, 2)
        client = kinesis.client()
        consumer = registered(kinesis, THEIRS)
        before = client.list_stream_consumers(StreamARN=THEIRS)["Consumers"]
        kinesis.calls.clear()
        read: list[int] = []
        for life in range(2):
            numbers = range(20 * life, 20 * life + 20)
            client.put_records(
                StreamARN=THEIRS, Records=[{"Data": b"%d" % n, "PartitionKey": str(n % 7)} for n in numbers]
            )
            kinesis.split(STREAM, kinesis.shards(STREAM)[0])
            stream = shared(spark, kinesis, consumer, zookeeper, app)
            out = stream.writeStream.foreachBatch(
                lambda df, _: read.extend(int(row.data) for row in df.select("data").collect())
            )
            ended(start_available_now(out.option("checkpointLocation", str(tmp_path / "spark")), stream))
            assert sorted(read) == list(range(20 * life + 20))
        assert client.list_stream_consumers(StreamARN=THEIRS)["Consumers"] == before
        names = {name for name, _ in kinesis.calls}
    assert not names & {"RegisterStreamConsumer", "DeregisterStreamConsumer"}
    assert "SubscribeToShard" in names


@pytest.mark.long
def test_two_applications_with_one_consumer_read_all_once_and_are_told(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, keeper: KazooClient, app: str, tmp_path: Path
) -> None:
    """The consumer allows a subscription every 5 seconds, so each of them is refused now and then, and replaced."""
    with ScriptedKinesis(quotas=Quotas(None, None, None, None)) as kinesis:
        kinesis.create_stream(STREAM)
        client, shard = kinesis.client(), kinesis.shards(STREAM)[0]
        consumer = registered(kinesis, OURS)
        read: dict[str, list[int]] = {f"{app}-1": [], f"{app}-2": []}
        stores = {
            name: SourceStore(keeper, replace(layout_of(client, STREAM), application=name)) for name in read
        }
        queries = []

        def begin(name: str) -> None:
            def collect(df: DataFrame, _: int) -> None:
                read[name].extend(int(row.data) for row in df.select("data").collect())

            out = shared(spark, kinesis, consumer, zookeeper, name).writeStream.foreachBatch(collect)
            queries.append(out.option("checkpointLocation", str(tmp_path / name)).start())

        def statuses() -> list[Any]:
            return [store.status.get() for store in stores.values()]

        written = count()

        def are_told() -> bool:
            for query in queries:
                assert query.exception() is None
            kinesis.put(STREAM, shard, b"%d" % next(written))
            return all(status is not None and status.taken is not None for status in statuses())

        for name in read:
            begin(name)
        try:
            eventually(are_told, "both queries have noticed each other")
            everything = list(range(next(written)))
            eventually(
                lambda: all(len(numbers) >= len(everything) for numbers in read.values()), "all is read"
            )
        finally:
            for query in queries:
                query.stop()
        assert {name: sorted(numbers) for name, numbers in read.items()} == dict.fromkeys(read, everything)
        # A turn asks once for a subscription, and is then polled; the last of them may not be counted yet.
        turns = sum(status.counts.batches for status in statuses())
        assert 4 <= kinesis.calls["SubscribeToShard", shard] <= turns + 10
        assert kinesis.calls["GetRecords", shard] > 0
        assert len(client.list_stream_consumers(StreamARN=OURS)["Consumers"]) == 1
