"""Functions that change in place what they get: it is used again nowhere, or was a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from kinesis_trident import KinesisSpout, string_scheme
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Function,
    GroupedMultiReducer,
    MapGet,
    MemoryMapState,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
    Stream,
    TridentTopology,
)
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.operations import SnapshotGet, TupleCollectionGet
from kinesis_trident.trident.run.state_updates import Combined, Reduced, StateUpdate, Work
from kinesis_trident.trident.state import ValueUpdater
from kinesis_trident.trident.steps.emitting_steps import FunctionStep
from kinesis_trident.trident.steps.tuple_steps import Pipeline
from kinesis_trident.trident.stores import MapStateFactory, StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.memory import MemoryByteStore

KINDS = [StateType.OPAQUE, StateType.TRANSACTIONAL]
SCHEMA = pa.schema([("k", pa.string()), ("xs", pa.list_(pa.int64()))])


def take_all(values: list[int]) -> list[int]:
    """Return what a list holds, and leave it empty."""
    taken = list(values)
    values.clear()
    return taken


class Joined(CombinerAggregator):
    """Moves all of the right value into the left one."""

    def init(self, tup: Any) -> list[int]:
        return take_all(tup[0])

    def combine(self, left: list[int], right: list[int]) -> list[int]:
        left += take_all(right)
        return left

    def zero(self) -> list[int]:
        return [0]


class Collected(ReducerAggregator):
    """Moves all of the tuple into the value."""

    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], tup: Any) -> list[int]:
        current += take_all(tup["xs"])
        return current


class InTheWay(MemoryByteStore):
    """Another task writes a key right before this one does."""

    def __init__(self) -> None:
        super().__init__("in the way")
        self.others: bytes | None = None

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        if self.others is not None:
            self.set_many(keys, [self.others] * len(keys))
            self.others = None
        return super().compare_and_set_many(keys, values, versions)


class InOneStore(MapStateFactory):
    def __init__(self, kind: StateType, store: ByteStore) -> None:
        super().__init__(kind, "one")
        self._one = store

    def _connect(self) -> ByteStore:
        return self._one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [("k",), ()])
@pytest.mark.parametrize("reduces", [True, False])
def test_an_update_whose_key_another_task_has_changed(
    kind: StateType, keys: tuple[str, ...], reduces: bool
) -> None:
    store = InTheWay()
    factory = InOneStore(kind, store)
    work: Work = (
        Reduced("all", keys, ("xs",), SCHEMA.field("xs"), Collected())
        if reduces
        else Combined("all", keys, "xs", Joined())
    )
    for txid in (1, 2):
        if txid == 2:
            store.others = b"[1,[99],null]" if kind is StateType.OPAQUE else b"[1,[99]]"
        given = pa.RecordBatch.from_pydict({"k": ["a"], "xs": [[txid, 10 * txid]]}, schema=SCHEMA)
        list(StateUpdate("all", factory, work, {}, txid, pa.schema([])).run([given], 0))
    assert store.others is None
    state = factory.make_state({}, 0, 1)
    assert (state.multi_get([("a",)])[0] if keys else state.get()) == [99, 2, 20]


def test_two_updates_of_one_key_tell_each_value() -> None:
    for kind in StateType:
        state = MemoryMapState(kind).make_state({}, 0, 1)
        state.begin_commit(1)
        found = state.multi_combine([("a",)] * 3, Joined().combine, [[1], [2], [3]])
        assert found == [[1], [1, 2], [1, 2, 3]], kind


class Spread(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        name, _, numbers = tup["line"].partition(" ")
        collector.emit([name, [int(one) for one in numbers.split()]])


def stream() -> tuple[TridentTopology, Stream]:
    topology = TridentTopology()
    spout = KinesisSpout(
        streamName="lines", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("line")
    )
    lines = topology.new_stream("lines", spout)
    return topology, lines.each(["line"], Spread(), "k string, xs array<bigint>").project(["k", "xs"])


GIVEN = Batches(["a 1 2", "b 3", "a 4"], ["a 5", "b 6 7"])


class Changes(StateUpdater[Any]):
    """Reads, changes what it has read, put or been told, and puts only some of it."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        for tup in tuples:
            key = (tup["k"],)
            [before] = state.multi_get([key])
            value = [*(before or []), *tup["xs"]]
            state.multi_put([key], [value])
            value.append(-1)
            [read] = state.multi_get([key])
            read.append(-2)
            [told] = state.multi_combine([key], lambda one, other: one + other, [[]])
            told.append(-3)


def test_an_updater_that_changes_what_it_has_read_put_and_been_told() -> None:
    for state in (MemoryMapState.opaque(), MemoryMapState.opaque(localCacheSize=10)):
        topology, numbers = stream()
        numbers.partition_persist(state, ["k", "xs"], Changes())
        result = run_topology(topology, {"lines": GIVEN})
        assert list(result.states.values()) == [{("a",): [1, 2, 4, 5], ("b",): [3, 6, 7]}]


