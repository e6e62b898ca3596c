"""Storm's spelling in Trident: a hint that says what it is here, at once, and no record fails for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinesis_trident import KinesisSpout, TopologyError, string_scheme
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    ArrowFunction,
    CombinerAggregator,
    Count,
    Filter,
    Function,
    GroupedMultiReducer,
    MapGet,
    MemoryMapState,
    OperationError,
    ReducerAggregator,
    StateUpdater,
    Stream,
    TridentTopology,
    TridentTuple,
)
from kinesis_trident.trident.errors import StateError


def stream() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology()
    spout = KinesisSpout(
        streamName="lines", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("line")
    )
    return topology, topology.new_stream("lines", spout)


def counts() -> Any:
    return stream()[1].group_by("line").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda: MemoryMapState.Factory(1), r"MemoryMapState: there is no Factory\(\).* opaque\("),  # type: ignore[attr-defined]
        (lambda: MemoryMapState.nonTransactional("a"), r"Call non_transactional\(\)"),  # type: ignore[attr-defined]
        (lambda: counts().newValuesStream(), r"Call new_values_stream\(\)"),
        (lambda: counts().parallelismHint(2), r"Call parallelism_hint\(\)"),
        (lambda: stream()[1].parallelismHint(2), r"Call parallelism_hint\(\)"),  # type: ignore[attr-defined]
        (lambda: stream()[1].group_by("line").persistentAggregate(), r"Call persistent_aggregate\(\)"),
        (lambda: stream()[1].chained_agg().chainEnd(), r"Call chain_end\(\)"),  # type: ignore[attr-defined]
        (lambda: stream()[0].newStream("s", None), r"Call new_stream\(\)"),  # type: ignore[attr-defined]
    ],
)
def test_a_name_of_storm_has_a_hint(ask: Callable[[], object], hint: str) -> None:
    with pytest.raises(TopologyError, match=hint):
        ask()


def test_names_that_nobody_has_are_missing() -> None:
    for thing in (MemoryMapState, MemoryMapState.opaque(), counts(), TridentTuple(["a"], [1])):
        with pytest.raises(AttributeError, match="zork"):
            thing.zork  # noqa: B018


def test_a_state_has_the_hint_in_an_updater() -> None:
    state: Any = MemoryMapState.opaque().make_state({}, 0, 1)
    with pytest.raises(
        StateError, match=r"OpaqueMap: multiPut\(\) of Storm has another name here. Call multi_put"
    ):
        state.multiPut([("a",)], [1])
    assert not hasattr(state, "zork")


class Asks(Function):
    def __init__(self, name: str, *given: Any) -> None:
        self.name, self.given = name, given

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([getattr(tup, self.name)(*self.given)])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("getLong", "Write tup\\[0\\]"),
        ("getStringByField", "Write tup\\['word'\\]"),
        ("getValues", "tup.values"),
        ("size", "len"),
        ("fieldIndex", "Call field_index"),
    ],
)
def test_no_record_fails_for_a_name_of_storm(name: str, hint: str) -> None:
    topology, lines = stream()
    lines.each(["line"], Asks(name, "line"), "n string")
    with pytest.raises(OperationError, match=hint):
        run_topology(topology, {"lines": ["a", "b"]})


def test_a_tuple_of_trident_has_what_a_tuple_of_bolts_has() -> None:
    tup = TridentTuple(["word", "n"], ("a", 1))
    assert (tup.get("n"), tup.get("m"), tup.get("m", 7)) == (1, None, 7)
    assert (tup.contains("word"), tup.contains("m")) == (True, False)
    assert tup.select("n", "word") == [1, "a"]
    assert tup.field_index("n") == 1
    with pytest.raises(ValueError, match="m"):
        tup.field_index("m")


class IsKeep(Filter):
    def isKeep(self, tup: Any) -> bool:
        return True


class UpdateState(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        pass

    def updateState(self, state: Any, tuples: Any, collector: Any) -> None:
        pass


class Init(ReducerAggregator):
    def init(self) -> int:
        return 0


class Combine(CombinerAggregator):
    def combine(self, left: Any, right: Any) -> Any:
        return left

    def zero(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda s: s.each("line", IsKeep()),
            r"IsKeep.isKeep\(\) of Storm is never called here. Name it is_keep",
        ),
        (
            lambda s: s.partition_persist(MemoryMapState.opaque(), "line", UpdateState()),
            "Name it update_state",
        ),
        (lambda s: s.each("line", Function(), "n"), r"Function has no execute\(\)"),
        (lambda s: s.each("line", ArrowFunction(), "n"), r"ArrowFunction has no execute\(\)"),
        (lambda s: s.filter(Filter()), r"Filter has no is_keep\(\)"),
        (lambda s: s.aggregate(Aggregator(), "n"), r"Aggregator has no init\(\)"),
        (lambda s: s.aggregate(Init(), "n"), r"Init has no reduce\(\)"),
        (lambda s: s.aggregate(Combine(), "n", "line"), r"Combine has no init\(\)"),
    ],
)
def test_methods_that_would_fail_each_record_are_refused(ask: Callable[[Stream], object], words: str) -> None:
    topology, lines = stream()
    with pytest.raises(TopologyError, match=words):
        ask(lines)
    lines.filter(lambda tup: True)
    assert run_topology(topology, {"lines": ["a"]}).failed == []


class Lists(Aggregator):
    """Returns nothing from `aggregate`, as Storm's does."""

    def init(self, batch_id: int | None, collector: Any) -> list[str]:
        return []

    def aggregate(self, value: list[str], tup: Any, collector: Any) -> None:
        value.append(tup[0])

    def complete(self, value: list[str], collector: Any) -> None:
        collector.emit([" ".join(value)])


