"""The windows of docs/trident.md, in a real Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from doc_blocks import PAGES, blocks_of
from servers import RedisServer

from kinesis_trident.testing import run_topology
from kinesis_trident.trident import KinesisSpout, TridentTopology

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
ORDERS = [("ann", 0, 1), ("ann", 1, 2), ("bob", 5, 9), ("ann", 13, 4)]
"""Customer, minute and amount."""


def test_the_windows_of_the_page_close(redis_server: RedisServer) -> None:
    (block,) = (block for block in blocks_of(PAGES["trident.md"]) if "sliding_window" in block.text)
    topology = TridentTopology(None)
    spout = KinesisSpout(streamName="orders", applicationName="windows", zookeeper__hosts="zk1:2181")

    def parse(tup: Any) -> list[Any]:
        customer, minute, amount = tup["data"].decode().split()
        return [customer, NINE + timedelta(minutes=int(minute)), int(amount)]

    fields = "customer string, orderedAt timestamp, amount int"
    names: dict[str, Any] = {"orders": topology.new_stream("orders", spout).map(parse, fields)}
    exec(block.text.replace("redis://localhost", f"{redis_server.url}/9"), names)
    given = [f"{customer} {minute} {amount}" for customer, minute, amount in ORDERS]
    windows = run_topology(topology, {"orders": given}).emitted["window(Sum)"]
    # The watermark stands two minutes before the last order.
    assert {row.window_end for row in windows} == {NINE + timedelta(minutes=end) for end in range(1, 12)}
    for row in windows:
        begin, end = ((at - NINE).total_seconds() / 60 for at in (row.window_start, row.window_end))
        assert end - begin == 10
        assert row.total == sum(
            amount for who, at, amount in ORDERS if who == row.customer and begin <= at < end
        )
