"""No two groups come under one key of a store, and one group never under two."""

from __future__ import annotations

import json
import math
import operator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.trident import Count, MapGet, Sum
from kinesis_trident.trident.errors import SerializationError
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.run.python_aggregation import keys_of
from kinesis_trident.trident.run.state_updates import Combined, Persisted, StateUpdate
from kinesis_trident.trident.state import CombinerValueUpdater, StateType, StateUpdater
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.key_text import (
    FENCE,
    decode_key,
    digest_key,
    encode_keys,
    is_own,
    mark_key,
    shape_key,
)
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask
from kinesis_trident.trident.tuples import tuples_of


class Puts(StateUpdater[Any]):
    """Updates one key."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.how = ""

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        keys = [("good",), self.key]
        if self.how == "multi_combine":
            state.multi_combine(keys, operator.add, [1, 1])
        elif self.how == "multi_update":
            state.multi_update(keys, [CombinerValueUpdater(Count(), 1)] * 2)
        else:
            state.multi_put(keys, [1, 1])


atoms = st.one_of(st.none(), st.floats(), st.text(max_size=5), st.sampled_from(["NaN", "null", "Infinity"]))


def counted(factory: MapStateFactory, txid: int, keys: list[Any], number: int = 1) -> None:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    state.multi_combine(keys, operator.add, [number] * len(keys))
    state.commit(txid)


@given(st.lists(st.lists(atoms, max_size=3).map(tuple), unique_by=repr))
def test_different_keys_have_different_texts(keys: list[tuple[Any, ...]]) -> None:
    assert len(set(encode_keys(keys))) == len(keys)


def test_numbers_that_json_has_none_for() -> None:
    keys = [(None,), (math.nan,), (math.inf,), (-math.inf,), ("NaN",), ((math.nan, None),)]
    texts = ["[null]", "[NaN]", "[Infinity]", "[-Infinity]", "NaN", "[[NaN,null]]"]
    assert encode_keys(keys) == texts


def test_every_nan_is_one_group() -> None:
    batch = pa.record_batch({"f": [math.nan, 1.5, float("nan"), None]})
    keys = keys_of(batch, ["f"])
    assert list(dict.fromkeys(keys)) == [keys[0], (1.5,), (None,)]


def test_there_is_one_zero() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [0.0, -0.0], "l": [[-0.0], [0.0]]})
    keys = keys_of(batch, ["x", "l"])
    assert [str(key) for key in keys] == ["(0.0, (0.0,))"] * 2
    assert encode_keys([(0.0,), (-0.0,), (-0.0, [-0.0])]) == ["[0.0]", "[0.0]", "[0.0,[0.0]]"]


def test_lists_are_groups() -> None:
    batch = pa.record_batch({"l": [[1, 2], None, [1, 2], []]})
    assert len(set(keys_of(batch, ["l"]))) == 3
    assert encode_keys(keys_of(batch, ["l"])) == ["[[1,2]]", "[null]", "[[1,2]]", "[[]]"]


def test_a_state_of_lists() -> None:
    schema = pa.schema([("l", pa.list_(pa.string())), ("n", pa.int64())])
    given = pa.RecordBatch.from_pydict({"l": [["a", "b"], None], "n": [3, 4]}, schema=schema)
    factory = MemoryMapState.opaque()
    work = Combined("persistent_aggregate(Sum)", ("l",), "n", Sum())
    for txid in (1, 2):
        update = StateUpdate("persistent_aggregate(Sum)", factory, work, {}, txid, schema)
        new = [row for batch in update.run([given], 0) for row in batch.to_pylist()]
    assert new == [{"l": ["a", "b"], "n": 6}, {"l": None, "n": 8}]
    tuples = tuples_of(["l"], [[["a", "b"], ["a"]]], 2)
    assert MapGet().batch_retrieve(factory.make_state({}, 0, 1), tuples) == [6, None]


@given(st.integers(0, 2**51), st.sampled_from([-8, 0, 2]))
def test_an_instant_is_one_key_in_every_zone(micros: int, hours: int) -> None:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    [name] = encode_keys([(instant,)])
    assert encode_keys([(instant.astimezone(timezone(timedelta(hours=hours))),)]) == [name]
    for zone in ("UTC", "Europe/Berlin", "America/Los_Angeles"):
        column = pa.array([instant], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
        assert encode_keys(keys_of(pa.record_batch({"t": column}), ["t"])) == [name]


def test_the_hour_that_comes_twice_is_two_hours() -> None:
    """In the zone of the session both look the same to a dict."""
    instants = [datetime(2026, 10, 25, hour, tzinfo=UTC) for hour in (0, 1)]
    column = pa.array(instants, pa.timestamp("us", "Europe/Berlin"))
    keys = keys_of(pa.record_batch({"t": column}), ["t"])
    assert keys == [(instant,) for instant in instants]
    assert encode_keys(keys) == ['["2026-10-25T00:00:00Z"]', '["2026-10-25T01:00:00Z"]']
    zoned = [(instant.astimezone(ZoneInfo("Europe/Berlin")),) for instant in instants]
    assert encode_keys(zoned) == encode_keys(keys)


def test_a_key_factory_that_makes_one_of_two() -> None:
    """Also where they are not in the same request."""
    factory = MemoryMapState.opaque(keyFactory=lambda key: str(key[0])[:4])
    keys = [(f"{number:04}",) for number in range(1_000)]
    counted(factory, 1, keys)
    with pytest.raises(
        SerializationError, match=r"keyFactory returns '0007' for two keys, \('0007',\) and \('00071'"
    ):
        counted(factory, 2, [*keys, ("00071",)])
    assert factory.make_state({}, 0, 1).multi_get(keys) == [1] * len(keys)
    with pytest.raises(SerializationError, match="'0007' for two keys"):
        factory.make_state({}, 0, 1).multi_get([("0007",), ("00071",)])


def test_a_batch_asks_for_a_word_twice(every_store: MapStateFactory) -> None:
    counted(every_store, 1, [("the",), ("dog",)], 3)
    tuples = tuples_of(["word"], [["the", "dog", "the", "no", "no"]], 5)
    assert MapGet().batch_retrieve(every_store.make_state({}, 0, 1), tuples) == [3, 3, 3, None, None]


def test_no_bytes_are_not_the_empty_text(every_store: MapStateFactory) -> None:
    keys = [("",), (b"",), (b"abc",)]
    assert encode_keys(keys) == ['[""]', '[{"$bytes":""}]', '["YWJj"]']
    assert [decode_key(name) for name in encode_keys(keys)] == [("",), (b"",), ("YWJj",)]
    for txid in (1, 2):
        counted(every_store, txid, keys)
    assert every_store.make_state({}, 0, 1).multi_get(keys) == [2, 2, 2]


OWN = [
    FENCE,
    mark_key(""),
    mark_key("", "$GLOBAL$"),
    shape_key(""),
    digest_key("", 0, 2, ""),
    mark_key("", "$PREFIXES$", 1),
]


@pytest.mark.parametrize("own", OWN)
def test_values_that_spell_a_key_of_the_state_are_a_key_of_their_own(
    own: str, every_store: MapStateFactory
) -> None:
    key = tuple(json.loads(own))
    [name] = encode_keys([key])
    assert name not in OWN
    assert not is_own(name, "")
    assert decode_key(name) == key
    shape = Shape(2, 2, 0, "count")
    owner = Owner("shop", "lines@1", "counts", is_global=True)
    for txid in 1, 2:
        state = every_store.make_state({TASK: StateTask(txid, owner, shape=shape)}, 0, 2)
        state.begin_commit(txid)
        state.check_replay([key])
        assert state.multi_combine([key], operator.add, [1]) == [txid]
        state.commit(txid)


@pytest.mark.parametrize("kind", StateType)
@pytest.mark.parametrize("key", [("half \ud800",), ("a", "\udfff"), ([1],), ({"a": 1},), ("a", {1})])
def test_a_key_that_is_none_names_the_operator(kind: StateType, key: Any) -> None:
    """Of an updater of one's own; what aggregations group by is checked when they are built."""
    updater = Puts(key)
    work = Persisted("partition_persist(Puts)", ("word",), updater, {}, pa.schema([]))
    factory = MemoryMapState(kind)
    update = StateUpdate("partition_persist(Puts)", factory, work, {}, 1, pa.schema([]))
    for how in ("multi_put", "multi_update", "multi_combine"):
        updater.how = how
        with pytest.raises(SerializationError, match=r"partition_persist\(Puts\): .*(key|keys) ") as error:
            list(update.at([pa.RecordBatch.from_pydict({"word": ["a"]})], 0))
        str(error.value).encode()
    assert factory.make_state({}, 0, 1).tuples() == []
