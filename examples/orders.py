"""The main job: read orders from Kinesis, ack or fail each one on its own, and write each one exactly once.

    python examples/orders.py
    python examples/orders.py --zookeeper zk1:2181 --region eu-west-1 --stream orders --output /data/orders

An order that cannot be parsed comes back in later micro-batches, with backoff, and goes to the dead letter after the
last retry. On your servers the job runs until Ctrl-C or SIGTERM, which end it after the current batch. On its own
servers it reads five orders, of which one cannot be parsed and one fails at first, shows what became of them, and ends.
"""

from __future__ import annotations

import json
import re
from typing import Any

from playground import AVAILABLE_NOW, Place, arguments, place_of
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident import Outcomes, await_termination, read_dead_letters, reliable

FLAKY_FAILURES = 2
ORDERS = (
    '{"order_id": "a", "amount": 10}',
    '{"order_id": "b", "amount": 20.5}',
    '{"order_id": "c", "amount": 30, "flaky": true}',
    '{"order_id": "d", "amount": 40}',
    '{"order_id": "e", "am',
)


def parse(record):  # type: ignore[no-untyped-def]
    """Parse one order; an exception fails this record only."""
    order = json.loads(record.data)
    if order.get("flaky") and record.attempt <= FLAKY_FAILURES:
        msg = "the price service does not answer"
        raise TimeoutError(msg)
    return order["order_id"], float(order["amount"])


def start(place: Place, trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
    """Start the job, with these options of the source besides."""
    orders = (
        place.spark.readStream.format("kinesis-trident")
        .options(**place.options)
        .option("retryLimit", "3")
        .option("retryBackoff", "1s..4s x2")
        .option("deadLetter", place.at("dead-letters"))
        .options(**options)
        .load()
    )

    def write(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
        # A replayed batch has the same txid and the same rows, and replaces what the first attempt wrote. A run that
        # was paused and wakes late writes beside the newer one: for each txid, the highest epoch counts.
        good = df.drop("messageId")
        good.write.mode("overwrite").parquet(place.at(f"orders/txid={txid}/epoch={outcomes.epoch}"))

    return (
        reliable(orders)
        .map(parse, "order_id string, amount double")
        .for_each_batch(write)
        .start(checkpointLocation=place.at("spark-checkpoint"), trigger=trigger)
    )


def read(place: Place) -> list[tuple[str, float]]:
    """Return the orders that are written: of each txid those of its newest epoch, which may have none."""
    newest: dict[str, int] = {}
    files = place.spark.read.parquet(place.at("orders")).inputFiles()
    for txid, epoch in re.findall(r"/txid=(\d+)/epoch=(\d+)/", "\n".join(files)):
        newest[txid] = max(int(epoch), newest.get(txid, 0))
    folders = [place.at(f"orders/txid={txid}/epoch={epoch}") for txid, epoch in newest.items()]
    found = place.spark.read.parquet(*folders).orderBy("order_id").collect()
    return [(row.order_id, row.amount) for row in found]


def refused(place: Place) -> list[tuple[str, int, str]]:
    """Return the dead letters: the data, how often each was tried, and why it failed last."""
    letters = read_dead_letters(place.at("dead-letters"))
    return [((one.data or b"").decode(), one.attempts, one.reasons[-1].reason) for one in letters]


def main() -> None:
    """Run until asked to stop; on servers of its own, until each order is written or a dead letter."""
    parser = arguments(__doc__, "orders", "orders-demo")
    parser.add_argument("--records-per-batch", type=int)
    asked = parser.parse_args()
    options = {"maxRecordsPerTrigger": str(asked.records_per_batch)} if asked.records_per_batch else {}
    with place_of(asked) as place:
        if not place.kinesis:
            await_termination(start(place, **options))
            return
        place.put((str(number), text) for number, text in enumerate(ORDERS))
        start(place, AVAILABLE_NOW, **options).awaitTermination()
        for order, amount in read(place):
            print(f"written: {order} {amount}")
        for data, attempts, reason in refused(place):
            print(f"dead letter after {attempts} attempts: {data} ({reason})")


if __name__ == "__main__":
    main()
