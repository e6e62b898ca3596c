"""The main job: read orders from Kinesis, ack or fail each one on its own, and write each one exactly once.

    python examples/orders.py --stream orders --zookeeper localhost:2181 --output out

An order that cannot be parsed comes back in later micro-batches, with backoff, and goes to the dead letter after the
last retry. Ctrl-C or SIGTERM ends the job after the current batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

from pyspark.sql import DataFrame, SparkSession

from kinesis_trident import Outcomes, ensure_java, reliable, stop

FLAKY_FAILURES = 2


def parse(record):  # type: ignore[no-untyped-def]
    """Parse one order; an exception fails this record only."""
    order = json.loads(record.data)
    if order.get("flaky") and record.attempt <= FLAKY_FAILURES:
        msg = "the price service does not answer"
        raise TimeoutError(msg)
    return order["order_id"], float(order["amount"])


def main() -> None:
    """Run until asked to stop."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--stream", default="orders")
    arguments.add_argument("--application", default="orders-demo")
    arguments.add_argument("--zookeeper", default="localhost:2181")
    arguments.add_argument("--endpoint", help="an endpoint other than AWS's, or localstack")
    arguments.add_argument("--region", default="us-east-1")
    arguments.add_argument("--output", required=True)
    arguments.add_argument("--master", default="local[2]")
    arguments.add_argument("--records-per-batch", type=int)
    asked = arguments.parse_args()

    # Spark's workers run this Python, which has the packages installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ensure_java()
    spark = (
        SparkSession.builder.master(asked.master)
        .appName(asked.application)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    options = {
        "streamName": asked.stream,
        "applicationName": asked.application,
        "zookeeper.hosts": asked.zookeeper,
        "region": asked.region,
        "startingPosition": "TRIM_HORIZON",
        "retryLimit": "3",
        "retryBackoff": "1s..4s x2",
        "deadLetter": f"{asked.output}/dead-letters",
    }
    if asked.endpoint:
        options["endpointUrl"] = asked.endpoint
    if asked.records_per_batch:
        options["maxRecordsPerTrigger"] = str(asked.records_per_batch)
    orders = spark.readStream.format("kinesis-trident").options(**options).load()

    def write(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
        # A replayed batch has the same txid and the same rows, and replaces what the first attempt wrote. A run that
        # was paused and wakes late writes beside the newer one: for each txid, the highest epoch counts.
        good = df.drop("messageId")
        good.write.mode("overwrite").parquet(f"{asked.output}/orders/txid={txid}/epoch={outcomes.epoch}")

    query = (
        reliable(orders)
        .map(parse, "order_id string, amount double")
        .for_each_batch(write)
        .start(checkpointLocation=f"{asked.output}/spark-checkpoint")
    )
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_end.set())
    while query.isActive and not asked_to_end.wait(0.5):
        pass
    stop(query)
    spark.stop()


if __name__ == "__main__":
    main()
