"""Functions, bolts and operations of Trident say of each record whether, and when, it comes again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from heard import Heard
from judged_texts import texts_of
from pyspark.sql.types import LongType, StructField, StructType

from kinesis_trident import BasicBolt, Bolt, PermanentFailure, RetryLater
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import AFTER, FAILED, RETRY, ROW, Judged
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.steps.watchdog import WATCHDOG, Watch
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.tracking.anchors import Anchors
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID
from kinesis_trident.tracker.ids import roots, tuple_ids
from kinesis_trident.trident import Filter, Function, OperationError
from kinesis_trident.trident.steps.emitting_steps import FunctionStep
from kinesis_trident.trident.steps.replay import named_errors
from kinesis_trident.trident.steps.tuple_steps import FilterStep, Pipeline

NUMBER = StructType([StructField("number", LongType())])
TEXTS = pa.schema([("text", pa.string())])
RAISED = {
    1: "PERMANENT: PermanentFailure: no such account (in map(parse))",
    2: "AFTER 600s: RetryLater: busy (in map(parse))",
    3: "ValueError: odd (in map(parse))",
}
NAMED = {
    1: "PERMANENT: no such account (in map(parse))",
    2: "AFTER 600s: busy (in map(parse))",
    3: "ValueError: odd (in map(parse))",
}


def rows(*texts: str) -> pa.RecordBatch:
    numbers = np.arange(len(texts))
    anchors = Anchors(roots(5, 0, numbers), tuple_ids("orders", 7, "shardId-0", numbers))
    ids = [f"orders/shardId-0:{number}" for number in numbers]
    return pa.RecordBatch.from_arrays(
        [pa.array(texts, pa.string()), pa.array(ids), anchors.column()], ["text", MESSAGE_ID, ANCHORS]
    )


def raises(text: str) -> tuple[int]:
    """Fail as a text says."""
    if text == "gone":
        raise PermanentFailure("no such account")
    if text == "busy":
        raise RetryLater(after="10m", reason="busy")
    if text == "odd":
        raise ValueError(text)
    return (len(text),)


def parse_row(record: Record) -> tuple[int]:
    return raises(record.text)


def parse_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"number": [raises(text)[0] for text in frame["text"]]}, index=frame.index)


def parse_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": [raises(text)[0] for text in batch["text"].to_pylist()]})


def heard_of(function: Callable[..., Any], *texts: str, watch: Watch | None = None) -> dict[int, str]:
    """Return what a function has failed, by ordinal, as the driver hears it."""
    from kinesis_trident.bolt.reliable import MapStep

    heard = Heard()
    step = MapStep("map(parse)", step_for(function, NUMBER))
    list(StepOperator(Tag("map", 7, heard, watch), (step,))(iter([rows(*texts)])))
    return heard.failed


@pytest.mark.parametrize("function", [parse_row, parse_frame, parse_batch])
def test_a_function_raises_what_kind_its_failure_is(function: Callable[..., Any]) -> None:
    assert heard_of(function, "good", "gone", "busy", "odd", "fine") == RAISED


WORDS = {FAILED: [None, "no such account", "busy", "ValueError: odd", None]}
MORE = {RETRY: [None, False, None, True, None], AFTER: [None, None, "10m", None, None]}


def frame_of(columns: dict[str, list[Any]]) -> Callable[..., Any]:
    def parse(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"number": range(len(frame)), **columns}, index=frame.index)

    return parse


def batch_of(columns: dict[str, list[Any]], **types: pa.DataType) -> Callable[..., Any]:
    def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
        return pa.RecordBatch.from_pydict({"number": list(range(batch.num_rows)), **arrays})

    return parse


def odd_frame(columns: dict[str, list[Any]]) -> Callable[..., Any]:
    """Return the same with the types that pandas has for nulls."""

    def parse(frame: pd.DataFrame) -> pd.DataFrame:
        made = pd.DataFrame({"number": range(len(frame)), **columns}, index=frame.index)
        made[RETRY] = made[RETRY].astype("boolean")
        made[AFTER] = pd.to_timedelta(pd.Series([None, None, "10min", None, None], index=frame.index))
        return made

    return parse


@pytest.mark.parametrize(
    "function",
    [
        frame_of(WORDS | MORE),
        odd_frame(WORDS | MORE),
        batch_of(WORDS | MORE),
        batch_of(
            WORDS | MORE | {AFTER: [None, None, timedelta(minutes=10), None, None]},
            **{AFTER: pa.duration("s")},
        ),
        batch_of(WORDS | MORE | {ROW: [0, 1, 2, 3, 4]}),
    ],
    ids=["pandas", "pandas-nulls", "arrow", "arrow-duration", "arrow-rows"],
)
def test_columns_beside_the_reason_say_what_kind_it_is(function: Callable[..., Any]) -> None:
    assert heard_of(function, "a", "b", "c", "d", "e") == NAMED


@pytest.mark.parametrize("make", [frame_of, batch_of])
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {RETRY: [None, "no", None, None, None]},
            r"the column '__retry' of the result of parse, in a row that fails with 'no such account': 'no' is neither "
            r"true, false nor null\. Give false where no retry can help",
        ),
        (
            {AFTER: [None, None, "soon", None, None]},
            r"the column '__after' of the result of parse, in a row that fails with 'busy': after='soon' is no delay\. "
            r"Give a duration",
        ),
        (
            {AFTER: [None, None, 600, None, None]},
            r"'__after' .* with 'busy': after=600(\.0)? is no delay\. Give a duration",
        ),
        (
            {RETRY: [None, False, None, None, None], AFTER: [None, "1m", None, None, None]},
            r"'__after' .* with 'no such account': after='1m' is given for a record that does not come again",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_column_its_row_and_what_to_do(
    make: Callable[..., Any], columns: dict[str, list[Any]], said: str
) -> None:
    with pytest.raises(OperatorError, match=said):
        heard_of(make(WORDS | columns), "a", "b", "c", "d", "e")


@pytest.mark.parametrize("make", [frame_of, batch_of])
@pytest.mark.parametrize("name", [RETRY, AFTER])
def test_a_column_about_failures_needs_one_that_names_them(make: Callable[..., Any], name: str) -> None:
    said = f"the result of parse has a column '{name}', but none '__failed'.* Add it: a text fails its row"
    with pytest.raises(OperatorError, match=said):
        heard_of(make({name: MORE[name]}), "a", "b", "c", "d", "e")


def test_of_rows_that_succeed_the_columns_say_nothing() -> None:
    """Also what would be no value of a failed row."""
    columns = {FAILED: [None] * 5, RETRY: ["no"] * 5, AFTER: ["soon"] * 5}
    assert heard_of(batch_of(columns, **{FAILED: pa.string()}), "a", "b", "c", "d", "e") == {}


class Throttled(RetryLater):
    """Says its delay as a number of seconds, and calls nothing that would refuse that."""

    after = 30  # type: ignore[assignment]

    def __init__(self) -> None:
        pass


def test_an_error_that_says_no_delay_fails_its_record_and_no_other() -> None:
    def parse(record: Record) -> tuple[int]:
        if record.text == "slow":
            raise Throttled
        return raises(record.text)

    heard = heard_of(parse, "good", "slow", "odd")
    assert heard[1].startswith("DelayError: Throttled: after=30 is no delay. Give a duration with its unit")
    assert heard.keys() == {1, 2}


def fails_otherwise(record: Record) -> tuple[int]:
    if record.text == "json":
        json.loads("{")
    if record.text == "key":
        {}[record.text]
    return raises(record.text)


def test_an_option_names_the_classes_of_errors_of_code_that_nobody_changes() -> None:
    watch = Watch(no_retry=frozenset({"ValueError", "LookupError"}))
    assert heard_of(fails_otherwise, "json", "key", "odd", "busy", "gone", "good", watch=watch) == {
        0: "PERMANENT: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        "(in map(parse))",
        1: "PERMANENT: KeyError: 'key' (in map(parse))",
        2: "PERMANENT: ValueError: odd (in map(parse))",
        3: "AFTER 600s: RetryLater: busy (in map(parse))",
        4: "PERMANENT: PermanentFailure: no such account (in map(parse))",
    }
    # The next query of this worker has no such option.
    assert heard_of(fails_otherwise, "odd", watch=Watch()) == {0: "ValueError: odd (in map(parse))"}
    # Without notes and a limit nothing is watched.
    assert not WATCHDOG._is_ticking


class Acts(Bolt):
    """Fails tuples by raising, or by its collector."""

    fields = "number long"

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Any) -> None:
        raises(tup["text"].removeprefix("raises "))
        self.collector.fail(
            tup, {"a": PermanentFailure("no"), "b": RetryLater("1m", "later"), "c": "PERMANENT"}[tup["text"]]
        )


class Basic(BasicBolt):
    fields = "number long"

    def execute(self, tup: Any, collector: Any) -> None:
        raises(tup["text"])


@pytest.mark.parametrize("of_source", [True, False])
def test_a_bolt_raises_or_fails_with_an_error_that_says_its_kind(of_source: bool) -> None:
    heard, watch = Heard(), Watch(no_retry=frozenset({"ValueError"}))
    operator = BoltOperator(
        "act",
        7,
        Acts(),
        {"records": ["text"]},
        pa.schema([("number", pa.int64())]),
        Tag("act", 7, heard, watch),
        of_source,
    )
    list(operator(iter([rows("raises gone", "raises busy", "raises odd", "a", "b", "c")])))
    assert heard.failed == {
        0: "PERMANENT (bolt act): PermanentFailure: no such account",
        1: "AFTER 600s (bolt act): RetryLater: busy",
        2: "PERMANENT (bolt act): ValueError: odd",
        3: "PERMANENT (bolt act): PermanentFailure: no",
        4: "AFTER 60s (bolt act): RetryLater: later",
        5: "PERMANENT (bolt act)",
    }


def test_a_basic_bolt_raises_it_too() -> None:
    heard = Heard()
    operator = BoltOperator(
        "basic",
        7,
        Basic(),
        {"records": ["text"]},
        pa.schema([("number", pa.int64())]),
        Tag("basic", 7, heard),
    )
    list(operator(iter([rows("gone", "fine", "busy")])))
    assert heard.failed == {
        0: "PERMANENT (bolt basic): PermanentFailure: no such account",
        2: "AFTER 600s (bolt basic): RetryLater: busy",
    }


class Lengths(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([raises(tup["text"])[0]])


class Long(Filter):
    def is_keep(self, tup: Any) -> bool:
        return raises(tup["text"])[0] > 3


def test_operations_of_trident_on_single_tuples_raise_it() -> None:
    added = pa.schema([("number", pa.int64())])
    steps = (
        FunctionStep("each(Lengths)", Lengths(), ("text",), added, TEXTS),
        FilterStep("filter(Long)", Long(), ("text",), TEXTS),
    )
    for step in steps:
        judged: Judged = Pipeline((step,))(rows("gone", "fine", "busy", "odd"))
        assert texts_of(judged) == {
            0: f"PERMANENT: PermanentFailure: no such account (in {step.operation})",
            2: f"AFTER 600s: RetryLater: busy (in {step.operation})",
            3: f"ValueError: odd (in {step.operation})",
        }


def test_where_no_single_tuple_is_at_fault_it_is_an_error_like_any_other() -> None:
    said = (
        r"aggregate\(Sums\) raised PermanentFailure: no such account\. Correct it and start the query again"
    )
    with pytest.raises(OperationError, match=said), named_errors("aggregate(Sums)"):
        raises("gone")
