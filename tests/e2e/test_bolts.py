"""Topologies of bolts on Spark: trees over shuffles and branches fail and succeed as Storm's do."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness import PATIENCE
from pyspark.sql import functions as F
from stage import AVAILABLE_NOW, Stage

from kinesis_trident import (
    ArrowBolt,
    BasicBolt,
    FailedException,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    string_scheme,
)


class Split(BasicBolt):
    """Numbers the words of a sentence."""

    fields = "word string, id string, attempt int"

    def execute(self, tup: Tuple, collector: Any) -> None:
        for n, word in enumerate(tup["sentence"].split()):
            collector.emit([word, f"{tup['messageId']} {n}", tup["attempt"]])


class Keep(BasicBolt):
    """Writes what it takes to a folder, a line a tuple; of those at their first delivery it fails some by chance."""

    def __init__(self, folder: Path, field: str, failing: float = 0.0) -> None:
        self.folder, self.field, self.failing = folder, field, failing

    def prepare(self, context: TopologyContext) -> None:
        self.context = context
        self.folder.mkdir(exist_ok=True)
        self.file = (self.folder / f"{context.txid}-{context.task}-{uuid.uuid4().hex}").open("w")

    def execute(self, tup: Tuple, collector: Any) -> None:
        if random.random() < self.failing and tup["attempt"] == 1:
            raise FailedException("by chance")
        line = {
            "value": tup[self.field],
            "id": tup.get("id"),
            "task": self.context.task,
            "from": tup.component,
        }
        self.file.write(json.dumps(line | {"txid": self.context.txid}) + "\n")

    def cleanup(self) -> None:
        self.file.close()


def kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]


def topology(stage: Stage, **options: object) -> TopologyBuilder:
    """A builder with the stage's stream as the spout "sentences"."""
    builder = TopologyBuilder(stage.spark)
    spout = KinesisSpout(scheme=string_scheme("sentence"), **stage.options(**options))
    builder.set_spout("sentences", spout)
    return builder


def drained(stage: Stage, builder: TopologyBuilder, checkpoint: str = "spark") -> None:
    query = builder.start(checkpointLocation=stage.at(checkpoint), trigger=AVAILABLE_NOW)
    stage.queries.append(query)
    assert query.awaitTermination(PATIENCE), "the query does not end"


SENTENCES = [f"cow {n} over moon {n % 3}" for n in range(40)]


@pytest.mark.long
def test_word_count_with_failing_words_comes_to_the_counts_of_a_naive_run(
    make_stage: Callable[..., Stage],
) -> None:
    """test_storm_docs.py counts words with failures, test_storm_features.py has all groupings."""
    stage = make_stage(2)
    stage.put(SENTENCES)
    counted = stage.folder / "counted"
    builder = topology(stage, retryLimit=1, retryBackoff="0ms..1ms x1")
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Keep(counted, "word", 0.1), 2).fields_grouping("split", "word")
    drained(stage, builder)
    rows = kept(counted)
    # Of each record its last delivery, in which every word counts, however often it comes.
    last = {row["id"].split()[0]: row["txid"] for row in sorted(rows, key=lambda row: row["txid"])}
    assert Counter(row["value"] for row in rows if row["txid"] == last[row["id"].split()[0]]) == Counter(
        word for sentence in SENTENCES for word in sentence.split()
    )
    # Whole sentences came again, for which a word had failed; all occurrences of a word met in the same task.
    ids = {txid: {row["id"] for row in rows if row["txid"] == txid} for txid in (1, 2)}
    again = {id_.split()[0] for id_ in ids[2]}
    assert 0 < len(again) < len(SENTENCES)
    assert {id_ for id_ in ids[1] | ids[2] if id_.split()[0] in again} == ids[2]
    tasks = {(row["txid"], row["value"]): set[int]() for row in rows}
    for row in rows:
        tasks[row["txid"], row["value"]].add(row["task"])
    assert {len(one) for one in tasks.values()} == {1}
    assert not any(node.waiting for node in stage.store.shards.inflight().values())


class Numbers(ArrowBolt):
    """The number in each sentence; the odd ones fail at their first delivery."""

    fields = "number long, even boolean, attempt int"

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        number = pc.cast(batch.column("sentence"), pa.int64())
        odd = pc.and_(pc.equal(pc.bit_wise_and(number, 1), 1), pc.equal(batch.column("attempt"), 1))
        return pa.RecordBatch.from_pydict(
            {
                "number": number,
                "even": pc.invert(odd),
                "attempt": batch.column("attempt"),
                "__failed": pc.if_else(odd, "odd", None),
            }
        )


