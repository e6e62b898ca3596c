"""Operations over Arrow batches: what comes out of which row, and what fails with it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st
from judged_texts import texts_of
from leaving import LEAVING

from kinesis_trident.bolt.errors import BatchFailedError, FailedException
from kinesis_trident.bolt.steps.functions import join_parts
from kinesis_trident.trident import (
    ArrowFunction,
    Debug,
    Equals,
    Filter,
    FilterNull,
    Function,
    Negate,
    OperationError,
    TridentTuple,
)
from kinesis_trident.trident.build.lambdas import Peek
from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.run.attempt import WholeBatchStep
from kinesis_trident.trident.run.tracked import narrow_steps
from kinesis_trident.trident.state import QueryFunction, State, StateFactory
from kinesis_trident.trident.steps import emitting_steps
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep, FunctionStep, QueryStep
from kinesis_trident.trident.steps.tuple_steps import (
    FilterStep,
    FiniteStep,
    Pipeline,
    ProjectStep,
    TridentStep,
)

N = pa.schema([("n", pa.int64())])
NX = pa.schema([("n", pa.int64()), ("x", pa.string())])
M = pa.schema([("m", pa.int64())])


class Divisors(Function):
    """Emits all divisors of n; fails for a multiple of 7, after it has emitted some."""

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        for m in range(1, tup["n"] + 1):
            if tup["n"] % m == 0:
                collector.emit([m])
            if m == 7 and tup["n"] % 7 == 0:
                raise ValueError(7)


class Odd(Filter):
    def is_keep(self, tup):  # type: ignore[no-untyped-def]
        if tup[0] == 9:
            raise ValueError(9)
        return tup[0] % 2 == 1


class Repeat(ArrowFunction):
    """Each row as often as it says; refuses a batch with a negative number."""

    def execute(self, batch):  # type: ignore[no-untyped-def]
        times = batch.column("n").to_numpy()
        if (times < 0).any():
            raise ValueError(f"negative: {times.min()}")
        source = np.repeat(np.arange(len(times)), times)
        return pa.RecordBatch.from_arrays([batch.column("n").take(pa.array(source))], ["m"]), source


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers), "x": [f"x{n}" for n in numbers]}, schema=NX)


class Leaving(Function, Filter, ArrowFunction):
    """Would end the worker at the number 5."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _look(self, numbers: list[int]) -> None:
        if 5 in numbers:
            raise self.error("enough")

    def execute(self, given, collector=None):  # type: ignore[no-untyped-def]
        self._look([given["n"]] if collector is not None else given.column("n").to_pylist())
        if collector is None:
            return given.select(["n"]).rename_columns(["m"]), np.arange(given.num_rows)
        collector.emit([given["n"]])
        return None

    def is_keep(self, tup):  # type: ignore[no-untyped-def]
        self._look([tup["n"]])
        return True


@pytest.mark.parametrize("error", LEAVING)
def test_what_would_end_the_worker_fails_its_row(error: type[BaseException]) -> None:
    leaving = Leaving(error)
    steps: dict[Any, str] = {
        FunctionStep("f", leaving, ("n",), M, NX): "function",
        FilterStep("f", leaving, ("n",), NX): "filter",
        ArrowEachStep("f", leaving, ("n",), M, NX): "function",
    }
    for step, name in steps.items():
        judged = step(batch(1, 5, 2))
        assert (judged.source.tolist(), texts_of(judged)) == ([0, 2], {1: f"{error.__name__}: enough"})
        with pytest.raises(KeyboardInterrupt):
            replace(step, **{name: Leaving(KeyboardInterrupt)})(batch(1, 5, 2))


@pytest.mark.parametrize("wanted", [["f"], ["f", "x"]])
def test_numbers_that_are_none_fail_their_rows(wanted: list[str]) -> None:
    given = pa.RecordBatch.from_pydict(
        {"f": [1.5, math.nan, None, math.inf, -math.inf, 0.0], "x": list("abcdef")}
    )
    (step,), needed = narrow_steps([FiniteStep("Sum", ("f",), given.schema)], wanted)
    judged = step(given.select(needed))
    assert judged.rows.to_pydict() == {
        name: [given.column(name)[i].as_py() for i in (0, 2, 5)] for name in wanted
    }
    assert judged.source.tolist() == [0, 2, 5]
    assert texts_of(judged)[4] == "f is -inf, which would stay in the state for good"
    assert sorted(judged.failed) == [1, 3, 4]


def function(kept: pa.Schema = NX) -> FunctionStep:
    return FunctionStep("each(Divisors)", Divisors(), ("n",), M, kept)


