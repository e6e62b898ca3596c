"""Functions as steps: each record succeeds or fails by itself, and every row is known by the record it came from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st
from judged_texts import texts_of
from leaving import LEAVING, Panic
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import (
    FAILED,
    ROW,
    ArrowStep,
    Judged,
    PandasStep,
    RowStep,
    _halves,
    reason_of,
)
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.steps.parts import chain

NUMBER = StructType([StructField("number", LongType())])
NUMBER_NOT_NULL = StructType([StructField("number", LongType(), nullable=False)])


def batch(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": list(texts), "__anchors": [[i] for i in range(len(texts))]})


def judge(function: Callable[..., Any], *texts: str, schema: StructType = NUMBER) -> Judged:
    judged = step_for(function, schema)(batch(*texts))
    judged.rows.validate(full=True)
    assert judged.rows.num_rows == len(judged.source)
    assert judged.rows.schema.equals(step_for(function, schema).schema)
    return judged


def found(judged: Judged) -> tuple[list[Any], list[int], list[int]]:
    """The numbers, the rows they came from, the rows that failed."""
    return judged.rows.column("number").to_pylist(), judged.source.tolist(), sorted(judged.failed)


def by_row(record: Record) -> tuple[int] | None:
    return None if record.text == "drop" else (int(record.text),)


def by_frame(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["text"] != "drop"]
    return rows.assign(number=rows["text"].map(int))[["number"]]


def by_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.cast(rows.column("text"), pa.int64())], names=["number"])


def by_table(rows: pa.Table) -> pa.Table:
    return pa.table({"number": pc.cast(rows.column("text"), pa.int64())})


@given(st.lists(st.sampled_from(["1", "23", "bad", "drop"])))
def test_a_row_or_a_pandas_function_drops_and_fails_exactly_the_records_it_should(texts: list[str]) -> None:
    good = [i for i, text in enumerate(texts) if text.isdigit()]
    expected = ([int(texts[i]) for i in good], good, [i for i, text in enumerate(texts) if text == "bad"])
    for function in (by_row, by_frame):
        judged = judge(function, *texts)
        assert found(judged) == expected
        assert all(
            reason.startswith("ValueError: ") and "'bad'" in reason for reason in texts_of(judged).values()
        )


@given(st.lists(st.sampled_from(["1", "23", "bad"])))
def test_an_arrow_function_that_raises_fails_exactly_the_records_at_fault(texts: list[str]) -> None:
    good = [i for i, text in enumerate(texts) if text.isdigit()]
    expected = ([int(texts[i]) for i in good], good, [i for i, text in enumerate(texts) if text == "bad"])
    for function in (by_batch, by_table):
        judged = judge(function, *texts)
        assert found(judged) == expected
        assert all(reason.startswith("ArrowInvalid: ") for reason in texts_of(judged).values())


@pytest.mark.parametrize("error", LEAVING)
def test_what_would_end_the_worker_fails_its_record(error: type[BaseException]) -> None:
    def row(record: Record) -> tuple[int]:
        return (int(record.text),) if record.text != "bad" else leave()

    def leave() -> Any:
        raise error("enough")

    def frame(rows: pd.DataFrame) -> pd.DataFrame:
        return by_frame(rows) if "bad" not in list(rows["text"]) else leave()

    def arrow(rows: pa.RecordBatch) -> pa.RecordBatch:
        return by_batch(rows) if "bad" not in rows.column("text").to_pylist() else leave()

    for function in (row, frame, arrow):
        judged = judge(function, "1", "bad", "23")
        assert found(judged) == ([1, 23], [0, 2], [1])
        assert texts_of(judged) == {1: f"{error.__name__}: enough"}


def test_an_interruption_is_no_error_of_the_function() -> None:
    def interrupt(given: Any) -> Any:
        raise KeyboardInterrupt

    def frame(rows: pd.DataFrame) -> pd.DataFrame:
        return interrupt(rows)

    def arrow(rows: pa.RecordBatch) -> pa.RecordBatch:
        return interrupt(rows)

    for function in (interrupt, frame, arrow):
        with pytest.raises(KeyboardInterrupt):
            judge(function, "1", "2")


def test_a_step_that_is_closed_calls_its_function_no_more() -> None:
    """Spark closes the generators of a task that ends before its input does."""
    calls = []

    def count(rows: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(rows.num_rows)
        return by_batch(rows)

    parts = _halves(batch("1", "2"), 0, ArrowStep(count, step_for(count, NUMBER).schema)._call)
    next(parts)
    parts.close()
    assert calls == [2]


class Unfit:
    """A value whose conversion panics."""

    def __getattr__(self, name: str) -> Any:
        raise Panic(name)

    def __int__(self) -> int:
        raise Panic

    __index__ = __float__ = __str__ = __int__  # type: ignore[assignment]


def test_a_value_whose_conversion_panics_fails_its_record() -> None:
    judged = judge(lambda record: (Unfit() if record.text == "bad" else int(record.text),), "1", "bad", "23")
    assert found(judged) == ([1, 23], [0, 2], [1])
    assert reason_of(Unfit()) == "Unfit"


def test_a_good_batch_is_one_call() -> None:
    calls = []

    def count(rows: pd.DataFrame) -> pd.DataFrame:
        calls.append(len(rows))
        return by_frame(rows)

    assert found(judge(count, *["1"] * 100))[1] == list(range(100))
    assert calls == [100]


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_a_vectorised_function_names_failed_records_in_a_column(kind: str) -> None:
    def frame(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(number=7, **{FAILED: ["no", None, "x" * 300]})[::-1]

    def arrow(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [7] * 3, FAILED: ["no", None, "x" * 300]})

    judged = judge(frame if kind == "pandas" else arrow, "a", "b", "c")
    assert found(judged) == ([7], [1], [0, 2])
    assert texts_of(judged) == {0: "no", 2: "x" * 256}


def test_a_failed_column_without_failures_fails_nothing() -> None:
    def arrow(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [7, 8], FAILED: pa.nulls(2)})

    assert found(judge(arrow, "a", "b")) == ([7, 8], [0, 1], [])


def test_a_pandas_function_may_sort_its_rows() -> None:
    def backwards(rows: pd.DataFrame) -> pd.DataFrame:
        return by_frame(rows).sort_index(ascending=False)

    assert found(judge(backwards, "1", "2", "drop", "3")) == ([1, 2, 3], [0, 1, 3], [])


def test_columns_of_ours_are_not_shown_to_a_vectorised_function() -> None:
    def names(rows: pd.DataFrame) -> pd.DataFrame:
        assert list(rows.columns) == ["text"]
        return rows.assign(number=1)

    assert judge(names, "a").failed == {}


@pytest.mark.parametrize("result", [(5,), [5], {"number": 5, "more": 6}, Row(number=5)])
def test_a_row_function_returns_a_tuple_a_list_a_dict_or_a_row(result: Any) -> None:
    assert found(judge(lambda record: result, "a")) == ([5], [0], [])


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ((1, 2), "OperatorError: the function returned 2 values; the schema has 1: ['number']"),
        (
            {"nummer": 1},
            "OperatorError: the function's result has no 'number'. Return a value for each of ['number']",
        ),
        (5, "OperatorError: the function returned int; expected a tuple, a dict, a Row or None"),
        ("5", "OperatorError: the function returned str; expected a tuple, a dict, a Row or None"),
    ],
)
def test_a_result_of_another_shape_fails_its_record(result: Any, reason: str) -> None:
    judged = judge(lambda record: result if record.text == "x" else (1,), "a", "x", "b")
    assert found(judged) == ([1, 1], [0, 2], [1])
    assert texts_of(judged) == {1: reason}


@pytest.mark.parametrize(
    "value",
    [2**63, 1.5, np.float32(2.5), Decimal("1.7"), Fraction(3, 2), float("nan"), "word", object(), b"\xff"],
)
def test_a_value_that_does_not_fit_its_type_fails_its_record_only(value: Any) -> None:
    judged = judge(lambda record: (value if record.text == "x" else 1,), "a", "x", "b", "x")
    assert found(judged) == ([1, 1], [0, 2], [1, 3])


def test_a_text_that_is_not_unicode_fails_its_record_only() -> None:
    word = StructType([StructField("word", StringType())])
    step = step_for(lambda record: ("\ud800" if record.text == "x" else "fine",), word)
    judged = step(batch("a", "x"))
    assert (judged.rows.column("word").to_pylist(), judged.source.tolist()) == (["fine"], [0])
    assert texts_of(judged)[1].startswith(
        "the field 'word' is string, but a value is not: 'utf-8' codec can't encode"
    )


def null_by_row(record: Record) -> tuple[int | None]:
    return (None if record.text == "x" else 1,)


def null_by_frame(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"number": rows["text"].map({"a": 1, "b": 1})})


def null_by_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    number = pa.array([None if text == "x" else 1 for text in rows.column("text").to_pylist()], pa.int64())
    return pa.RecordBatch.from_arrays([number], names=["number"])


@pytest.mark.parametrize("function", [null_by_row, null_by_frame, null_by_batch])
def test_a_null_fails_its_record_where_the_schema_says_not_null(function: Callable[..., Any]) -> None:
    assert found(judge(function, "a", "x", "b")) == ([1, None, 1], [0, 1, 2], [])
    judged = judge(function, "a", "x", "b", schema=NUMBER_NOT_NULL)
    assert found(judged) == ([1, 1], [0, 2], [1])
    assert "number" in texts_of(judged)[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda rows: rows.reset_index(drop=True).set_index(pd.Index([7, 8])),
            r"records are unknown\. Keep the index",
        ),
        (lambda rows: pd.concat([rows, rows]), r"records are unknown\. Keep the index"),
        (lambda rows: rows[["text"]], r"no column 'number'; it has \['text'\]"),
        (lambda rows: [1, 2], "returned list; expected a pandas DataFrame"),
    ],
)
def test_a_pandas_function_that_is_wrong_for_all_records_stops_with_what_is_wrong(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        PandasStep(function, step_for(by_row, NUMBER).schema)(batch("1", "2"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: rows.slice(1), "got 2 rows and returned 1 rows"),
        (lambda rows: None, "got 2 rows and returned NoneType"),
        (lambda rows: rows, r"no column 'number'; it has \['text'\]"),
        (lambda rows: pa.table({"number": pa.array([], pa.int64())}), "got 2 rows and returned 0 rows"),
    ],
)
def test_an_arrow_function_that_is_wrong_for_all_records_stops_with_what_is_wrong(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        ArrowStep(function, step_for(by_row, NUMBER).schema)(batch("1", "2"))


def test_an_arrow_functions_columns_are_cast_and_what_does_not_fit_fails() -> None:
    def floats(rows: pa.RecordBatch) -> pa.RecordBatch:
        values = [1.5 if text == "x" else 2.0 for text in rows.column("text").to_pylist()]
        return pa.RecordBatch.from_pydict({"number": values})

    assert found(judge(floats, "a", "x", "b")) == ([2, 2], [0, 2], [1])


class Parser:
    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        return by_frame(rows)

    def method(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return by_batch(rows)


def with_setting(setting: int, rows: pd.DataFrame) -> pd.DataFrame:
    return by_frame(rows) * setting


def unresolved(rows: pd.DataFrame, other: NotThere = None) -> pd.DataFrame:  # type: ignore[name-defined]  # noqa: F821
    return by_frame(rows)


@pytest.mark.parametrize(
    ("function", "kind", "value"),
    [
        (by_row, RowStep, 5),
        (lambda record: (int(record["text"]),), RowStep, 5),
        (by_frame, PandasStep, 5),
        (by_batch, ArrowStep, 5),
        (by_table, ArrowStep, 5),
        (Parser(), PandasStep, 5),
        (Parser().method, ArrowStep, 5),
        (functools.partial(with_setting, 2), PandasStep, 10),
        (unresolved, PandasStep, 5),
    ],
)
def test_the_hint_of_its_parameter_says_what_a_function_takes(
    function: Callable[..., Any], kind: type, value: int
) -> None:
    assert type(step_for(function, NUMBER)) is kind
    assert found(judge(function, "5")) == ([value], [0], [])


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("schema", ["order_id strnig", 5, None])
def test_a_schema_that_cannot_be_read_is_refused(schema: Any) -> None:
    with pytest.raises(
        OperatorError, match=r"operator by_row: the schema .* cannot be parsed [\s\S]*\. Write it as"
    ):
        step_for(by_row, schema)


@pytest.mark.usefixtures("spark")
def test_a_schema_may_be_written_as_in_sql() -> None:
    judged = step_for(lambda record: (record.text, 1), "word string not null, number bigint")(batch("a"))
    assert judged.rows.to_pylist() == [{"word": "a", "number": 1}]


@pytest.mark.parametrize("name", ["__anchors", "__failed"])
def test_columns_of_ours_are_refused(name: str) -> None:
    schema = StructType([*NUMBER.fields, StructField(name, LongType())])
    with pytest.raises(OperatorError, match="none of which may begin with '__'"):
        step_for(by_row, schema)


def test_a_function_without_an_argument_is_refused() -> None:
    with pytest.raises(OperatorError, match="takes no argument"):
        step_for(lambda: (1,), NUMBER)


def test_a_chain_traces_rows_and_failures_to_the_first_input() -> None:
    def odd(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[rows["number"] % 2 == 1]

    def not_seven(record: Record) -> tuple[int]:
        if record.number == 7:
            raise KeyError("seven")
        return (record.number * 10,)

    def not_ninety(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 90 in rows.column("number").to_pylist():
            msg = "ninety"
            raise ValueError(msg)
        return rows

    steps = [step_for(function, NUMBER) for function in (by_row, odd, not_seven, not_ninety)]
    [judged] = chain(steps, batch("drop", "1", "bad", "2", "7", "9", "11", "drop", "13", "4"))
    assert found(judged) == ([10, 110, 130], [1, 6, 8], [2, 4, 5])
    assert {row: reason.partition(":")[0] for row, reason in texts_of(judged).items()} == {
        2: "ValueError",
        4: "KeyError",
        5: "ValueError",
    }


def test_a_chain_goes_on_when_nothing_is_left() -> None:
    steps = [step_for(function, NUMBER) for function in (by_row, lambda r: (r.number,))]
    again = PandasStep(lambda rows: rows, steps[0].schema)
    [judged] = chain([*steps, again], batch("bad", "drop"))
    assert found(judged) == ([], [], [0])


def test_without_steps_the_batch_is_as_it_was() -> None:
    given_ = batch("a", "b")
    [judged] = chain([], given_)
    assert judged.rows.equals(given_)
    assert (judged.source.tolist(), judged.failed) == ([0, 1], {})
    assert judged.source.dtype == np.int64


def test_a_record_gives_its_columns_by_name_and_says_which_there_are() -> None:
    seen: list[Record] = []
    RowStep(seen.append, step_for(by_row, NUMBER).schema)(batch("a", "b"))
    first, second = seen
    assert (first.text, second["text"], second["__anchors"]) == ("a", "b", [1])
    assert first.asDict() == {"text": "a"}
    assert repr(second) == "Record({'text': 'b'})"
    with pytest.raises(AttributeError, match=r"there is no column 'txet'; the columns are text$"):
        _ = first.txet
    with pytest.raises(KeyError, match="there is no column 'txet'"):
        _ = first["txet"]
    assert getattr(first, "txet", 7) == 7


def test_a_reason_is_class_and_message_and_short() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert reason_of(ValueError("bad order")) == "ValueError: bad order"
    assert reason_of(ValueError()) == "ValueError"
    assert len(reason_of(ValueError("x" * 1000))) == 256
    assert reason_of(SilentError()) == "SilentError"


def by_rows(rows: list[int], failed: list[str | None]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    columns = {
        "number": list(range(len(rows))),
        ROW: pa.array(rows, pa.int32()),
        FAILED: pa.array(failed, pa.string()),
    }
    return lambda _: pa.RecordBatch.from_pydict(columns)


def test_an_arrow_function_may_name_the_rows_that_its_rows_come_from() -> None:
    function = by_rows([0, 0, 2, 2], [None, None, None, "no"])
    judged = ArrowStep(function, pa.schema([("number", pa.int64())]))(batch("a", "b", "c"))
    assert judged.rows.to_pydict() == {"number": [0, 1]}
    assert judged.source.tolist() == [0, 0]
    # One row of c failed, so c did, and its other row does not come out; b was dropped.
    assert texts_of(judged) == {2: "no"}


@pytest.mark.parametrize("rows", [[1, 0], [-1], [0, 3], [0.5]])
def test_an_arrow_function_that_names_rows_that_there_are_not_is_stopped(rows: list[Any]) -> None:
    def function(_: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"number": [0] * len(rows), ROW: rows})

    with pytest.raises(
        OperatorError,
        match=r"'__row' is not valid\. It must hold the input rows: whole numbers from 0 to 2, ascending",
    ):
        ArrowStep(function, pa.schema([("number", pa.int64())]))(batch("a", "b", "c"))
