"""The ways of values into users' functions and out of them, without Spark: each gives a column, and takes it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from kinesis_trident import KinesisSpout, string_scheme
from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.steps.functions import Judged, PandasStep, RowStep
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.steps.schemas import parse_type
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM
from kinesis_trident.bolt.storm.output import Output
from kinesis_trident.bolt.storm.received import Given, HeldTuple
from kinesis_trident.bolt.storm.streams import StreamOutput
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident import Stream, TridentTopology
from kinesis_trident.trident.operations import ArrowFunction, Function
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep, FunctionStep

UTC = timezone.utc  # noqa: UP017

Seen = list[Any]
"""What a function is given, row by row."""

Path = Callable[[DataType, pa.Array, Sequence[Any] | None, Seen], tuple[dict[int, Any], dict[int, str]]]
"""Takes a column through a function, which returns what it is given, or these values in its place."""


def schema_of(of: DataType) -> pa.Schema:
    """Return the schema of one field `x` of a type."""
    return arrow_schema(StructType([StructField("x", of)]))


def _answer(judged: Judged, name: str = "x") -> tuple[dict[int, Any], dict[int, str]]:
    values = _values_of(judged.rows.column(name))
    return dict(zip(judged.source.tolist(), values, strict=True)), {
        row: failure.reason for row, failure in judged.failed.items()
    }


def _values_of(column: pa.Array) -> list[Any]:
    kind = column.type
    # No dict has structs or arrays as keys.
    is_dict = not (pa.types.is_map(kind) and pa.types.is_nested(kind.key_type))
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict" if is_dict else None)
    return values


def row_function(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """A function of a record."""
    rows = iter(range(len(column)))

    def call(record: Any) -> tuple[Any]:
        row = next(rows)
        if values is not None:
            return (values[row],)
        seen.append(record.x)
        return (record.x,)

    return _answer(RowStep(call, schema_of(of))(pa.RecordBatch.from_arrays([column], ["x"])))


def pandas_function(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """A function of a DataFrame."""

    def call(frame: pd.DataFrame) -> pd.DataFrame:
        if values is not None:
            return pd.DataFrame({"x": pd.Series(list(values), index=frame.index, dtype=object)})
        seen.extend(frame["x"].tolist())
        return frame

    return _answer(PandasStep(call, schema_of(of))(pa.RecordBatch.from_arrays([column], ["x"])))


def arrow_function(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """A function of a batch of Arrow."""
    assert values is None

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    call.__annotations__["batch"] = pa.RecordBatch
    schema = StructType([StructField("x", of)])
    return _answer(step_for(call, schema)(pa.RecordBatch.from_arrays([column], ["x"])))


def texts() -> tuple[TridentTopology, Stream]:
    """Return a topology for `run_topology`, and its stream `texts` of texts."""
    topology = TridentTopology(None)
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="zk:1", scheme=string_scheme("text")
    )
    return topology, topology.new_stream("texts", spout)


class _Pass(Function):
    def __init__(self, values: Sequence[Any] | None, seen: Seen) -> None:
        self._values, self._seen = values, seen

    def execute(self, tup: Any, collector: Any) -> None:
        if self._values is not None:
            # The field has the number of the row.
            collector.emit([self._values[tup[0]]])
        else:
            self._seen.append(tup[0])
            collector.emit([tup[0]])


def trident(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """A function of a Trident tuple."""
    field = column if values is None else pa.array(range(len(column)), pa.int64())
    batch = pa.RecordBatch.from_arrays([field], ["x"])
    added = pa.schema([schema_of(of).field("x").with_name("y")])
    step = FunctionStep(
        operation="each(_Pass)", inputs=("x",), added=added, kept=pa.schema([]), function=_Pass(values, seen)
    )
    answer, failed = _answer(step(batch), "y")
    return answer, {row: reason.replace("'y", "'x") for row, reason in failed.items()}


class _PassArrow(ArrowFunction):
    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        return batch.rename_columns(["y"]), np.arange(batch.num_rows)


def trident_arrow(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """An `ArrowFunction` of Trident."""
    assert values is None
    added = pa.schema([schema_of(of).field("x").with_name("y")])
    step = ArrowEachStep(
        operation="each(_PassArrow)", inputs=("x",), added=added, kept=pa.schema([]), function=_PassArrow()
    )
    return _answer(step(pa.RecordBatch.from_arrays([column], ["x"])), "y")


def bolt(
    of: DataType, column: pa.Array, values: Sequence[Any] | None, seen: Seen
) -> tuple[dict[int, Any], dict[int, str]]:
    """A bolt: what it is given, and what it emits, packed as a task does."""
    batch = pa.RecordBatch.from_arrays([column], ["x"])
    given, columns = Given(batch, tracked=False), Columns(batch)
    failed: dict[int, str] = {}
    out = Output(StreamOutput(schema_of(of)), None, lambda tup, reason: failed.update({tup.row: reason}))
    emitted: list[int] = []
    for row in range(len(column)):
        tup = HeldTuple(columns, row, ["x"], "s", DEFAULT_STREAM, given)
        try:
            value = tup["x"] if values is None else values[row]
        except ValueError as error:
            failed[row] = str(error)
            continue
        seen.append(value)
        out.add([value], tup)
        emitted.append(row)
    out.pack()
    part = out.next_part()
    found = [] if part is None else _values_of(part.rows.column("x"))
    return dict(zip([row for row in emitted if row not in failed], found, strict=True)), failed


READS: dict[str, Path] = {
    "function of a record": row_function,
    "bolt": bolt,
    "Trident": trident,
    "pandas": pandas_function,
}
ARROW: dict[str, Path] = {"Arrow": arrow_function, "ArrowFunction": trident_arrow}

CASES: dict[str, tuple[Any, Any]] = {
    "string": ("ab", 5),
    "binary": (b"ab", 5),
    "boolean": (True, 1),
    "int": (7, 7.5),
    "bigint": (2**53 + 1, True),
    "float": (0.5, 1e300),
    "double": (0.1, "0.1"),
    "decimal(10,2)": (Decimal("1.50"), 1.5),
    "date": (date(2026, 1, 1), 19000),
    "timestamp": (datetime(2026, 1, 1, 12, tzinfo=UTC), 1782900000000),
    "timestamp_ntz": (datetime(2026, 1, 1, 12), "2026-01-01"),  # noqa: DTZ001
    "array<bigint>": ([1, 2], [1, 2.5]),
    "map<string,bigint>": ({"a": 1}, {"a": 1.5}),
    "struct<a:bigint,b:string>": ({"a": 1, "b": "x"}, {"a": 1}),
}
"""Of each type a value that fits, and one that does not."""


def matrix_rows() -> list[tuple[str, ...]]:
    """Return for each type the classes in which functions are given a value, and why another does not fit."""
    rows = []
    for name, (good, bad) in CASES.items():
        of = parse_type(name)
        column = pa.array([good], schema_of(of).field("x").type)
        classes, reasons = [], set()
        for path in READS.values():
            seen: Seen = []
            assert path(of, column, None, seen) == ({0: good}, {})
            classes.append(type(seen[0]).__name__)
            found, failed = path(of, pa.nulls(1, column.type), [bad], [])
            assert not found
            reasons.add(failed[0])
        [reason] = reasons
        assert len(set(classes[:3])) == 1
        rows.append((f"`{name}`", f"`{classes[0]}`", f"`{classes[3]}`", f"{reason}"))
    return rows
