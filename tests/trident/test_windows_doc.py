"""The windows of docs/trident.md, in a real Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from doc_blocks import PAGES, blocks_of
from servers import RedisServer

from kinesis_trident.testing import run_topology
from kinesis_trident.trident import Count, Function, KinesisSpout, TridentTopology
from kinesis_trident.trident.stores import MemoryMapState

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
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


class Flaky(Function):
    """Fails at the first delivery of what says so."""

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["data"] == b"flaky" and tup["attempt"] == 1:
            raise ValueError
        collector.emit([tup["attempt"]])


@pytest.mark.parametrize(("lateness", "counted"), [(HOUR, [(1, 1)]), (3 * HOUR, [(1, 1), (1, 2)])])
def test_a_record_that_comes_back_is_late_if_the_watermark_has_passed_it(
    lateness: timedelta, counted: list[tuple[int, int]]
) -> None:
    # Both come back in one batch.
    options = {"retryBackoff": "1ms..1ms x1", "zookeeper__hosts": "zk1:2181"}
    spout = KinesisSpout(streamName="orders", applicationName="windows", **options)
    topology = TridentTopology(None)
    tuples = topology.new_stream("orders", spout).each(["data", "attempt"], Flaky(), ["tries int"])
    state = MemoryMapState.opaque()
    tuples.group_by(["tries"]).tumbling_window(HOUR, state, Count(), ["count"], lateness=lateness)
    # The last one comes back, too, and only then moves the watermark.
    given = [
        {"data": text, "approximateArrivalTimestamp": NINE + hours * HOUR}
        for text, hours in (("flaky", 0), ("good", 0), ("good", 2.5), ("flaky", 9))
    ]
    windows = run_topology(topology, {"orders": given}, attempts=2).emitted["window(Count)"]
    first = sorted((row["count"], row.tries) for row in windows if row.window_start == NINE)
    assert first == counted
