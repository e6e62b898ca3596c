"""Measure what an emit costs a bolt with tracking, and without: `python -m benchmarks.emits`. No Spark is started."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import Section, publish, verdict
from kinesis_trident import BasicBolt, Bolt, OutputCollector, TopologyContext, Tuple
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.anchors import Anchors
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import roots, tuple_ids

BOUND = 1.3
TUPLES = 100_000
BATCH = 10_000
ROUNDS = 15
WORDS = pa.schema([("word", pa.string())])


class Unheard:
    """A carrier's end that drops what it is sent."""

    def add(self, reports: Reports) -> None:
        """Drop a task's reports."""


class Split(BasicBolt):
    """Emits the words of a sentence."""

    fields = "word string"

    def execute(self, tup: Tuple, collector: Any) -> None:
        """Emit the words."""
        for word in tup["sentence"].split():
            collector.emit([word])


class SplitAnchored(Bolt):
    """Emits the words of a sentence, anchored to it."""

    fields = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Keep the collector."""
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        """Emit the words."""
        for word in tup["sentence"].split():
            self.collector.emit([word], tup)
        self.collector.ack(tup)


def sentences(words: int) -> list[pa.RecordBatch]:
    """Tuples with this many words each, `TUPLES` words in all."""
    made = []
    for first in range(0, TUPLES // words, BATCH):
        numbers = np.arange(first, min(first + BATCH, TUPLES // words))
        anchors = Anchors(roots(5, 0, numbers), tuple_ids("lines", 7, "shardId-0", numbers))
        texts = pa.array([" ".join([f"word{number % 1000}"] * words) for number in numbers.tolist()])
        made.append(pa.RecordBatch.from_arrays([texts, anchors.column()], ["sentence", ANCHORS]))
    return made


def run(bolt: Bolt | BasicBolt, batches: list[pa.RecordBatch], *, tracked: bool) -> Callable[[], None]:
    """Return a function that runs one task of the bolt."""
    tag = Tag("split", 7, Unheard()) if tracked else None
    given = batches if tracked else [batch.select(["sentence"]) for batch in batches]
    operator = BoltOperator("split", 7, bolt, {"sentences": ["sentence"]}, WORDS, tag)

    def task() -> None:
        assert sum(batch.num_rows for batch in operator(iter(given))) == TUPLES

    return task


def seconds(tasks: tuple[Callable[[], None], ...]) -> Iterator[tuple[float, ...]]:
    """Run each task in turns; yield the CPU time of each, round by round."""
    for _ in range(ROUNDS):
        taken = []
        for task in tasks:
            begun = process_time()
            task()
            taken.append(process_time() - begun)
        yield tuple(taken)


def main() -> None:
    """Measure, print, and write the section."""
    rows = []
    for kind, bolt in (("`Bolt` with one anchor", SplitAnchored()), ("`BasicBolt`", Split())):
        for words in (1, 10):
            batches = sentences(words)
            tasks = run(bolt, batches, tracked=True), run(bolt, batches, tracked=False)
            rounds = list(seconds(tasks))
            tracked, untracked = (statistics.median(side) for side in zip(*rounds, strict=True))
            ratio = statistics.median(ours / plain for ours, plain in rounds)
            rows.append(
                [
                    f"{kind}, {words} emits a tuple" if words > 1 else f"{kind}, 1 emit a tuple",
                    *(f"{side / TUPLES * 1e9:,.0f} ns" for side in (tracked, untracked)),
                    f"{ratio:.2f} x",
                    verdict(f"{BOUND} x", ratio <= BOUND),
                ]
            )
    publish(
        Section(
            name="emits",
            title="What tracking costs an emit",
            command="python -m benchmarks.emits",
            columns=["CPU time an emit", "tracked", "untracked", "ratio", "bound"],
            rows=rows,
            note="One task of a bolt, all of it: reading the tuples, executing and acking them, and making Arrow "
            "batches of what they emit. Both sides in turns: medians.",
        )
    )


if __name__ == "__main__":
    main()
