"""What Trident's operations and other callables may be and give: names, types, calls that are over, errors."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from border_paths import texts
from pyspark.sql import Row

from kinesis_trident import (
    BasicBolt,
    Bolt,
    KinesisSpout,
    TopologyBuilder,
    TopologyError,
)
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    ArrowFunction,
    CombinerAggregator,
    Count,
    Filter,
    Function,
    MapState,
    MemoryMapState,
    Negate,
    OperationError,
    QueryFunction,
    ReducerAggregator,
    StateFactory,
    StateType,
    StateUpdater,
    Stream,
    Sum,
    TridentTopology,
)
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep, FunctionStep
from kinesis_trident.trident.steps.tuple_steps import Pipeline

Point = namedtuple("Point", "b a")


@pytest.mark.parametrize("value", [{"b": 2, "a": 1}, Row(b=2, a=1), Point(2, 1), {"a": 1, "b": 2, "c": 3}])
def test_what_has_names_is_emitted_by_name(value: Any) -> None:
    topology, stream = texts()
    stream.map(lambda tup: value, "a bigint, b bigint")
    result = run_topology(topology, {"texts": Batches(["x"])})
    assert next(iter(result.emitted.values())) == [(1, 2)]


def test_the_types_of_fields_may_be_within_others_of_any_depth() -> None:
    topology, stream = texts()
    stream.map(lambda tup: [{"a": [1]}, 1], "m map<string,array<bigint>>, n bigint")
    result = run_topology(topology, {"texts": Batches(["x"])})
    [(found, number)] = next(iter(result.emitted.values()))
    assert (dict(found), number) == ({"a": [1]}, 1)


@pytest.mark.parametrize("value", [{"a": 1, "d": 2}, Row(a=1, d=2), "ab"])
def test_a_misspelt_name_fails_the_record(value: Any) -> None:
    topology, stream = texts()
    stream.map(lambda tup: value, "a bigint, b bigint")
    result = run_topology(topology, {"texts": Batches(["x"])})
    [reason] = result.failed
    assert "emitted" in str(reason)
    assert "declares 2 new fields (a, b)" in str(reason)


class Swapped(ArrowFunction):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        columns = {"a": pa.array([1]), "b": pa.array([2])}
        return pa.RecordBatch.from_pydict(
            {name: columns.get(name, columns["a"]) for name in self.names}
        ), np.arange(1)


def test_columns_of_an_arrow_function_go_by_name_or_are_refused() -> None:
    added = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"n": [1]})

    def step(names: Sequence[str]) -> ArrowEachStep:
        return ArrowEachStep(
            operation="each", function=Swapped(names), inputs=("n",), added=added, kept=pa.schema([])
        )

    assert step("ba")(batch).rows.to_pydict() == {"a": [1], "b": [2]}
    with pytest.raises(OperationError, match="with the columns a, b"):
        step("ac")(batch)


async def _async(*given: Any) -> Any:
    return [1]


def _yields(*given: Any) -> Any:
    yield [1]


def _with(base: type, method: str, function: Callable[..., Any]) -> Any:
    rest = {
        CombinerAggregator: ("init", "combine", "zero"),
        ReducerAggregator: ("init", "reduce"),
        Aggregator: ("init", "aggregate", "complete"),
    }.get(base, ("execute", "is_keep", "update_state", "batch_retrieve"))
    plain = {name: (lambda self, *given: 0) for name in rest}
    return type("Given", (base,), {**plain, method: function})()


def _factory_of(make_state: Callable[..., Any]) -> Any:
    methods = {"make_state": make_state, "kind": StateType.OPAQUE, "driver_local": True}
    return type("Given", (StateFactory,), methods)()


class Kept(MapState[int]):
    """A state of the user's own, of which one method is no plain one."""

    def __init__(self, method: str, function: Callable[..., Any]) -> None:
        setattr(self, method, function)

    def begin_commit(self, txid: int | None) -> None:
        return None

    def commit(self, txid: int | None) -> None:
        return None

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [None for _ in keys]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[Any]) -> list[Any]:
        return [updater.update(None) for updater in updaters]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        return None


