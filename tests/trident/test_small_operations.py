"""Chained aggregations, comparators, listings of a state, decimals in a state, and the types of what a query gives."""

from __future__ import annotations

import math
import operator
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, StructType
from samples_topology import a_stream

from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    FirstN,
    MapGet,
    Max,
    Min,
    ReducerAggregator,
    SnapshotGet,
    StateError,
    Sum,
    TridentTopology,
    TridentTuple,
    TupleCollectionGet,
)
from kinesis_trident.trident.build.nodes import RepartitionNode
from kinesis_trident.trident.run.state_updates import Combined
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.files import FileState
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer
from kinesis_trident.trident.tuples import TridentCollector

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Longest(CombinerAggregator):
    """The longest text: an aggregator of one's own."""

    def init(self, tup: TridentTuple) -> str:
        return str(tup[0])

    def combine(self, left: str, right: str) -> str:
        return max(left, right, key=lambda text: (len(text), text))

    def zero(self) -> str:
        return ""


class Seen(ReducerAggregator):
    """The numbers, in the order in which they come."""

    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], tup: TridentTuple) -> list[int]:
        return [*current, tup[0]]


class Evens(Aggregator):
    """Emits each even number."""

    def init(self, batch_id: int | None, collector: TridentCollector) -> None:
        return None

    def aggregate(self, value: None, tup: TridentTuple, collector: TridentCollector) -> None:
        if tup[0] % 2 == 0:
            collector.emit([tup[0]])

    def complete(self, value: None, collector: TridentCollector) -> None:
        return None


def shorter(a: TridentTuple, b: TridentTuple) -> int:
    return len(a["word"]) - len(b["word"]) or (a["n"] > b["n"]) - (a["n"] < b["n"])


def test_nan_comes_last_where_spark_aggregates(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [("a", 1.5), ("a", math.nan), ("a", -1.0), ("b", math.nan)], "k string, x double"
    )
    groups = TridentTopology(spark).new_stream("table", rows).group_by("k")
    for aggregator, found in [(Min(), -1.0), (Max(), 1.5)]:
        [(_, a), (_, b)] = sorted(map(tuple, groups.aggregate(aggregator, "x2", ["x"]).df.collect()))
        assert (a, math.isnan(b)) == (found, True)


def test_chains_and_comparators_over_a_batch(spark: SparkSession) -> None:
    numbers = [("a", n, "w" * n) for n in range(6)] + [("b", 7, "x"), ("c", None, "yy")]
    # Two partitions: 0 to 3, and the others.
    rows = spark.createDataFrame(numbers, "k string, n int, word string").coalesce(1).repartition(1)
    stream = TridentTopology(spark).new_stream("table", rows)
    groups = stream.group_by("k")
    combined = (
        groups.chained_agg()
        .aggregate(Count(), "count")
        .aggregate(Sum(), "sum", ["n"])
        .aggregate(Max(), "most", ["n"])
        .aggregate(Longest(), "longest", ["word"])
        .chain_end()
    )
    assert (
        combined.schema.simpleString() == "struct<k:string,count:bigint,sum:bigint,most:int,longest:string>"
    )
    assert sorted(map(tuple, combined.df.collect())) == [
        ("a", 6, 15, 5, "wwwww"),
        ("b", 1, 7, 7, "x"),
        ("c", 1, None, None, "yy"),
    ]
    mixed = (
        groups.chained_agg()
        .aggregate(Seen(), "seen array<int>", ["n"])
        .aggregate(Sum(), "sum", ["n"])
        .aggregate(FirstN(2), "first int", ["n"])
        .chain_end()
    )
    # One of each: for two first ones two tuples. A reducer sees a partition's tuples in their order.
    assert sorted(map(tuple, mixed.df.where("k <> 'c'").collect())) == [
        ("a", [0, 1, 2, 3, 4, 5], 15, 0),
        ("a", [0, 1, 2, 3, 4, 5], 15, 1),
        ("b", [7], 7, 7),
    ]
    known = stream.filter(lambda tup: tup["n"] is not None).identity_partition().batch_global()
    whole = known.chained_agg().aggregate(Count(), "n").aggregate(Evens(), "even int", ["n"]).chain_end()
    assert sorted(map(tuple, whole.df.collect())) == [(7, 0), (7, 2), (7, 4)]
    parts = known.chained_agg().partition_aggregate(Count(), "c").partition_aggregate(Max(), "m", ["n"])
    assert [tuple(row) for row in parts.chain_end().df.collect()] == [(7, 7)]

    texts = known.group_by("k").max_by("word", lambda a, b: len(a) - len(b)).df.collect()
    assert sorted(row.word for row in texts) == ["wwwww", "x"]
    assert [row.word for row in known.min_by("n", lambda a, b: b - a).df.collect()] == ["x"]
    assert [(row.n, row.word) for row in known.min(shorter).df.collect()] == [(0, "")]
    assert [(row.n, row.word) for row in known.max(shorter).df.collect()] == [(5, "wwwww")]


