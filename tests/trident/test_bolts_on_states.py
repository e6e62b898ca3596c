"""Storm's stateful and windowed bolts, on the states and the windows of Trident."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from doc_blocks import PAGES, blocks_of
from hypothesis import given, strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from kinesis_trident import (
    BasicBolt,
    Bolt,
    DataFrameSpout,
    KinesisSpout,
    TopologyBuilder,
    TopologyContext,
    TopologyError,
)
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.storm.other_spouts import FrameHandler
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    FailedException,
    KeyValueState,
    SlidingCountWindow,
    SqlState,
    StatefulBolt,
    StateOwnedError,
    TumblingCountWindow,
    TumblingDurationWindow,
    TupleWindow,
    WindowedBolt,
)
from kinesis_trident.trident.stores import MemoryMapState

START = datetime(2026, 1, 1, tzinfo=UTC)
CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


class Split(BasicBolt):
    fields = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["data"].decode().split():
            collector.emit([word])


class CountWords(StatefulBolt):
    fields = "word string, count long"

    def prepare(self, context: Any, collector: Any, state: KeyValueState[int]) -> None:
        self.collector, self.state = collector, state

    def execute(self, tup: Any) -> None:
        count = self.state.get(tup["word"], 0) + 1
        self.state.put(tup["word"], count)
        self.collector.emit([tup["word"], count], tup)
        self.collector.ack(tup)


def builder() -> TopologyBuilder:
    made = TopologyBuilder(None)
    made.set_spout("lines", KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1"))
    return made


def test_a_state_goes_on_from_batch_to_batch(tmp_path: Path) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    made = builder()
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    made.set_bolt("count", CountWords(state), 3).fields_grouping("split", "word")
    result = run_topology(made, {"lines": Batches(["a b a", "c"], ["a"], ["b c c"])})
    assert sorted(result.emitted["count"]) == sorted(
        [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3), ("b", 2), ("c", 2), ("c", 3)]
    )
    words = state.make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)])
    assert words == [3, 2, 3]


class CommitsTwice(SqlState):
    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        state = super().make_state(conf, partition_index, num_partitions)
        commit = state.commit

        def fail_once(txid: int | None) -> None:
            commit(txid)
            CALLS["commits"] += 1
            if CALLS["commits"] == 2:
                raise FailedException("try again")

        state.commit = fail_once  # type: ignore[method-assign]
        return state


def test_a_batch_that_runs_again_counts_once(tmp_path: Path) -> None:
    """One task has written, another's store asks for the batch again."""

    state = CommitsTwice.opaque(f"sqlite:///{tmp_path}/state.db")
    made = builder()
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    made.set_bolt("count", CountWords(state), 1).fields_grouping("split", "word")
    run_topology(made, {"lines": Batches(["a"], ["a b a"], ["b"])})
    # Three batches, of which one was committed twice.
    assert CALLS["commits"] == 4
    assert state.make_state({}, 0, 1).multi_get([("a",), ("b",)]) == [3, 2]


def test_a_key_of_several_values_and_one_request_for_many(tmp_path: Path) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db").make_state({}, 0, 1)
    state.begin_commit(1)
    first: KeyValueState[int] = KeyValueState(state)
    first.put(("a", 1), 5)
    assert first.get_all([("a", 1), "b"], 0) == [5, 0]
    first.write()
    state.commit(1)
    state.begin_commit(2)
    assert KeyValueState(state).get_all([("a", 1), "a"]) == [5, None]


class Windows(WindowedBolt):
    fields = "seen array<string>"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit([[tup["word"] for tup in window.tuples]])


def seen(made: TopologyBuilder, batches: list[list[str]]) -> list[list[str]]:
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    return [list(row.seen) for row in run_topology(made, {"lines": Batches(*batches)}).emitted["windows"]]


@given(
    words=st.lists(st.sampled_from("abc"), max_size=14),
    cuts=st.sets(st.integers(1, 13)),
    size=st.integers(1, 5),
    slide=st.integers(1, 5),
)
def test_windows_by_count_whatever_the_batches(
    words: list[str], cuts: set[int], size: int, slide: int
) -> None:
    slide = min(size, slide)
    ends = sorted(cut for cut in cuts if cut < len(words))
    batches = [words[a:b] for a, b in zip([0, *ends], [*ends, len(words)], strict=True)]
    made = builder()
    bolt = Windows(MemoryMapState.opaque(), SlidingCountWindow(size, slide), ["word"])
    made.set_bolt("windows", bolt, 1).global_grouping("split")
    expected = [words[max(end - size, 0) : end] for end in range(slide, len(words) + 1, slide)]
    assert seen(made, batches) == expected


class Timed(BasicBolt):
    fields = "word string, at timestamp"

    def execute(self, tup: Any, collector: Any) -> None:
        word = tup["data"].decode()
        collector.emit([word, START + timedelta(seconds=int(word))])


class ByTime(Windows):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("start timestamp, seen array<string>")
        declarer.declare_stream("late", "word string")

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit([window.start, [tup["word"] for tup in window.tuples]])