@pytest.mark.parametrize("function", [_async, _yields])
@pytest.mark.parametrize("method", ["begin_commit", "commit"])
def test_a_state_that_nobody_would_commit_stops_with_words(method: str, function: Callable[..., Any]) -> None:
    topology, stream = texts()
    factory = _factory_of(lambda self, *given: Kept(method, function))
    stream.group_by(["text"]).persistent_aggregate(factory, Count(), ["n"])
    with pytest.raises(OperationError, match=rf"\(Count\): {method}\(\) returned \w+, which nobody runs"):
        run_topology(topology, {"texts": Batches(["x"])})


ENTRANCES: dict[str, Callable[[TridentTopology, Stream, Any], object]] = {
    "Function.execute": lambda t, s, f: s.each(["text"], _with(Function, "execute", f), ["n int"]),
    "Function.prepare": lambda t, s, f: s.each(["text"], _with(Function, "prepare", f), ["n int"]),
    "Function.cleanup": lambda t, s, f: s.each(["text"], _with(Function, "cleanup", f), ["n int"]),
    "Filter.is_keep": lambda t, s, f: s.filter(_with(Filter, "is_keep", f)),
    "filter": lambda t, s, f: s.filter(f),
    "peek": lambda t, s, f: s.peek(f),
    "map": lambda t, s, f: s.map(f, "n int"),
    "init": lambda t, s, f: s.aggregate(_with(CombinerAggregator, "init", f), ["n int"]),
    "reduce": lambda t, s, f: s.aggregate(_with(ReducerAggregator, "reduce", f), ["n int"]),
    "complete": lambda t, s, f: s.aggregate(_with(Aggregator, "complete", f), ["n int"]),
    "update_state": lambda t, s, f: s.partition_persist(
        MemoryMapState.opaque("x"), ["text"], _with(StateUpdater, "update_state", f)
    ),
    "batch_retrieve": lambda t, s, f: s.aggregate(Sum(), ["n"], ["subSequenceNumber"]).state_query(
        t.new_static_state(MemoryMapState.opaque("y")),
        ["n"],
        _with(QueryFunction, "batch_retrieve", f),
        ["m int"],
    ),
    "min": lambda t, s, f: s.min(f),
    "make_state": lambda t, s, f: s.persistent_aggregate(_factory_of(f), Sum(), ["n"], ["subSequenceNumber"]),
}


@pytest.mark.parametrize("function", [_async, _yields])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_what_nobody_would_run_is_refused_when_the_topology_is_built(
    entrance: str, function: Callable[..., Any]
) -> None:
    topology, stream = texts()
    with pytest.raises(TopologyError, match="Define it with def" if function is _async else "has a yield"):
        ENTRANCES[entrance](topology, stream, function)


def _checked(builder: TopologyBuilder, bolt: Any) -> None:
    builder.set_bolt("given", bolt).shuffle_grouping("lines")
    builder.check()


@pytest.mark.parametrize("method", ["prepare", "is_keep"])
def test_a_method_of_one_object_alone_is_asked_too(method: str) -> None:
    _, stream = texts()
    given = _with(Filter, "is_keep", lambda self, tup: True)
    setattr(given, method, _async)
    with pytest.raises(TopologyError, match=rf"Given.{method}\(\) is async"):
        stream.filter(given)


@pytest.mark.parametrize("method", ["prepare", "execute", "cleanup", "declare_output_fields"])
@pytest.mark.parametrize("kind", [Bolt, BasicBolt])
@pytest.mark.parametrize("function", [_async, _yields])
def test_a_bolt_that_nobody_would_run_is_refused(
    method: str, kind: type, function: Callable[..., Any]
) -> None:
    bolt = type("Given", (kind,), {"execute": lambda self, *given: None, method: function})()
    builder = TopologyBuilder(None)
    builder.set_spout("lines", KinesisSpout(streamName="s", applicationName="a", zookeeper__hosts="zk:1"))
    with pytest.raises(TopologyError, match=f"bolt 'given': .*{method}"):
        _checked(builder, bolt)


def test_flat_map_takes_what_a_generator_function_yields() -> None:
    topology, stream = texts()
    stream.flat_map(_yields, "n bigint")
    result = run_topology(topology, {"texts": Batches(["x"])})
    assert next(iter(result.emitted.values())) == [(1,)]