class Appends(ValueUpdater[list[int]]):
    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: list[int] | None) -> list[int]:
        stored = [] if stored is None else stored
        stored.append(self.number)
        return stored


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_two_keys_that_were_put_with_one_value_have_one_each(kind: StateType, hold: bool) -> None:
    factory = MemoryMapState.opaque() if kind is StateType.OPAQUE else MemoryMapState.transactional()
    state = factory.make_state({}, 0, 1)
    keys, first = [("a",), ("b",)], [0]
    state.begin_commit(1)
    if hold:
        state.hold_writes()
    state.multi_put(keys, [first, first])
    told = state.multi_update(keys, [Appends(1), Appends(2)])
    state.commit(1)
    assert told == state.multi_get(keys) == [[0, 1], [0, 2]]


class Takes(Aggregator):
    """Takes all numbers of its tuples."""

    def init(self, batch_id: int | None, collector: Any) -> list[int]:
        return []

    def aggregate(self, value: list[int], tup: Any, collector: Any) -> None:
        value += take_all(tup["xs"])

    def complete(self, value: list[int], collector: Any) -> None:
        collector.emit([value])


class PerGroup(GroupedMultiReducer[list[int]]):
    """Takes the group's own list, too."""

    def init(self, collector: Any, group: Any) -> list[int]:
        return take_all(group["xs"])

    def execute(self, value: list[int], stream: int, group: Any, tup: Any, collector: Any) -> None:
        value += [stream, *take_all(group["xs"])]

    def complete(self, value: list[int], group: Any, collector: Any) -> None:
        collector.emit([[*value, *take_all(group["xs"])]])


def test_aggregations_of_a_batch() -> None:
    topology, numbers = stream()

    def compare(one: Any, other: Any) -> int:
        a, b = take_all(one["xs"]), take_all(other["xs"])
        return (a > b) - (a < b)

    def compare_values(one: list[int], other: list[int]) -> int:
        return len(take_all(one)) - len(take_all(other))

    numbers.max(compare)
    numbers.min_by("xs", compare_values)
    numbers.aggregate(Takes(), "all array<bigint>", ["xs"])
    numbers.chained_agg().aggregate(Takes(), "a array<bigint>", ["xs"]).aggregate(
        Takes(), "b array<bigint>", ["xs"]
    ).chain_end()
    numbers.group_by(["k"]).aggregate(Joined(), ["joined array<bigint>"], ["xs"])
    groups = numbers.group_by(["xs"])
    topology.multi_reduce([groups, groups], PerGroup(), "seen array<bigint>")
    result = run_topology(topology, {"lines": ["a 1 2", "b 3", "a 4", "a 5 6 7"]})
    assert [sorted(map(list, rows)) for name, rows in result.emitted.items() if "(" in name][1:] == [
        [["a", [5, 6, 7]]],
        [["b", [3]]],
        [[[1, 2, 3, 4, 5, 6, 7]]],
        [[[1, 2, 3, 4, 5, 6, 7]] * 2],
        [["a", [1, 2, 4, 5, 6, 7]], ["b", [3]]],
        [[xs, [*xs, 0, *xs, 1, *xs, *xs]] for xs in ([1, 2], [3], [4], [5, 6, 7])],
    ]


class TakesMap(MapGet):
    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        collector.emit([take_all(result)])


class TakesWhole(SnapshotGet):
    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        collector.emit([take_all(result)])


class TakesEntries(TupleCollectionGet):
    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        collector.emit([[one for entry in result for one in take_all(entry[1])]])


@pytest.mark.parametrize("query", [TakesMap(), TakesWhole(), TakesEntries()])
def test_a_query_that_changes_what_it_has_found(query: QueryFunction[Any, Any]) -> None:
    state = MemoryMapState.opaque()
    held = state.make_state({}, 0, 1)
    held.begin_commit(1)
    held.multi_put([("a",)], [[1, 2]])
    if isinstance(query, TakesWhole):
        held.set([1, 2])
    held.commit(1)
    topology, numbers = stream()
    words = numbers.aggregate(Takes(), "all array<bigint>", ["xs"]).flat_map(
        lambda _: [["a"], ["a"]], "k string"
    )
    words.state_query(topology.new_static_state(state), ["k"], query, "found array<bigint>")
    result = run_topology(topology, {"lines": ["a 1"]})
    (found,) = [rows for name, rows in result.emitted.items() if name.startswith("state_query")]
    assert [row["found"] for row in found] == [[1, 2]] * 2


class ChangesConf(Function):
    """Takes everything out of the configuration."""

    def prepare(self, conf: Mapping[str, Any]) -> None:
        self.seen = len(conf)
        conf.clear()  # type: ignore[attr-defined]


def test_operations_that_change_the_configuration() -> None:
    none, one = pa.schema([]), pa.schema([("one", pa.int64())])
    functions = [ChangesConf(), ChangesConf()]
    chain = Pipeline(tuple(FunctionStep("each", function, (), one, none) for function in functions))
    conf = {"trident.application": "a"}
    chain.prepare(conf)
    assert ([function.seen for function in functions], len(conf)) == ([1, 1], 1)
