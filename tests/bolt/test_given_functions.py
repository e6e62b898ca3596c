"""Test what is asked of users' functions and objects when they are given: how they are called, and that they travel."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest

from kinesis_trident import (
    BasicBolt,
    KinesisSpout,
    PermanentFailure,
    RetryLater,
    TopologyBuilder,
    TopologyError,
    foreach_batch,
    string_scheme,
)
from kinesis_trident.bolt.calls import count_needed
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.reliable import _Writer
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import (
    Aggregator,
    ArrowFunction,
    CombinerAggregator,
    Filter,
    Function,
    MemoryMapState,
    MultiReducer,
    QueryFunction,
    ReducerAggregator,
    StateUpdater,
    Stream,
    TridentTopology,
)

OPTIONS = {"streamName": "lines", "applicationName": "tests", "zookeeper.hosts": "-", "region": "-"}


def writes(given: list[Any]) -> dict[str, tuple[Callable[..., Any], int]]:
    """Functions of a batch, each with the number of arguments that it gets."""
    return {
        "two": (lambda df, txid: given.append([df, txid]), 2),
        "three": (lambda df, txid, outcomes: given.append([df, txid, outcomes]), 3),
        "a default": (lambda df, txid, table="orders": given.append([df, txid, table]), 2),
        "two defaults": (lambda df, txid, table="orders", mode="append": given.append([df, txid, table]), 2),
        "three and a default": (
            lambda df, txid, outcomes, table="orders": given.append([df, txid, outcomes, table]),
            3,
        ),
        "by keyword": (lambda df, txid, *, table="orders": given.append([df, txid, table]), 2),
        "any": (lambda *all_of_them: given.append([*all_of_them]), 3),
        "bound": (functools.partial(lambda table, df, txid: given.append([df, txid, table]), "orders"), 2),
    }


@pytest.mark.parametrize("form", writes([]))
def test_a_parameter_with_a_default_is_never_filled_in(form: str) -> None:
    given: list[Any] = []
    write, count = writes(given)[form]
    _Writer(write)("rows", 7, "outcomes")  # type: ignore[arg-type]
    assert given == [["rows", 7, *(["outcomes"] if count == 3 else []), *given[0][count:]]]
    assert "outcomes" not in given[0][count:]


def test_a_writer_of_another_arity_is_refused() -> None:
    for write in (
        lambda: None,
        lambda df: None,
        lambda df, txid, outcomes, table: None,
        lambda df, n=1: None,
    ):
        with pytest.raises(OperatorError, match=r"takes \d arguments. Define it as"):
            _Writer(write)


def test_a_write_that_nobody_would_await_is_refused() -> None:
    async def write(df: Any, txid: int) -> None:
        raise AssertionError

    class Writes:
        async def __call__(self, df: Any, txid: int) -> None:
            raise AssertionError

    for given in (write, functools.partial(write), Writes()):
        with pytest.raises(OperatorError, match=r"is async, so nobody would await it. Define it with def"):
            foreach_batch(cast(Any, "a stream that nobody asks for"), given)


def test_needed_arguments_are_counted() -> None:
    assert count_needed(lambda a, b, c=1, *, d=2: None) == 2
    assert count_needed(lambda *a: None) is None
    assert count_needed(dict.fromkeys) in (None, 1)


def test_a_bolts_function_keeps_the_defaults_of_its_own() -> None:
    found: list[Any] = []

    def split(tup: Any, separator: str = " ") -> None:
        found.append(separator)

    builder = TopologyBuilder()
    builder.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **OPTIONS))
    builder.set_bolt("split", split).shuffle_grouping("lines")
    assert run_topology(builder, {"lines": ["a b"]}).failed == []
    with pytest.raises(TopologyError, match=r"takes \(tup\), so it emits nothing"):
        builder.set_bolt("other", split, fields="word string")


class Locked:
    """What cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class BadFunction(Function):
    def execute(self, tup: Any) -> None:  # type: ignore[override]
        return None


