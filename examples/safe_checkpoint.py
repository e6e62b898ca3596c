"""The safe checkpoint of a shard: a failed record holds it back, while those after it are read and done.

    python examples/safe_checkpoint.py

A query without Spark reads five orders from a Kinesis in memory. The third one fails twice. Until it is done the
checkpoint stays below it, so that no crash can lose it, although the query has read on.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import NamedTuple

from kazoo.client import KazooClient

from kinesis_trident import ensure_java, status
from kinesis_trident.testing import DeliveredRow, EmbeddedZooKeeper, MemoryKinesis, QueryByHand

ORDERS = ((b"one", b"two"), (b"three", b"four", b"five"))
"""The orders, in the two batches in which they come."""


class Look(NamedTuple):
    """The orders that a batch delivered, each with its attempt; then the checkpoint, as an order, and who waits."""

    delivered: list[tuple[str, int]]
    checkpoint: str
    waiting: int


def run(zookeeper: str, application: str) -> list[Look]:
    """Run batches until all orders are done; return a look after each."""
    kinesis = MemoryKinesis("orders")
    (shard,) = kinesis.open_shards
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": application,
        "zookeeper.hosts": zookeeper,
        "startingPosition": "TRIM_HORIZON",
        "retryBackoff": "1ms..1ms x1",
    }

    def fails(row: DeliveredRow) -> bool:
        return row.data == b"three" and row.attempt < 3

    looks: list[Look] = []
    names: dict[str, str] = {}
    with ExitStack() as ending:
        query = QueryByHand.start(options, kinesis)
        ending.callback(query.end)
        client = KazooClient(zookeeper)
        client.start()
        ending.callback(client.close)
        ending.callback(client.stop)
        for orders in ORDERS:
            names |= {str(kinesis.put(shard, order)): order.decode() for order in orders}
            while not looks or looks[-1].checkpoint != orders[-1].decode():
                rows = query.batch(fails)
                # Spark asks for the next batch, here by hand; this settles the one before.
                query.plan()
                (part,) = status(application, {"zookeeper.hosts": zookeeper}).parts
                node = json.loads(client.get(f"{part['home']}/checkpoints/{shard}")[0])
                delivered = [(row.data.decode(), row.attempt) for row in rows]
                looks.append(Look(delivered, names[node["checkpoint"]], part["retrying"]))
    return looks


def main() -> None:
    """Print each batch, and what is done after it."""
    ensure_java()
    with EmbeddedZooKeeper() as zookeeper:
        for look in run(zookeeper.hosts, "safe-checkpoint"):
            orders = ", ".join(f"{order} (attempt {attempt})" for order, attempt in look.delivered)
            print(f"delivered {orders}; done up to {look.checkpoint}, {look.waiting} waiting")


if __name__ == "__main__":
    main()