def test_an_aggregator_without_a_result_keeps_its_value() -> None:
    """In groups, partitions, chains and windows."""
    topology, lines = stream()
    lines.group_by("partitionKey").aggregate(Lists(), "a", "line")
    lines.global_().partition_aggregate(Lists(), "b", "line")
    lines.chained_agg().aggregate(Lists(), "c", "line").aggregate(Count(), "n").chain_end()
    lines.tumbling_window(2, MemoryMapState.opaque(), Lists(), "d", "line")
    result = run_topology(topology, {"lines": Batches(["x", "y"])})
    found = [list(row)[:3] for name, rows in result.emitted.items() if name != "lines" for row in rows]
    assert found == [["", "x y"], ["x y"], ["x y", 2], [0, 2, "x y"]]


class Group(GroupedMultiReducer[list[Any]]):
    def init(self, collector: Any, group: Any) -> list[Any]:
        return [group["word"]]

    def execute(self, value: list[Any], stream: int, group: Any, tup: Any, collector: Any) -> None:
        value.append(f"{stream}{group[0]}{tup['n']}")

    def complete(self, value: list[Any], group: Any, collector: Any) -> None:
        collector.emit([f"{group['word']}: {' '.join(value)}"])


def test_a_grouped_reducer_gets_its_group() -> None:
    topology, lines = stream()
    one = lines.map(lambda tup: [tup["line"], len(tup["line"])], "word string, n int")
    other = lines.map(lambda tup: [1, tup["line"][0]], "n int, first string")
    topology.multi_reduce([one.group_by("word"), other.group_by("first")], Group(), "all string")
    result = run_topology(topology, {"lines": ["a", "bb", "b"]})
    (rows,) = [rows for name, rows in result.emitted.items() if name.startswith("multi_reduce")]
    assert sorted(map(tuple, rows)) == [
        ("a", "a: a 0a1 1a1"),
        ("b", "b: b 0b1 1b1 1b1"),
        ("bb", "bb: bb 0bb2"),
    ]
    with pytest.raises(TopologyError, match=r"reduces groups\. Call group_by on each stream"):
        topology.multi_reduce([one, other], Group(), "all string")
    with pytest.raises(TopologyError, match="for groups there is GroupedMultiReducer"):
        topology.multi_reduce([one, other], Count(), "all string")  # type: ignore[arg-type]


def test_a_state_is_queried_by_fields_of_the_types_of_its_keys() -> None:
    topology, lines = stream()
    words = lines.map(lambda tup: [tup["line"], 1, 1.5], "word string, n int, x double")
    state = words.group_by("word, n").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    after = words.map(
        lambda tup: [tup[0], 1, 2.5, b""], "word string, n bigint, x double, b binary"
    ).aggregate(Count(), "total")
    asked = after.map(lambda _: ["a", 1, 2.5, b""], "word string, n bigint, x double, b binary")
    asked.state_query(state, ["word", "n"], MapGet(), "found")
    for fields, words_ in [
        (["b", "n"], "the key 'word' of the state is string, and the field 'b' is binary"),
        (["word", "x"], "the key 'n' of the state is bigint, and the field 'x' is double"),
        (["n", "word"], "the key 'word' of the state is string, and the field 'n' is bigint"),
    ]:
        with pytest.raises(TopologyError, match=f"{words_}, so nothing would be found. Convert it"):
            asked.state_query(state, fields, MapGet(), "found")
    result = run_topology(topology, {"lines": ["a", "a"]})
    (found,) = [rows for name, rows in result.emitted.items() if name.startswith("state_query")]
    assert [row["found"] for row in found] == [2]