class Twice(ArrowBolt):
    """Each number twice."""

    fields = "number long"

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = pa.array([row for row in range(batch.num_rows) for _ in range(2)])
        return pa.RecordBatch.from_pydict({"number": batch.column("number").take(rows), "__row": rows})


class FailsAt(BasicBolt):
    """Fails given numbers at each delivery."""

    fields = "number long"

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers

    def execute(self, tup: Tuple, collector: Any) -> None:
        if tup["number"] in self.numbers:
            raise FailedException(f"{tup['number']}")
        collector.emit([tup["number"]])


@pytest.mark.long
def test_branches_groupings_and_a_function_between_bolts(make_stage: Callable[..., Stage]) -> None:
    """test_storm_features.py has all groupings, test_storm_docs.py a function between bolts."""
    stage = make_stage(2)
    put = dict(enumerate(stage.put(range(20))))
    folders = {name: stage.folder / name for name in ("all", "one", "both", "late")}
    builder = topology(stage, retryLimit=1, retryBackoff="0ms..1ms x1", deadLetter=stage.at("letters"))
    builder.set_bolt("numbers", Numbers()).local_or_shuffle_grouping("sentences")
    builder.set_bolt("twice", Twice(), 2).shuffle_grouping("numbers")
    builder.set_bolt("to all", Keep(folders["all"], "number"), 3).all_grouping("numbers")
    builder.set_bolt("to one", Keep(folders["one"], "number"), 2).global_grouping("twice")
    builder.set_bolt("fails", FailsAt({4}), 2).shuffle_grouping("numbers")
    both = builder.set_bolt("both", Keep(folders["both"], "number"), 2)
    both.fields_grouping("twice", "number").fields_grouping("fails", "number")
    builder.transform("large", "fails", lambda rows: rows.where(F.col("number") >= 10))
    builder.set_bolt("late", FailsAt({13})).shuffle_grouping("large")
    builder.set_bolt("end", Keep(folders["late"], "number")).shuffle_grouping("late")
    drained(stage, builder)

    # 4 and 13 failed wherever else they went, twice; all others are done, the odd ones in a later batch.
    letters = stage.letters()
    assert {letter.message_id: letter.attempts for letter in letters} == {put[4]: 2, put[13]: 2}
    assert {
        reason.reason for letter in letters if letter.message_id == put[4] for reason in letter.reasons
    } == {"FailedException: 4 (bolt fails)"}
    assert not any(node.waiting for node in stage.store.shards.inflight().values())
    rows = {name: kept(folder) for name, folder in folders.items()}
    first = {n for n in range(20) if n % 2 == 0}
    for n in range(20):
        deliveries = {4: 2}.get(n, 1)
        assert sum(row["value"] == n for row in rows["all"]) == 3 * deliveries
        assert {row["task"] for row in rows["all"] if row["value"] == n} == {0, 1, 2}
        assert sum(row["value"] == n for row in rows["one"]) == 2 * deliveries
        assert sum(row["value"] == n for row in rows["late"]) == (n >= 10 and n != 13)
        # Both components' tuples of a number meet in one task of a batch.
        met = [row for row in rows["both"] if row["value"] == n]
        assert Counter(row["from"] for row in met) == Counter(
            {"twice": 2 * deliveries, "fails": 0 if n == 4 else deliveries}
        )
        assert len({(row["txid"], row["task"]) for row in met}) == deliveries
        assert (min(row["txid"] for row in met) == 1) == (n in first)
    assert {row["task"] for row in rows["one"]} == {0}


def test_a_transform_that_spark_finds_empty_leaves_no_record_behind(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    put = stage.put(range(6))
    builder = topology(stage)
    builder.transform("none", "sentences", lambda rows: rows.where("false"))
    builder.set_bolt("numbers", Numbers()).shuffle_grouping("none")
    drained(stage, builder)
    last = {id_.partition(":")[0].partition("/")[2]: id_.partition(":")[2] for id_ in put}
    assert {shard: node.checkpoint for shard, node in stage.store.shards.checkpoints().items()} == last
