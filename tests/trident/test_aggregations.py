"""Aggregators over the groups of a partition, and state updates over one partition of a batch."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    FailedException,
    FirstN,
    Max,
    Min,
    OperationError,
    ReducerAggregator,
    Sum,
)
from kinesis_trident.trident.run.python_aggregation import GroupAggregation
from kinesis_trident.trident.run.state_updates import Combined, Persisted, Reduced, StateUpdate
from kinesis_trident.trident.state import State, StateFactory, StateUpdater
from kinesis_trident.trident.stores import MemoryMapState, StateType

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
OUT = pa.schema([("k", pa.string()), ("value", pa.int64())])

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=30)


def batches(found: list[tuple[str, int]], size: int = 7) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict({"k": [k for k, _ in part], "n": [n for _, n in part]}, schema=ROWS)
        for part in (found[at : at + size] for at in range(0, len(found), size))
    ]


def aggregated(
    aggregator: Any, given: list[pa.RecordBatch], *, keys: tuple[str, ...] = ("k",)
) -> list[tuple[Any, ...]]:
    schema = OUT if keys else pa.schema([OUT.field("value")])
    operation = GroupAggregation("aggregate", keys, ("n",), aggregator, schema, 5)
    return [tuple(row.values()) for batch in operation(given) for row in batch.to_pylist()]


class Subtract(ReducerAggregator):
    def init(self) -> int:
        return 100

    def reduce(self, current: int, tup: Any) -> int:
        return current - tup[0]


class CountAsAggregator(Aggregator):
    def init(self, batch_id, collector):  # type: ignore[no-untyped-def]
        assert batch_id == 5
        return 0

    def aggregate(self, value, tup, collector):  # type: ignore[no-untyped-def]
        return value + 1

    def complete(self, value, collector):  # type: ignore[no-untyped-def]
        collector.emit([value])


@settings(deadline=None)
@given(rows)
def test_each_kind_of_aggregator_sees_its_group(found: list[tuple[str, int]]) -> None:
    truth = {k: [n for key, n in found if key == k] for k, _ in found}
    assert dict(aggregated(Sum(), batches(found))) == {k: sum(ns) for k, ns in truth.items()}
    assert dict(aggregated(Min(), batches(found))) == {k: min(ns) for k, ns in truth.items()}
    assert dict(aggregated(Max(), batches(found))) == {k: max(ns) for k, ns in truth.items()}
    assert dict(aggregated(Subtract(), batches(found))) == {k: 100 - sum(ns) for k, ns in truth.items()}
    assert dict(aggregated(CountAsAggregator(), batches(found))) == Counter(k for k, _ in found)


@pytest.mark.parametrize(("aggregator", "value"), [(Sum(), 5), (Min(), 2), (Max(), 3)])
@pytest.mark.parametrize("numbers", [[None, 2, None, 3], [2, 3, None]])
def test_nulls_count_for_nothing(
    aggregator: CombinerAggregator, value: int, numbers: list[int | None]
) -> None:
    some = pa.RecordBatch.from_pydict({"k": ["a"] * len(numbers), "n": numbers}, schema=ROWS)
    none = pa.RecordBatch.from_pydict({"k": ["b"] * 2, "n": [None, None]}, schema=ROWS)
    assert aggregated(aggregator, [none, some, none], keys=()) == [(value,)]
    assert aggregated(aggregator, [none, some, none]) == [("a", value)]
    assert aggregated(aggregator, [none], keys=()) == []


@settings(deadline=None)
@given(rows, st.integers(1, 4))
def test_the_first_n(found: list[tuple[str, int]], n: int) -> None:
    plain = aggregated(FirstN(n), batches(found), keys=())
    assert [value for (value,) in plain] == [value for _, value in found][:n]
    for reverse in (False, True):
        ordered = aggregated(FirstN(n, "n", reverse=reverse), batches(found), keys=())
        assert [value for (value,) in ordered] == sorted((value for _, value in found), reverse=reverse)[:n]


def test_nulls_come_last_and_many_are_not_kept() -> None:
    many = [("a", n) for n in range(3000, 0, -1)]
    assert aggregated(FirstN(2, "n"), batches(many, 500), keys=()) == [(1,), (2,)]
    nulls = pa.RecordBatch.from_pydict({"k": ["a"] * 3, "n": [None, 2, 1]}, schema=ROWS)
    assert aggregated(FirstN(3, "n"), [nulls], keys=()) == [(1,), (2,), (None,)]


@pytest.mark.parametrize("aggregator", [Count(), Sum(), Min(), Max()])
def test_a_combiner_of_parts_is_the_combiner_of_the_whole(aggregator: CombinerAggregator) -> None:
    from kinesis_trident.trident import TridentTuple

    values = [aggregator.init(TridentTuple(("n",), (n,))) for n in (4, 2, 7)]
    a, b, c = values
    assert aggregator.combine(aggregator.combine(a, b), c) == aggregator.combine(a, aggregator.combine(b, c))
    zero = aggregator.zero()
    assert zero is None or aggregator.combine(zero, a) == a


@pytest.mark.parametrize(("reverse", "first"), [(False, [1.0, 3.0]), (True, [3.0, 1.0])])
@pytest.mark.parametrize("order", [[3.0, math.nan, 1.0, None], [None, math.nan, 3.0, 1.0]])
def test_nan_comes_last_as_null_does(order: list[float | None], reverse: bool, first: list[float]) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.float64())])
    given = pa.RecordBatch.from_pydict({"k": ["a"] * len(order), "n": order}, schema=schema)
    operation = GroupAggregation("min_by", ("k",), ("n",), FirstN(3, "n", reverse=reverse), schema, 5)
    found = [n for batch in operation([given]) for n in batch.column("n").to_pylist()]
    assert found[:2] == first
    assert found[2] is None or math.isnan(found[2])


class DownAsAggregator(CountAsAggregator):
    def aggregate(self, value, tup, collector):  # type: ignore[no-untyped-def]
        raise FailedException("the store is down")


def test_an_aggregator_that_asks_for_a_replay_fails_the_batch() -> None:
    with pytest.raises(BatchFailedError, match="aggregate: FailedException: the store is down"):
        aggregated(DownAsAggregator(), batches([("a", 1)]))


def test_no_tuples_give_nothing() -> None:
    assert aggregated(CountAsAggregator(), []) == []


def update(
    factory: StateFactory, work: Any, txid: int, given: list[pa.RecordBatch], schema: pa.Schema = OUT
) -> list[Any]:
    operation = StateUpdate("persistent_aggregate(X)", factory, work, {}, txid, schema)
    return [tuple(row.values()) for batch in operation.run(given, 0) for row in batch.to_pylist()]


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=4))
def test_states_hold_what_all_batches_held(found: list[list[tuple[str, int]]]) -> None:
    """Each batch twice: a replay."""
    sums, least, rest = (MemoryMapState.opaque() for _ in range(3))
    for txid, batch in enumerate(found, 1):
        for _ in range(2):
            update(sums, Combined("Sum", ("k",), "n", Sum()), txid, batches(batch))
            update(
                least, Combined("Min", (), "n", Min()), txid, batches(batch), pa.schema([OUT.field("value")])
            )
            new = update(
                rest,
                Reduced("Subtract", ("k",), ("n",), OUT.field("value"), Subtract()),
                txid,
                batches(batch),
            )
    everything = [row for batch in found for row in batch]
    truth = {k: sum(n for key, n in everything if key == k) for k, _ in everything}
    keys = [(k,) for k in truth]
    assert sums.make_state({}, 0, 1).multi_get(keys) == list(truth.values())
    assert least.make_state({}, 0, 1).get() == min((n for _, n in everything), default=None)
    assert rest.make_state({}, 0, 1).multi_get(keys) == [100 - value for value in truth.values()]
    assert dict(new) == {k: 100 - truth[k] for k, _ in found[-1]}


class NoMap(State):
    log: ClassVar[list[Any]] = []

    def begin_commit(self, txid):  # type: ignore[no-untyped-def]
        self.log.append(f"begin {txid}")

    def commit(self, txid):  # type: ignore[no-untyped-def]
        self.log.append(f"commit {txid}")


class NoMapFactory(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):  # type: ignore[no-untyped-def]
        return NoMap()


class Log(StateUpdater[NoMap]):
    def update_state(self, state, tuples, collector):  # type: ignore[no-untyped-def]
        state.log.append([tuple(tup) for tup in tuples])
        collector.emit([tuples[0]["k"], len(tuples)])


class Down(StateUpdater[NoMap]):
    def update_state(self, state, tuples, collector):  # type: ignore[no-untyped-def]
        raise FailedException("the store is down")


def test_an_updater_sees_a_partition_within_its_transaction() -> None:
    NoMap.log.clear()
    given = batches([("a", 1), ("b", 2)], 1)
    assert update(NoMapFactory(), Persisted("p", ("k", "n"), Log(), {}, OUT), 7, given) == [("a", 2)]
    assert NoMap.log == ["begin 7", [("a", 1), ("b", 2)], "commit 7"]


def test_a_partition_without_tuples_leaves_the_state_alone() -> None:
    NoMap.log.clear()
    assert update(NoMapFactory(), Persisted("p", ("k", "n"), Log(), {}, OUT), 7, batches([])) == []
    assert NoMap.log == []


def test_a_failed_update_fails_the_batch_under_its_name() -> None:
    with pytest.raises(
        BatchFailedError, match=r"persistent_aggregate\(X\): FailedException: the store is down"
    ):
        update(NoMapFactory(), Persisted("p", ("k", "n"), Down(), {}, OUT), 7, batches([("a", 1)]))


@pytest.mark.parametrize(
    "work",
    [
        Combined("agg", ("k",), "n", Sum()),
        Reduced("agg", ("k",), ("n",), OUT.field("value"), Subtract()),
    ],
)
def test_a_grouped_aggregation_needs_a_map_state(work: Any) -> None:
    with pytest.raises(OperationError, match=r"agg: an aggregation of groups needs a MapState.* NoMap"):
        update(NoMapFactory(), work, 7, batches([("a", 1)]))


@pytest.mark.parametrize(
    "work",
    [Combined("agg", (), "n", Sum()), Reduced("agg", (), ("n",), OUT.field("value"), Subtract())],
)
def test_a_global_aggregation_needs_a_snapshottable(work: Any) -> None:
    with pytest.raises(
        OperationError, match=r"agg: an aggregation of all tuples needs a Snapshottable.* NoMap"
    ):
        update(NoMapFactory(), work, 7, batches([("a", 1)]))


def test_only_the_states_that_say_so_forget_replays() -> None:
    totals = {}
    for kind in StateType:
        factory = MemoryMapState(kind)
        for txid in (1, 2, 2):
            update(factory, Combined("Sum", ("k",), "n", Sum()), txid, batches([("a", 1)]))
        totals[kind] = factory.make_state({}, 0, 1).multi_get([("a",)])
    assert totals == {StateType.NON_TRANSACTIONAL: [3], StateType.TRANSACTIONAL: [2], StateType.OPAQUE: [2]}


@given(st.lists(st.floats(-9, 9) | st.just(math.nan), min_size=1), st.data())
def test_nan_comes_last_in_the_least_and_the_greatest(numbers: list[float], data: Any) -> None:
    """In any order, in one batch and over several, by key and in all."""
    schema = pa.schema([("k", pa.string()), ("value", pa.float64())])
    known = [n for n in numbers if not math.isnan(n)]
    for aggregator, choose in ((Min(), min), (Max(), max)):
        by_key, in_all = (MemoryMapState.opaque(serializer="msgpack") for _ in range(2))
        for txid, n in enumerate(data.draw(st.permutations(numbers)), 1):
            # More partial results of a batch than one, too.
            values = [n, math.nan] if txid % 2 else [n]
            columns = {"k": ["a"] * len(values), "value": values}
            given = [pa.RecordBatch.from_pydict(columns, schema=schema)]
            update(by_key, Combined("X", ("k",), "value", aggregator), txid, given[:1], schema)
            update(
                in_all,
                Combined("X", (), "value", aggregator),
                txid,
                given,
                pa.schema([schema.field("value")]),
            )
        found = [by_key.make_state({}, 0, 1).multi_get([("a",)])[0], in_all.make_state({}, 0, 1).get()]
        assert all(math.isnan(n) for n in found) if not known else found == [choose(known)] * 2
