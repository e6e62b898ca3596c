"""A tuple that a bolt's state cannot take fails alone, and a function that changes its values changes no others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kinesis_trident import BasicBolt, KinesisSpout, TopologyBuilder, TopologyError
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Function,
    KeyValueState,
    SlidingCountWindow,
    StateError,
    StatefulBolt,
    TridentTopology,
    TumblingDurationWindow,
    TupleWindow,
    WindowedBolt,
    string_scheme,
)
from kinesis_trident.trident.maps import OpaqueMap
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.stores.sql import SqlState

START = datetime(2026, 1, 1, tzinfo=UTC)


def spout(**more: Any) -> KinesisSpout:
    return KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1", **more)


class Words(BasicBolt):
    fields = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup["data"].decode()])


class Puts(StatefulBolt):
    """Puts what a word stands for, and one more count."""

    fields = "word string"
    values: Callable[[str], Any]

    def prepare(self, context: Any, collector: Any, state: KeyValueState[Any]) -> None:
        self.collector, self.state = collector, state

    def execute(self, tup: Any) -> None:
        word = tup["word"]
        self.state.put("all", self.state.get("all", 0) + 1)
        if word == "raises":
            self.state.put("never", 1)
            self.state.delete("a")
            raise ValueError(word)
        bad_key = {"half": "\ud800", "list": ["a"]}
        bad_value = {"set": {1}, "object": object(), "tuple": (1, 2)}
        self.state.put(bad_key.get(word, word), bad_value.get(word, word))
        self.collector.ack(tup)


def test_puts_that_a_state_cannot_store(tmp_path: Any) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    made = TopologyBuilder(None)
    made.set_spout("lines", spout())
    made.set_bolt("words", Words()).shuffle_grouping("lines")
    made.set_bolt("puts", Puts(state), 1).global_grouping("words")
    bad = ["set", "object", "tuple", "half", "list", "raises"]
    result = run_topology(made, {"lines": Batches(["a", *bad, "b"], ["raises", "c"])})
    assert [one.values for one in result.failed] == [*bad, "raises"]
    assert "puts" in result.failed[0].reason
    found = state.make_state({}, 0, 1).multi_get([("all",), ("a",), ("b",), ("c",), ("never",), ("set",)])
    assert found == [3, "a", "b", "c", None, None]


def test_a_key_value_state_is_deleted_from_and_listed() -> None:
    factory = MemoryMapState.opaque()
    for txid in (1, 2, 3):
        state = factory.make_state({}, 0, 1)
        state.begin_commit(txid)
        values: KeyValueState[Any] = KeyValueState(state)
        if txid == 1:
            values.put("a", [1])
            values.put(("b", 2), 5)
            assert sorted(values) == [("a", [1]), ("b", 2, 5)]
            values.get("a").append(2)
            assert values.get("a") == [1]
        if txid == 2:
            values.delete("a")
            values.put(("b", 2), None)
            values.put("c", 7)
            assert list(values) == [("c", 7)]
        values.write()
        state.commit(txid)
    assert list(values) == [("c", 7)]
    assert factory.store().names() == ["c"]


def test_a_state_that_cannot_be_listed(tmp_path: Any) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db").make_state({}, 0, 1)
    with pytest.raises(StateError, match="cannot list its keys"):
        iter(KeyValueState(state))


class Timed(BasicBolt):
    fields = "word string, at timestamp, parts array<double>"

    def execute(self, tup: Any, collector: Any) -> None:
        word = tup["data"].decode()
        at = {"null": None, "last": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)}.get(word, START)
        number = float("nan") if word == "nan" else float(len(word))
        collector.emit([word, at + timedelta(hours=1) if at == START and word == "end" else at, [number]])


class Listed(WindowedBolt):
    fields = "words string"

    def execute(self, window: TupleWindow) -> None:
        for tup in window.tuples:
            tup["parts"].append(7.0)
        self._emits.emit([" ".join(f"{tup['word']}{tup['parts']}" for tup in window.tuples)])


def windows(bolt: WindowedBolt) -> TopologyBuilder:
    made = TopologyBuilder(None)
    made.set_spout("lines", spout())
    made.set_bolt("timed", Timed()).shuffle_grouping("lines")
    made.set_bolt("windows", bolt, 1).global_grouping("timed")
    return made


def test_a_windowed_bolt_keeps_what_it_can() -> None:
    minutes = TumblingDurationWindow(timedelta(minutes=10))
    bolt = Listed(MemoryMapState.opaque(), minutes, ["word", "parts"], time="at")
    result = run_topology(windows(bolt), {"lines": Batches(["a", "null", "nan", "last"], ["end"])})
    assert [one.values for one in result.failed] == ["null", "last"]
    assert "its time 'at' is None, not a timestamp" in result.failed[0].reason
    assert result.emitted["windows"] == [("a[1.0, 7.0] nan[nan, 7.0]",)]


def test_a_windowed_bolt_that_changes_its_tuples() -> None:
    """Of windows that overlap: each gets the tuples as they came."""
    bolt = Listed(MemoryMapState.opaque(), SlidingCountWindow(2, 1), ["word", "parts"])
    result = run_topology(windows(bolt), {"lines": Batches(["a", "b"], ["c"])})
    assert result.emitted["windows"] == [
        ("a[1.0, 7.0]",),
        ("a[1.0, 7.0] b[1.0, 7.0]",),
        ("b[1.0, 7.0] c[1.0, 7.0]",),
    ]


@pytest.mark.parametrize(
    ("inputs", "time", "words"),
    [
        (
            ["word", "at"],
            "at",
            "bolt 'windows': the field 'at': its values are timestamp, which serializer='json'",
        ),
        (["wrd"], "at", "bolt 'windows': there is no field 'wrd'; did you mean 'word'"),
        (["word"], "word", "bolt 'windows': its time 'word' is string, not a timestamp"),
    ],
)
def test_a_field_that_windows_cannot_keep(inputs: list[str], time: str, words: str) -> None:
    minutes = TumblingDurationWindow(timedelta(minutes=10))
    bolt = Listed(MemoryMapState.opaque(), minutes, inputs, time=time)
    with pytest.raises(TopologyError) as error:
        windows(bolt).check(1)
    assert words in str(error.value)


class Lists(CombinerAggregator):
    """Changes its left value in place, and returns it."""

    def init(self, tup: Any) -> list[str]:
        return [tup["word"]]

    def combine(self, left: list[str], right: list[str]) -> list[str]:
        left.extend(right)
        return left

    def zero(self) -> list[str]:
        return []


class Parts(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([[tup["word"]]])


class Pops(Aggregator):
    """Empties the list of each tuple."""

    def init(self, _batch: Any, _collector: Any) -> list[str]:
        return []

    def aggregate(self, value: list[str], tup: Any, _collector: Any) -> list[str]:
        return [*value, tup["parts"].pop() if tup["parts"] else "gone"]

    def complete(self, value: list[str], collector: Any) -> None:
        collector.emit([" ".join(value)])


def stream() -> Any:
    made = TridentTopology()
    return made, made.new_stream("s", spout(scheme=string_scheme("word")))


def test_a_combiner_that_changes_its_left_value() -> None:
    topology, words = stream()
    words.sliding_window(3, 1, MemoryMapState.opaque(), Lists(), "all array<string>")
    result = run_topology(topology, {"s": Batches(["a", "b"], ["c"], ["d"])})
    found = [" ".join(one["all"]) for one in result.emitted["window(Lists)"]]
    assert found == ["a", "a b", "a b c", "b c d"]


def test_aggregators_that_change_a_tuple() -> None:
    """In windows that overlap, and in a chain."""
    topology, words = stream()
    parts = words.each(["word"], Parts(), "parts array<string>")
    state = MemoryMapState.opaque()
    parts.sliding_window(2, 1, state, Pops(), "all", ["parts"])
    chain = parts.chained_agg().aggregate(Pops(), "one", ["parts"]).aggregate(Pops(), "two", ["parts"])
    chain.chain_end()
    result = run_topology(topology, {"s": Batches(["a", "b"], ["c"])})
    assert [one["all"] for one in result.emitted["window(Pops)"]] == ["a", "a b", "b c"]
    chained = result.emitted["chained_agg(Pops, Pops)"]
    assert [(row["one"], row["two"]) for row in chained] == [("a b", "a b"), ("c", "c")]


def test_an_updater_that_changes_the_stored_value() -> None:
    """A replay starts from the value before it."""
    factory = MemoryMapState.opaque()
    for txid, expected in [(1, ["x"]), (2, ["x", "x"]), (2, ["x", "x"])]:
        state: OpaqueMap[Any] = factory.make_state({}, 0, 1)  # type: ignore[assignment]
        state.begin_commit(txid)
        assert state.multi_combine([("a",)], Lists().combine, [["x"]]) == [expected]
        state.commit(txid)
