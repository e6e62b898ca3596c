"""Test that a refused call leaves nothing behind, and that a graph knows what is above and below its nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from samples_topology import a_stream, graph_of

from kinesis_trident import BasicBolt, Bolt, KinesisSpout, TopologyBuilder, TopologyError, string_scheme
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    Aggregator,
    Count,
    FilterNull,
    FirstN,
    Function,
    MapGet,
    Max,
    MemoryMapState,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
)
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import PassingNode, SpoutNode, TopologyNode, WindowNode


class Copied(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup[0]])


class Every(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> None:
        return None

    def aggregate(self, value: Any, tup: Any, collector: Any) -> None:
        collector.emit([tup[0]])

    def complete(self, value: Any, collector: Any) -> None:
        return None


class Nothing(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        return None


def lines(topology: TridentTopology) -> Stream:
    options = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}
    return topology.new_stream("lines", KinesisSpout(scheme=string_scheme("line"), **options))


@pytest.mark.filterwarnings("ignore:.*not exactly once")
def test_a_corrected_topology_does_not_run_the_half_that_was_refused() -> None:
    topology = TridentTopology()
    words = lines(topology).map(lambda tup: [tup["line"]], "word")
    for _ in range(3):
        with pytest.raises(TopologyError, match="its values are timestamp, which"):
            words.group_by("word").persistent_aggregate(
                MemoryMapState.opaque(), Longest(), "longest timestamp"
            )
    words.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Longest(), "longest string")
    result = run_topology(topology, {"lines": ["a", "b"]})
    assert result.failed == []
    assert set(result.emitted) == {"lines", "map(<lambda>)", "persistent_aggregate(Longest)"}
    operations = [node.operation for node in topology.check().nodes]
    assert operations.count("persistent_aggregate(Longest)") == 2


class Longest(Max):
    """A combiner that Spark does not have, so that its first half is an operation of its own."""

    in_spark = None

    def init(self, tup: Any) -> str:
        return str(tup[0])

    def zero(self) -> str:
        return ""

    def result(self, inputs: Any) -> None:
        return None


_VALUES: list[Any] = [
    None,
    0,
    3,
    -1,
    "",
    "word",
    "line",
    "other",
    ["word", "line"],
    ["n bigint"],
    "word string",
    "a string, b bigint",
    "x, x",
    "__x",
    Count(),
    Sum(),
    Longest(),
    Every(),
    FirstN(2, "word"),
    FilterNull(),
    Copied(),
    Copied,
    Nothing(),
    MapGet(),
    MemoryMapState.opaque(),
    MemoryMapState.non_transactional(),
    "redis://x",
    lambda tup: [tup[0]],
    lambda frame: frame,
    timedelta(seconds=5),
    timedelta(seconds=-5),
]
_CALLS = [
    "each",
    "map",
    "flat_map",
    "filter",
    "peek",
    "project",
    "partition_by",
    "parallelism_hint",
    "aggregate",
    "partition_aggregate",
    "persistent_aggregate",
    "partition_persist",
    "min_by",
    "max",
    "tumbling_window",
    "sliding_window",
    "transform",
    "merge",
    "join",
    "state_query",
    "group_by",
    "new_stream",
    "multi_reduce",
    "new_static_state",
]


@settings(max_examples=1_500)
@given(st.data())
def test_a_call_that_is_refused_leaves_nothing(data: Any) -> None:
    topology = TridentTopology()
    stream = lines(topology).map(lambda tup: [tup["line"], tup["line"]], "word, line").shuffle()
    state = stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    grouped = stream.group_by("word")
    values = st.sampled_from([*_VALUES, stream, grouped, state, state.new_values_stream(), a_stream("other")])
    call = data.draw(st.sampled_from(_CALLS))
    targets = [stream, grouped, state.new_values_stream(), state, topology]
    target = data.draw(st.sampled_from([one for one in targets if hasattr(type(one), call)]))
    arguments = data.draw(st.lists(values, max_size=5))
    before = topology.check(), list(topology._spouts), list(topology._static)
    try:
        getattr(target, call)(*arguments)
    except Exception:
        after = topology.check(), list(topology._spouts), list(topology._static)
        assert after[0].nodes == before[0].nodes
        assert after[1:] == before[1:]


class Bolted(BasicBolt):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("word string")

    def execute(self, tup: Any, collector: Any) -> None:
        return None


class OfArity(Bolt):
    def execute(self, tup: Any, other: Any) -> None:  # type: ignore[override]
        return None


_BOLT_VALUES: list[Any] = [
    None,
    0,
    2,
    "",
    "lines",
    "split",
    "__x",
    5.0,
    Bolted(),
    Bolted,
    OfArity(),
    "word",
    {},
]
_BOLT_CALLS = ["set_bolt", "set_spout", "transform", "shuffle_grouping", "fields_grouping", "custom_grouping"]


@settings(max_examples=500)
@given(st.data())
def test_a_call_on_a_builder_that_is_refused_leaves_nothing(data: Any) -> None:
    builder = TopologyBuilder()
    options = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}
    builder.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **options))
    split = builder.set_bolt("split", Bolted(), 2).shuffle_grouping("lines")
    call = data.draw(st.sampled_from(_BOLT_CALLS))
    arguments = data.draw(st.lists(st.sampled_from(_BOLT_VALUES), max_size=4))

    def shape() -> Any:
        return (
            list(builder._spouts),
            {name: list(bolt.groupings) for name, bolt in builder._bolts.items()},
            list(builder._transforms),
            builder.check(2).parts.keys(),
        )

    before = shape()
    try:
        getattr(builder if hasattr(type(builder), call) else split, call)(*arguments)
    except Exception:
        assert shape() == before


def test_two_hundred_diamonds_are_built() -> None:
    """Each asks what is above it: once a diamond, and not once a path, of which there are 2 ** 200."""
    stream = a_stream().project("data")
    for _ in range(200):
        stream = stream.filter(lambda tup: True).merge(stream.filter(lambda tup: False))
    graph = graph_of(stream)
    assert len(graph.nodes) == 2 + 3 * 200
    assert len(graph.below(graph.spouts[0])) == len(graph.nodes)


def test_twenty_diamonds_run() -> None:
    topology = TridentTopology()
    stream = lines(topology).project("line")
    for _ in range(20):
        stream = stream.filter(lambda tup: True).merge(stream.filter(lambda tup: False)).global_()
    assert run_topology(topology, {"lines": ["a", "b"]}).emitted["merge#20"] == [("a",), ("b",)]


_STEPS: list[Callable[[Stream, Stream], Stream]] = [
    lambda one, _: one.filter(lambda tup: True),
    lambda one, _: one.project("shardId"),
    lambda one, _: one.shuffle(),
    lambda one, _: one.partition_by("shardId"),
    lambda one, _: one.shuffle().parallelism_hint(3),
    lambda one, other: one.project("shardId").merge(other.project("shardId")),
    lambda one, other: one.project("shardId").join("shardId", other.project("shardId"), "shardId"),
    lambda one, _: one.group_by("shardId").aggregate(Count(), "n").project("shardId"),
    lambda one, _: one.partition_aggregate(Every(), "shardId string"),
    lambda one, _: (
        one.group_by("shardId")
        .persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
        .new_values_stream()
        .project("shardId")
    ),
    lambda one, _: one.group_by("shardId").tumbling_window(
        3, MemoryMapState.opaque(), Count(), "n", order=["shardId"]
    ),
    lambda one, _: one.partition_persist(
        MemoryMapState.opaque(), "shardId", Nothing(), "shardId string"
    ).new_values_stream(),
]


@settings(max_examples=200)
@given(st.data())
def test_a_graph_answers_as_a_walk_over_all_paths_does(data: Any) -> None:
    """The walks are those that nodes once made themselves, each time that they were asked."""
    streams = [a_stream()]
    for _ in range(data.draw(st.integers(1, 8))):
        one, other = data.draw(st.sampled_from(streams)), data.draw(st.sampled_from(streams))
        if "shardId" in one.fields and "shardId" in other.fields:
            streams.append(data.draw(st.sampled_from(_STEPS))(one, other))
    for graph in (Graph(_declared(streams)), graph_of(*streams)):
        nodes = graph.nodes
        for at, node in enumerate(nodes):
            assert all(nodes.index(parent) < at for parent in node.parents)
            assert node.spouts == _spouts(node)
            assert node.tracked == _tracked(node)
            assert node.has_order == _has_order(node)
            children = [one for one in nodes for parent in one.parents if parent is node]
            assert list(graph.children(node)) == children
            assert graph.is_ordered(node) == _ordered(node, nodes)
        [spout] = graph.spouts
        assert graph.below(spout) == [node for node in nodes if spout in _spouts(node)]


def _declared(streams: list[Stream]) -> list[TopologyNode]:
    return list(dict.fromkeys(node for stream in streams for node in _up(stream.node)))


def _up(node: TopologyNode) -> list[TopologyNode]:
    return [*(one for parent in node.parents for one in _up(parent)), node]


def _spouts(node: TopologyNode) -> frozenset[Any]:
    if isinstance(node, SpoutNode):
        return frozenset((node,))
    return frozenset().union(*map(_spouts, node.parents))


def _tracked(node: TopologyNode) -> bool:
    if isinstance(node, SpoutNode):
        return node.in_batches and node.tracking
    return isinstance(node, PassingNode) and all(map(_tracked, node.parents))


def _has_order(node: TopologyNode) -> bool:
    if isinstance(node, SpoutNode | WindowNode):
        return isinstance(node, WindowNode) or node.in_batches
    return isinstance(node, PassingNode) and all(map(_has_order, node.parents))


def _ordered(node: TopologyNode, nodes: tuple[TopologyNode, ...]) -> bool:
    return isinstance(node, WindowNode) or any(
        child.reads_order or (isinstance(child, PassingNode) and _ordered(child, nodes))
        for child in nodes
        if node in child.parents
    )
