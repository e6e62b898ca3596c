"""Operators over one batch on Spark: whatever is run of them, and how often, every record is judged, exactly."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from batch_in_hand import EACH, SHARDS
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from kinesis_trident import Bolt, OutputCollector, TopologyContext, Tuple
from kinesis_trident.bolt.errors import NotCoveredError, OperatorError
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.spans import Spans
from kinesis_trident.bolt.tracking.tracked import Tracked
from kinesis_trident.bolt.tracking.tracking import Tracking

TEXT = StructType().add("text", "string")
SPLIT = StructType().add("text", "string").add("word", "string")


def decode(record):  # type: ignore[no-untyped-def]
    return (record.data.decode(),)


def split(batch: pa.RecordBatch) -> pa.RecordBatch:
    pairs = [
        (row, text, word)
        for row, text in enumerate(batch.column("text").to_pylist())
        for word in text.split()
    ]
    return pa.RecordBatch.from_pydict(
        {"__row": [p[0] for p in pairs], "text": [p[1] for p in pairs], "word": [p[2] for p in pairs]}
    )


def judge(record, bad):  # type: ignore[no-untyped-def]
    if record.text in bad:
        raise ValueError(record.text)
    return (record.text,)


def tracked(in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier) -> Tracking:
    rows, batch = in_hand
    return Tracking(rows, batch.facts, carrier)


def chain(tracking: Tracking, *bad: str) -> Tracked:
    """Decode, split into words, and judge these in two tasks by word."""
    texts = tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    words = tracking.steps("split", texts, (step_for(split, SPLIT),), SPLIT)
    moved = words.on(words.frame.repartition(2, "word"))
    return tracking.steps("judge", moved, (step_for(partial(judge, bad=bad), TEXT),), TEXT)


ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "none": lambda rows: None,
    "one": lambda rows: rows.count(),
    "two": lambda rows: (rows.count(), rows.collect()),
    "part": lambda rows: rows.limit(1).collect(),
    "part, then all": lambda rows: (rows.limit(1).collect(), rows.collect()),
    "doubled": lambda rows: rows.union(rows).collect(),
    "kept": lambda rows: (rows.persist().count(), rows.collect(), rows.unpersist()),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_every_record_is_judged_whatever_is_run(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier, action: str
) -> None:
    tracking = tracked(in_hand, carrier)
    judged = chain(tracking, "3 x 3", "4 x 0", "9 x 1")
    ACTIONS[action](judged.frame)
    found = {
        shard: [(run.first, run.last, run.count, run.reason, run.prev) for run in runs]
        for shard, runs in tracking.judge().not_done.items()
    }
    # Where they stand is known although the words came far from the source's rows.
    expected = [
        ("3", "3", 1, "ValueError: 3 x 3", "2"),
        ("4", "4", 1, "ValueError: 4 x 0", "3"),
        ("9", "9", 1, "ValueError: 9 x 1", "8"),
    ]
    assert found == dict.fromkeys(SHARDS, expected)


def jobs(context: SparkContext, group: str) -> int:
    """Return how many jobs of a group were started."""
    # Spark's listeners hear of them later.
    context._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[attr-defined]
    return len(context.statusTracker().getJobIdsForGroup(group))


def test_no_job_is_run_besides_when_nothing_failed(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier, spark: SparkSession
) -> None:
    tracking = tracked(in_hand, carrier)
    judged = chain(tracking)
    context: SparkContext = spark.sparkContext
    context.setJobGroup("tracking", "")
    try:
        judged.frame.write.format("noop").mode("overwrite").save()
        before = jobs(context, "tracking")
        assert before > 0
        assert not tracking.judge()
        assert jobs(context, "tracking") == before
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


UNEQUAL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "lost": lambda rows: rows.where("text not in ('5 x 1', '6 x 2', '17 x 1')"),
    "doubled": lambda rows: rows.union(rows.where("text in ('5 x 1', '6 x 2', '17 x 1')")),
    "doubled elsewhere": lambda rows: rows.union(
        rows.where("text in ('5 x 1', '6 x 2', '17 x 1')").repartition(2)
    ),
}


@pytest.mark.parametrize(
    ("what", "limit"), [("lost", 24), ("doubled", 16_384), ("doubled elsewhere", 16_384)]
)
def test_where_sums_disagree_only_the_records_concerned_are_not_done(
    in_hand: tuple[DataFrame, CurrentBatch],
    carrier: AccumulatorCarrier,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    limit: int,
) -> None:
    monkeypatch.setattr("kinesis_trident.bolt.tracking.spans.Spans.over", partial(Spans.over, limit=limit))
    tracking = tracked(in_hand, carrier)
    texts = tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    words = tracking.steps("split", texts, (step_for(split, SPLIT),), SPLIT)
    unequal = words.on(UNEQUAL[what](words.frame))
    tracking.steps("judge", unequal, (step_for(partial(judge, bad=("9 x 1",)), TEXT),), TEXT)
    found = {
        shard: {run.first: (run.last, run.reason, run.prev) for run in runs}
        for shard, runs in tracking.judge().not_done.items()
    }
    lost = "LOST: its tuples did not all come to judge, or came twice"
    expected = {
        "5": ("6", lost, "4"),
        "9": ("9", "ValueError: 9 x 1", "8"),
        "17": ("17", lost, "16"),
    }
    assert found == dict.fromkeys(SHARDS, expected)


def test_rows_that_were_not_read_at_all_leave_the_batch_undecided(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier
) -> None:
    rows, batch = in_hand
    tracking = Tracking(rows.where("shardId like '%1'"), batch.facts, carrier)
    tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    with pytest.raises(
        NotCoveredError, match=f"the operator __source did not see every record of {SHARDS[0]}"
    ):
        tracking.judge()


def test_behind_a_function_of_the_users_what_it_drops_is_done_and_what_it_keeps_is_judged(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier
) -> None:
    tracking = tracked(in_hand, carrier)
    texts = tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    kept = texts.changed(texts.frame.where("text like '% 1'").union(texts.frame.where("text = '4 x 0'")))
    tracking.steps("judge", kept, (step_for(partial(judge, bad=("3 x 3", "4 x 0", "5 x 1")), TEXT),), TEXT)
    found = tracking.judge().not_done
    assert {shard: [run.first for run in runs] for shard, runs in found.items()} == {
        key: ["4", "5"] for key in SHARDS
    }


def test_a_worker_killed_in_the_middle_of_a_tree_changes_nothing(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def dies_once(record):  # type: ignore[no-untyped-def]
        if record.text == "7 x 3" and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return judge(record, ("8 x 0",))

    tracking = tracked(in_hand, carrier)
    texts = tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    moved = texts.on(texts.frame.repartition(2, F.col("text")))
    judged = tracking.steps("judge", moved, (step_for(dies_once, TEXT),), TEXT)
    # local[2] gives a task one attempt, so this action fails, with half of the tree reported; the next one does not.
    # What Spark says depends on whether it was still sending to the worker.
    with pytest.raises(Exception, match=r"Python worker exited unexpectedly|Broken pipe|Connection reset"):
        judged.frame.collect()
    assert killed.exists()
    assert judged.frame.where("text = '7 x 3'").count() == 2
    found = tracking.judge().not_done
    assert {shard: [run.first for run in runs] for shard, runs in found.items()} == {
        key: ["8"] for key in SHARDS
    }


def test_each_operator_has_a_name_of_its_own(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier
) -> None:
    tracking = tracked(in_hand, carrier)
    chain(tracking)
    for name in ("split", ""):
        with pytest.raises(
            OperatorError, match="Give each operator its own name; there are decode, split, judge"
        ):
            tracking.steps(name, tracking.source, (), TEXT)


class Together(Bolt):
    """One tuple of all whose text ends alike, emitted when all have come; those that end with 2 are kept."""

    fields = "text string"

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.held: dict[str, list[Tuple]] = {}

    def execute(self, tup: Tuple) -> None:
        self.held.setdefault(tup["text"][-1], []).append(tup)

    def cleanup(self) -> None:
        for last, held in self.held.items():
            self.collector.emit([last], held)
            for tup in held:
                if last != "2":
                    self.collector.ack(tup)


def test_a_tuple_of_several_records_fails_them_all_and_what_is_kept_is_held(
    in_hand: tuple[DataFrame, CurrentBatch], carrier: AccumulatorCarrier
) -> None:
    tracking = tracked(in_hand, carrier)
    texts = tracking.steps("decode", tracking.source, (step_for(decode, TEXT),), TEXT)
    inputs, schema = {"decode": ["text"]}, pa.schema([("text", pa.string())])
    together = BoltOperator("together", 7, Together(), inputs, schema, tracking.tag("together"))
    joined = tracking.operator("together", texts.on(texts.frame.repartition(1)), together, TEXT)
    spread = joined.on(joined.frame.repartition(2, "text"))
    last = tracking.steps("judge", spread, (step_for(partial(judge, bad=("0",)), TEXT),), TEXT)
    last.frame.collect()
    found = tracking.judge().not_done
    reasons = {
        (shard, number): run.reason
        for shard, runs in found.items()
        for run in runs
        for number in range(int(run.first), int(run.last) + 1)
    }
    wanted = {0: "ValueError: 0", 2: "HELD (bolt together)"}
    assert reasons == {
        (shard, n): wanted[n % 4] for shard in SHARDS for n in range(1, EACH + 1) if n % 4 in wanted
    }