def test_a_chain_of_combiners_fails_the_record_that_it_cannot_read() -> None:
    """Their `init` is an operation on single tuples, so tracking ends behind it."""
    chain = (
        a_stream().group_by("shardId").chained_agg().aggregate(Count(), "n").aggregate(Longest(), "w", "data")
    )
    end = chain.chain_end().node
    [aggregated] = end.parents
    [values] = aggregated.parents
    assert (end.tracked, aggregated.tracked, values.tracked) == (False, False, True)


def test_where_tuples_go_and_what_an_operation_is_called() -> None:
    stream = a_stream()
    assert stream.identity_partition().node is stream.node
    node = stream.name("orders").batch_global().node
    assert isinstance(node, RepartitionNode)
    assert (node.move, node.operation) == (Move(Grouping.GLOBAL), "orders: batch_global")
    counts = (
        stream.name("orders").group_by("shardId").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    )
    assert counts.node is not None
    assert counts.node.operation == "orders: persistent_aggregate(Count)"
    after = counts.new_values_stream().filter(lambda tup: tup["n"] > 1)
    assert after.node.operation.startswith("orders: each(")
    assert after.name("").filter(lambda tup: True).node.operation.startswith("each(")


def test_a_query_of_a_topologys_own_state_knows_the_type() -> None:
    stream = a_stream()
    most = stream.group_by("shardId").persistent_aggregate(MemoryMapState.opaque(), Max(), "n", ["attempt"])
    total = stream.persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    after = most.new_values_stream()
    assert after.state_query(most, ["shardId"], MapGet(), ["m"]).schema["m"].dataType.simpleString() == "int"
    assert after.state_query(total, [], SnapshotGet(), "t").schema["t"].dataType.simpleString() == "bigint"
    told = after.state_query(most, ["shardId"], MapGet(), StructType().add("m", DoubleType()))
    assert told.schema["m"].dataType.simpleString() == "double"


@pytest.mark.parametrize("kind", StateType)
@pytest.mark.parametrize("files", [False, True])
def test_all_that_a_state_holds(kind: StateType, files: bool, tmp_path: Any) -> None:
    factory: MapStateFactory = (
        FileState(kind, str(tmp_path / "state"), keyPrefix="p:") if files else MemoryMapState(kind)
    )
    state = factory.make_state({"trident.attempt": 1}, 0, 1)
    state.begin_commit(1)
    state.multi_put([("a",), ("[", 2), ("gone",)], [1, 2, 3])
    state.commit(1)
    state.begin_commit(2)
    state.multi_remove([("gone",)])
    state.multi_update([("b",)], [_Nine()])
    state.commit(2)
    asked = factory.make_state({}, 0, 1)
    query, collector = TupleCollectionGet(), TridentCollector("q", "ab")
    wide = TridentCollector("q", "abc")
    for tup, found in zip(range(2), query.batch_retrieve(asked, [TridentTuple((), ())] * 2), strict=True):
        del tup
        query.execute(TridentTuple((), ()), [one for one in found if len(one) == 2], collector)
        query.execute(TridentTuple((), ()), [one for one in found if len(one) == 3], wide)
    assert sorted(collector.rows) == sorted([("a", 1), ("b", 9)] * 2)
    assert wide.rows == [("[", 2, 2)] * 2


class _Nine:
    def update(self, stored: Any) -> int:
        return 9


def test_a_store_that_cannot_list_says_so() -> None:
    from kinesis_trident.trident import RedisState

    state = RedisState.opaque("redis://nowhere").make_state({}, 0, 1)
    with pytest.raises(
        StateError, match=r"redis://nowhere cannot list its keys\. Only states in memory and in files"
    ):
        state.tuples()
    named = MemoryMapState.opaque(keyFactory=str).make_state({}, 0, 1)
    with pytest.raises(StateError, match="keyFactory made the keys"):
        named.tuples()


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.just("$decimal") | DECIMALS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=5))
def test_decimals_come_back_as_they_were(values: list[Any]) -> None:
    for made in (JsonSerializer, MsgpackSerializer):
        serializer = made(StateType.NON_TRANSACTIONAL)
        found = serializer.deserialize_many(serializer.serialize_many(values))
        assert repr(found) == repr(values)
        assert [repr(serializer.deserialize(serializer.serialize(value))) for value in values] == [
            repr(value) for value in values
        ]


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize("kind", StateType)
def test_a_sum_of_decimals_is_exact(kind: StateType, serializer: str) -> None:
    large, small = Decimal("9" * 30 + ".01"), Decimal("0.02")
    factory = MemoryMapState(kind, serializer=serializer)
    for txid, value in ((1, large), (2, small)):
        state = factory.make_state({}, 0, 1)
        state.begin_commit(txid)
        column = pa.array([value], pa.decimal128(38, 2))
        combined = Combined("sums", ("k",), "sum", Sum())
        list(combined(state, [pa.RecordBatch.from_arrays([pa.array(["a"]), column], ["k", "sum"])]))
        state.commit(txid)
    assert factory.make_state({}, 0, 1).multi_get([("a",)]) == [Decimal("9" * 30 + ".03")]
    assert operator.add(large, small) != Decimal("9" * 30 + ".03")
