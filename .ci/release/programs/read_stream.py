"""Read a stream with Spark, from servers that the package brings; each record is acked, one after a retry."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import Outcomes, ensure_java, reliable
from kinesis_trident.testing import EmbeddedZooKeeper, Quotas, ScriptedKinesis

RECORDS = 40


def parse(record: Any) -> tuple[int]:
    """Fail one record the first time that it comes."""
    number = int(record.data)
    if number == RECORDS // 2 and record.attempt == 1:
        raise TimeoutError
    return (number,)


def main() -> None:
    """Raise an AssertionError unless each record has come once."""
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    seen: list[int] = []

    def write(df: DataFrame, _txid: int, _outcomes: Outcomes) -> None:
        seen.extend(row.number for row in df.select("number").collect())

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedZooKeeper() as zookeeper,
        ScriptedKinesis(quotas=Quotas.none()) as kinesis,
    ):
        kinesis.create_stream("orders", 2)
        client = kinesis.client()
        for number in range(RECORDS):
            client.put_record(StreamName="orders", Data=b"%d" % number, PartitionKey=str(number))
        options = {
            "streamName": "orders",
            "region": "us-east-1",
            "endpointUrl": kinesis.endpoint_url,
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
            "applicationName": "release",
            "zookeeper.hosts": zookeeper.hosts,
            "startingPosition": "TRIM_HORIZON",
            "retryBackoff": "1ms..1ms x1",
            # Nobody else reads from this Kinesis.
            "minFetchPeriod": "0ms",
            "describeShardInterval": "100ms",
        }
        for _ in ("the records", "the retry"):
            orders = spark.readStream.format("kinesis-trident").options(**options).load()
            query = (
                reliable(orders)
                .map(parse, "number int")
                .for_each_batch(write)
                .start(checkpointLocation=str(Path(folder) / "spark"), trigger={"availableNow": True})
            )
            query.awaitTermination()
        spark.stop()
    assert sorted(seen) == list(range(RECORDS)), seen
    print(f"{len(seen)} records read, acked and written")


if __name__ == "__main__":
    main()
