"""A bolt that calls its collector from several threads: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard

from kinesis_trident import BasicBolt, Bolt, Tuple
from kinesis_trident.bolt.errors import EmitError, OperatorError
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.acker import Acker
from kinesis_trident.tracker.ids import roots, tuple_ids

NUMBERS = pa.schema([("number", pa.int64()), ("part", pa.int64())])
EACH = 500


@pytest.fixture(autouse=True)
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def numbers(first: int) -> pa.RecordBatch:
    given = np.arange(first, first + EACH)
    anchors = Anchors(roots(5, 0, given), tuple_ids("lines", 7, "shardId-0", given))
    ids = pa.array([f"lines/shardId-0:{number}" for number in given.tolist()])
    return pa.RecordBatch.from_arrays(
        [pa.array(given), ids, anchors.column()], ["number", "messageId", ANCHORS]
    )


def is_bad(number: int) -> bool:
    return number % 7 == 0


class Pooled(Bolt):
    """Hands each tuple to a pool, whose threads emit three tuples for it, then ack or fail it."""

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.pool = collector, ThreadPoolExecutor(8)
        self.begun: list[Future[None]] = []

    def execute(self, tup: Tuple) -> None:
        self.begun.append(self.pool.submit(self.work, tup))

    def work(self, tup: Tuple) -> None:
        for part in range(3):
            self.collector.emit([tup["number"], part], tup)
        if tup["number"] % 10 == 1:
            with pytest.raises(EmitError):
                self.collector.emit(["one value"], tup)
        elif is_bad(tup["number"]):
            self.collector.fail(tup, "bad")
        self.collector.ack(tup)

    def cleanup(self) -> None:
        for one in self.begun:
            one.result()
        self.pool.shutdown()


@pytest.mark.parametrize("of_source", [True, False])
def test_emits_acks_and_fails_of_eight_threads(of_source: bool) -> None:
    heard, given = Heard(), [numbers(first) for first in range(0, 6 * EACH, EACH)]
    operator = BoltOperator(
        "pooled", 7, Pooled(), {"in": ["number"]}, NUMBERS, Tag("pooled", 7, heard), of_source
    )
    out = pa.Table.from_batches(list(operator(iter(given))))
    everything = range(6 * EACH)
    assert sorted(zip(out["number"].to_pylist(), out["part"].to_pylist(), strict=True)) == [
        (number, part) for number in everything for part in range(3)
    ]
    # Whatever the current tuple was when a thread could not emit, it fails too: it cannot be known whose code it is.
    failed = {number for number in everything if is_bad(number) or number % 10 == 1}
    assert failed <= set(heard.failed)
    others = set(heard.failed) - failed
    assert all("one value" in heard.failed[number] for number in others)
    (key,) = heard.reports
    assert (key.rows, key.emitted) == (6 * EACH, 18 * EACH)
    # Each tuple is in the tree of its own record: acked with its parent, the records are done.
    acker, children = Acker(), anchors_of(out.combine_chunks().to_batches()[0])
    parents = [anchors_of(batch) for batch in given]
    for one in parents:
        acker.init_many(one.roots, one.edges)
    made = np.concatenate([children.roots, *(one.roots for one in parents)])
    done = acker.ack_many(made, np.concatenate([children.edges, *(one.edges for one in parents)]))
    assert sorted(done) == [], "the children are made, and not acked yet"
    assert len(acker.ack_many(children.roots, children.edges)) == 6 * EACH
    assert children.roots.tolist() == roots(5, 0, np.array(out["number"].to_pylist())).tolist()


def test_a_thread_that_outlives_its_task_is_refused() -> None:
    class Forgetful(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, []

        def execute(self, tup: Tuple) -> None:
            self.held.append(tup)

    bolt, heard = Forgetful(), Heard()
    operator = BoltOperator("late", 7, bolt, {"in": ["number"]}, NUMBERS, Tag("late", 7, heard))
    assert list(operator(iter([numbers(0)]))) == []
    assert len(heard.failed) == EACH
    with ThreadPoolExecutor(1) as pool:
        for call in (
            lambda: bolt.collector.emit([1, 2]),
            lambda: bolt.collector.ack(bolt.held[0]),
            lambda: bolt.collector.fail(bolt.held[0]),
        ):
            with pytest.raises(OperatorError, match="'late' called its collector after the end of its task"):
                pool.submit(call).result()


class EmitsElsewhere(BasicBolt):
    """Emits in another thread, for a tuple that was executed before."""

    fields = "number long, part int"

    def __init__(self) -> None:
        self.refused: list[str] = []

    def execute(self, tup: Tuple, collector: Any) -> None:
        calls = (
            lambda: collector.emit(["one value"]),
            lambda: collector.emit([1, 2]),
            lambda: collector.emit_direct(0, [1, 2]),
        )
        for emit in () if tup["number"] % 100 else calls:
            with ThreadPoolExecutor(1) as pool, pytest.raises(OperatorError) as refused:
                pool.submit(emit).result()
            self.refused.append(str(refused.value))
        collector.emit([tup["number"], 0])


def test_what_a_basic_bolt_emits_in_another_thread_is_refused_and_fails_no_tuple() -> None:
    bolt, heard = EmitsElsewhere(), Heard()
    operator = BoltOperator("elsewhere", 7, bolt, {"in": ["number"]}, NUMBERS, Tag("elsewhere", 7, heard))
    out = pa.Table.from_batches(list(operator(iter([numbers(0)]))))
    assert out["number"].to_pylist() == list(range(EACH))
    assert heard.failed == {}
    assert len(bolt.refused) == 3 * EACH // 100
    assert {text.partition(",")[0] for text in bolt.refused} == {
        "a BasicBolt emitted in another thread than execute() runs in"
    }
