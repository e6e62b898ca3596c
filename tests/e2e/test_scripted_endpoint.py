"""The example of docs/testing.md: a whole Spark job against the scripted endpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness import PATIENCE
from stage import start_available_now

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Cut, Quotas, Refuse, ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_job_over_a_reshard_with_faults(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path
) -> None:
    seen: Counter[bytes] = Counter()

    def count(df: DataFrame, _: int) -> None:
        seen.update(bytes(row.data) for row in df.select("data").collect())

    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        kinesis.create_stream("orders", 2)
        client = kinesis.client()
        for n in range(60):
            if n == 30:
                kinesis.split("orders", kinesis.shards("orders")[0])
            client.put_record(StreamName="orders", Data=b"%d" % n, PartitionKey=str(n % 7))
        for fault in (Refuse.expired(), Refuse.throttled(), Refuse.failed(), Cut()):
            kinesis.script("GetRecords", fault, skip=3)
        df = (
            spark.readStream.format("kinesis-trident")
            .option("streamName", "orders")
            .option("region", "us-east-1")
            .option("endpointUrl", kinesis.endpoint_url)
            .option("awsAccessKeyId", "testing")
            .option("awsSecretAccessKey", "testing")
            .option("applicationName", app)
            .option("zookeeper.hosts", zookeeper.hosts)
            .option("startingPosition", "TRIM_HORIZON")
            .option("minFetchPeriod", "0ms")
            .option("describeShardInterval", "100ms")
            .load()
        )
        out = df.writeStream.foreachBatch(count).option("checkpointLocation", str(tmp_path))
        query = start_available_now(out, df)
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
        assert kinesis.faults_left == 0
    assert seen == Counter(b"%d" % n for n in range(60))
