"""One task of a bolt with several streams: each has its fields, its ids and its reports."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard
from pyspark.sql.pandas.types import from_arrow_schema

from kinesis_trident import BasicBolt, Bolt, Tuple
from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.storm.bolt_task import BoltOperator
from kinesis_trident.bolt.storm.streams import TARGET, StreamOutput
from kinesis_trident.bolt.tagged import STREAM, Tagged
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of
from kinesis_trident.bolt.tracking.coverage import SOURCE, find_uncovered
from kinesis_trident.bolt.tracking.operators import Tag
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import roots, tuple_ids


def lines(*texts: str) -> pa.RecordBatch:
    numbers = np.arange(len(texts))
    anchors = Anchors(roots(5, 0, numbers), tuple_ids("lines", 7, "shardId-0", numbers))
    return pa.RecordBatch.from_arrays([pa.array(texts), anchors.column()], ["line", ANCHORS])


class Parse(BasicBolt):
    """Numbers go on, to a task by their last digit too; other lines go to the errors."""

    streams: ClassVar = {
        "default": {"number": pa.int64()},
        "errors": {"line": pa.string(), "number": pa.string()},
        "digits": {"number": pa.int32()},
    }

    def execute(self, tup: Tuple, collector: Any) -> None:
        line = tup["line"]
        if line == "fail":
            collector.emit([line, "dropped"], "errors")
            raise ValueError(line)
        if not line.isdigit():
            collector.emit([line, "none"], stream="errors")
            return
        collector.emit([int(line)])
        collector.emit_direct(int(line) % 10, [int(line)], "digits")


def run(
    bolt: Parse | Wrong, batch: pa.RecordBatch, *taken: str, tasks: int = 4, tracked: bool = True
) -> tuple[list[pa.RecordBatch], Heard]:
    heard = Heard()
    outputs = {
        name: StreamOutput(pa.schema(fields), name in taken, name in {"digits", "to"}, tasks)
        for name, fields in bolt.streams.items()
    }
    schema = next(iter(outputs.values())).schema
    tag = Tag("parse", 7, heard) if tracked else None
    kept = [from_arrow_schema(one.schema) for one in outputs.values() if one.taken]
    tagged = Tagged.of(kept) if len(kept) > 1 else None
    operator = BoltOperator(
        "parse", 7, bolt, {"lines": ["line"]}, schema, tag, outputs=outputs, tagged=tagged
    )
    return list(operator(iter([batch if tracked else batch.select(["line"])]))), heard


GIVEN = lines("1", "x", "23", "fail", "5", "y")


def test_each_stream_that_is_taken_has_its_columns_and_its_report() -> None:
    out, heard = run(Parse(), GIVEN, "default", "errors", "digits")
    table = pa.Table.from_batches(out).to_pylist()
    rows = [{name: row[name] for name in row if row[name] is not None and name != ANCHORS} for row in table]
    assert rows == [
        {STREAM: 0, "__1": 1},
        {STREAM: 0, "__1": 23},
        {STREAM: 1, "__2": "x", "__3": "none"},
        {STREAM: 1, "__2": "y", "__3": "none"},
        {STREAM: 2, "__4": 1, TARGET: 1},
        {STREAM: 2, "__4": 23, TARGET: 3},
    ]
    # "5" has no task, so the record failed, and what it had emitted before was dropped.
    assert list(heard.failed) == [3, 4]
    assert heard.failed[4] == (
        "EmitError: bolt 'parse' emitted to task 5 of the stream 'digits'. Give the number of a task of the bolt that "
        "takes it: 0 to 3 (bolt parse)"
    )
    edges = [anchors_of(one).edges.tolist() for one in out]
    assert len(set(itertools.chain(*edges))) == 6
    totals = {key.operator: (key.rows, key.emitted, key.produced) for key in heard.reports}
    names = "parse", "parse (stream errors)", "parse (stream digits)"
    assert totals == {
        name: (6, len(some), np.bitwise_xor.reduce(some)) for name, some in zip(names, edges, strict=True)
    }
    # Each stream is an operator to what takes it: one that misses a tuple is seen.
    anchors = anchors_of(GIVEN)
    wiring = {**dict.fromkeys(names, (SOURCE,)), "on errors": (names[1],)}
    total = {0: (6, int(np.bitwise_xor.reduce(anchors.edges)))}
    took = next(key for key in heard.reports if key.operator == names[1])
    whole = took._replace(operator="on errors", rows=2, consumed=took.produced, emitted=0, produced=0)
    part = whole._replace(rows=1, consumed=edges[1][0])
    assert find_uncovered(wiring, heard.reports | {whole: ()}, total) == []
    assert find_uncovered(wiring, heard.reports | {part: ()}, total) == [("on errors", 0)]


@pytest.mark.parametrize("tracked", [True, False])
def test_a_stream_that_alone_is_taken_has_its_own_columns(tracked: bool) -> None:
    out, heard = run(Parse(), GIVEN, "errors", tracked=tracked)
    ours = [ANCHORS] if tracked else []
    assert [(one.schema.names, one.column("line").to_pylist()) for one in out] == [
        (["line", "number", *ours], ["x", "y"])
    ]
    assert [(key.operator, key.emitted) for key in heard.reports] == [("parse", 2)] * tracked
    out, _ = run(Parse(), GIVEN, "digits", tasks=6, tracked=tracked)
    assert [(one.schema.names, one.column(TARGET).to_pylist()) for one in out] == [
        (["number", TARGET, *ours], [1, 3, 5])
    ]


def test_ids_of_a_stream_do_not_depend_on_the_others() -> None:
    (alone,), _ = run(Parse(), lines("1", "2"), "digits")
    beside, _ = run(Parse(), lines("1", "2"), "default", "digits")
    assert alone.column(ANCHORS) == beside[1].column(ANCHORS)
    (default,), _ = run(Parse(), lines("1", "2"), "default")
    assert default.column(ANCHORS) == beside[0].column(ANCHORS)


class Wrong(Bolt):
    """Calls the collector in a way that cannot be meant."""

    streams: ClassVar = {"plain": {"line": pa.string()}, "to": {"line": pa.string()}}

    def __init__(self, call: str, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        getattr(self.collector, self.call)(*self.arguments)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            ("emit", ["a"], (), "other"),
            "the stream 'other', which it does not declare; it declares plain, to",
        ),
        (("emit", ["a"]), "the stream 'default', which it does not declare"),
        (("emit", ["a"], (), "to"), r"its stream 'to' is direct\. Call emit_direct\(\)"),
        (("emit_direct", 0, ["a"], (), "plain"), r"its stream 'plain' is not direct\. Call emit\(\)"),
    ],
)
def test_a_stream_of_another_name_or_kind_is_refused(call: tuple[Any, ...], said: str) -> None:
    with pytest.raises(OperatorError, match=f"bolt 'parse'.*{said}"):
        run(Wrong(*call), lines("a"), "plain")


@pytest.mark.parametrize("task", [-1, "0", 4, True, None])
def test_a_task_that_there_is_not_fails_the_tuple(task: Any) -> None:
    _, heard = run(Wrong("emit_direct", task, ["a"], (), "to"), lines("a"), "to")
    assert "takes it: 0 to 3" in heard.failed[0]


def test_a_tuple_tells_its_fields_and_where_it_is_from() -> None:
    seen: list[Any] = []

    class Sees(BasicBolt):
        def execute(self, tup: Tuple, collector: Any) -> None:
            seen.append((tup.component, tup.stream, tup.is_tick, len(tup), tup.values, tup.select("b", "a")))
            seen.append((tup.contains("b"), tup.contains("c"), tup.field_index("b"), list(tup.fields)))
            with pytest.raises(ValueError, match="'c'"):
                tup.field_index("c")

    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    operator = BoltOperator(
        "sees", 7, Sees(), {"__0": ["a", "b"]}, pa.schema([]), None, streams={"__0": ("parse", "errors")}
    )
    assert list(operator(iter([batch]))) == []
    assert seen == [
        ("parse", "errors", False, 2, [1, "x"], ["x", 1]),
        (True, False, 1, ["a", "b"]),
    ]


def test_an_error_can_be_reported_without_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Reports(BasicBolt):
        def execute(self, tup: Tuple, collector: Any) -> None:
            collector.report_error(ValueError("odd"))

    heard = Heard()
    operator = BoltOperator(
        "reports", 7, Reports(), {"in": ["line"]}, pa.schema([]), Tag("reports", 7, heard)
    )
    assert list(operator(iter([lines("a")]))) == []
    assert heard.failed == {}
    assert [record.getMessage() for record in caplog.records] == ["bolt 'reports', batch 7: ValueError: odd"]