def test_new_fields_stand_beside_those_of_their_tuple() -> None:
    judged = function()(batch(4, 1, 7))
    assert judged.rows.to_pylist() == [
        {"n": 4, "x": "x4", "m": 1},
        {"n": 4, "x": "x4", "m": 2},
        {"n": 4, "x": "x4", "m": 4},
        {"n": 1, "x": "x1", "m": 1},
    ]
    assert judged.source.tolist() == [0, 0, 0, 1]
    assert texts_of(judged) == {2: "ValueError: 7"}


def test_a_value_that_does_not_fit_fails_its_row_with_all_that_it_emitted() -> None:
    class Mixed(Function):
        def execute(self, tup, collector):  # type: ignore[no-untyped-def]
            collector.emit([tup["n"]])
            collector.emit(["text" if tup["n"] == 2 else 0])

    judged = FunctionStep("each(Mixed)", Mixed(), ("n",), M, N)(batch(1, 2, 3))
    assert judged.rows.column("m").to_pylist() == [1, 0, 3, 0]
    assert judged.source.tolist() == [0, 0, 2, 2]
    assert list(judged.failed) == [1]


@pytest.mark.parametrize("values", [[], [1, 2], "1", None, 1])
@pytest.mark.parametrize("caught", [True, False])
def test_a_wrong_number_of_values_fails_the_row_with_all_that_it_emitted(values: Any, caught: bool) -> None:
    class Wrong(Function):
        def execute(self, tup, collector):  # type: ignore[no-untyped-def]
            collector.emit([tup["n"]])
            if tup["n"] == 2:
                with suppress(OperationError if caught else NotImplementedError):
                    collector.emit(values)

    judged = FunctionStep("each(Wrong)", Wrong(), ("n",), M, N)(batch(1, 2, 3))
    assert (judged.rows.column("m").to_pylist(), judged.source.tolist()) == ([1, 3], [0, 2])
    assert list(judged.failed) == [1]
    assert re.match(
        r"OperationError: each\(Wrong\): emitted (no list|\d values), .* declares 1 new fields",
        texts_of(judged)[1],
    )


def test_a_peeking_function_sees_each_tuple_and_fails_its_row() -> None:
    seen: list[float] = []

    def look(tup: TridentTuple) -> None:
        seen.append(10 / tup["n"])

    judged = FilterStep("each(look)", Peek(look), ("n",), NX)(batch(5, 0, 2))
    assert seen == [2, 5]
    assert judged.source.tolist() == [0, 2]
    assert texts_of(judged) == {1: "ZeroDivisionError: division by zero"}


def test_equal_values_and_a_negated_filter() -> None:
    pairs = pa.RecordBatch.from_pydict({"n": [1, 2, 9, 3], "m": [1, 3, 9, 4]})
    equal = FilterStep("each(Equals)", Equals(), ("n", "m"), pairs.schema)
    assert equal(pairs).source.tolist() == [0, 2]
    negated = FilterStep("each(Negate)", Negate(Equals()), ("n", "m"), pairs.schema)
    assert negated(pairs).source.tolist() == [1, 3]
    odd = FilterStep("each(Negate)", Negate(Odd()), ("n",), N)(batch(2, 9, 3))
    assert (odd.source.tolist(), list(odd.failed)) == ([0], [1])


def test_a_row_that_fails_late_takes_what_came_from_it_along() -> None:
    odd = FilterStep("each(Odd)", Odd(), ("m",), pa.schema([*NX, *M]))
    judged = Pipeline((function(), odd))(batch(9, 15, 14, 4))
    assert [(row["n"], row["m"]) for row in judged.rows.to_pylist()] == [
        (15, 1),
        (15, 3),
        (15, 5),
        (15, 15),
        (4, 1),
    ]
    assert judged.source.tolist() == [1, 1, 1, 1, 3]
    assert texts_of(judged) == {0: "ValueError: 9 (in each(Odd))", 2: "ValueError: 7 (in each(Divisors))"}


def test_filter_null_drops_a_tuple_with_any_null() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1, None, 3], "x": ["a", "b", None]}, schema=NX)
    judged = FilterStep("each(FilterNull)", FilterNull(), ("n", "x"), NX)(rows)
    assert (judged.source.tolist(), judged.failed) == ([0], {})
    assert FilterStep("each(FilterNull)", FilterNull(), ("n",), NX)(rows).source.tolist() == [0, 2]


@settings(deadline=None)
@given(st.lists(st.integers(-2, 3), max_size=40))
def test_an_arrow_function_fails_the_records_at_fault_alone(numbers: list[int]) -> None:
    judged = ArrowEachStep("each(Repeat)", Repeat(), ("n",), M, N)(batch(*numbers))
    assert judged.rows.column("m").to_pylist() == [n for n in numbers for _ in range(max(n, 0))]
    assert judged.rows.column("n").to_pylist() == judged.rows.column("m").to_pylist()
    assert judged.source.tolist() == [row for row, n in enumerate(numbers) for _ in range(max(n, 0))]
    assert set(judged.failed) == {row for row, n in enumerate(numbers) if n < 0}


