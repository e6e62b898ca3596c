"""Whole queries that read by enhanced fan-out, against the scripted endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stage import ended, start_available_now

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
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
