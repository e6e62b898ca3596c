"""A failed record says which function failed it: of Trident and of `reliable().map`, as of bolts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from kinesis_trident import KinesisSpout, string_scheme
from kinesis_trident.bolt.reliable import Reliable
from kinesis_trident.bolt.steps.parts import chain
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.testing import run_topology
from kinesis_trident.tracker.failure import error_class, parse, text_of
from kinesis_trident.trident import Function, TridentTopology

OPTIONS = {"streamName": "s", "applicationName": "a", "zookeeper.hosts": "-", "region": "-"}


class Split(Function):
    """Fails one line."""

    def execute(self, tup: Any, collector: Any) -> None:
        if tup[0] == "splits":
            raise ValueError("no words")
        collector.emit(tup[0].split())


def wants(tup: Any) -> bool:
    return bool(1 / (tup["line"] != "wants"))


def test_the_function_of_a_topology() -> None:
    topology = TridentTopology()
    lines = topology.new_stream("s", KinesisSpout(scheme=string_scheme("line"), **OPTIONS))
    lines.name("words").filter(wants).each("line", Split(), "word").peek(lambda tup: tup["x"])
    result = run_topology(topology, {"s": ["wants", "splits", "other"]})
    assert {one.values: one.reason.rpartition(" (")[2] for one in result.failed} == {
        "wants": "in words: each(wants))",
        "splits": "in words: each(Split))",
        "other": "in words: each(<lambda>))",
    }
    classes = {one.values: error_class(one.reason) for one in result.failed}
    assert classes == {"wants": "ZeroDivisionError", "splits": "ValueError", "other": "KeyError"}


def number(record: Any) -> list[int]:
    return [record.n if record.n % 2 else {}[record.n]]


def halves(rows: pd.DataFrame) -> pd.DataFrame:
    rows["__failed"] = ["no half" if n == 5 else None for n in rows["n"]]
    return rows


def whole(rows: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in rows.column("n").to_pylist():
        raise ValueError("seven")
    return rows


def test_the_functions_of_map() -> None:
    stream: Any = None
    mapped = Reliable(stream, SourceOptions.parse(OPTIONS))
    for function in (number, halves, whole):
        mapped = mapped.map(function, StructType([StructField("n", LongType())]))
    [judged] = chain(mapped.steps, pa.RecordBatch.from_pydict({"n": [1, 2, 3, 5, 7, 9]}))
    assert judged.rows.to_pydict() == {"n": [1, 3, 9]}
    said = {row: text_of(failure) for row, failure in judged.failed.items()}
    assert said == {
        1: "KeyError: 2 (in map(number))",
        3: "no half (in map(halves))",
        4: "ValueError: seven (in map(whole))",
    }


@pytest.mark.parametrize(
    "text", ["AFTER 12: busy (in map(parse))", "PERMANENT: no (in map(parse))", "no (in each(x))"]
)
def test_a_failure_of_a_function_is_read_as_it_was_stored(text: str) -> None:
    failure = parse(text)
    assert failure.where[0].startswith("in ")
    assert text_of(failure) == text
