"""Partial results in Arrow: what Spark makes of them is what it makes of the tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import ArrayType, LongType, StructType
from thorough import examples

from kinesis_trident.bolt.moves import Move
from kinesis_trident.bolt.tagged import STREAM
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident import CombinerAggregator, Count, Max, Min, Sum
from kinesis_trident.trident.build.nodes import AggregateNode, TopologyNode
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.run import arrow_aggregation
from kinesis_trident.trident.run.arrow_aggregation import Partials, partials_of
from kinesis_trident.trident.run.shared_partials import SharedPartials

FOLDS: dict[str, Callable[[Any], Any]] = {"count": sum, "sum": sum, "min": min, "max": max}
GREATEST = (1 << 63) - 1


def fields_of(schema: str) -> StructType:
    """Spark reads `name type` only where it runs; these are the names of types in its JSON."""
    fields = StructType()
    for field in schema.split("; "):
        name, kind = field.split(" ")
        fields = fields.add(name, ArrayType(LongType()) if kind == "array" else kind)
    return fields


def made(aggregator: CombinerAggregator, keys: tuple[str, ...], schema: str) -> Partials | None:
    """Return what stands before an aggregation of the field `n`."""
    parent = TopologyNode("parent", fields_of(schema), ())
    kind = aggregator.result(StructType([parent.schema["n"]]))
    assert kind is not None
    added = StructType().add("out", kind)
    node = AggregateNode("aggregate", added, (parent,), Move.of_groups(keys), ("n",), aggregator, added)
    return partials_of(node)


def given_as(rows: Sequence[tuple[Any, ...]], schema: str, size: int) -> Iterator[pa.RecordBatch]:
    fields = arrow_schema(fields_of(schema))
    for at in range(0, len(rows), size):
        columns = list(zip(*rows[at : at + size], strict=True))
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)],
            schema=fields,
        )


def ended(out: Sequence[pa.RecordBatch], function: str) -> dict[tuple[Any, ...], Any]:
    """Return what Spark makes of partial results: nothing of a group of nothing but nulls."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for batch in out:
        for *key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            groups.setdefault(tuple(key), []).extend([] if value is None else [value])
    return {key: FOLDS[function](values) for key, values in groups.items() if values}


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ü", "", None]),
        st.integers(0, 2),
        st.none() | st.integers(-(1 << 63), GREATEST) | st.integers(-3, 3),
    ),
    max_size=60,
)


@pytest.mark.parametrize("aggregator", [Count(), Sum(), Min(), Max()])
@pytest.mark.parametrize("keys", [("a", "b"), ("a",), ()])
@pytest.mark.parametrize(("tuples", "groups"), [(4 << 20, 32 << 20), (100, 400), (1, 1)])
def test_groups_are_those_of_the_tuples(
    monkeypatch: pytest.MonkeyPatch,
    aggregator: CombinerAggregator,
    keys: tuple[str, ...],
    tuples: int,
    groups: int,
) -> None:
    monkeypatch.setattr(arrow_aggregation, "_TUPLES", tuples)
    monkeypatch.setattr(arrow_aggregation, "_GROUPS", groups)
    schema = "a string; b integer; n long"
    step = made(aggregator, keys, schema)
    assert step is not None
    function = step.function

    @settings(max_examples=examples(25))
    @given(ROWS, st.integers(1, 20))
    def same(rows: list[tuple[Any, ...]], size: int) -> None:
        out = list(step(given_as(rows, schema, size)))
        assert all(batch.schema == step.schema for batch in out)
        truth: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            key = tuple(row[("a", "b").index(name)] for name in keys)
            value = 1 if function == "count" else row[2]
            truth.setdefault(key, []).extend([] if value is None else [value])
        expected = {key: FOLDS[function](all_) for key, all_ in truth.items() if all_}
        assert ended(out, function) == expected
        # What a state is given, of several workers.
        if all(abs(value) <= GREATEST for value in expected.values()):
            parts = [*step(given_as(rows[::2], schema, size)), *step(given_as(rows[1::2], schema, size))]
            merged = list(step.merge(parts, "aggregate"))
            assert all(batch.schema.names == step.schema.names for batch in merged)
            assert sum(batch.num_rows for batch in merged) == len(expected), "one row a group"
            assert ended(merged, function) == expected

    same()


