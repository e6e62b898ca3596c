"""Measure what the border of users' functions costs: `python -m benchmarks.functions`. No Spark is started.

The other side has no border: it calls the same function with what `to_pylist` and `to_pandas` give, and makes columns
of what it returns with `pyarrow.array` and `cast`, as far as these can.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

import pandas as pd
import pyarrow as pa

from benchmarks.report import Section, publish
from kinesis_trident.bolt.steps.kinds import step_for

RECORDS = 10_000
ROUNDS = 15
TEXT = "text string, n bigint, f double"
NESTED = "s struct<n:bigint,words:array<string>>"

Run = Callable[[], object]
"""Takes a batch through a function."""


def records() -> pa.RecordBatch:
    """A batch of texts, numbers and structs."""
    texts = [f"order-{number} of some words" for number in range(RECORDS)]
    return pa.RecordBatch.from_pydict(
        {
            "text": pa.array(texts),
            "n": pa.array(range(RECORDS), pa.int64()),
            "f": pa.array([number / 3 for number in range(RECORDS)]),
            "s": pa.array([{"n": number, "words": ["a", "b"]} for number in range(RECORDS)]),
        }
    )


def of_row(row: Any) -> tuple[Any, ...]:
    """Return a row of plain values."""
    return row["text"], row["n"] + 1, row["f"]


def nested_of_row(row: Any) -> tuple[Any, ...]:
    """Return a row of a struct."""
    return ({"n": row["s"]["n"], "words": row["s"]["words"]},)


def of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns of plain values."""
    return frame[["text", "n", "f"]].assign(n=frame["n"] + 1)


def nested_of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a column of structs."""
    return frame[["s"]]


def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return columns of the types that are wanted."""
    return batch.select(["text", "n", "f"])


def bare_rows(function: Callable[[Any], tuple[Any, ...]], schema: pa.Schema, batch: pa.RecordBatch) -> object:
    """Call a function for each row, with the columns that it needs as lists."""
    names, lists = batch.schema.names, [column.to_pylist() for column in batch.columns]
    rows = [function(dict(zip(names, values, strict=True))) for values in zip(*lists, strict=True)]
    return [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]


def bare_frame(function: Callable[[Any], Any], schema: pa.Schema, batch: pa.RecordBatch) -> object:
    """Call a function with pandas' own DataFrame of a batch."""
    return pa.RecordBatch.from_pandas(function(batch.to_pandas()), schema=schema, preserve_index=False)


def bare_batch(function: Callable[[Any], Any], schema: pa.Schema, batch: pa.RecordBatch) -> object:
    """Call a function with a batch, and cast what it returns."""
    made = function(batch)
    return [made.column(field.name).cast(field.type) for field in schema]


Case = tuple[str, Callable[[Any], Any], str, Callable[..., object], str]
CASES: tuple[Case, ...] = (
    ("of a record, plain values", of_row, TEXT, bare_rows, "which record raised, and whose row does not fit"),
    ("of a record, a struct", nested_of_row, NESTED, bare_rows, "the same, of each part of it"),
    ("of a DataFrame, plain values", of_frame, TEXT, bare_frame, "is every text UTF-8; whose rows are left"),
    (
        "of a DataFrame, a struct",
        nested_of_frame,
        NESTED,
        bare_frame,
        "the same; are lists within lists, and do numbers beside a null keep their digits",
    ),
    (
        "of an Arrow batch",
        of_batch,
        TEXT,
        bare_batch,
        "are there all rows and columns, and times in the zone",
    ),
    (
        "of an Arrow batch, to smaller types",
        of_batch,
        "text string, n int, f float",
        bare_batch,
        "the same; did a number become infinite",
    ),
)
"""The functions, each with its fields, its bare side, and what that does not ask."""


def sides(case: Case, batch: pa.RecordBatch) -> tuple[Run, Run]:
    """Return the run of a case with the border, and without."""
    _, function, fields, bare, _ = case
    step = step_for(function, fields)
    given = batch.select(["s"] if fields == NESTED else ["text", "n", "f"])
    return lambda: step(given), lambda: bare(function, step.schema, given)


def measured(run: Run) -> float:
    """Return the CPU time of several runs."""
    begun = process_time()
    for _ in range(5):
        run()
    return (process_time() - begun) / 5


def main() -> None:
    """Measure, print, and write the section."""
    batch, rows = records(), []
    for case in CASES:
        ours, plain = sides(case, batch)
        ours(), plain()
        rounds = [(measured(ours), measured(plain)) for _ in range(ROUNDS)]
        with_border, without = (statistics.median(side) for side in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        rows.append(
            [
                case[0],
                *(f"{side / RECORDS * 1e9:,.0f} ns" for side in (with_border, without)),
                f"{ratio:.2f} x",
                case[4],
            ]
        )
    publish(
        Section(
            name="functions",
            title="What the border of functions costs",
            command="python -m benchmarks.functions",
            columns=["CPU time a record, a function", "ours", "bare", "ratio", "the bare side does not ask"],
            rows=rows,
            note="Bare is the same function without the border: it is called with what `to_pylist` and `to_pandas` "
            "give, and its values become columns with `pyarrow.array` and `cast`. One value that does not fit fails "
            "the whole batch there, or is stored as another one. Both sides in turns: medians.",
        )
    )


if __name__ == "__main__":
    main()
