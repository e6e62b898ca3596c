"""A backfill: read a stream between two times once more, and replace what was written of that time.

    python examples/backfill.py
    python examples/backfill.py --from 2026-01-31T10:00:00Z --to 2026-01-31T11:00:00Z \
        --zookeeper zk1:2181 --region eu-west-1 --stream orders --output /data/orders

An order is JSON: `{"product": "pen", "pieces": 3}`. A table has the orders with their price, a folder for each hour. On
its own servers the example writes three hours, the second with a wrong price, and then that hour again.
A batch needs no ZooKeeper: it has no state, and touches no query that reads the same stream.
"""

from __future__ import annotations

from datetime import UTC, datetime

from playground import Place, arguments, place_of
from pyspark.sql import functions as F

HOUR = 3600
WRONG, RIGHT = 2.0, 2.5
ORDERS = (("pen", 3), ("pen", 1)), (("pen", 4),), (("pen", 2), ("pen", 2))
"""The orders of three hours."""


def write_hours(place: Place, start: str, end: str, price: float) -> None:
    """Write the orders that arrived from `start` to before `end`; their hours are replaced."""
    orders = (
        place.spark.read.format("kinesis-trident")
        .options(**place.options)
        .option("startingPosition", f"AT_TIMESTAMP {start}")
        .option("endingPosition", f"AT_TIMESTAMP {end}")
        .load()
    )
    rows = orders.select(
        "messageId",
        F.from_json(orders.data.cast("string"), "product string, pieces int").alias("order"),
        F.date_format("approximateArrivalTimestamp", "yyyy-MM-dd_HH").alias("hour"),
    ).selectExpr("messageId", "order.*", f"order.pieces * double({price}) AS amount", "hour")
    rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("hour").parquet(
        place.at("orders")
    )


def totals(place: Place) -> dict[str, float]:
    """Return the sum of the amounts by hour."""
    rows = place.spark.read.parquet(place.at("orders")).groupBy("hour").agg(F.sum("amount").alias("total"))
    return {str(row.hour): row.total for row in rows.orderBy("hour").collect()}


def hour_of(place: Place) -> str:
    """Return the hour that the example's own Kinesis has come to, as `2026-01-31T10:00:00Z`."""
    assert place.kinesis is not None
    return datetime.fromtimestamp(place.kinesis.now // 1000 // HOUR * HOUR, UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def write_three_hours(place: Place) -> list[str]:
    """Write three hours of orders as they came, the second one with a wrong price; return when each began and ended."""
    assert place.kinesis is not None
    place.kinesis.advance(HOUR - place.kinesis.now / 1000 % HOUR)
    times = [hour_of(place)]
    for orders, price in zip(ORDERS, (RIGHT, WRONG, RIGHT), strict=True):
        place.put((product, f'{{"product": "{product}", "pieces": {pieces}}}') for product, pieces in orders)
        place.kinesis.advance(HOUR)
        times.append(hour_of(place))
        write_hours(place, times[-2], times[-1], price)
    return times


def main() -> None:
    """Write the hours between two times, and print the totals."""
    parser = arguments(__doc__, "orders", "backfill")
    parser.add_argument("--from", dest="start", help="a full hour, such as 2026-01-31T10:00:00Z")
    parser.add_argument("--to", dest="end", help="a full hour")
    asked = parser.parse_args()
    if asked.zookeeper and not (asked.start and asked.end):
        parser.error("name the hours to write again: --from and --to")
    with place_of(asked) as place:
        if place.kinesis:
            times = write_three_hours(place)
            print("before:", totals(place))
            asked.start, asked.end = times[1:3]
        write_hours(place, asked.start, asked.end, RIGHT)
        print(f"written again: from {asked.start} to {asked.end}")
        print("after: ", totals(place))


if __name__ == "__main__":
    main()