@pytest.mark.parametrize(
    "build",
    [
        lambda stream: stream.filter(lambda tup: _async(tup[0])),
        lambda stream: stream.filter(_with(Filter, "is_keep", lambda self, tup: _async(tup[0]))),
        lambda stream: stream.peek(lambda tup: _async(tup[0])),
        lambda stream: stream.filter(Negate(_with(Filter, "is_keep", lambda self, tup: _async(tup[0])))),
        lambda stream: stream.filter(_with(Filter, "prepare", lambda self, conf: _async())),
        lambda stream: stream.each(["text"], _with(Function, "cleanup", lambda self: _yields()), ["n int"]),
        lambda stream: stream.partition_persist(
            MemoryMapState.opaque("prepares"),
            ["text"],
            _with(StateUpdater, "prepare", lambda self, conf: _async()),
        ),
        lambda stream: stream.each(["text"], Returning(), ["n int"]),
        lambda stream: stream.aggregate(Completing(), ["n int"]),
    ],
)
def test_what_is_returned_to_nobody_stops_with_words(build: Callable[[Stream], object]) -> None:
    topology, stream = texts()
    build(stream)
    with pytest.raises(OperationError, match=r"returned \w+, (expected None|which nobody runs)"):
        run_topology(topology, {"texts": Batches(["x"])})


class Returning(Function):
    def execute(self, tup: Any, collector: Any) -> Any:
        return [1]