@pytest.mark.parametrize(
    "result",
    [
        None,
        (pa.RecordBatch.from_pydict({"m": [1]}), np.array([0, 1])),
        (pa.RecordBatch.from_pydict({"m": [1]}), np.array([2])),
        (pa.RecordBatch.from_pydict({"m": [1, 1]}), np.array([1, 0])),
        (pa.RecordBatch.from_pydict({"m": [1], "o": [1]}), np.array([0])),
    ],
)
def test_an_arrow_function_says_where_its_rows_come_from(result: Any) -> None:
    class Wrong(ArrowFunction):
        def execute(self, batch):  # type: ignore[no-untyped-def]
            return result if result is not None else (pa.table({"m": [1]}), [0])

    with pytest.raises(
        OperationError, match=r"each\(Wrong\): the ArrowFunction's result is not valid\. It must return"
    ):
        ArrowEachStep("each(Wrong)", Wrong(), ("n",), M, N)(batch(1, 2))


class Squares(State):
    def begin_commit(self, txid):  # type: ignore[no-untyped-def]
        raise AssertionError("a query is outside of transactions")

    commit = begin_commit

    def of(self, numbers: list[int]) -> list[int]:
        return [n * n for n in numbers]


class SquaresFactory(StateFactory):
    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Squares:
        return Squares()


class QuerySquare(QueryFunction[Squares, int]):
    def __init__(self, short: bool = False) -> None:
        self.short = short

    def batch_retrieve(self, state, tuples):  # type: ignore[no-untyped-def]
        found = state.of([tup[0] for tup in tuples])
        return found[1:] if self.short else found

    def execute(self, tuple_, result, collector):  # type: ignore[no-untyped-def]
        if result == 25:
            raise ValueError(result)
        collector.emit([result])


def test_a_query_asks_once_and_emits_for_each() -> None:
    step = QueryStep("state_query(QuerySquare)", SquaresFactory(), QuerySquare(), ("n",), M, N)
    step.prepare({})
    judged = step(batch(3, 5, 2))
    assert judged.rows.to_pylist() == [{"n": 3, "m": 9}, {"n": 2, "m": 4}]
    assert texts_of(judged) == {1: "ValueError: 25"}


def test_a_query_with_too_few_results_is_named() -> None:
    step = QueryStep("state_query(QuerySquare)", SquaresFactory(), QuerySquare(short=True), ("n",), M, N)
    step.prepare({})
    with pytest.raises(
        OperationError, match=r"state_query\(QuerySquare\): batch_retrieve got 3 tuples and returned 2"
    ):
        step(batch(3, 5, 2))


@pytest.mark.parametrize("result", [None, iter([9])])
def test_a_query_that_gives_no_list_is_named(result: Any) -> None:
    class Loose(QuerySquare):
        def batch_retrieve(self, state, tuples):  # type: ignore[no-untyped-def]
            return result

    step = QueryStep("state_query(Loose)", SquaresFactory(), Loose(), ("n",), M, N)
    step.prepare({})
    with pytest.raises(
        OperationError, match=r"state_query\(Loose\): batch_retrieve returned .*\. It must return a list"
    ):
        step(batch(3))


