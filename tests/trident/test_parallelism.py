"""Test that a hint is the number of tasks, and that the nearest grouping above says which tuple goes where."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batch_in_hand import EACH, SHARDS, batch_in_hand
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from samples_topology import a_stream, graph_of

from kinesis_trident import KinesisSpout, TopologyError, string_scheme
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.moves import Grouping
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    MemoryMapState,
    SqlState,
    StateUpdater,
    Stream,
    TridentState,
    TridentTopology,
)
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    HintNode,
    PersistentAggregateNode,
    RepartitionNode,
    SpoutNode,
)
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import CombinerValueUpdater

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORDS = [f"{chr(97 + number % 7)}{number % 3}" for number in range(40)]
TASKS = 4

GROUPINGS: dict[str, Callable[[Stream], Stream]] = {
    "shuffle": lambda s: s.shuffle(),
    "partition_by": lambda s: s.partition_by("word"),
    "partition_by two fields": lambda s: s.partition_by("word, line"),
    "global_": lambda s: s.global_(),
    "batch_global": lambda s: s.batch_global(),
    "broadcast": lambda s: s.broadcast(),
    "shuffle, partition_by": lambda s: s.shuffle().partition_by("word"),
    "partition_by, shuffle": lambda s: s.partition_by("word").shuffle(),
    "broadcast, global_": lambda s: s.broadcast().global_(),
    "aggregate by group": lambda s: s.group_by("word").aggregate(Every(), "line string"),
}


class Every(Aggregator):
    """Emits the tuples as they are."""

    def init(self, batch_id: int | None, collector: Any) -> None:
        return None

    def aggregate(self, value: Any, tup: Any, collector: Any) -> None:
        collector.emit([tup["line"]])

    def complete(self, value: Any, collector: Any) -> None:
        return None


class Together(Aggregator):
    """Emits the words of a partition as one text."""

    def init(self, batch_id: int | None, collector: Any) -> list[str]:
        return []

    def aggregate(self, value: list[str], tup: Any, collector: Any) -> list[str]:
        return [*value, tup["word"]]

    def complete(self, value: list[str], collector: Any) -> None:
        if value:
            collector.emit([" ".join(value)])


class Persist(StateUpdater[Any]):
    """Counts the words, if each comes to one task, and emits those of a partition as one text."""

    def __init__(self, *, counts: bool = True) -> None:
        self._counts = counts

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        counts = Counter(tup["word"] for tup in tuples) if self._counts else {}
        add = CombinerValueUpdater[int]
        state.multi_update([(word,) for word in counts], [add(Count(), n) for n in counts.values()])
        collector.emit([" ".join(tup["word"] for tup in tuples)])


class InTasks(MemoryMapState):
    """A state that the tasks of this process reach."""

    driver_local = False


def persisted(stream: Stream) -> TridentState:
    move = stream.node.placed
    counts = move is not None and move.grouping in (Grouping.FIELDS, Grouping.GLOBAL)
    return stream.partition_persist(InTasks.opaque(), "word", Persist(counts=counts), "words string")


CONSUMERS: dict[str, Callable[[Stream, Callable[[Any], Any]], object]] = {
    "partition_aggregate": lambda s, hint: hint(s).partition_aggregate(Together(), "words string"),
    "partition_aggregate, hint after a function": lambda s, hint: hint(
        s.filter(lambda tup: True)
    ).partition_aggregate(Together(), "words string"),
    "partition_aggregate, hint after it": lambda s, hint: hint(
        s.partition_aggregate(Together(), "words string")
    ).filter(lambda tup: True),
    "partition_aggregate in a chain": lambda s, hint: (
        hint(s).chained_agg().partition_aggregate(Together(), "words string").chain_end()
    ),
    "partition_persist, hint on the stream": lambda s, hint: persisted(hint(s)),
    "partition_persist, hint on the state": lambda s, hint: hint(persisted(s)),
    "partition_persist, hint on both": lambda s, hint: hint(persisted(hint(s).filter(lambda tup: True))),
}


def run(build: Callable[[Stream], object]) -> Any:
    topology = TridentTopology()
    options = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}
    spout = KinesisSpout(scheme=string_scheme("line"), **options)
    build(topology.new_stream("lines", spout).map(lambda tup: [tup["line"], tup["line"]], "word, line"))
    return run_topology(topology, {"lines": WORDS}, parallelism=TASKS)


def tasks_of(result: Any, operation: str) -> list[list[str]]:
    """The words of each task that had some."""
    [name] = [name for name in result.emitted if name.startswith(operation)]
    return [values[0].split() for values in result.emitted[name]]


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("hint", [None, 1, 3, 7])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.filterwarnings("ignore:.*not exactly once")
def test_every_grouping_with_every_hint_and_consumer(grouping: str, hint: int | None, consumer: str) -> None:
    def build(stream: Stream) -> object:
        grouped = GROUPINGS[grouping](stream)
        return CONSUMERS[consumer](
            grouped, lambda made: made if hint is None else made.parallelism_hint(hint)
        )

    is_global = "global" in grouping
    if is_global and hint is not None and hint > 1:
        with pytest.raises(TopologyError, match=rf"parallelism_hint\({hint}\): .*global_? brings all tuples"):
            run(build)
        return
    result = run(build)
    kinds = ("chain", "chained_agg"), ("persist", "partition_persist"), ("", "partition_aggregate")
    tasks = tasks_of(result, next(operation for kind, operation in kinds if kind in consumer))
    copies = {"broadcast": hint or TASKS, "broadcast, global_": TASKS}.get(grouping, 1)
    assert Counter(word for task in tasks for word in task) == Counter(WORDS * copies)
    if is_global:
        assert len(tasks) == 1
    elif grouping == "broadcast":
        assert [Counter(task) for task in tasks] == [Counter(WORDS)] * copies
    elif grouping in ("shuffle", "partition_by, shuffle"):
        assert len(tasks) == (hint or TASKS)
    else:
        assert len(tasks) <= (hint or TASKS)
        assert len(tasks) > 1 or hint == 1
        where = {(word, number) for number, task in enumerate(tasks) for word in task}
        assert len(where) == len(set(WORDS))
    if "persist" in consumer and (is_global or "partition_by" in grouping) and "shuffle" not in grouping:
        [counts] = result.states.values()
        assert counts == {(word,): n * copies for word, n in Counter(WORDS).items()}


RESULTS: dict[str, Callable[[Stream], TridentState | Stream]] = {
    "persistent_aggregate": lambda s: s.group_by("word").persistent_aggregate(InTasks.opaque(), Count(), "n"),
    "persistent_aggregate of a combiner": lambda s: s.group_by("word").persistent_aggregate(
        InTasks.opaque(), Number(), "n bigint"
    ),
    "aggregate": lambda s: s.group_by("word").aggregate(Count(), "n"),
    "aggregate of a combiner": lambda s: s.group_by("word").aggregate(Number(), "n bigint"),
}


class Number(CombinerAggregator):
    """Counts."""

    def init(self, tup: Any) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


@pytest.mark.parametrize("consumer", RESULTS)
@pytest.mark.parametrize("hint", [None, 1, 3])
@pytest.mark.parametrize("grouping", [name for name in GROUPINGS if name != "aggregate by group"])
def test_a_grouping_and_a_hint_change_no_aggregate(grouping: str, hint: int | None, consumer: str) -> None:
    def build(stream: Stream) -> None:
        made = RESULTS[consumer](GROUPINGS[grouping](stream))
        if hint is not None:
            made = made.parallelism_hint(hint)
        if isinstance(made, TridentState):
            made = made.new_values_stream()
        made.filter(lambda tup: True)

    result = run(build)
    copies = TASKS if "broadcast" in grouping else 1
    [name] = [name for name in result.emitted if name.startswith("each(<lambda>)")]
    assert dict(result.emitted[name]) == {word: n * copies for word, n in Counter(WORDS).items()}


def moves(graph: Graph) -> list[int | None]:
    return [node.move.tasks for node in graph.nodes if isinstance(node, RepartitionNode)]


def test_a_hint_is_of_the_last_grouping() -> None:
    stream = a_stream().shuffle().project("data")
    stream.parallelism_hint(5).filter(lambda tup: True)
    assert moves(graph_of(stream)) == [5]
    assert not any(isinstance(node, HintNode) for node in graph_of(stream).nodes)


def test_the_later_of_two_hints_counts() -> None:
    stream = a_stream().shuffle().parallelism_hint(2).project("data").parallelism_hint(6)
    assert moves(graph_of(stream)) == [6]


def test_a_hint_whose_stream_is_dropped_is_of_the_stream_that_it_was_called_on() -> None:
    stream = a_stream().shuffle().project("data")
    stream.parallelism_hint(5)
    stream.filter(lambda tup: True)
    assert moves(graph_of(stream)) == [5]


def test_branches_have_their_own_hints() -> None:
    stream = a_stream().shuffle()
    stream.project("data").parallelism_hint(2)
    stream.project("shardId").parallelism_hint(16)
    stream.project("stream")
    graph = graph_of(stream)
    found = {node.operation: node for node in graph.nodes}
    assert sorted(moves(graph), key=str) == [16, 2, None]
    assert all(len(graph.children(node)) == 1 for node in graph.nodes if isinstance(node, RepartitionNode))
    assert "project" in found


def test_what_branches_share_runs_once_in_tasks_of_its_own() -> None:
    shared = a_stream().partition_by("shardId").filter(lambda tup: True)
    for tasks in (2, 16):
        shared.project("shardId").parallelism_hint(tasks)
    graph = graph_of(shared)
    [function] = [node for node in graph.nodes if node.operation.startswith("each(")]
    assert len(graph.children(function)) == 2
    assert moves(graph) == [None, 2, 16]
    assert {node.move.fields for node in graph.nodes if isinstance(node, RepartitionNode)} == {("shardId",)}


def test_a_branch_cannot_be_grouped_again_by_fields_that_are_gone() -> None:
    shared = a_stream().partition_by("shardId").project("data")
    for tasks in (2, 16):
        shared.filter(lambda tup: True).parallelism_hint(tasks)
    with pytest.raises(
        TopologyError, match=r"hint\(2\): the tuples cannot .* as partition_by did it. Call shuffle\(\) or"
    ):
        graph_of(shared)


def test_a_hint_after_an_aggregation_is_of_the_aggregation() -> None:
    stream = a_stream().shuffle()
    stream.group_by("shardId").aggregate(Count(), "n").parallelism_hint(3)
    graph = graph_of(stream)
    assert moves(graph) == [None]
    assert [node.move.tasks for node in graph.nodes if isinstance(node, AggregateNode) and node.move] == [3]


def test_a_hint_after_an_aggregation_of_all_tuples_is_refused_for_there_is_one_task() -> None:
    def build(stream: Stream) -> None:
        every = stream.shuffle().parallelism_hint(3).aggregate(Every(), "word", "line")
        with pytest.raises(
            TopologyError, match=r"hint\(2\): aggregate\(Every\) brings all tuples to one task\."
        ):
            every.parallelism_hint(2)
        every.parallelism_hint(1).partition_aggregate(Together(), "words string")
        every.shuffle().parallelism_hint(2).name("spread").partition_aggregate(Together(), "words string")

    result = run(build)
    [whole], spread = tasks_of(result, "partition_aggregate"), tasks_of(result, "spread")
    assert sorted(whole) == sorted(word for task in spread for word in task) == sorted(WORDS)
    assert len(spread) == 2


def test_a_hint_on_new_values_moves_them_and_leaves_the_state_alone() -> None:
    stream = a_stream().shuffle()
    state = stream.group_by("shardId").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    state.parallelism_hint(2).new_values_stream().parallelism_hint(5).filter(lambda tup: True)
    graph = graph_of(stream)
    assert [node.move.tasks for node in graph.nodes if isinstance(node, PersistentAggregateNode)] == [2]
    assert moves(graph) == [None, 5]


def test_a_hint_below_a_merge_needs_one_grouping() -> None:
    stream = a_stream()
    same = stream.partition_by("shardId").merge(stream.partition_by("shardId"))
    same.parallelism_hint(3).project("data")
    assert moves(graph_of(stream)) == [None, None, 3]
    other = stream.partition_by("shardId").merge(stream.partition_by("data"))
    with pytest.raises(TopologyError, match=r"as merge did it. Call shuffle\(\)"):
        other.parallelism_hint(3)


@pytest.mark.parametrize("hint", [2, 7])
def test_partition_persist_counts_each_tuple_in_spark(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path, hint: int
) -> None:
    counts = SqlState.opaque(f"sqlite:///{tmp_path}/counts.db")
    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        stream = a_stream(rows=rows)
        spout = stream.node
        assert isinstance(spout, SpoutNode)
        assert spout.options is not None
        words = stream.map(lambda tup: [bytes(tup["data"]).decode().split()[2]], "word string")
        state = words.partition_by("word").partition_persist(counts, "word", Persist(), "words string")
        state.parallelism_hint(hint)
        handler = BatchHandler(spout.options, lambda *_: None, 0)
        TopologyAttempts(spout, graph_of(stream), 2)(rows, batch, handler)
    keys = [(str(number),) for number in range(4)]
    assert counts.make_state({}, 0, 1).multi_get(keys) == [EACH * len(SHARDS) // 4] * 4