def test_several_consumers_get_what_each_would_get_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_aggregation, "_TUPLES", 100)
    monkeypatch.setattr(arrow_aggregation, "_GROUPS", 400)
    schema = "a string; b integer; n long"
    steps = [made(Count(), ("a",), schema), made(Sum(), ("b", "a"), schema), made(Max(), (), schema)]
    alone = [step for step in steps if step is not None]
    together = SharedPartials(tuple(alone), (3, 1, 2))
    assert together.wanted == {"a", "b", "n"}

    @settings(max_examples=examples(25))
    @given(ROWS, st.integers(1, 20))
    def same(rows: list[tuple[Any, ...]], size: int) -> None:
        out = list(together(given_as(rows, schema, size)))
        assert all(batch.schema == arrow_schema(together.fields) for batch in out)
        for i, step in enumerate(alone):
            own = [batch for batch in out if set(batch.column(STREAM).to_pylist()) == {i}]
            mine = [*together.groups(own, i)]
            assert all(batch.schema.names == step.schema.names for batch in mine)
            expected = list(step(given_as(rows, schema, size)))
            assert ended(mine, step.function) == ended(expected, step.function)

    same()


def test_one_row_a_group_leaves_the_worker() -> None:
    schema = "a string; n long"
    step = made(Count(), ("a",), schema)
    assert step is not None
    out = list(step(given_as([("x", 1), ("y", 2), ("x", None)] * 1000, schema, 70)))
    assert Counter(key for batch in out for key in batch.column("a").to_pylist()) == {"x": 1, "y": 1}
    assert ended(out, "count") == {("x",): 2000, ("y",): 1000}


def test_tuples_that_are_all_different_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_aggregation, "_TUPLES", 1000)
    monkeypatch.setattr(arrow_aggregation, "_GROUPS", 10_000)
    schema = "a long; n long"
    step = made(Sum(), ("a",), schema)
    assert step is not None
    taken: list[int] = []

    def read() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(given_as([(n, n) for n in range(20_000)], schema, 100)):
            taken.append(number)
            yield batch

    out = step(read())
    given_back = next(out).num_rows
    assert 16 * 100 * len(taken) < 4 * 10_000, "it gives what it has before it holds much more than the bound"
    # From there on what comes in goes out.
    for batch in out:
        given_back += batch.num_rows
        assert 100 * len(taken) <= given_back + 100
    assert given_back == 20_000


@pytest.mark.parametrize("number", [GREATEST, 1 << 62, -(1 << 62) - 1])
def test_a_sum_that_may_not_fit_is_left_to_spark(number: int) -> None:
    schema = "a string; n long"
    step = made(Sum(), ("a",), schema)
    assert step is not None
    out = list(step(given_as([("x", number), ("x", number)], schema, 1)))
    assert [value for batch in out for value in batch.column("out").to_pylist()] == [number] * 2


def test_a_state_is_given_sums_that_fit_in_the_end() -> None:
    schema = "a string; n long"
    step = made(Sum(), ("a",), schema)
    assert step is not None
    rows = [("x", GREATEST), (None, 5), ("x", GREATEST), ("x", -GREATEST), ("y", None), (None, 7)]
    [batch] = step.merge(given_as(rows, "a string; out long", 1), "aggregate")
    assert batch.schema == step.schema
    assert sorted(batch.to_pydict()["out"]) == [12, GREATEST]
    with pytest.raises(OperationError, match="too large for int64"):
        list(step.merge(given_as(rows[:3], "a string; out long", 1), "aggregate"))


@pytest.mark.parametrize("aggregator", [Count(), Sum(), Max()])
def test_a_state_is_given_nothing_of_nothing(aggregator: CombinerAggregator) -> None:
    step = made(aggregator, (), "a string; n long")
    assert step is not None
    assert list(step.merge([], "aggregate")) == []
    nulls = [(None,), (None,)]
    assert sum(batch.num_rows for batch in step.merge(given_as(nulls, "out long", 1), "aggregate")) == 0


@pytest.mark.parametrize(
    ("aggregator", "keys", "schema"),
    [
        (Max(), ("a",), "a string; n double"),
        (Min(), ("a",), "a string; n string"),
        (Sum(), ("a",), "a string; n decimal(10,2)"),
        (Count(), ("a",), "a double; n integer"),
        (Count(), ("a",), "a array; n integer"),
        (Count(), ("a",), "a timestamp; n integer"),
    ],
)
def test_what_arrow_does_otherwise_is_left_to_spark(
    aggregator: CombinerAggregator, keys: tuple[str, ...], schema: str
) -> None:
    assert made(aggregator, keys, schema) is None


def test_dates_and_small_numbers() -> None:
    step = made(Max(), ("a",), "a boolean; n date")
    assert step is not None
    days = [(True, date(2026, 1, 1)), (True, date(2026, 2, 1)), (False, None)]
    assert ended(list(step(given_as(days, "a boolean; n date", 2))), "max") == {(True,): date(2026, 2, 1)}
    step = made(Sum(), ("a",), "a binary; n byte")
    assert step is not None
    small = [(b"x", 127)] * 3
    assert ended(list(step(given_as(small, "a binary; n byte", 2))), "sum") == {(b"x",): 381}
