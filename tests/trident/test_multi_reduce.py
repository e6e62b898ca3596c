"""Several streams that are reduced together, and groupings by Trident's names."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    KinesisSpout,
    MultiReducer,
    Stream,
    TopologyError,
    TridentCollector,
    TridentTopology,
    TridentTuple,
)


def lines() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology(None)
    spout = KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1")
    return topology, topology.new_stream("lines", spout)


def order(tup: TridentTuple) -> list[Any]:
    _, customer, amount = tup["data"].decode().split()
    return [customer, int(amount)]


def payment(tup: TridentTuple) -> list[Any]:
    _, customer, by = tup["data"].decode().split()
    return [by, customer]


class Balance(MultiReducer[dict[str, Any]]):
    def init(self, collector: TridentCollector) -> dict[str, Any]:
        return {"amount": 0, "by": []}

    def execute(
        self, value: dict[str, Any], stream: int, tup: TridentTuple, collector: TridentCollector
    ) -> None:
        if stream == 0:
            value["amount"] += tup["amount"]
        else:
            value["by"].append(tup["by"])

    def complete(self, value: dict[str, Any], collector: TridentCollector) -> None:
        collector.emit([value["amount"], ",".join(sorted(value["by"]))])


GIVEN = Batches(["order ann 5", "paid ann card", "order bob 7", "order ann 1"], ["paid bob cash"])


def streams(source: Stream) -> tuple[Stream, Stream]:
    orders = source.filter(lambda tup: tup["data"].startswith(b"order")).map(
        order, "customer string, amount int"
    )
    paid = source.filter(lambda tup: tup["data"].startswith(b"paid")).map(payment, "by string, who string")
    return orders, paid


def test_groups_of_several_streams_are_reduced_together() -> None:
    topology, source = lines()
    orders, paid = streams(source.local_or_shuffle())
    topology.multi_reduce(
        [orders.group_by("customer"), paid.group_by("who")], Balance(), "amount int, paid string"
    )
    result = run_topology(topology, {"lines": GIVEN})
    found = result.emitted["multi_reduce(Balance)"]
    assert sorted(found) == [("ann", 6, "card"), ("bob", 0, "cash"), ("bob", 7, "")]


def test_all_tuples_of_several_streams_are_reduced_together() -> None:
    topology, source = lines()
    orders, paid = streams(source)
    topology.multi_reduce([orders, paid], Balance(), "amount int, paid string", [["amount"], ["by"]])
    result = run_topology(topology, {"lines": GIVEN})
    found = result.emitted["multi_reduce(Balance)"]
    assert found == [(13, "card"), (0, "cash")]


def test_groups_of_other_types_are_refused() -> None:
    topology, source = lines()
    orders, paid = streams(source)
    with pytest.raises(
        TopologyError, match=r"multi_reduce\(Balance\): the streams are grouped by fields of other"
    ):
        topology.multi_reduce([orders.group_by("amount"), paid.group_by("who")], Balance(), "n int, m string")
    with pytest.raises(TopologyError, match="MultiReducer"):
        topology.multi_reduce([orders, paid], 5, "n int")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="there is no field 'x'"):
        topology.multi_reduce([orders, paid], Balance(), "n int, m string", [["x"], ["by"]])


class CountEach(MultiReducer[list[int]]):
    def init(self, collector: TridentCollector) -> list[int]:
        return [0, 0]

    def execute(self, value: list[int], stream: int, tup: TridentTuple, collector: TridentCollector) -> None:
        value[stream] += 1

    def complete(self, value: list[int], collector: TridentCollector) -> None:
        collector.emit(value)


def test_a_stream_that_has_only_its_group_fields() -> None:
    topology, source = lines()
    orders, paid = streams(source)
    grouped = [orders.project(["customer"]).group_by(["customer"]), paid.group_by(["who"])]
    topology.multi_reduce(grouped, CountEach(), "orders int, payments int")
    result = run_topology(topology, {"lines": GIVEN})
    assert sorted(map(tuple, result.emitted["multi_reduce(CountEach)"])) == [
        ("ann", 2, 1),
        ("bob", 0, 1),
        ("bob", 1, 0),
    ]
    assert result.failed == []


def test_no_streams_and_too_few_inputs_are_refused() -> None:
    topology, source = lines()
    for given, inputs in (([], None), ([*streams(source)], [["amount"]])):
        with pytest.raises(TopologyError, match="Give at least one stream, and inputs for each"):
            topology.multi_reduce(given, CountEach(), "n int", inputs)
