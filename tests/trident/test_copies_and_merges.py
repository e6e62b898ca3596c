"""Broadcasts and merges against Storm's meaning: what is copied, how often, and what meets in a task."""

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
from test_parallelism import InTasks, Together

from kinesis_trident import KinesisSpout, TopologyError, string_scheme
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    Count,
    SqlState,
    StateFactory,
    StateUpdater,
    Stream,
    TridentTopology,
)
from kinesis_trident.trident.build.nodes import MergeNode, SpoutNode
from kinesis_trident.trident.run.batches import TopologyAttempts
from kinesis_trident.trident.state import CombinerValueUpdater

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TASKS = 3
WORDS = ["a", "a", "b", "c", "d", "e"]

Two = Callable[[Stream, Stream], Stream]

SHAPES: dict[str, tuple[Two, int, int]] = {
    "broadcast and merge": (lambda a, b: a.broadcast().merge(b), TASKS, 1),
    "merge a broadcast": (lambda a, b: b.merge(a.broadcast()), TASKS, 1),
    "with a hint": (lambda a, b: b.merge(a.broadcast().parallelism_hint(2)), 2, 1),
    "two broadcasts merged": (lambda a, b: a.broadcast().merge(b.broadcast()), TASKS, TASKS),
    "merge and broadcast": (lambda a, b: a.merge(b).broadcast(), TASKS, TASKS),
    "twice": (lambda a, b: a.broadcast().broadcast().merge(b), TASKS * TASKS, 1),
    "twice, with a function between": (
        lambda a, b: a.broadcast().filter(keep).broadcast().parallelism_hint(2).merge(b),
        2 * TASKS,
        1,
    ),
    "then partition_by": (lambda a, b: a.broadcast().partition_by("word").merge(b), TASKS, 1),
    "then shuffle": (lambda a, b: a.broadcast().shuffle().merge(b), TASKS, 1),
    "then global_": (lambda a, b: a.broadcast().global_().merge(b), TASKS, 1),
    "then a function": (lambda a, b: a.broadcast().map(same, "word").merge(b.shuffle()), TASKS, 1),
    "of a merge of a broadcast": (lambda a, b: a.broadcast().merge(b).merge(b).shuffle(), TASKS, 2),
    "a diamond": (lambda a, b: diamond(a.broadcast()).merge(b), 2 * TASKS, 1),
}


def keep(tup: Any) -> bool:
    return True


def same(tup: Any) -> list[Any]:
    return [tup["word"]]


def diamond(stream: Stream) -> Stream:
    return stream.filter(keep).merge(stream.map(same, "word"))


class Persist(StateUpdater[Any]):
    """Counts the words of a task."""

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        counts = Counter(tup["word"] for tup in tuples)
        add = CombinerValueUpdater[int]
        state.multi_update([(word,) for word in counts], [add(Count(), n) for n in counts.values()])


CONSUMERS: dict[str, Callable[[Stream, StateFactory], object]] = {
    "a state of groups": lambda s, state: s.group_by("word").persistent_aggregate(state, Count(), "n"),
    "a state of groups of a function's": lambda s, state: (
        s.map(same, "word").group_by("word").persistent_aggregate(state, Count(), "n")
    ),
    "an updater": lambda s, state: s.partition_by("word").partition_persist(state, "word", Persist()),
    "an updater in one task": lambda s, state: s.global_().partition_persist(state, "word", Persist()),
    "two": lambda s, state: (
        s.filter(keep),
        s.partition_by("word").partition_persist(state, "word", Persist()),
    ),
}


def words_of(stream: Stream, first: str) -> Stream:
    """Those of one of two streams: words that begin with a letter are the first's."""
    return stream.filter(lambda tup: (tup["word"] < "m") == (first == "a"))


def both(stream: Stream) -> tuple[Stream, Stream]:
    named = stream.map(lambda tup: [tup["line"]], "word")
    return words_of(named, "a"), words_of(named, "z")


def run(build: Callable[[Stream], object], words: list[str]) -> Any:
    topology = TridentTopology()
    options = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}
    build(topology.new_stream("lines", KinesisSpout(scheme=string_scheme("line"), **options)))
    return run_topology(topology, {"lines": words}, parallelism=TASKS)


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_copy_counts_once(shape: str, consumer: str) -> None:
    merged, ours, theirs = SHAPES[shape]
    others = [f"z{word}" for word in WORDS]
    result = run(lambda lines: CONSUMERS[consumer](merged(*both(lines)), InTasks.opaque()), [*WORDS, *others])
    [counts] = result.states.values()
    expected = {(word,): n * ours for word, n in Counter(WORDS).items()}
    assert counts == expected | {(word,): n * theirs for word, n in Counter(others).items()}
    assert not result.failed


def test_a_copy_that_fails_fails_its_record() -> None:
    def build(lines: Stream) -> None:
        def once(tup: Any) -> list[Any]:
            if tup["word"] == "b":
                raise ValueError("bad")
            return [tup["word"]]

        copies = both(lines)[0].broadcast().map(once, "word")
        copies.group_by("word").persistent_aggregate(InTasks.opaque(), Count(), "n")

    result = run(build, WORDS)
    [counts] = result.states.values()
    assert counts == {(word,): n * TASKS for word, n in Counter(WORDS).items() if word != "b"}
    assert [one.values for one in result.failed] == ["b"]


