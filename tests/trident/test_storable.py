"""The values that a state can store: what is built comes back equal, and what was stored before is still the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as T

from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    Aggregator,
    Function,
    KinesisSpout,
    MemoryMapState,
    Sum,
    TridentTopology,
    TridentTuple,
    string_scheme,
)
from kinesis_trident.trident.maps import OpaqueValue
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer
from kinesis_trident.trident.tuples import TridentCollector

SERIALIZERS = [JsonSerializer, MsgpackSerializer]
NAMES = st.sampled_from(["a", "$decimal", "float", "dict", ""])

PLAIN: dict[T.DataType, st.SearchStrategy[Any]] = {
    T.StringType(): st.text(max_size=5),
    T.LongType(): st.integers(-(2**63), 2**63 - 1),
    T.BooleanType(): st.booleans(),
    T.DoubleType(): st.floats(),
    T.DecimalType(38, 2): st.decimals(-(10**9), 10**9, places=2),
    T.BinaryType(): st.binary(max_size=5),
    T.TimestampType(): st.datetimes(),
    T.DateType(): st.dates(),
    T.NullType(): st.none(),
}

Column = tuple[T.DataType, st.SearchStrategy[Any]]


def of_struct(fields: dict[str, Column]) -> Column:
    kind = T.StructType([T.StructField(name, one[0]) for name, one in fields.items()])
    return kind, st.fixed_dictionaries({name: one[1] for name, one in fields.items()})


def nested(inner: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    plain = st.sampled_from(list(PLAIN.items())).filter(lambda one: not isinstance(one[0], T.NullType))
    return (
        inner.map(lambda one: (T.ArrayType(one[0]), st.lists(one[1], max_size=3)))
        | st.tuples(plain, inner).map(
            lambda both: (
                T.MapType(both[0][0], both[1][0]),
                st.dictionaries(
                    NAMES if isinstance(both[0][0], T.StringType) else both[0][1], both[1][1], max_size=3
                ),
            )
        )
        | st.dictionaries(NAMES, inner, max_size=3).map(of_struct)
    )


COLUMNS = st.recursive(st.sampled_from(list(PLAIN.items())), nested, max_leaves=5)


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, of the same types; a NaN is equal to another."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("serializer", SERIALIZERS)
@given(column=COLUMNS, data=st.data())
def test_what_the_build_takes_is_stored_and_comes_back(serializer: Any, column: Column, data: Any) -> None:
    kind, values = column
    form = serializer(StateType.OPAQUE)
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=4))
    if not form.takes_type(kind):
        return
    stored = form.serialize_many([OpaqueValue(7, value, value) for value in drawn])
    found = form.deserialize_many(stored)
    assert all(
        same(one, kept.current) and same(one, kept.previous) for one, kept in zip(drawn, found, strict=True)
    )
    assert form.deserialize(stored[0]).txid == 7
    assert form.serialize(OpaqueValue(7, drawn[0], drawn[0])) == stored[0]


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        [1.5, math.nan, -math.inf],
        {"$decimal": "not a number"},
        {"$decimal": {"float": "NaN"}},
        {"a": [{"$decimal": Decimal("1.5"), "b": 1}]},
        2**70,
        [-(2**70)],
    ],
)
def test_values_that_ended_a_query_after_its_verdict(serializer: Any, value: Any) -> None:
    form = serializer(StateType.NON_TRANSACTIONAL)
    assert same(form.deserialize(form.serialize(value)), value)
    assert same(form.deserialize_many(form.serialize_many([value]))[0], value)


def test_maps_with_other_keys_are_refused_at_build() -> None:
    for serializer in SERIALIZERS:
        form = serializer(StateType.OPAQUE)
        assert not form.takes_type(T.MapType(T.IntegerType(), T.LongType()))
        assert not form.takes_type(T.ArrayType(T.MapType(T.BinaryType(), T.LongType())))
        assert form.takes_type(T.MapType(T.StringType(), T.ArrayType(T.DoubleType())))


def test_a_sum_of_finite_numbers_that_is_infinite() -> None:
    state = MemoryMapState.opaque().make_state({}, 0, 1)
    for txid in (1, 2, 3):
        state.begin_commit(txid)
        assert state.multi_combine([("a",)], Sum().combine, [1e308]) == [
            [1e308, math.inf, math.inf][txid - 1]
        ]
        state.commit(txid)


class Made(Function):
    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([{tup["word"]: 1}, [1.5, math.nan]])


class Listed(Aggregator):
    def init(self, _batch: Any, _collector: TridentCollector) -> list[Any]:
        return []

    def aggregate(self, value: list[Any], tup: TridentTuple, _collector: TridentCollector) -> list[Any]:
        return [*value, list(tup)]

    def complete(self, value: list[Any], collector: TridentCollector) -> None:
        collector.emit([repr(value)])


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_windows_keep_maps_and_fractions(serializer: str) -> None:
    topology = TridentTopology()
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="z", scheme=string_scheme("word")
    )
    made = topology.new_stream("s", spout).each(["word"], Made(), "m map<string,bigint>, l array<double>")
    state = MemoryMapState.opaque(serializer=serializer)
    made.tumbling_window(2, state, Listed(), "all", ["m", "l"])
    (window,) = run_topology(topology, {"s": ["a", "b", "c"]}).emitted["window(Listed)"]
    assert window["all"] == "[[{'a': 1}, [1.5, nan]], [{'b': 1}, [1.5, nan]]]"


def test_the_documented_forms() -> None:
    form = JsonSerializer(StateType.NON_TRANSACTIONAL)
    assert [
        form.serialize(value) for value in (Decimal("1.50"), math.nan, math.inf, -math.inf, {"$decimal": 1})
    ] == [
        b'{"$decimal":"1.50"}',
        b'{"$decimal":{"float":"NaN"}}',
        b'{"$decimal":{"float":"Infinity"}}',
        b'{"$decimal":{"float":"-Infinity"}}',
        b'{"$decimal":{"dict":{"$decimal":1}}}',
    ]


# The rule of the release before, with what it took and how.


def before_takes(form: type, value: Any) -> bool:
    kind = type(value)
    if kind in (type(None), bool, int, str):
        return True
    if form is JsonSerializer:
        return kind is float and math.isfinite(value)
    return kind is float or kind is bytes


def before_check(form: type, value: Any) -> Any:
    if before_takes(form, value):
        return value
    if type(value) is Decimal:
        if form is JsonSerializer:
            return {"$decimal": str(value)}
        return msgspec.msgpack.Ext(1, str(value).encode())
    if type(value) is OpaqueValue:
        return OpaqueValue(value.txid, before_check(form, value.current), before_check(form, value.previous))
    if type(value) is list:
        return [before_check(form, item) for item in value]
    if type(value) is dict and all(type(key) is str and key != "$decimal" for key in value):
        return {key: before_check(form, item) for key, item in value.items()}
    raise TypeError


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.decimals(allow_nan=False)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ENCODE: dict[type, Callable[[Any], bytes]] = {
    JsonSerializer: msgspec.json.encode,
    MsgpackSerializer: msgspec.msgpack.encode,
}


@pytest.mark.parametrize("serializer", SERIALIZERS)
@given(value=ANYTHING)
def test_the_bytes_of_all_values_that_the_release_before_took(serializer: Any, value: Any) -> None:
    form = serializer(StateType.OPAQUE)
    stored = OpaqueValue(3, value, None)
    try:
        before = ENCODE[serializer](before_check(serializer, stored))
    except (TypeError, OverflowError):
        return
    assert form.serialize(stored) == before
    assert form.serialize_many([stored, stored]) == [before, before]
    assert same(form.deserialize(before).current, value)