class Completing(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> int:
        return 0

    def aggregate(self, value: int, tup: Any, collector: Any) -> int:
        return value + 1

    def complete(self, value: int, collector: Any) -> Any:
        return [value]


class Late(Function):
    """Emits for a tuple in another thread, once its call is over."""

    def __init__(self) -> None:
        self.refused: list[BaseException] = []

    def execute(self, tup: Any, collector: Any) -> None:
        if tup[0] == "late":
            self.collector = collector
        else:
            thread = threading.Thread(target=self._emit)
            thread.start()
            thread.join()
        collector.emit([tup[0]])

    def _emit(self) -> None:
        try:
            self.collector.emit(["a", "b"])
        except OperationError as error:
            self.refused.append(error)


def test_what_another_thread_emits_is_refused_and_fails_no_innocent_tuple() -> None:
    late = Late()
    step = FunctionStep(
        operation="each(Late)",
        function=late,
        inputs=("t",),
        added=pa.schema([("n", pa.string())]),
        kept=pa.schema([]),
    )
    judged = step(pa.RecordBatch.from_pydict({"t": ["late", "good"]}))
    assert judged.rows.to_pydict() == {"n": ["late", "good"]}
    assert not judged.failed
    [error] = late.refused
    assert "in another thread" in str(error)
    with pytest.raises(OperationError, match="after its end"):
        late.collector.emit(["x"])


class Ends(Function):
    def __init__(self, name: str, calls: list[str], fails: str) -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def _call(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")
        if self.fails == f"{what} {self.name}":
            raise ValueError(what)

    def prepare(self, conf: Any) -> None:
        self._call("prepare")

    def cleanup(self) -> None:
        self._call("cleanup")


@pytest.mark.parametrize(
    ("fails", "called"),
    [
        ("prepare b", ["prepare a", "prepare b", "cleanup a"]),
        ("cleanup a", ["prepare a", "prepare b", "cleanup a", "cleanup b"]),
    ],
)
def test_an_end_that_raises_names_its_operation_and_leaves_the_others_called(
    fails: str, called: list[str]
) -> None:
    calls: list[str] = []
    steps = tuple(
        FunctionStep(f"each({name})", Ends(name, calls, fails), (), pa.schema([]), pa.schema([]))  # type: ignore[call-arg]
        for name in "ab"
    )
    pipeline = Pipeline(steps)
    what, name = fails.split()

    def run() -> None:
        pipeline.prepare({})
        pipeline.cleanup()

    with pytest.raises(
        OperationError, match=rf"each\({name}\): {what}\(\) raised ValueError: {what}. Correct it"
    ):
        run()
    assert calls == called


class Mean(CombinerAggregator):
    def init(self, tup: Any) -> list[Any]:
        return [float(tup[0]), 1]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [left[0] + right[0], left[1] + right[1]]

    def zero(self) -> list[int]:
        return [0, 0]


class Total(ReducerAggregator):
    def init(self) -> int:
        return 0

    def reduce(self, current: Any, tup: Any) -> Any:
        return current + float(tup[0])


def test_a_first_value_narrows_no_later_one() -> None:
    topology, stream = texts()
    stream.aggregate(Mean(), ["mean"], ["text"])
    result = run_topology(topology, {"texts": Batches(["1.5", "2.0"])})
    assert len(result.failed) == 1
    assert "but a value is 1.5" in str(result.failed[0])
    topology, stream = texts()
    stream.aggregate(Mean(), ["mean array<double>"], ["text"])
    result = run_topology(topology, {"texts": Batches(["1.5", "2.5", "0.75"])})
    assert next(iter(result.emitted.values())) == [([4.75, 3.0],)]


def test_a_value_of_a_state_that_does_not_fit_names_operation_and_group_before_the_commit() -> None:
    topology, stream = texts()
    counts = MemoryMapState.opaque("does-not-fit")
    stream.group_by(["text"]).persistent_aggregate(counts, Total(), ["total"], ["text"])
    with pytest.raises(
        OperationError,
        match=r"persistent_aggregate\(Total\): the field 'total' is bigint, but a value is 1.5, in the group '1.5'",
    ):
        run_topology(topology, {"texts": Batches(["1.5"])})


class Big(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([2**63 - 1])


def test_a_sum_beyond_bigint_names_its_operation() -> None:
    topology, stream = texts()
    counts = MemoryMapState.opaque("sums-beyond")
    stream.each(["text"], Big(), ["n bigint"]).group_by(["text"]).persistent_aggregate(
        counts, Sum(), ["total"], ["n"]
    )
    with pytest.raises(OperationError, match=r"persistent_aggregate\(Sum\)"):
        run_topology(topology, {"texts": Batches(["a", "a"])})


class Latin(ArrowFunction):
    """Gives each text once more, and as bytes that may be no UTF-8."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        [given] = batch.columns
        content = pa.array([text.encode("latin-1") for text in given.to_pylist()])
        columns = {"key": given, "latin": content.view(pa.string())}
        return pa.RecordBatch.from_pydict(columns), np.arange(batch.num_rows)


@pytest.mark.parametrize(("key", "failed"), [("key", 0), ("latin", 1)])
def test_a_count_fails_no_record_for_a_field_that_it_does_not_read(key: str, failed: int) -> None:
    topology, stream = texts()
    words = stream.each(["text"], Latin(), ["key string", "latin string"])
    words.group_by([key]).persistent_aggregate(MemoryMapState.opaque(f"by-{key}"), Count(), ["n"])
    result = run_topology(topology, {"texts": Batches(["a", "\u00e9", "a"])})
    assert len(result.failed) == failed
    assert sum(result.states["persistent_aggregate(Count)"].values()) == 3 - failed


def test_groups_of_nulls_only_are_the_same_alone_and_in_a_chain() -> None:
    topology, stream = texts()
    numbers = stream.map(lambda tup: [tup["text"], None], "text string, n bigint").group_by(["text"])
    numbers.aggregate(Sum(), ["total"], ["n"])
    numbers.chained_agg().aggregate(Sum(), ["total"], ["n"]).chain_end()
    result = run_topology(topology, {"texts": Batches(["a"])})
    alone, chained = (result.emitted[name] for name in ("aggregate(Sum)", "chained_agg(Sum)"))
    assert alone == chained


def test_functions_and_writers_of_reliable_are_asked_too() -> None:
    from kinesis_trident.bolt.calls import check_runs
    from kinesis_trident.bolt.reliable import _Writer

    for function, words in ((_async, "Define it with def"), (_yields, "has a yield")):
        with pytest.raises(OperatorError, match=words):
            _Writer(function)
        with pytest.raises(OperatorError, match=words):
            check_runs("the function", function, refusal=OperatorError)
    with pytest.raises(OperatorError, match="returned coroutine, which nobody runs"):
        _Writer(lambda df, txid: _async(df))(None, 1, None)  # type: ignore[arg-type]