class LockedFunction(Locked, Function):
    def execute(self, tup: Any, collector: Any) -> None:
        return None


class BadArrow(ArrowFunction):
    def execute(self, batch: Any, other: Any) -> Any:  # type: ignore[override]
        return None


class BadFilter(Filter):
    def is_keep(self) -> bool:  # type: ignore[override]
        return True


class BadCombiner(CombinerAggregator):
    def init(self, tup: Any) -> Any:
        return 0

    def combine(self, left: Any) -> Any:  # type: ignore[override]
        return left


class BadReducer(ReducerAggregator):
    def init(self, first: Any) -> Any:  # type: ignore[override]
        return first


class BadAggregator(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> Any:
        return 0

    def complete(self, value: Any, collector: Any) -> None:
        return None

    def aggregate(self, value: Any, tup: Any) -> Any:  # type: ignore[override]
        return value


class BadUpdater(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any) -> None:  # type: ignore[override]
        return None


class BadQuery(QueryFunction[Any, Any]):
    def batch_retrieve(self, state: Any) -> Any:  # type: ignore[override]
        return []

    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        return None


class BadMultiReducer(MultiReducer[Any]):
    def init(self, collector: Any) -> Any:
        return 0

    def complete(self, value: Any, collector: Any) -> None:
        return None

    def execute(self, value: Any, stream: int, tup: Any) -> None:  # type: ignore[override]
        return None


STATE = MemoryMapState.opaque()
LOCK = threading.Lock()
MISTAKES: dict[str, tuple[Callable[[TridentTopology, Stream], object], str]] = {
    "each": (
        lambda t, s: s.each("line", BadFunction(), "x"),
        r"BadFunction\.execute\(\) is called with \(tup, coll",
    ),
    "each, Arrow": (
        lambda t, s: s.each("line", BadArrow(), "x"),
        r"BadArrow\.execute\(\) is called with \(batch\)",
    ),
    "filter": (lambda t, s: s.each("line", BadFilter()), r"BadFilter\.is_keep\(\) is called with \(tup\)"),
    "filter, function": (lambda t, s: s.filter(lambda: True), r"filter: <lambda>\(\) is called with \(tup\)"),
    "map": (
        lambda t, s: s.map(lambda a, b: [a], "x"),
        r"map\(<lambda>\): <lambda>\(\) is called with \(tup\)",
    ),
    "flat_map": (lambda t, s: s.flat_map(lambda: [], "x"), r"is called with \(tup\)"),
    "peek": (lambda t, s: s.peek(lambda a, b: None), r"peek: <lambda>\(\) is called with \(tup\)"),
    "min_by": (lambda t, s: s.min_by("line", lambda a: 0), r"is called with \(a, b\)"),
    "aggregate": (
        lambda t, s: s.aggregate(BadCombiner(), "x"),
        r"BadCombiner\.combine\(\) is called with \(left",
    ),
    "reduce": (
        lambda t, s: s.persistent_aggregate(STATE, BadReducer(), "x string"),
        r"BadReducer\.init\(\) is called with \(\)",
    ),
    "partition_aggregate": (
        lambda t, s: s.partition_aggregate(BadAggregator(), "x"),
        r"BadAggregator\.aggregate\(\) is called with \(value, tup, collector\)",
    ),
    "chain": (lambda t, s: s.chained_agg().aggregate(BadAggregator(), "x"), r"BadAggregator\.aggregate\(\)"),
    "window": (
        lambda t, s: s.tumbling_window(3, STATE, BadCombiner(), "x string"),
        r"BadCombiner\.combine\(\) is called with",
    ),
    "partition_persist": (
        lambda t, s: s.partition_persist(STATE, "line", BadUpdater()),
        r"BadUpdater\.update_state\(\) is called with \(state, tuples, collector\)",
    ),
    "state_query": (
        lambda t, s: s.state_query(t.new_static_state(STATE), "line", BadQuery(), "x"),
        r"BadQuery\.batch_retrieve\(\) is called with \(state, tuples\)",
    ),
    "multi_reduce": (
        lambda t, s: t.multi_reduce([s, s], BadMultiReducer(), "x"),
        r"BadMultiReducer\.execute\(\) is called with \(value, stream, tup, collector\)",
    ),
    "each, pickled": (
        lambda t, s: s.each("line", LockedFunction(), "x"),
        r"LockedFunction cannot be pickled to its tasks \(.*lock.*\)\. Make connections, .* in prepare\(\)",
    ),
    "map, pickled": (
        lambda t, s: s.map(functools.partial(lambda lock, tup: [tup], LOCK), "x"),
        r"map\(partial\): partial cannot be pickled .* in a Function's prepare\(\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_trident_refuses_what_cannot_be_called_or_cannot_travel(mistake: str) -> None:
    build, message = MISTAKES[mistake]
    topology = TridentTopology()
    stream = topology.new_stream("lines", KinesisSpout(scheme=string_scheme("line"), **OPTIONS))
    stream.project("line")
    before = topology.check().nodes
    with pytest.raises(TopologyError, match=message):
        build(topology, stream)
    assert topology.check().nodes == before


class Ends(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        return None


def test_a_number_of_tasks_without_effect_is_said() -> None:
    def builder(tasks: int | None) -> TopologyBuilder:
        made = TopologyBuilder()
        made.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **OPTIONS))
        made.set_bolt("end", Ends(), tasks).local_or_shuffle_grouping("lines")
        return made

    with pytest.warns(UserWarning, match="local_or_shuffle_grouping keeps .* so its 5 tasks have no effect"):
        assert builder(5).check(2).tasks == {"end": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        builder(None).check(2)


class LockedUpdater(Locked, StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        with self.lock:
            state.multi_put([(tup[0],) for tup in tuples], [1] * len(tuples))


class InTasks(MemoryMapState):
    driver_local = False


def test_what_stays_in_the_driver_need_not_be_pickled() -> None:
    topology = TridentTopology()
    stream = topology.new_stream("lines", KinesisSpout(scheme=string_scheme("line"), **OPTIONS))
    with pytest.raises(TopologyError, match="LockedUpdater cannot be pickled to its tasks"):
        stream.partition_persist(InTasks.opaque(), "line", LockedUpdater())
    stream.partition_persist(MemoryMapState.opaque(), "line", LockedUpdater())
    [state] = run_topology(topology, {"lines": ["a", "b"]}).states.values()
    assert state == {("a",): 1, ("b",): 1}


def test_a_local_run_knows_what_kind_a_failure_is_as_spark_does() -> None:
    def judge(tup: Any) -> None:
        if tup["line"] == "gone":
            raise PermanentFailure(tup["line"])
        if tup["line"] == "later":
            raise RetryLater("1m", tup["line"])
        if tup["line"] == "odd":
            int(tup["line"])

    builder = TopologyBuilder()
    options = OPTIONS | {"noRetryFor": "Exception", "retryLimit": "1", "retryBackoff": "1s..1s x1"}
    builder.set_spout("lines", KinesisSpout(scheme=string_scheme("line"), **options))
    builder.set_bolt("judge", judge).shuffle_grouping("lines")
    failed = run_topology(builder, {"lines": ["gone", "odd", "later", "good"]}).failed
    assert [(one.values, one.attempt, one.due is None) for one in failed] == [
        ("gone", 1, True),
        ("odd", 1, True),
        ("later", 1, False),
    ]
    assert [one.reason.partition(":")[0] for one in failed] == [
        "PERMANENT (bolt judge)",
        "PERMANENT (bolt judge)",
        "AFTER 60s (bolt judge)",
    ]
