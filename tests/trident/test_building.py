"""Test that what is wrong with a topology is said when it is built, with the name of the operation."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal

import pytest
from matrix import SPOUTS, STATES
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
)
from samples_topology import a_stream, a_table

from kinesis_trident.spout.options.modes import SpoutMode
from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    FilterNull,
    FirstN,
    Function,
    MapGet,
    Max,
    ReducerAggregator,
    Serializer,
    Stream,
    Sum,
    TopologyError,
    TridentState,
    TridentTopology,
)
from kinesis_trident.trident.build.checks import EXACTLY_ONCE, weakness
from kinesis_trident.trident.build.nodes import RowNode
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState, StateType


class Split(Function):
    def execute(self, tup: object, collector: object) -> None:
        """Emit nothing."""


class Update(StateUpdater):  # type: ignore[type-arg]
    def update_state(self, state, tuples, collector):  # type: ignore[no-untyped-def]
        raise NotImplementedError


class OfNoKnownType(CombinerAggregator):
    def init(self, tup: object) -> object:
        return tup

    def combine(self, left: object, right: object) -> object:
        return left


class StartsWith(OfNoKnownType):
    def __init__(self, value: object) -> None:
        self._value = value

    def zero(self) -> object:
        return self._value


class Collect(ReducerAggregator):
    def __init__(self, value: object) -> None:
        self._value = value

    def init(self) -> object:
        return self._value

    def reduce(self, current: object, tup: object) -> object:
        return current


class OfTextKind(StateFactory):
    kind = "opaque"  # type: ignore[assignment]

    def make_state(self, conf, partition_index, num_partitions):  # type: ignore[no-untyped-def]
        raise NotImplementedError


class InStore(MemoryMapState):
    driver_local = False


class Pickled(Serializer):
    def serialize(self, value: object) -> bytes:
        return pickle.dumps(value)

    def deserialize(self, data: bytes) -> object:
        raise NotImplementedError


DAY = timedelta(days=1)
STATE = InStore.opaque()
STATE_MSGPACK = InStore.opaque(serializer="msgpack")


def _with(stream: Stream, kind: DataType) -> Stream:
    return stream.each(["data"], Split(), StructType().add("x", kind))


MISTAKES: dict[str, tuple[Callable[[Stream], object], str]] = {
    "each": (
        lambda s: s.each(["dat"], Split(), ["word"]),
        r"each\(Split\): there is no field 'dat'; did you mean 'd",
    ),
    "each, far": (
        lambda s: s.each(["xyz"], Split(), ["word"]),
        r"each\(Split\): there is no field 'xyz'\. The stream has partitionKey, ",
    ),
    "each, new": (
        lambda s: s.each(["data"], Split(), ["data"]),
        r"each\(Split\): the field 'data' is there already",
    ),
    "each, twice": (
        lambda s: s.each(["data"], Split(), ["w", "w"]),
        r"each\(Split\): the field 'w' is named twice",
    ),
    "each, ours": (lambda s: s.each(["data"], Split(), ["__w"]), "'__'"),
    "each, type": (
        lambda s: s.each(["data"], Split(), ["w bigintt"]),
        r"each\(Split\): the field 'w bigintt'",
    ),
    "filter": (
        lambda s: s.filter(FilterNull(), ["nothing"]),
        r"each\(FilterNull\): there is no field 'nothing'",
    ),
    "Storm's name": (lambda s: s.groupBy("x"), r"Stream: groupBy\(\) of Storm .* Call group_by\(\)"),
    "window, time": (
        lambda s: s.tumbling_window(DAY, STATE, Count(), "n", time="txid"),
        r"window\(Count\): the event time 'txid' is bigint, not a timestamp",
    ),
    "window, field": (
        lambda s: s.sliding_window(DAY, DAY, STATE, Count(), "n", time="at"),
        r"window\(Count\): there is no field 'at'",
    ),
    "window, none": (
        lambda s: s.window(5, STATE, Count(), "n"),  # type: ignore[arg-type]
        r"window\(Count\): 5 is not a window\. Give TumblingCountWindow",
    ),
    "window, lateness": (
        lambda s: s.tumbling_window(DAY, STATE, Count(), "n", lateness=-DAY),
        "buckets=1 and lateness=-1 day, 0:00:00 are not possible",
    ),
    "window, value": (
        lambda s: s.tumbling_window(5, STATE, Max(), "n", inputs=["data"]),
        r"window\(Max\): its values are binary, which serializer='json'",
    ),
    "window, content": (
        lambda s: s.tumbling_window(5, STATE, FirstN(1), StructType().add("n", BinaryType()), ["data"]),
        r"window\(FirstN\): its values are binary, which serializer='json'",
    ),
    "window, key": (
        lambda s: _with(s, DoubleType()).group_by("x").tumbling_window(5, STATE, Count(), "n"),
        "the field 'x' is double, which cannot be a key of a window",
    ),
    "window, time key": (
        lambda s: s.group_by("approximateArrivalTimestamp").tumbling_window(5, STATE, Count(), "n"),
        "the field 'approximateArrivalTimestamp': its values are timestamp",
    ),
    "window, edges": (
        lambda s: _with(s, LongType()).tumbling_window(5, STATE, Count(), "window_end"),
        "the field 'window_end' is there already",
    ),
    "named": (
        lambda s: s.name("orders").group_by("txid").min_by("dat"),
        r"^orders: min_by: there is no field 'dat'",
    ),
    "comparator": (
        lambda s: s.min_by("txid", "ascending"),  # type: ignore[arg-type]
        r"min_by: the comparator is 'ascending'\. Give a function",
    ),
    "chain, empty": (lambda s: s.chained_agg().chain_end(), r"the chain is empty\. Call aggregate"),
    "chain, field": (
        lambda s: s.group_by("txid").chained_agg().aggregate(Count(), "n").aggregate(Count(), "N"),
        r"chained_agg\(Count\): the field 'N' is there already",
    ),
    "chain, both": (
        lambda s: s.chained_agg().aggregate(Count(), "n").partition_aggregate(Count(), "m"),
        r"a chain has aggregate or partition_aggregate, not both",
    ),
    "chain, no aggregator": (
        lambda s: s.chained_agg().aggregate(FilterNull(), "n"),  # type: ignore[arg-type]
        r"chained_agg\(FilterNull\): this is not an aggregator",
    ),
    "filter, new": (
        lambda s: s.each(["data"], FilterNull(), ["x"]),
        r"each\(FilterNull\): a filter adds no fields",
    ),
    "map": (lambda s: s.map(len, []), r"map\(len\): no fields remain"),
    "project": (lambda s: s.project(["data", "word"]), "project: there is no field 'word'"),
    "project nothing": (lambda s: s.project([]), "project: there are no fields"),
    "group_by": (lambda s: s.group_by(["word"]), "group_by: there is no field 'word'"),
    "group_by nothing": (lambda s: s.group_by([]), "group_by: there are no fields"),
    "group_by a map": (
        lambda s: _with(s, MapType(StringType(), LongType())).group_by(["x"]),
        "group_by: the field 'x' is map<string,bigint>, which cannot be a key",
    ),
    "group_by structs": (
        lambda s: _with(s, ArrayType(StructType().add("a", "long"))).group_by(["x"]),
        "group_by: the field 'x' is array<struct<a:bigint>>, which cannot be a key",
    ),
    "partition_by": (lambda s: s.partition_by(["word"]), "partition_by: there is no field 'word'"),
    "partition_by nothing": (lambda s: s.partition_by([]), "partition_by: there are no fields"),
    "aggregate": (
        lambda s: s.aggregate(Sum(), ["n"], inputs=["word"]),
        r"aggregate\(Sum\): there is no field 'word'",
    ),
    "aggregate, type": (
        lambda s: s.aggregate(Sum(), ["n"], inputs=["data"]),
        "Sum: the field 'data' is binary",
    ),
    "aggregate, inputs": (
        lambda s: s.aggregate(Max(), ["n"]),
        r"aggregate\(Max\): the field to aggregate is not known",
    ),
    "aggregate, size": (lambda s: s.aggregate(Count(), ["n", "m"]), r"aggregate\(Count\): gives one value"),
    "aggregate, what": (
        lambda s: s.aggregate(Split(), ["n"]),
        r"aggregate\(Split\): this is not an aggregator\. Give a Combiner",
    ),  # type: ignore[arg-type]
    "aggregate, key": (
        lambda s: s.group_by(["txid"]).aggregate(Count(), ["txid"]),
        "the field 'txid' is there already",
    ),
    "min_by": (lambda s: s.min_by("word"), "min_by: there is no field 'word'"),
    "max_by": (lambda s: s.group_by(["txid"]).max_by("txid"), "max_by: the tuples are grouped by 'txid'"),
    "partition_aggregate": (
        lambda s: s.partition_aggregate(Sum(), ["n"], inputs=["word"]),
        r"partition_aggregate\(Sum\): there is no field 'word'",
    ),
    "persistent_aggregate": (
        lambda s: s.persistent_aggregate(STATE, Sum(), ["n"], inputs=["word"]),
        r"persistent_aggregate\(Sum\): there is no field 'word'",
    ),
    "persistent_aggregate, type not told": (
        lambda s: s.persistent_aggregate(STATE, OfNoKnownType(), ["n"]),
        r"persistent_aggregate\(OfNoKnownType\): the type of the field 'n' is not known\. Write it beside the name, as "
        r"in 'n bigint', or let zero\(\) return a value of it",
    ),
    "persistent_aggregate, reduced type not told": (
        lambda s: s.persistent_aggregate(STATE, Collect({}), "n"),
        r"persistent_aggregate\(Collect\): the type of the field 'n' is not known\. .* let init\(\) return",
    ),
    "persistent_aggregate, first value": (
        lambda s: s.persistent_aggregate(STATE, StartsWith(set()), ["n array<string>"]),
        r"persistent_aggregate\(StartsWith\): zero\(\) returns set\(\), which the state's JsonSerializer cannot store",
    ),
    "persistent_aggregate, first value reduced": (
        lambda s: s.persistent_aggregate(STATE_MSGPACK, Collect({1}), ["n array<bigint>"]),
        r"persistent_aggregate\(Collect\): init\(\) returns \{1\}, which the state's MsgpackSerializer cannot store",
    ),
    "persistent_aggregate, size": (
        lambda s: s.group_by(["txid"]).persistent_aggregate(STATE, Count(), []),
        r"persistent_aggregate\(Count\): gives one value, so it needs one new field, not 0",
    ),
    "persistent_aggregate, binaries": (
        lambda s: s.persistent_aggregate(STATE, Max(), ["n"], inputs=["data"]),
        r"persistent_aggregate\(Max\): its values are binary, which serializer='json' cannot store",
    ),
    "persistent_aggregate, times": (
        lambda s: s.persistent_aggregate(STATE_MSGPACK, Max(), ["n"], inputs=["approximateArrivalTimestamp"]),
        r"persistent_aggregate\(Max\): its values are timestamp, which serializer='msgpack' cannot store",
    ),
    "persistent_aggregate, bytes": (
        lambda s: s.persistent_aggregate(STATE, Max(), ["n"], inputs=["data"]),
        "its values are binary, which serializer='json' cannot store",
    ),
    "persistent_aggregate, what": (
        lambda s: s.persistent_aggregate(STATE, Split(), ["n"]),  # type: ignore[arg-type]
        r"persistent_aggregate\(Split\): this is not a Combiner",
    ),
    "partition_persist": (
        lambda s: s.partition_persist(STATE, ["userid"], Update()),
        r"partition_persist\(Update\): there is no field 'userid'",
    ),
    "state_query": (
        lambda s: s.state_query(TridentState(STATE), ["word"], MapGet(), ["n"]),
        r"state_query\(MapGet\): there is no field 'word'",
    ),
    "state_query, driver": (
        lambda s: s.state_query(TridentState(MemoryMapState.opaque()), ["data"], MapGet(), ["n"]),
        r"state_query\(MapGet\): the state lives in the driver",
    ),
    "merge": (
        lambda s: s.project(["data"]).merge(s.project(["txid"])),
        "fields differ: data binary and txid",
    ),
    "merge, spouts": (lambda s: s.merge(a_stream("other")), "merge: the streams come from different spouts"),
    "join": (lambda s: s.join(["data"], s, []), "join: 1 fields cannot be joined on 0 fields"),
    "join, spouts": (
        lambda s: s.join(["data"], a_stream("o"), ["data"]),
        "join: .* different spouts",
    ),
    "each, lambda": (
        lambda s: s.each(["data"], lambda tup: tup, ["w"]),  # type: ignore[arg-type]
        r"each\(<lambda>\): takes a Function, not the function <lambda>; plain functions go to map",
    ),
    "each, class": (
        lambda s: s.each(["data"], Split, ["w"]),  # type: ignore[arg-type]
        r"each\(Split\): takes a Function, not the class Split; give an object: Split\(\)",
    ),
    "filter, class": (
        lambda s: s.filter(FilterNull),  # type: ignore[arg-type]
        r"filter: takes a Filter, not the class FilterNull; give an object",
    ),
    "each, case": (
        lambda s: s.each(["data"], Split(), ["Data"]),
        r"each\(Split\): the field 'Data' is there already",
    ),
    "each, twice but for case": (lambda s: s.each(["data"], Split(), ["w", "W"]), "'W' is named twice"),
    "no state": (
        lambda s: s.persistent_aggregate(None, Count(), ["n"]),  # type: ignore[arg-type]
        r"persistent_aggregate\(Count\): takes a StateFactory, not None",
    ),
    "a class as state": (
        lambda s: s.partition_persist(InStore, ["data"], Update()),  # type: ignore[arg-type]
        r"partition_persist\(Update\): takes a StateFactory, not the class InStore; give an object",
    ),
    "a state without its target": (
        lambda s: s.persistent_aggregate(InStore.opaque, Count(), ["n"]),  # type: ignore[arg-type]
        "takes a StateFactory, not the function opaque; a state is given as what makes it",
    ),
    "a kind as text": (
        lambda s: s.persistent_aggregate(OfTextKind(), Count(), ["n"]),
        r"OfTextKind has kind = 'opaque'\. Set it to one of .*StateType.OPAQUE",
    ),
    "a function as updater": (
        lambda s: s.partition_persist(STATE, ["data"], Split()),  # type: ignore[arg-type]
        r"partition_persist\(Split\): takes a StateUpdater, not <",
    ),
    "a function as query": (
        lambda s: s.state_query(TridentState(STATE), ["data"], Split(), ["n"]),  # type: ignore[arg-type]
        r"state_query\(Split\): takes a QueryFunction, not <",
    ),
    "a factory queried": (
        lambda s: s.state_query(STATE, ["data"], MapGet(), ["n"]),  # type: ignore[arg-type]
        r"state_query\(MapGet\): takes a TridentState, not .*; make one with new_static_state\(factory\)",
    ),
    "MapGet, no new field": (
        lambda s: s.state_query(TridentState(STATE), ["data"], MapGet()),
        r"state_query\(MapGet\): the query returns 1 values, but there are 0 new fields",
    ),
    "MapGet, two new fields": (
        lambda s: s.state_query(TridentState(STATE), ["data"], MapGet(), ["n", "m"]),
        r"state_query\(MapGet\): the query returns 1 values, but there are 2 new fields",
    ),
    "MapGet, no key": (
        lambda s: s.state_query(TridentState(STATE), [], MapGet(), ["n"]),
        r"state_query\(MapGet\): there are 0 key fields",
    ),
    "MapGet, another key": (
        lambda s: s.state_query(
            a_stream("o").group_by("data").persistent_aggregate(STATE, Count(), "n"),
            ["data", "txid"],
            MapGet(),
            ["n"],
        ),
        r"state_query\(MapGet\): there are 2 key fields for the state; its keys have 1 \(data\)",
    ),
    "FirstN, field": (
        lambda s: s.aggregate(FirstN(2, "size"), ["data"], inputs=["data"]),
        r"aggregate\(FirstN\): sorts by 'size', but reads only data",
    ),
    "FirstN, new": (
        lambda s: s.aggregate(FirstN(2), ["a", "b"], inputs=["data"]),
        r"aggregate\(FirstN\): emits the 1 fields that it reads, but there are 2 new fields",
    ),
    "join, how": (
        lambda s: s.join("data", s, "data", how="lefft"),
        "join: how='lefft' is unknown. Choose one of inner, left",
    ),
    "join, semi": (
        lambda s: s.join("data", s, "data", how="left_semi"),
        "join: how='left_semi' is unknown. Choose one of",
    ),
    "join, types": (lambda s: s.join("txid", s, "data"), "join: 'txid' is bigint and 'data' binary"),
    "join, names": (lambda s: s.join(["txid"], s, ["txid"]), "join: name all .* is named twice"),
    "hint": (lambda s: s.parallelism_hint(3), r"parallelism_hint\(3\): .* Call shuffle\(\) first"),
    "hint, 0": (lambda s: s.shuffle().parallelism_hint(0), r"parallelism_hint\(0\) needs at least 1"),
    "static": (lambda s: TridentState(STATE).new_values_stream(), "does not update a static state"),
    "df": (lambda s: s.df, "df: these tuples come batch by batch"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    build, message = MISTAKES[mistake]
    with pytest.raises(TopologyError, match=message):
        build(a_stream())


@pytest.mark.usefixtures("spark")
def test_what_decides_about_records_may_not_read_what_the_batch_updates() -> None:
    stream = a_stream()
    counts = stream.group_by(["partitionKey"]).persistent_aggregate(STATE, Count(), ["count"])
    with pytest.raises(TopologyError, match=r"state_query\(MapGet\): the state is updated by the same batch"):
        stream.state_query(counts, ["partitionKey"], MapGet(), ["n bigint"])
    after = stream.group_by(["partitionKey"]).aggregate(Count(), ["now"])
    assert after.state_query(counts, ["partitionKey"], MapGet(), ["n bigint"]).fields == (
        "partitionKey",
        "now",
        "n",
    )
    other = a_stream("other").state_query(counts, ["partitionKey"], MapGet(), ["n bigint"])
    assert other.schema["n"].dataType.simpleString() == "bigint"


def test_what_json_cannot_store_fails_its_record_before_the_state_is_updated() -> None:
    """Of the fields of Spark's aggregators and of what a combiner of one's own makes."""

    def steps(state: MapStateFactory, kind: DataType, aggregator: CombinerAggregator) -> list[str]:
        new = StructType().add("n", kind)
        made = (
            _with(a_stream(), kind)
            .group_by(["partitionKey"])
            .persistent_aggregate(state, aggregator, new, ["x"])
        )
        assert made.node is not None
        [node] = made.node.parents
        found = []
        while isinstance(node, RowNode):
            found.append(type(node.step).__name__)
            [node] = node.parents
        return found[::-1]

    assert steps(STATE, DoubleType(), Sum()) == ["FunctionStep", "FiniteStep"]
    assert steps(STATE, DoubleType(), OfNoKnownType()) == ["FunctionStep", "FunctionStep", "FiniteStep"]
    assert steps(STATE, DoubleType(), Count()) == ["FunctionStep"]
    assert steps(STATE, LongType(), Sum()) == ["FunctionStep"]
    assert steps(STATE_MSGPACK, DoubleType(), Max()) == ["FunctionStep"]


@pytest.mark.usefixtures("spark")
def test_fields_have_the_types_of_what_makes_them() -> None:
    table = a_table("k string, i int, f float, d decimal(8,2), t timestamp")
    kinds = {
        name: table.group_by("k")
        .aggregate(aggregator, "n", inputs=[field])
        .schema["n"]
        .dataType.simpleString()
        for name, aggregator, field in (
            ("count", Count(), "k"),
            ("int", Sum(), "i"),
            ("float", Sum(), "f"),
            ("decimal", Sum(), "d"),
            ("time", Max(), "t"),
            ("own", OfNoKnownType(), "k"),
        )
    }
    assert kinds == {
        "count": "bigint",
        "int": "bigint",
        "float": "double",
        "decimal": "decimal(18,2)",
        "time": "timestamp",
        "own": "string",
    }
    mapped = table.map(list, "a, b decimal(10,2), c array<int>")
    assert [field.dataType.simpleString() for field in mapped.schema] == [
        "string",
        "decimal(10,2)",
        "array<int>",
    ]


def test_the_zero_of_an_aggregator_of_sparks_is_never_stored() -> None:
    class OfDecimals(Serializer):
        def serialize(self, value: object) -> bytes:
            raise TypeError(value)

        def deserialize(self, data: bytes) -> object:
            raise NotImplementedError

    state = InStore.opaque(serializer=OfDecimals())
    made = _with(a_stream(), DecimalType(8, 2)).persistent_aggregate(state, Sum(), ["n"], inputs=["x"])
    assert made.new_values_stream().schema["n"].dataType.simpleString() == "decimal(18,2)"
    with pytest.raises(TopologyError, match=r"zero\(\) returns 0, which the state's OfDecimals cannot store"):
        a_stream().persistent_aggregate(state, StartsWith(0), ["n"])


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (0, "bigint"),
        (0.0, "double"),
        ("", "string"),
        (False, "boolean"),
        (b"", "binary"),
        (Decimal(0), "decimal(38,18)"),
        (date(2020, 1, 2), "date"),
        ([0.0], "array<double>"),
    ],
)
def test_a_bare_name_has_the_type_of_the_first_value(first: object, kind: str) -> None:
    state = InStore.opaque(serializer=Pickled())
    for aggregator in (StartsWith(first), Collect(first)):
        made = a_stream().group_by("data").persistent_aggregate(state, aggregator, ["n"]).new_values_stream()
        assert made.schema["n"].dataType.simpleString() == kind
        [given] = made.node.parents
        if isinstance(aggregator, StartsWith):
            assert given.schema["n"].dataType.simpleString() == kind
        declared = a_stream().persistent_aggregate(state, aggregator, ["n float"]).new_values_stream()
        assert declared.schema["n"].dataType.simpleString() == "float"
        assert a_stream().aggregate(aggregator, "n").schema["n"].dataType.simpleString() == kind


def test_new_values_are_the_group_and_its_value() -> None:
    counts = a_stream().group_by(["stream", "shardId"]).persistent_aggregate(STATE, Count(), ["count"])
    assert counts.new_values_stream().fields == ("stream", "shardId", "count")
    assert a_stream().persistent_aggregate(STATE, Count(), ["count"]).new_values_stream().fields == ("count",)


def test_the_least_and_the_greatest_tuples(spark: SparkSession) -> None:
    rows = [("a", 2, "x"), ("b", 1, "y"), ("a", 3, "z"), ("b", None, "n")]
    stream = TridentTopology(spark).new_stream("t", spark.createDataFrame(rows, "k string, n int, s string"))
    found = stream.min_by("n"), stream.max_by("n"), stream.group_by("k").min_by("n")
    assert [sorted(map(tuple, one.df.collect())) for one in found] == [
        [("b", 1, "y")],
        [("a", 3, "z")],
        [("a", 2, "x"), ("b", 1, "y")],
    ]


@pytest.mark.usefixtures("spark")
def test_a_batch_frame_updates_no_state() -> None:
    table = a_table("k string")
    message = ": these tuples come from a batch DataFrame, which is outside of transactions"
    with pytest.raises(TopologyError, match=r"persistent_aggregate\(Count\)" + message):
        table.group_by("k").persistent_aggregate(STATE, Count(), "n")
    with pytest.raises(TopologyError, match=r"partition_persist\(Update\)" + message):
        table.partition_persist(STATE, ["k"], Update())
    assert a_stream().join("stream", table, "k").persistent_aggregate(STATE, Count(), "n").node is not None


@pytest.mark.usefixtures("spark")
def test_a_join_gives_the_keys_first() -> None:
    left, right = a_table("id int, name string"), a_table("user int, place string")
    joined = left.join("id", right, "user")
    assert joined.fields == ("id", "name", "place")
    assert left.join("id", right, "user", ["a", "b", "c"], "left").fields == ("a", "b", "c")
    wider = a_table("id int").join("id", a_table("user bigint, place string"), "user")
    assert wider.schema["id"].dataType.simpleString() == "bigint"


def test_new_static_state_takes_a_factory(spark: SparkSession) -> None:
    with pytest.raises(
        TopologyError, match=r"new_static_state: takes a StateFactory, not 'redis://x'; a state is"
    ):
        TridentTopology(spark).new_static_state("redis://x")  # type: ignore[arg-type]


@pytest.mark.parametrize("spout", SPOUTS)
@pytest.mark.parametrize("kind", StateType)
def test_the_matrix(spout: SpoutMode, kind: StateType) -> None:
    factory = InStore(kind)
    assert isinstance(factory, MapStateFactory)
    assert kind.name.lower() in STATES
    assert (weakness(spout, factory) is None) == ((spout, kind.name.lower()) in EXACTLY_ONCE)


class OfOnesOwn(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):  # type: ignore[no-untyped-def]
        raise NotImplementedError


class OfOnesOwnAndOpaque(OfOnesOwn):
    kind = StateType.OPAQUE


def test_a_state_of_ones_own_says_what_it_promises() -> None:
    why = weakness("opaque", OfOnesOwn())
    assert why is not None
    assert "kind = StateType.OPAQUE" in why
    assert weakness("opaque", OfOnesOwnAndOpaque()) is None
