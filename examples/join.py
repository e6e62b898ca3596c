"""A join of two streams: orders wait for their payments, held from batch to batch, and each pair is written once.

    python examples/join.py

The streams `orders` and `payments` have texts, whose partition key is the order's id. A bolt holds the record that
comes first until the other one comes; an order that nobody pays within `messageTimeout` fails, and becomes a dead
letter. On its own servers the example writes three orders, two payments once the orders wait, and then ends the waiting
of the third; on yours it joins until Ctrl-C.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playground import AVAILABLE_NOW, Place, arguments, place_of
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_trident import (
    BasicBolt,
    Bolt,
    KinesisSpout,
    OutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    read_dead_letters,
    stop,
)

ORDERS = (("1", "a pen"), ("2", "two pads"), ("3", "ink"))
PAYMENTS = (("1", "5 euros"), ("2", "9 euros"))


class Join(Bolt):
    """Holds the record of an order until both are there, then emits the pair."""

    fields = "id string, order string, payment string"

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Begin a batch: what was held comes again."""
        self.collector = collector
        self.waiting: dict[str, Tuple] = {}

    def execute(self, tup: Tuple) -> None:
        """Hold a record, or emit it with its partner; if the pair fails further down, both come again."""
        other = self.waiting.pop(tup["id"], None)
        if other is None:
            self.waiting[tup["id"]] = tup
            self.collector.hold(tup)
            return
        payment, order = sorted((tup, other), key=lambda one: bool(one["is_order"]))
        self.collector.emit([tup["id"], order["what"], payment["what"]], [tup, other])
        self.collector.ack(tup)
        self.collector.ack(other)


class Write(BasicBolt):
    """Writes the pairs of each batch and task to a file, which a replay replaces."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def prepare(self, context: TopologyContext) -> None:
        """Prepare for a batch."""
        self.path = self.folder / f"{context.txid}-{context.task}.json"
        self.pairs: list[list[str]] = []

    def execute(self, tup: Tuple, collector: Any) -> None:
        """Take one pair."""
        self.pairs.append([tup["id"], tup["order"], tup["payment"]])

    def cleanup(self) -> None:
        """Write the pairs, as all of the batch have arrived."""
        self.path.write_text(json.dumps(self.pairs))


def start(place: Place, timeout: str, trigger: dict[str, Any] | None = None) -> StreamingQuery:
    """Start the join; a record waits for its partner for at most `timeout`."""
    orders = place.options["streamName"].split(",")[0]
    Path(place.at("pairs")).mkdir(exist_ok=True)
    builder = TopologyBuilder(place.spark)
    spout = KinesisSpout(
        **place.options,
        messageTimeout=timeout,
        retryLimit="0",
        deadLetter=place.at("dead-letters"),
        scheme={"is_order": f"stream = '{orders}'", "id": "partitionKey", "what": "CAST(data AS STRING)"},
    )
    builder.set_spout("records", spout)
    builder.set_bolt("join", Join(), 2).fields_grouping("records", "id")
    builder.set_bolt("write", Write(place.at("pairs"))).shuffle_grouping("join")
    return builder.start(checkpointLocation=place.at("checkpoint"), trigger=trigger)


def pairs(place: Place) -> list[list[str]]:
    """Return the pairs that are written."""
    files = Path(place.at("pairs")).glob("*.json")
    return sorted(pair for file in files for pair in json.loads(file.read_text() or "[]"))


def unpaid(place: Place) -> list[tuple[str, str]]:
    """Return the records that waited in vain, with the reason."""
    letters = read_dead_letters(place.at("dead-letters")) if Path(place.at("dead-letters")).exists() else ()
    return [((one.data or b"").decode(), one.reasons[-1].reason) for one in letters]


def held(query: StreamingQuery) -> int:
    """Return how many records wait for their partners, as the query's progress says."""
    progress = query.lastProgress
    said = progress["sources"][0]["latestOffset"] if progress else None
    return int(json.loads(said)["retrying"]) if said else 0


def wait_for(query: StreamingQuery, number: Callable[[], int], wanted: int) -> None:
    """Wait until a number is what is wanted; an error of the query is raised."""
    while number() != wanted:
        query.awaitTermination(0.2)


def join_in_turns(place: Place) -> None:
    """Write orders, then payments of two of them, and let the third one time out."""
    orders, payments = place.options["streamName"].split(",")
    place.put(ORDERS, orders)
    query = start(place, "1h")
    wait_for(query, lambda: held(query), len(ORDERS))
    place.put(PAYMENTS, payments)
    wait_for(query, lambda: len(pairs(place)), len(PAYMENTS))
    stop(query)
    start(place, "1s", AVAILABLE_NOW).awaitTermination()


def main() -> None:
    """Join, and print the pairs."""
    asked = arguments(__doc__, "orders,payments", "join").parse_args()
    with place_of(asked, shards=1) as place:
        if place.kinesis:
            join_in_turns(place)
        else:
            query = start(place, "10m")
            try:
                query.awaitTermination()
            except KeyboardInterrupt:
                stop(query)
        for order, bought, paid in pairs(place):
            print(f"order {order}: {bought} for {paid}")
        for bought, reason in unpaid(place):
            print(f"not paid: {bought} ({reason})")


if __name__ == "__main__":
    main()