def test_windows_of_time_and_the_stream_of_late_tuples() -> None:
    made = builder()
    made.set_bolt("timed", Timed()).shuffle_grouping("lines")
    window = TumblingDurationWindow(timedelta(seconds=10))
    lag = timedelta(seconds=5)
    bolt = ByTime(MemoryMapState.opaque(), window, ["word"], time="at", lag=lag, late="late")
    made.set_bolt("windows", bolt, 1).global_grouping("timed")
    result = run_topology(made, {"lines": Batches(["3", "12", "1"], ["14", "5"], ["16", "4"], ["2", "40"])})
    # The greatest time less the lag reaches 10 with 16: the batch's other tuple is not late yet.
    assert [(row.start, list(row.seen)) for row in result.emitted["windows"]] == [
        (START, ["1", "3", "4", "5"]),
        (START + timedelta(seconds=10), ["12", "14", "16"]),
    ]
    assert result.emitted["windows", "late"] == [("2",)]
    assert len(result.acked["lines"]) == 9


class FailSecond(BasicBolt):
    """Fails the second window once."""

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["seen"][0] == "c" and not CALLS["failed"]:
            CALLS["failed"] += 1
            raise ValueError("no")


def test_what_a_window_emits_is_anchored_to_its_tuples_of_the_batch() -> None:
    made = builder()
    bolt = Windows(MemoryMapState.opaque(), TumblingCountWindow(2), ["word"])
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    made.set_bolt("windows", bolt, 1).global_grouping("split")
    made.set_bolt("end", FailSecond()).shuffle_grouping("windows")
    result = run_topology(made, {"lines": Batches(["a", "b", "c"], ["d", "e"])}, attempts=2)
    # `c` was acked with its own batch: of this window only `d` comes again, and is counted again.
    assert [one.values for one in result.failed] == ["d"]
    assert [list(row.seen) for row in result.emitted["windows"]] == [["a", "b"], ["c", "d"], ["e", "d"]]


class Breaks(Windows):
    """Raises an error for the first window."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__(MemoryMapState.opaque(), TumblingCountWindow(2), ["word"])
        self.error = error

    def execute(self, window: TupleWindow) -> None:
        CALLS["windows"] += 1
        if CALLS["windows"] == 1:
            raise self.error("the sink is down")
        super().execute(window)


def test_an_error_in_a_window_fails_the_batch_and_loses_none() -> None:
    made = builder()
    made.set_bolt("windows", Breaks(FailedException), 1).global_grouping("split")
    assert seen(made, [["a b c"], ["d"]]) == [["a", "b"], ["c", "d"]]
    assert CALLS.pop("windows") == 3
    made = builder()
    made.set_bolt("windows", Breaks(ValueError), 1).global_grouping("split")
    with pytest.raises(OperatorError, match=r"'windows': execute\(\) raised .* for the window from 0 to 2"):
        seen(made, [["a b c"]])


def test_a_field_that_the_state_cannot_keep_is_refused_when_it_is_built() -> None:
    made = builder()
    bolt = Windows(MemoryMapState.opaque(), TumblingCountWindow(2), ["data"])
    made.set_bolt("windows", bolt, 1).global_grouping("lines")
    with pytest.raises(TopologyError, match="'windows': the field 'data': its values are binary"):
        run_topology(made, {"lines": ["a"]})


WRONG: dict[str, tuple[Any, str]] = {
    "no state": (lambda: CountWords("redis://"), "StateFactory"),
    "a count that goes on in a replay": (
        lambda: CountWords(MemoryMapState.transactional()),
        r"its state is not opaque.* Call \.opaque",
    ),
    "a count twice in a replay": (
        lambda: CountWords(MemoryMapState.non_transactional()),
        r"its state is not opaque.* Call \.opaque",
    ),
    "no window": (lambda: Windows(MemoryMapState.opaque(), 5, ["word"]), "5 is not a window"),
    "not opaque": (
        lambda: Windows(MemoryMapState.transactional(), TumblingCountWindow(2), ["word"]),
        r"its state is not opaque.* Call \.opaque",
    ),
    "no time": (
        lambda: Windows(MemoryMapState.opaque(), TumblingDurationWindow(timedelta(1)), ["word"]),
        "windows of time need the field of the time",
    ),
    "late by count": (
        lambda: Windows(MemoryMapState.opaque(), TumblingCountWindow(2), ["word"], late="late"),
        "only they can be late",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_bolt_is_refused(what: str) -> None:
    make, said = WRONG[what]
    with pytest.raises(TopologyError, match=said):
        make()


def test_a_state_of_two_bolts_or_in_the_driver_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = TopologyBuilder(spark)
    made.set_spout("lines", DataFrameSpout(spark.createDataFrame([("a",)], "word string")))
    made.set_bolt("one", CountWords(MemoryMapState.opaque()), 1).fields_grouping("lines", "word")
    with pytest.raises(TopologyError, match="'one': its state is in the driver's memory"):
        made.run_batch()
    made = TopologyBuilder(spark)
    made.set_spout("lines", DataFrameSpout(spark.createDataFrame([("a",)], "word string")))
    for name in ("one", "two"):
        state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
        made.set_bolt(name, CountWords(state), 1).fields_grouping("lines", "word")
    with pytest.raises(TopologyError, match="'two' has its state where bolt 'one' has its own"):
        made.run_batch()


@pytest.fixture
def by_value() -> Iterator[None]:
    """Let Spark's workers get the classes of this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("by_value")
