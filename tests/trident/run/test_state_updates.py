"""The update of one partition of a batch: what it gives the state, and what it emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kinesis_trident.bolt.steps.border import read
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    KinesisSpout,
    MapStateFactory,
    Max,
    MemoryMapState,
    ReducerAggregator,
    TridentTopology,
    TridentTuple,
)
from kinesis_trident.trident.errors import OperationError, ReplayDiffersError
from kinesis_trident.trident.maps import OpaqueMap
from kinesis_trident.trident.run.arrow_aggregation import Partials
from kinesis_trident.trident.run.state_updates import Combined, Reduced, StateUpdate
from kinesis_trident.trident.state import Key, MapState, StateFactory, StateType, ValueUpdater
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask

FIELDS = StructType([StructField("word", StringType()), StructField("n", LongType())])


class Counts(MapState[int]):
    """The user's own state, which keeps what it was asked."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self.values: dict[Key, int | None] = {}
        self.asked: list[list[Key]] = []
        self.batches: list[tuple[str, int | None]] = []
        self._forgetful = forgetful

    def begin_commit(self, txid: int | None) -> None:
        """Remembered."""
        self.batches.append(("begin", txid))

    def commit(self, txid: int | None) -> None:
        """Remembered."""
        self.batches.append(("commit", txid))

    def multi_get(self, keys: Sequence[Key]) -> list[int | None]:
        """Return what was put."""
        return [self.values.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[int | None]) -> None:
        """Keep it."""
        self.values.update(zip(keys, values, strict=True))

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[int]]) -> list[int | None]:
        """One after the other."""
        self.asked.append(list(keys))
        self.multi_put(
            keys, [one.update(old) for one, old in zip(updaters, self.multi_get(keys), strict=True)]
        )
        return self.multi_get(keys)[1 if self._forgetful else 0 :]


@dataclass
class Made(StateFactory):
    """Gives the state that there is."""

    state: Counts = field(default_factory=Counts)

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Counts:
        """The same for all."""
        return self.state


class Bare(StateFactory):
    """A user's own factory, which makes nothing but the map."""

    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.memory = MemoryMapState.opaque()

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> OpaqueMap[int]:
        return OpaqueMap(self.memory.make_backing(conf))


def updated(state: Counts, aggregator: CombinerAggregator, schema: StructType = FIELDS) -> StateUpdate:
    function = aggregator.in_spark
    assert function is not None
    return StateUpdate(
        "counts",
        Made(state),
        Combined("counts", ("word",), "n", aggregator),
        {},
        7,
        arrow_schema(schema),
        Partials(("word",), None if function == "count" else "m", function, FIELDS),
    )


def given(*workers: Mapping[str | None, int | None]) -> list[pa.RecordBatch]:
    """Return what workers give of each group."""
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(list(one), pa.string()), pa.array(list(one.values()), pa.int64())],
            schema=arrow_schema(FIELDS),
        )
        for one in workers
    ]


@pytest.mark.parametrize(("aggregator", "fold"), [(Count(), sum), (Max(), max)])
def test_a_state_sees_each_group_once_however_many_workers_gave_it(
    aggregator: CombinerAggregator, fold: Callable[[Sequence[int]], int]
) -> None:
    state = Counts()
    state.values = {("a",): 9}
    emitted = list(updated(state, aggregator).run(given({"a": 1, "b": 2, None: 4}, {}, {"a": 6, None: 3}), 0))
    assert sorted(state.asked[0], key=str) == [("a",), ("b",), (None,)]
    assert len(state.asked) == 1
    assert state.values == {("a",): fold([9, 1, 6]), ("b",): 2, (None,): fold([4, 3])}
    assert state.batches == [("begin", 7), ("commit", 7)]
    rows = pa.Table.from_batches(emitted).to_pylist()
    assert {(row["word"],): row["n"] for row in rows} == state.values


def test_a_partition_of_nothing_but_nulls_leaves_the_state_alone() -> None:
    state = Counts()
    assert list(updated(state, Max()).run(given({"a": None}, {"a": None}), 0)) == []
    assert not state.batches


def test_what_nobody_reads_is_not_emitted() -> None:
    state = Counts()
    assert list(updated(state, Count(), StructType()).run(given({"a": 1}), 0)) == []
    assert state.values == {("a",): 1}


def test_a_combiner_gets_its_maps_as_it_made_them() -> None:
    inner = pa.map_(pa.string(), pa.int64())
    kinds: dict[pa.DataType, list[Any]] = {
        inner: [{"a": 1}, {}, None],
        pa.list_(inner): [[{"a": 1}, None], None],
        pa.struct([("m", inner), ("n", pa.int64())]): [{"m": {"a": 1}, "n": 2}, None],
        pa.map_(pa.string(), inner): [{"b": {"a": 1}}],
        pa.int64(): [1, None],
    }
    for kind, values in kinds.items():
        assert read(pa.array(values, kind)) == values


