"""The ids of emitted tuples: those of the definition, computed once for many tuples."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard

from kinesis_trident import Bolt, Tuple
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking import anchors as anchors_module
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, salt_of
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import mix64, roots, tuple_ids

NUMBERS = pa.schema([("number", pa.int64())])
EACH = 30


def batch(first: int, several: bool) -> pa.RecordBatch:
    """Tuples with a root each; or, as behind a join, with three or none."""
    numbers = np.arange(first, first + EACH)
    anchors = Anchors(roots(5, 0, numbers), tuple_ids("lines", 7, "shardId-0", numbers))
    if several:
        anchors = anchors.join(np.array([3, 0] * (EACH // 3) + [0] * (EACH // 3)))
    return pa.RecordBatch.from_arrays([pa.array(numbers), anchors.column()], ["number", ANCHORS])


class Emits(Bolt):
    """Emits tuples with anchors by chance: none, one, several, the same one twice, some of earlier batches."""

    fields = "number long"

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector
        self.tuples: list[Tuple] = []
        self.emitted: list[list[int]] = []

    def execute(self, tup: Tuple) -> None:
        self.tuples.append(tup)
        for _ in range(self.dice.randrange(4)):
            chosen = self.dice.choices(range(len(self.tuples)), k=self.dice.choice([0, 1, 1, 1, 2, 5]))
            self.collector.emit([len(self.emitted)], [self.tuples[at] for at in chosen])
            self.emitted.append(chosen)
        self.collector.ack(tup)


def by_definition(given: list[pa.RecordBatch], emitted: list[list[int]]) -> list[list[dict[str, int]]]:
    """The anchors of each tuple, one emit after the other."""
    parents = [anchors for one in given for anchors in one.column(ANCHORS).to_pylist()]
    children = [0] * len(parents)
    salt, made = np.uint64(salt_of("emits")), []
    for chosen in emitted:
        tree: dict[int, int] = {}
        for parent in chosen:
            for anchor in parents[parent]:
                edge = np.array([anchor["edge"]], np.int64).view(np.uint64) ^ salt
                child = int(mix64(edge + np.uint64(children[parent])).view(np.int64)[0])
                tree[anchor["root"]] = tree.get(anchor["root"], 0) ^ child
            children[parent] += 1
        made.append([{"root": root, "edge": edge} for root, edge in tree.items()])
    return made


@pytest.mark.parametrize("rows_a_flush", [7, 10_000])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_ids_are_those_of_the_definition(
    seed: int, several: bool, rows_a_flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the emitted tuples are flushed."""
    monkeypatch.setattr("kinesis_trident.bolt.storm.output._FLUSH_ROWS", rows_a_flush)
    heard, bolt = Heard(), Emits(seed)
    given = [batch(first, several) for first in (0, EACH, 2 * EACH)]
    operator = BoltOperator("emits", 7, bolt, {"in": ["number"]}, NUMBERS, Tag("emits", 7, heard))
    out = list(operator(iter(given)))
    assert (len(out) > 3) == (rows_a_flush == 7)
    found = [anchors for one in out for anchors in one.column(ANCHORS).to_pylist()]
    assert found == by_definition(given, bolt.emitted)
    (key,) = heard.reports
    assert key.emitted == sum(map(len, found))
    assert key.produced == np.bitwise_xor.reduce(np.concatenate([anchors_of(one).edges for one in out]))


class Splits(Bolt):
    """Emits three tuples for each, one of them anchored to the tuple before too."""

    fields = "number long"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.before = collector, ()

    def execute(self, tup: Tuple) -> None:
        self.collector.emit([1], tup)
        self.collector.emit([2], [tup, *self.before])
        self.collector.emit([3])
        self.collector.ack(tup)
        self.before = (tup,)


def test_ids_are_computed_once_a_flush_however_many_tuples_are_emitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def counting(values: Any) -> Any:
        calls.append(len(values))
        return mix64(values)

    monkeypatch.setattr(anchors_module, "mix64", counting)
    heard = Heard()
    operator = BoltOperator("emits", 7, Splits(), {"in": ["number"]}, NUMBERS, Tag("emits", 7, heard))
    given = [batch(first, False) for first in range(0, 100 * EACH, EACH)]
    assert sum(one.num_rows for one in operator(iter(given))) == 300 * EACH
    assert calls == [300 * EACH - 1]
