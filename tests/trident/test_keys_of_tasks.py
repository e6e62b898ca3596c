"""Each task of a `StatefulBolt` has keys of its own, unless the grouping brings each key to one task."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from kinesis_trident import (
    BasicBolt,
    Bolt,
    CustomGrouping,
    DataFrameSpout,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    TopologyError,
    string_scheme,
)
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.storm.groupings import BoltDeclarer
from kinesis_trident.bolt.tracking.batch_run import BatchRuns
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    KeyValueState,
    SerializationError,
    SharedKeyError,
    SqlState,
    StatefulBolt,
    StateShapeError,
)
from kinesis_trident.trident.stores import MemoryMapState

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORDS = [f"w{number % 4}" for number in range(24)]


class CountWords(StatefulBolt):
    """Emits the count of a word in its task."""

    fields = "task int, word string, count long"

    def prepare(self, context: Any, collector: Any, state: KeyValueState[int]) -> None:
        self.task, self.collector, self.state = context.task, collector, state

    def execute(self, tup: Any) -> None:
        count = self.state.get(tup["word"], 0) + 1
        self.state.put(tup["word"], count)
        assert ("w0" in dict(self.state)) == (self.state.get("w0") is not None)
        self.collector.emit([self.task, tup["word"], count], tup)
        self.collector.ack(tup)


class CountOnly(CountWords):
    """Asks for no list of its keys: stores of executors have none."""

    def execute(self, tup: Any) -> None:
        count = self.state.get(tup["word"], 0) + 1
        self.state.put(tup["word"], count)
        self.collector.ack(tup)


class ByLength(CustomGrouping):
    """Sends each tuple to the task of its word."""

    def prepare(self, context: Any, component: str, stream: str, tasks: range) -> None:
        self.tasks = len(tasks)

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [hash(values[0][-1]) % self.tasks]


class Direct(Bolt):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare_stream("direct", "word string", direct=True)

    def prepare(self, context: Any, collector: Any) -> None:
        self.tasks, self.collector = context.components["count"] or 1, collector

    def execute(self, tup: Any) -> None:
        task = ord(tup["word"][1]) % self.tasks
        self.collector.emit_direct(task, [tup["word"]], tup, stream="direct")
        self.collector.ack(tup)


class Same(BasicBolt):
    fields = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup["word"]])


GROUPINGS: dict[str, Callable[[BoltDeclarer], object]] = {
    "shuffle": lambda one: one.shuffle_grouping("lines"),
    "all": lambda one: one.all_grouping("lines"),
    "partial key": lambda one: one.partial_key_grouping("lines", "word"),
    "custom": lambda one: one.custom_grouping("lines", ByLength()),
    "fields": lambda one: one.fields_grouping("lines", "word"),
    "fields, and all of another": lambda one: one.fields_grouping("lines", "word").all_grouping("none"),
    "fields, and shuffle": lambda one: one.fields_grouping("lines", "word").shuffle_grouping("none"),
    "global": lambda one: one.global_grouping("lines"),
    "direct": lambda one: one.direct_grouping("direct", "direct"),
    "local, from the spout": lambda one: one.local_or_shuffle_grouping("lines"),
    "local, by fields above": lambda one: one.local_or_shuffle_grouping("keyed"),
    "local, by fields of two": lambda one: one.local_or_shuffle_grouping("keyed").local_or_shuffle_grouping(
        "keyed 2"
    ),
}
KEYED = {
    "fields",
    "fields, and all of another",
    "global",
    "direct",
    "local, by fields above",
}


def build(
    grouping: str, tasks: int | None, state: Any, bolt: type[StatefulBolt] = CountWords
) -> TopologyBuilder:
    made = TopologyBuilder(None)
    options = {"streamName": "s", "applicationName": "a", "zookeeper.hosts": "zk:1"}
    made.set_spout("lines", KinesisSpout(scheme=string_scheme("word"), **options))
    made.set_bolt("none", lambda tup, out: None, fields="word string").shuffle_grouping("lines")
    made.set_bolt("direct", Direct()).shuffle_grouping("lines")
    made.set_bolt("keyed", Same(), 3).fields_grouping("lines", "word")
    made.set_bolt("keyed 2", Same(), 2).fields_grouping("none", "word")
    GROUPINGS[grouping](made.set_bolt("count", bolt(state), tasks))
    return made


def counts_of(state: Any) -> dict[tuple[Any, ...], int]:
    """The values in the store, by its own keys."""
    return {tuple(key): value for *key, value in state.make_state({}, 0, 1).tuples()}


@pytest.mark.parametrize("tasks", [1, 2, 4])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.filterwarnings("ignore:.*keeps tuples where they are made")
def test_each_tuple_counts_once_in_its_task(grouping: str, tasks: int) -> None:
    state = MemoryMapState.opaque()
    made = build(grouping, None if "local" in grouping and tasks == 1 else tasks, state)
    batches = [WORDS[at : at + 6] for at in range(0, len(WORDS), 6)]
    result = run_topology(made, {"lines": Batches(*batches)}, parallelism=3)
    counted = Counter((task, word) for task, word, _ in result.emitted["count"])
    copies = tasks if grouping == "all" else 1
    assert counted.total() == len(WORDS) * copies
    # Each task counts on from its own last one.
    seen: Counter[tuple[int, str]] = Counter()
    for task, word, count in result.emitted["count"]:
        seen[task, word] = max(seen[task, word], count)
    assert seen == counted
    expected: Counter[tuple[Any, ...]] = Counter()
    for (task, word), count in counted.items():
        keyed = grouping in KEYED or task == 0
        expected[(word,) if keyed else ("$TASK$", task, word)] += count
    assert counts_of(state) == expected


@pytest.mark.parametrize(
    ("grouping", "tasks"), [("fields", 4), ("shuffle", 1), ("shuffle", 3), ("custom", 3)]
)
def test_what_another_program_has_put_goes_on_in_the_first_task(grouping: str, tasks: int) -> None:
    """It has stored no number of tasks, and one key for all of them."""
    state = MemoryMapState.opaque()
    old = state.make_state({}, 0, 1)
    old.begin_commit(None)
    old.multi_put([("w0",), ("w1",)], [100, 200])
    old.commit(None)
    run_topology(build(grouping, tasks, state), {"lines": WORDS})
    counts = counts_of(state)
    assert sum(count for key, count in counts.items() if key[-1] == "w0") == 106
    assert counts["w0",] >= 100
    assert counts["w1",] >= 200


LIVES: list[tuple[list[tuple[str, int | None]], str | None]] = [
    ([("shuffle", 2), ("shuffle", 4), ("shuffle", 4)], None),
    ([("shuffle", 4), ("shuffle", 2)], r"holds keys of 4 tasks, and the bolt now has them in 2"),
    ([("shuffle", 2), ("fields", 4)], r"holds keys of 2 tasks, and the bolt now has them in 1"),
    ([("shuffle", 2), ("global", None)], r"'count' holds keys of 2 tasks.*Give the bolt 2 tasks or more"),
    ([("fields", 4), ("fields", 2), ("shuffle", 2), ("all", 3)], None),
    ([("local, from the spout", None), ("local, from the spout", None)], None),
]


@pytest.mark.parametrize(("lives", "said"), LIVES)
def test_another_number_of_tasks_goes_on_or_is_refused(
    lives: list[tuple[str, int | None]], said: str | None, every_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A driver does not know it of the first batch, when there was one before it.
    following = BatchRuns.next
    monkeypatch.setattr(BatchRuns, "next", lambda *of: replace(following(*of), again=True))
    *before, (grouping, tasks) = lives
    for one in before:
        run_topology(build(*one, every_store, CountOnly), {"lines": WORDS})
    last = build(grouping, tasks, every_store, CountOnly)
    if said is None:
        run_topology(last, {"lines": WORDS})
        return
    with pytest.raises(StateShapeError, match=said):
        run_topology(last, {"lines": WORDS})


def test_where_spark_chooses_the_number_of_tasks_the_greatest_counts() -> None:
    state = MemoryMapState.opaque()
    made = build("local, from the spout", None, state)
    run_topology(made, {"lines": WORDS}, parallelism=3)
    run_topology(build("shuffle", 8, state), {"lines": WORDS})
    with pytest.raises(StateShapeError, match="holds keys of 8 tasks"):
        run_topology(build("fields", 3, state), {"lines": WORDS})


def test_a_key_that_looks_like_another_task_s_fails_its_tuple() -> None:
    state: KeyValueState[int] = KeyValueState(MemoryMapState.opaque().make_state({}, 0, 1))
    for call in (state.get, lambda key: state.put(key, 1)):
        with pytest.raises(SerializationError, match=r"begins with '\$TASK\$'"):
            call(("$TASK$", 1, "a"))


class CountAll(StatefulBolt):
    """Counts under a key that no grouping brings to one task."""

    fields = "count long"

    def prepare(self, context: Any, collector: Any, state: KeyValueState[int]) -> None:
        self.collector, self.state = collector, state

    def execute(self, tup: Any) -> None:
        self.state.put("all", self.state.get("all", 0) + 1)
        self.collector.emit([self.state.get("all")], tup)
        self.collector.ack(tup)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.filterwarnings("ignore:.*keeps tuples where they are made")
def test_no_update_of_a_key_that_the_grouping_does_not_know_is_lost(grouping: str) -> None:
    """It is counted by task, or it is an error; where each task gets tuples of its own beside, all may put it."""
    state = MemoryMapState.opaque()
    made = build(grouping, None if "local" in grouping else 3, state, CountAll)
    if grouping in KEYED - {"global", "fields, and all of another"}:
        with pytest.raises(
            SharedKeyError, match=r"two tasks of 'count' update the key \('all',\) in batch 1"
        ):
            run_topology(made, {"lines": WORDS}, parallelism=3)
        return
    result = run_topology(made, {"lines": WORDS}, parallelism=3)
    if grouping != "fields, and all of another":
        assert sum(counts_of(state).values()) == len(result.emitted["count"])


def test_a_task_that_spark_computes_again_in_one_attempt_counts_once(every_store: Any) -> None:
    """It finds its own mark, and so takes the values of the batch for its own."""
    facts = StateFacts(1, "shop", "lines@1", is_first=True)
    context = TopologyContext("count", 0, 1, 2, facts=facts, keyed=True)
    schema = pa.schema([("count", pa.int64())])
    for _ in range(2):
        operator = BoltOperator(
            "count", 1, CountAll(every_store), {"lines": ["word"]}, schema, None, context=context
        )
        batch = pa.RecordBatch.from_pydict({"word": ["a", "b"]})
        assert [row["count"] for made in operator(iter([batch])) for row in made.to_pylist()] == [1, 2]
    assert every_store.make_state({}, 0, 1).multi_get([("all",)]) == [2]


@pytest.mark.parametrize(("grouping", "tasks"), [("shuffle", 2), ("local, from the spout", None)])
def test_a_key_factory_cannot_tell_tasks_apart(grouping: str, tasks: int | None) -> None:
    state = SqlState.opaque("sqlite:///:memory:", keyFactory=lambda key: key[0])
    with pytest.raises(TopologyError, match=r"'count': its tasks have keys of their own .* Omit keyFactory"):
        build(grouping, tasks, state).check(2)
    for good, count in [("fields", 2), ("shuffle", 1)]:
        build(good, count, state).check(2)


@pytest.mark.parametrize("grouping", ["shuffle", "fields", "partial key"])
def test_on_spark(spark: SparkSession, tmp_path: Path, grouping: str) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    for txid in (1, 2):
        rows = spark.createDataFrame([(word,) for word in WORDS], "word string")
        made = TopologyBuilder(spark)
        made.set_spout("lines", DataFrameSpout(rows))
        GROUPINGS[grouping](made.set_bolt("count", CountOnly(state), 4))
        made.run_batch(txid)
    names = [(word,) for word in sorted(set(WORDS))]
    keys = [*names, *(("$TASK$", task, *name) for task in range(1, 4) for name in names)]
    counts = [count or 0 for count in state.make_state({}, 0, 1).multi_get(keys)]
    assert [sum(counts[at::4]) for at in range(4)] == [12] * 4
    assert (sum(counts[4:]) > 0) == (grouping != "fields")
