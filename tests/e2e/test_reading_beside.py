"""A whole Spark job with `prefetch`: Kinesis is read while a batch runs, and each record comes once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness import PATIENCE, eventually
from stage import start_available_now

from kinesis_trident import stop
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_job_reads_beside_its_batches(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    """The endpoint has AWS's limits."""
    seen: Counter[bytes] = Counter()
    batches: list[int] = []
    with ScriptedKinesis() as kinesis:
        kinesis.create_stream("orders", 2)
        shards = kinesis.shards("orders")

        def put(numbers: range) -> None:
            for number in numbers:
                kinesis.put("orders", shards[number % 2], b"%d" % number)

        def calls() -> list[int]:
            return [kinesis.calls["GetRecords", shard] for shard in shards]

        def count(df: DataFrame, batch: int) -> None:
            rows = df.select("data").collect()
            if rows and not seen:
                before = calls()
                put(range(20, 40))
                eventually(
                    lambda: all(now > then for now, then in zip(calls(), before, strict=True)),
                    "reads beside the first batch",
                )
            seen.update(bytes(row.data) for row in rows)
            batches.append(batch)

        given = {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": kinesis.endpoint_url,
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
            "applicationName": app,
            "zookeeper.hosts": zookeeper.hosts,
            "startingPosition": "TRIM_HORIZON",
            "prefetch": "true",
        }
        put(range(20))
        frame = spark.readStream.format("kinesis-trident").options(**given).load()
        writer = frame.writeStream.foreachBatch(count).option("checkpointLocation", str(tmp_path))
        query = writer.start()
        try:
            eventually(lambda: len(seen) == 40 or query.exception(), "the records of the first two batches")
            # Spark's own stop would have the batch in hand counted again.
            stop(query, timeout=PATIENCE)
        finally:
            query.stop()
        put(range(40, 50))
        query = start_available_now(writer, frame)
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
    assert seen == Counter(b"%d" % number for number in range(50))
    assert batches == sorted(batches)
