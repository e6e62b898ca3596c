"""The windows of docs/trident.md, in a real Redis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from doc_blocks import PAGES, blocks_of
from servers import RedisServer

from kinesis_trident.testing import run_topology
from kinesis_trident.trident import KinesisSpout, TridentTopology


def test_the_windows_of_the_page_close(redis_server: RedisServer) -> None:
    (block,) = (block for block in blocks_of(PAGES["trident.md"]) if "sliding_window" in block.text)
    topology = TridentTopology(None)
    spout = KinesisSpout(
        streamName="orders", applicationName="windows", zookeeper__hosts="zk1:2181", scheme={"minute": "data"}
    )

    def parse(tup: Any) -> list[Any]:
        customer, minute, amount = tup["data"].decode().split()
        return [customer, datetime(2026, 1, 1, 9, int(minute), tzinfo=UTC), int(amount)]

    orders = topology.new_stream("orders", spout).map(
        parse, "customer string, orderedAt timestamp, amount int"
    )
    names: dict[str, Any] = {"orders": orders}
    exec(block.text.replace("redis://localhost", f"{redis_server.url}/9"), names)
    names["minutes"].map(
        lambda tup: [tup["customer"], tup["window_end"], tup["total"]], "c string, e timestamp, t long"
    )
    result = run_topology(topology, {"orders": ["ann 0 1", "ann 1 2", "bob 5 9", "ann 13 4"]})
    print(result.emitted.keys())
    print(result)