PLACED: dict[str, Two] = {
    "a broadcast and a shuffle": lambda a, b: a.broadcast().merge(b.shuffle()),
    "a shuffle and a broadcast": lambda a, b: b.shuffle().merge(a.broadcast()),
    "a broadcast and what the spout reads": lambda a, b: a.broadcast().filter(keep).merge(b),
    "a broadcast and groups": lambda a, b: a.broadcast().merge(b.partition_by("word")),
    "a broadcast and one task": lambda a, b: a.broadcast().merge(b.global_()),
    "a merge of a merge": lambda a, b: a.broadcast().merge(words_of(b, "a")).merge(b.shuffle()),
    "two broadcasts": lambda a, b: a.broadcast().merge(b.broadcast()),
    "two of one hint": lambda a, b: a.broadcast().parallelism_hint(5).merge(b.shuffle()),
}


@pytest.mark.parametrize("between", [None, "a function"])
@pytest.mark.parametrize("shape", PLACED)
def test_what_was_copied_to_a_task_meets_the_rest_of_a_merge_there(shape: str, between: str | None) -> None:
    others = [f"z{number}" for number in range(20)]

    def build(lines: Stream) -> None:
        merged = PLACED[shape](*both(lines))
        (merged.filter(keep) if between else merged).partition_aggregate(Together(), "words string")

    result = run(build, [*WORDS, *others])
    [name] = [name for name in result.emitted if name.startswith("partition_aggregate")]
    tasks = [values[0].split() for values in result.emitted[name]]
    count = 5 if "hint" in shape else TASKS
    assert len(tasks) == count
    # All copies are in each task, and the others where their own grouping says.
    assert all(sorted(word for word in task if word < "m") == WORDS for task in tasks)
    rest = [{word for word in task if word > "m"} for task in tasks]
    if shape == "two broadcasts":
        assert rest == [set(others)] * TASKS
    else:
        assert sorted(word for some in rest for word in some) == sorted(others)
        assert all(rest) or shape == "a broadcast and one task"
        assert sum(map(bool, rest)) == (1 if "one task" in shape else count)


@pytest.mark.parametrize("hints", [(None, None), (2, 2), (2, 5), (None, 4)])
@pytest.mark.parametrize("grouping", ["partition_by", "global_", "group_by and aggregate"])
def test_streams_that_are_grouped_alike_are_grouped_when_they_are_merged(
    grouping: str, hints: tuple[int | None, int | None]
) -> None:
    def grouped(stream: Stream, hint: int | None) -> Stream:
        if grouping == "global_":
            return stream.global_()
        if grouping == "partition_by":
            stream = stream.partition_by("word")
        else:
            stream = stream.group_by("word").aggregate(Count(), "n").project("word")
        return stream if hint is None else stream.parallelism_hint(hint)

    def build(lines: Stream) -> None:
        words = lines.map(lambda tup: [tup["line"]], "word")
        merged = grouped(words, hints[0]).merge(grouped(words, hints[1]).filter(keep))
        merged.partition_persist(InTasks.opaque(), "word", Persist())

    [counts] = run(build, WORDS).states.values()
    each = Counter(set(WORDS) if "aggregate" in grouping else WORDS)
    assert counts == {(word,): 2 * n for word, n in each.items()}


def test_copies_in_other_numbers_of_tasks_cannot_meet() -> None:
    stream = a_stream()
    merged = stream.broadcast().merge(stream.broadcast().parallelism_hint(2))
    merged.shuffle().partition_aggregate(Together(), "words string", "data")
    graph_of(stream)
    merged.partition_aggregate(Together(), "words string", "data")
    with pytest.raises(TopologyError, match=r"merge: broadcast\(\) copies .* the same parallelism_hint"):
        graph_of(stream)


def test_a_merge_that_nobody_takes_by_task_is_not_moved() -> None:
    words = a_stream().map(lambda tup: ["a"], "word")
    merged = words.partition_by("word").merge(words.partition_by("word"))
    merged.group_by("word").aggregate(Count(), "n")
    merged.parallelism_hint(2).partition_aggregate(Together(), "words string")
    assert not any(node.move for node in graph_of(words).nodes if isinstance(node, MergeNode))


ON_SPARK = ("broadcast and merge", "merge a broadcast", "twice", "then partition_by", "a diamond")


def test_on_spark(spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> None:
    """The shapes, and merges that are grouped alike, as branches of one batch; tracked and not."""
    factories: dict[str, SqlState] = {}

    def state(name: str) -> SqlState:
        factories[name] = SqlState.opaque(f"sqlite:///{tmp_path}/counts.db", tableName=f"t{len(factories)}")
        return factories[name]

    with batch_in_hand(spark, zookeeper.hosts, app) as (rows, batch):
        stream = a_stream(rows=rows)
        spout = stream.node
        assert isinstance(spout, SpoutNode)
        assert spout.options is not None
        words = stream.map(lambda tup: ["amcn"[int(bytes(tup["data"]).split()[2])]], "word string")
        late = words.group_by("word").aggregate(Count(), "n").project("word")
        for name in ON_SPARK:
            for kind, given in [("tracked", words), ("late", late)]:
                made = SHAPES[name][0](words_of(given, "a"), words_of(given, "z"))
                made.partition_by("word").partition_persist(state(f"{name}, {kind}"), "word", Persist())
        alike = words.partition_by("word").merge(words.map(same, "word").partition_by("word"))
        alike.partition_persist(state("alike"), "word", Persist())
        handler = BatchHandler(spout.options, lambda *_: None, 0)
        TopologyAttempts(spout, graph_of(stream), TASKS)(rows, batch, handler)
    each = EACH * len(SHARDS) // 4
    keys = [(word,) for word in "acmn"]

    def counts(name: str) -> list[Any]:
        return factories[name].make_state({}, 0, 1).multi_get(keys)

    assert counts("alike") == [2 * each] * 4
    for name in ON_SPARK:
        _, ours, theirs = SHAPES[name]
        expected = [ours, ours, theirs, theirs]
        assert (name, counts(f"{name}, tracked")) == (name, [each * one for one in expected])
        assert (name, counts(f"{name}, late")) == (name, expected)
