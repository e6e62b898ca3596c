"""Tick tuples: the batches that bring them, and what a bolt does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard

from kinesis_trident import BasicBolt, Bolt, TopologyContext, Tuple
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.storm.ticks import Ticks
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import roots, tuple_ids

SUMS = pa.schema([("sum", pa.int64())])


def test_a_tick_comes_with_the_first_batch_and_then_when_its_interval_is_over() -> None:
    now = [100.0]
    ticks, runs = Ticks(lambda: now[0]), BatchRuns()
    due = []
    for txid, now[0] in ((1, 100.0), (2, 104.0), (3, 109.9), (3, 110.0), (4, 115.0), (5, 130.0), (5, 139.0)):
        due.append((txid, ticks.is_due("a", 10.0, runs.next(txid, 1))))
    assert due == [(1, True), (2, False), (3, False), (3, False), (4, True), (5, True), (5, True)]
    assert [ticks.is_due("b", 0.0, runs.next(txid, 1)) for txid in (5, 6, 6)] == [True] * 3
    assert not ticks.is_due("c", None, runs.next(7, 1))


def numbers(*given: int) -> pa.RecordBatch:
    at = np.arange(len(given))
    anchors = Anchors(roots(5, 0, at), tuple_ids("lines", 7, "shardId-0", at))
    return pa.RecordBatch.from_arrays([pa.array(given), anchors.column()], ["n", ANCHORS])


def run(bolt: Bolt | BasicBolt, *batches: pa.RecordBatch) -> tuple[list[pa.RecordBatch], Heard]:
    heard = Heard()
    operator = BoltOperator(
        "sum",
        7,
        bolt,
        {"in": ["n"]},
        SUMS,
        Tag("sum", 7, heard),
        context=TopologyContext("sum", 0, 7, 3, {"a": 1}, {"sum": 3}),
        tick=10.0,
    )
    return list(operator(iter(batches))), heard


class SumAtTick(Bolt):
    """Emits the sum of its tuples at a tick, anchored to them all."""

    def prepare(self, context: Any, collector: Any) -> None:
        assert (context.tasks, context.configuration, context.component_tasks("sum")) == (
            3,
            {"a": 1},
            range(3),
        )
        self.collector, self.held = collector, []

    def execute(self, tup: Tuple) -> None:
        if not tup.is_tick:
            self.held.append(tup)
            return
        assert (tup.component, tup.stream, tup["rate_secs"]) == ("__system", "__tick", 10.0)
        self.collector.emit([sum(one["n"] for one in self.held)], [*self.held, tup])
        for one in (*self.held, tup):
            self.collector.ack(one)


def test_a_bolt_sums_up_what_came_before_the_tick() -> None:
    out, heard = run(SumAtTick(), numbers(1, 2), numbers(5))
    (made,) = out
    assert made.column("sum").to_pylist() == [8]
    assert len(anchors_of(made).roots) == 2, "the roots of both batches are the same"
    assert heard.failed == {}


def test_a_task_without_tuples_gets_its_tick() -> None:
    (made,), heard = run(SumAtTick())
    assert made.column("sum").to_pylist() == [0]
    assert len(anchors_of(made).roots) == 0
    assert heard.reports == {}


def test_a_tick_that_fails_fails_what_is_neither_acked_nor_failed() -> None:
    class Fails(SumAtTick):
        def execute(self, tup: Tuple) -> None:
            if tup.is_tick:
                raise ConnectionResetError("the store is gone")
            if tup["n"] == 1:
                self.collector.ack(tup)

    _, heard = run(Fails(), numbers(1, 2, 3))
    assert heard.failed == dict.fromkeys([1, 2], "ConnectionResetError: the store is gone (bolt sum)")


def test_a_tick_that_fails_in_a_basic_bolt_fails_the_batch() -> None:
    class Fails(BasicBolt):
        def execute(self, tup: Tuple, collector: Any) -> None:
            if tup.is_tick:
                raise ConnectionResetError("the store is gone")

    said = (
        r"bolt 'sum': execute\(\) of a tick tuple raised ConnectionResetError: the store is gone\. Its tuples"
    )
    with pytest.raises(OperatorError, match=said):
        run(Fails(), numbers(1))