def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    # The first batch is run again.
    for txid in (1, 1, 2):
        rows = spark.createDataFrame([(word,) for word in "abacab"], "word string")
        made = TopologyBuilder(spark)
        made.set_spout("lines", DataFrameSpout(rows))
        made.set_bolt("count", CountWords(state), 2).fields_grouping("lines", "word")
        made.run_batch(txid)
    assert state.make_state({}, 0, 1).multi_get([(word,) for word in "abc"]) == [6, 4, 2]


@pytest.mark.usefixtures("by_value")
def test_the_next_driver_goes_on_with_the_batch_of_the_one_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It fences off what is left of the earlier attempts, of which it knows nothing."""
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    rows = spark.createDataFrame([(word,) for word in "aba"], "word string")
    lives = []
    for started in (1_800_000_000, 1_800_000_001):
        made = TopologyBuilder(spark)
        made.set_spout("lines", DataFrameSpout(rows))
        made.set_bolt("count", CountWords(state), 1).fields_grouping("lines", "word")
        lives.append(FrameHandler(made.build()[0], started=started))
    first, second = lives
    for _ in range(2):
        first(rows, 4)
    second(rows, 4)
    with pytest.raises(Exception, match="StateFencedError: attempt"):
        first(rows, 4)
    assert state.make_state({}, 0, 1).multi_get([("a",), ("b",)]) == [2, 1]


@pytest.mark.parametrize(
    "bolt", [CountWords, partial(Windows, window=TumblingCountWindow(2), inputs=["word"])]
)
def test_a_search_for_deadly_records_writes_nothing(bolt: Callable[..., Bolt], tmp_path: Path) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    out = pa.schema(
        [("word", pa.string()), ("count", pa.int64())]
        if bolt is CountWords
        else [("seen", pa.list_(pa.string()))]
    )

    def run(txid: int, facts: StateFacts) -> list[Any]:
        operator = BoltOperator(
            "count",
            txid,
            bolt(state),
            {"lines": ["word"]},
            out,
            None,
            context=TopologyContext("count", 0, txid, 1, facts=facts),
        )
        batch = pa.RecordBatch.from_pydict({"word": ["a", "b", "a"]})
        return [row for made in operator(iter([batch])) for row in made.to_pylist()]

    def stored() -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "state.db")) as database:
            return list(database.iterdump())

    run(1, StateFacts(1))
    before = stored()
    assert run(2, StateFacts(isolating=True))
    assert stored() == before
    assert run(2, StateFacts(2))
    assert stored() != before


def test_two_applications_with_one_state_are_refused(tmp_path: Path) -> None:
    state = SqlState.opaque(f"sqlite:///{tmp_path}/state.db")
    for name in ("billing", "audit"):
        made = TopologyBuilder(None)
        made.set_spout("lines", KinesisSpout(streamName="s", applicationName=name, zookeeper__hosts="zk:1"))
        made.set_bolt("split", Split()).shuffle_grouping("lines")
        made.set_bolt("count", CountWords(state), 1).fields_grouping("split", "word")
        if name == "billing":
            run_topology(made, {"lines": ["a a"]})
            continue
        with pytest.raises(
            StateOwnedError, match=r"the keys of audit/s@.*/count belong to billing/s@.*/count"
        ):
            run_topology(made, {"lines": ["a"]})
    assert state.make_state({}, 0, 1).multi_get([("a",)]) == [2]


def test_the_bolts_of_the_page() -> None:
    blocks = blocks_of(PAGES["storm-parts.md"])
    made = builder()
    made.set_bolt("split", Split()).shuffle_grouping("lines")
    made.set_bolt(
        "clicks",
        lambda tup, out: (
            out.emit([tup["data"].decode(), START + timedelta(seconds=int(tup["data"][2:]))])
            if tup["data"].startswith(b"p ")
            else None
        ),
        fields="page string, at timestamp",
    ).shuffle_grouping("lines")
    for block in blocks:
        text = re.sub(
            r'RedisState\.opaque\("redis://localhost", keyPrefix="\w+:"\)',
            "MemoryMapState.opaque()",
            block.text,
        )
        assert text != block.text
        exec(text, {"builder": made, "MemoryMapState": MemoryMapState, "__name__": "page"})
    result = run_topology(made, {"lines": Batches(["p 1", "p 70", "a"], ["p 71", "p 3", "a"])})
    assert result.emitted["busiest"] == [(START, 1)]
    assert result.emitted["busiest", "late"] == [("p 3",)]
    assert [row for row in result.emitted["count"] if row.word == "a"] == [("a", 1), ("a", 2)]
