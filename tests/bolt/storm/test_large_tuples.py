"""A bolt whose tuples are large: what it has emitted does not wait as Python objects, nor in one Arrow batch."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard

from benchmarks.memory import peak
from kinesis_trident import BasicBolt, Bolt, FailedException, Tuple
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.anchors import Anchors
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import roots, tuple_ids

TEXTS = pa.schema([("text", pa.string()), ("more", pa.list_(pa.binary()))])
MB = 1 << 20


def records(*sizes: int) -> pa.RecordBatch:
    numbers = np.arange(len(sizes))
    anchors = Anchors(roots(5, 0, numbers), tuple_ids("lines", 7, "shardId-0", numbers))
    return pa.RecordBatch.from_arrays([pa.array(sizes), anchors.column()], ["size", ANCHORS])


class Many(BasicBolt):
    """Emits 60 texts of the record's size, in megabytes; of a record of size 3 it fails after them."""

    fields = "text string, more array<binary>"

    def execute(self, tup: Tuple, collector: Any) -> None:
        for number in range(60):
            collector.emit([f"{number:02}" * (tup["size"] * MB // 2), []])
        if tup["size"] == 3:
            raise FailedException("after all")


class AtTheEnd(Bolt):
    """Emits bytes inside a list, only in `cleanup`."""

    fields = "text string, more array<binary>"

    def prepare(self, context, collector):  # type: ignore[no-untyped-def]
        self.collector, self.held = collector, []

    def execute(self, tup: Tuple) -> None:
        self.held.append(tup)

    def cleanup(self) -> None:
        for tup in self.held:
            for _ in range(20):
                self.collector.emit(["", [b"x" * MB] * tup["size"]], tup)
            self.collector.ack(tup)


def run(bolt: Bolt | BasicBolt, *sizes: int) -> tuple[list[int], list[int], Heard]:
    """The rows and the bytes of each batch that comes out, none of which is kept."""
    heard = Heard()
    operator = BoltOperator("many", 7, bolt, {"records": ["size"]}, TEXTS, Tag("many", 7, heard))
    rows, sizes_out = [], []
    for batch in operator(iter([records(*sizes)])):
        rows.append(batch.num_rows)
        sizes_out.append(batch.nbytes)
        del batch
    return rows, sizes_out, heard


def run_many(here: Connection) -> None:
    rows, sizes, heard = run(Many(), *[4] * 10)
    here.send((sum(rows), max(sizes) // MB, heard.failed, peak() // MB))


def test_ten_records_that_emit_2_gb_need_little_memory() -> None:
    context = multiprocessing.get_context("spawn")
    there, here = context.Pipe()
    process = context.Process(target=run_many, args=(here,))
    process.start()
    here.close()
    rows, largest, failed, most = there.recv()
    process.join()
    assert (rows, failed) == (600, {})
    assert largest <= 24
    assert most < 600


def test_what_a_failed_tuple_has_emitted_is_dropped_however_much_it_is() -> None:
    """Among others: the small tuples before it wait beside its first ones."""
    rows, _, heard = run(Many(), 0, 1, 3, 0, 2)
    assert sum(rows) == 4 * 60
    assert heard.failed == {2: "FailedException: after all (bolt many)"}
    (key,) = heard.reports
    assert (key.rows, key.emitted) == (5, 240)


@pytest.mark.parametrize("size", [1, 5])
def test_what_is_emitted_in_cleanup_comes_in_parts_too(size: int) -> None:
    rows, sizes, heard = run(AtTheEnd(), size, size)
    assert sum(rows) == 40
    assert max(sizes) <= (16 + size + 1) * MB
    assert heard.failed == {}