class Unavailable(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        raise StoreUnavailableError("no answer")


class UnavailableFilter(Filter):
    def is_keep(self, tup):  # type: ignore[no-untyped-def]
        raise StoreUnavailableError("no answer")


class UnavailableArrow(ArrowFunction):
    def execute(self, batch):  # type: ignore[no-untyped-def]
        raise StoreUnavailableError("no answer")


class UnavailableQuery(QuerySquare):
    def batch_retrieve(self, state, tuples):  # type: ignore[no-untyped-def]
        raise StoreUnavailableError("no answer")


class UnavailableState(SquaresFactory):
    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Squares:
        raise StoreUnavailableError("no answer")


@pytest.mark.parametrize(
    "step",
    [
        FunctionStep("op", Unavailable(), ("n",), M, N),
        FilterStep("op", UnavailableFilter(), ("n",), N),
        ArrowEachStep("op", UnavailableArrow(), ("n",), M, N),
        QueryStep("op", SquaresFactory(), UnavailableQuery(), ("n",), M, N),
        QueryStep("op", UnavailableState(), QuerySquare(), ("n",), M, N),
    ],
)
@pytest.mark.parametrize("tracked", [True, False])
def test_an_operation_that_asks_for_a_replay_fails_the_batch_not_a_record(
    step: TridentStep, tracked: bool
) -> None:
    def run() -> None:
        if tracked:
            pipeline = Pipeline((ProjectStep(N), step))
            pipeline.prepare({})
            pipeline(batch(3))
        else:
            list(WholeBatchStep("op", step, {})(iter([batch(3)])))

    with pytest.raises(BatchFailedError, match="op: StoreUnavailableError: no answer"):
        run()


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 40))
def test_large_tuples_are_judged_the_same_in_parts(numbers: list[int], flush: int) -> None:
    class Texts(Function):
        def execute(self, tup, collector):  # type: ignore[no-untyped-def]
            if tup["m"] == 13:
                collector.emit(["too", "many"])
            collector.emit(["m" * tup["m"]])

    text = pa.schema([("text", pa.string())])
    steps = Pipeline((function(), FunctionStep("texts", Texts(), ("m",), text, pa.schema([*NX, *M]))))
    whole = steps(batch(*numbers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emitting_steps, "FLUSH_BYTES", flush)
        parts = list(steps.parts(batch(*numbers)))
    joined = join_parts(parts)
    assert joined.rows.equals(whole.rows)
    assert (joined.source.tolist(), joined.failed) == (whole.source.tolist(), whole.failed)
    for part in parts:
        assert part.end is None or not len(part.source) or part.source[-1] < part.end


def test_a_tuple_that_becomes_too_large_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(Function):
        def execute(self, tup, collector):  # type: ignore[no-untyped-def]
            for _ in range(tup["n"]):
                collector.emit(["x" * 10])

    monkeypatch.setattr(emitting_steps, "_MOST_BYTES", 25)
    text = pa.schema([("text", pa.string())])
    judged = FunctionStep("each(Many)", Many(), ("n",), text, N)(batch(2, 3, 1))
    assert judged.source.tolist() == [0, 0, 2]
    assert texts_of(judged) == {
        1: "OperationError: emitted 30 bytes for one tuple, but 25 are the most. Emit less"
    }


def test_debug_prints_each_tuple_and_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    judged = FilterStep("each(Debug)", Debug("here"), ("x", "n"), NX)(batch(1, 2))
    assert capsys.readouterr().out == "<here> ['x1', 1]\n<here> ['x2', 2]\n"
    assert judged.rows.to_pylist() == batch(1, 2).to_pylist()


def test_no_column_goes_further_than_it_is_read() -> None:
    steps = [
        function(),
        FilterStep("each(Odd)", Odd(), ("m",), pa.schema([*NX, *M])),
        ProjectStep(pa.schema([*NX, *M])),
    ]
    chain, needed = narrow_steps(steps, ["m"])
    assert needed == ["n"]
    assert Pipeline(chain).schema.names == ["m"]
    chain, needed = narrow_steps(steps, ["x"])
    assert needed == ["n", "x"]
    assert chain[0].schema.names == ["x", "m"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=20), st.sets(st.sampled_from(["n", "x", "m"]), min_size=1))
def test_narrowed_steps_judge_the_same(numbers: list[int], wanted: set[str]) -> None:
    steps = (function(), FilterStep("each(Odd)", Odd(), ("m",), pa.schema([*NX, *M])))
    whole = Pipeline(steps)(batch(*numbers))
    chain, needed = narrow_steps(steps, wanted)
    part = Pipeline(chain)(batch(*numbers).select(needed))
    names = sorted(wanted)
    assert part.rows.select(names).to_pylist() == whole.rows.select(names).to_pylist()
    assert (part.source.tolist(), part.failed) == (whole.source.tolist(), whole.failed)


def test_words_are_split_in_bulk() -> None:
    class Split(ArrowFunction):
        def execute(self, batch):  # type: ignore[no-untyped-def]
            words = pc.split_pattern(batch.column("x"), "x")
            return pa.RecordBatch.from_arrays([words.flatten()], ["word"]), pc.list_parent_indices(
                words
            ).to_numpy()

    step = ArrowEachStep("each(Split)", Split(), ("x",), pa.schema([("word", pa.string())]), pa.schema([]))
    assert step(batch(1, 22)).rows.to_pylist() == [{"word": ""}, {"word": "1"}, {"word": ""}, {"word": "22"}]


class LaterFunction(Function):
    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        raise FailedException("the model is being loaded")


class LaterArrow(ArrowFunction):
    def execute(self, batch):  # type: ignore[no-untyped-def]
        raise FailedException("the model is being loaded")


class LaterFilter(Filter):
    def is_keep(self, tup):  # type: ignore[no-untyped-def]
        raise FailedException("the model is being loaded")


@pytest.mark.parametrize(
    "step",
    [
        FunctionStep("later", LaterFunction(), ("n",), M, N),
        ArrowEachStep("later", LaterArrow(), ("n",), M, N),
        FilterStep("later", LaterFilter(), ("n",), NX),
    ],
    ids=["function", "Arrow function", "filter"],
)
def test_an_operation_that_asks_for_a_replay_fails_no_row(step: TridentStep) -> None:
    with pytest.raises(BatchFailedError, match="later: FailedException: the model is being loaded"):
        Pipeline((step,))(batch(1, 2))