class Least(CombinerAggregator):
    """The least number of each name, as a map."""

    def init(self, tup: TridentTuple) -> dict[str, int]:
        """Return the map of one name."""
        return {tup["name"]: tup["number"]}

    def combine(self, before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
        """Return the least of both."""
        return {name: min(one[name] for one in (before, after) if name in one) for name in before | after}

    def zero(self) -> dict[str, int]:
        """Return no names."""
        return {}


@pytest.mark.parametrize("grouped", [True, False])
def test_an_aggregation_has_maps_as_values(grouped: bool) -> None:
    topology = TridentTopology(None)
    spout = KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk1:2181")
    stream = topology.new_stream("s", spout).map(
        lambda tup: [*tup["data"].decode().split()[:2], int(tup["data"].split()[2])],
        "k string, name string, number bigint",
    )
    state = MemoryMapState.opaque()
    source: Any = stream.group_by("k") if grouped else stream
    source.persistent_aggregate(state, Least(), "least map<string,bigint>", ["name", "number"])
    for given in (["x a 3", "x b 2", "x a 1"], ["x b 1", "x c 7"]):
        run_topology(topology, {"s": given})
    made = state.make_state({}, 0, 1)
    assert (made.multi_get([("x",)])[0] if grouped else made.get()) == {"a": 1, "b": 1, "c": 7}


def test_a_state_that_gives_fewer_values_than_groups_is_told_before_it_commits() -> None:
    state = Counts(forgetful=True)
    with pytest.raises(OperationError, match="counts: the state returned 1 values for 2 groups"):
        list(updated(state, Count()).run(given({"a": 1, "b": 2}), 0))
    assert state.batches == [("begin", 7)]


class Total(ReducerAggregator):
    """Adds numbers, from a whole one."""

    def init(self) -> int:
        """Return no sum."""
        return 0

    def reduce(self, current: Any, tup: TridentTuple) -> Any:
        """Add one."""
        return current + tup["n"]


@pytest.mark.parametrize("stored", [12.5, None])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    "make", [MemoryMapState.opaque, MemoryMapState.transactional, MemoryMapState.non_transactional]
)
def test_a_state_with_fractions_goes_on_once_its_type_is_written(
    make: Callable[[], MapStateFactory], grouped: bool, stored: float | None
) -> None:
    memory = make()

    def value() -> Any:
        state: Any = memory.make_state({}, 0, 1)
        return state.multi_get([("a",)])[0] if grouped else state.get()

    before: Any = memory.make_state({}, 0, 1)
    before.begin_commit(1)
    (before.multi_put([("a",)], [stored]) if grouped else before.set(stored))
    before.commit(1)
    rows = pa.RecordBatch.from_pydict({"word": ["a"], "n": [1.5 if stored is None else 1.0]})

    def update(kind: pa.DataType) -> None:
        work = Reduced("reduce(Total)", ("word",) * grouped, ("n",), pa.field("total", kind), Total())
        list(StateUpdate("reduce(Total)", memory, work, {}, 2, pa.schema([])).at([rows], 0))

    group = ", in the group 'a'" if grouped else ""
    words = rf"reduce\(Total\): the field 'total' is bigint, but a value is 1?.\.5{group}. Write another type"
    with pytest.raises(OperationError, match=words):
        update(pa.int64())
    # Nothing is written: whatever is changed, the batch that comes again begins with it.
    assert value() == stored
    update(pa.float64())
    assert value() == (1.5 if stored is None else 13.5)


def test_a_factory_of_a_bare_map_has_the_check_of_replays() -> None:
    factory = Bare()
    assert factory.checks_replays

    def update(attempt: int, *words: str) -> None:
        task = StateTask(attempt, Owner("shop", "lines@1", "counts"), partitions=4)
        rows = pa.RecordBatch.from_pydict({"word": [*words], "n": [1] * len(words)}, arrow_schema(FIELDS))
        work = Combined("Count", ("word",), "n", Count())
        once = StateUpdate("Count", factory, work, {TASK: task}, 1, arrow_schema(StructType()))
        list(once.at([rows], 3))

    update(1, "a", "b")
    with pytest.raises(
        ReplayDiffersError, match="the replay of batch 1 updates other keys of shop/lines@1/counts"
    ):
        update(2, "a", "c")
    assert factory.memory.make_state({}, 0, 1).multi_get([("b",), ("c",)]) == [1, None]
