"""Drawn types and values pass a topology: each comes back equal, or its record fails alone, without Spark and on it."""

from __future__ import annotations

import pickle
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from border_paths import texts
from border_values import STRAY, TYPES, Drawn, equal
from drawn_topologies import run_on_spark
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from thorough import examples

from kinesis_trident import BasicBolt, DataFrameSpout, KinesisSpout, TopologyBuilder, Tuple, string_scheme
from kinesis_trident.testing import run_topology
from kinesis_trident.trident import Function, TridentTopology

Case = tuple[Drawn, Sequence[Any]]
"""A type, and values that are given for a field of it."""


def cases(columns: int, rows: int) -> st.SearchStrategy[list[Case]]:
    """Draw the fields of a topology, and values for each."""
    one = TYPES.flatmap(
        lambda of: st.tuples(st.just(of), st.lists(st.none() | of[1] | STRAY, min_size=rows, max_size=rows))
    )
    return st.lists(one, min_size=columns, max_size=columns)


def lines_of(given_: Sequence[Case]) -> list[str]:
    """Return a text for each value: the number of its field, and its own."""
    return [f"{at} {row}" for at, (_, values) in enumerate(given_) for row in range(len(values))]


def keep(folder: Path, at: int, row: int, value: Any) -> None:
    """Keep a value that came through, as it is given to a function: another process may read it."""
    (folder / f"{at} {row} {uuid.uuid4()}").write_bytes(pickle.dumps(value))


def kept_in(folder: Path) -> dict[str, Any]:
    """Return what came through, by the text that stands for it."""
    return {path.name.rpartition(" ")[0]: pickle.loads(path.read_bytes()) for path in folder.iterdir()}


class Gives(BasicBolt):
    """Emits a drawn value to the stream of its type."""

    def __init__(self, given_: Sequence[Case]) -> None:
        self.kinds = [of.simpleString() for (of, _), _ in given_]
        self.values = [values for _, values in given_]

    def declare_output_fields(self, declarer: Any) -> None:
        for at, kind in enumerate(self.kinds):
            declarer.declare_stream(f"of_{at}", f"at int, row int, x {kind}")

    def execute(self, tup: Tuple, collector: Any) -> None:
        at, row = map(int, tup["text"].split())
        collector.emit([at, row, self.values[at][row]], f"of_{at}")


class Keeps(BasicBolt):
    """Keeps what it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup: Tuple, collector: Any) -> None:
        keep(self.folder, tup["at"], tup["row"], tup["x"])


def bolts(builder: TopologyBuilder, given_: Sequence[Case], folder: Path) -> TopologyBuilder:
    """Add the bolts that give the values and keep them."""
    builder.set_bolt("gives", Gives(given_)).shuffle_grouping("texts")
    keeps = builder.set_bolt("keeps", Keeps(folder))
    for at in range(len(given_)):
        keeps.shuffle_grouping("gives", f"of_{at}")
    return builder


class KeepsTuples(Function):
    """Keeps what it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup: Any, collector: Any) -> None:
        keep(self.folder, tup["at"], tup["row"], tup["x"])
        collector.emit([True])


def trident(given_: Sequence[Case], folder: Path) -> TridentTopology:
    """Return a topology with a branch for each field."""
    topology, stream = texts()
    for at, ((of, _), values) in enumerate(given_):

        def give(tup: Any, at: int = at, values: Sequence[Any] = values) -> list[Any]:
            row = int(tup["text"].split()[1])
            return [at, row, values[row]]

        def is_own(tup: Any, at: int = at) -> bool:
            return bool(tup["text"].startswith(f"{at} "))

        own = stream.filter(is_own).map(give, f"at int, row int, x {of.simpleString()}")
        own.each(["at", "row", "x"], KeepsTuples(folder), ["kept boolean"])
    return topology


def check(given_: Sequence[Case], found: dict[str, Any], failed: dict[str, str]) -> None:
    """Check that each value came back equal, or failed in words."""
    assert found.keys() | failed.keys() == set(lines_of(given_))
    assert not found.keys() & failed.keys()
    for line, value in found.items():
        at, row = map(int, line.split())
        assert equal(given_[at][1][row], value), (given_[at][0][0], given_[at][1][row], value)
    assert all("the field 'x" in reason for reason in failed.values())


def reasons(failed: Sequence[Any]) -> dict[str, str]:
    """Return why each record failed, without the name of the function."""
    return {
        (one.values if isinstance(one.values, str) else one.values[0]): re.sub(
            r" \((in|bolt) .*\)$", "", one.reason
        )
        for one in failed
    }


@settings(
    max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases(3, 3))
def test_a_value_comes_back_equal_or_its_record_fails_alone_without_spark(
    tmp_path: Path, given_: list[Case]
) -> None:
    seen = []
    for made in (lambda folder: bolts(_with_spout(), given_, folder), lambda folder: trident(given_, folder)):
        folder = tmp_path / uuid.uuid4().hex
        folder.mkdir()
        result = run_topology(cast(Any, made(folder)), {"texts": lines_of(given_)})
        found, failed = kept_in(folder), reasons(result.failed)
        check(given_, found, failed)
        seen.append((found, failed))
    assert seen[0] == seen[1]


def test_what_was_emitted_is_shown_as_functions_get_it() -> None:
    topology, stream = texts()
    whole = "m map<string,bigint>, s struct<m:map<string,bigint>>"
    given_ = {"a": 1, "b": None}
    stream.map(lambda tup: [given_, {"m": given_}], whole)
    result = run_topology(topology, {"texts": ["x"]})
    assert [row.asDict() for row in next(iter(result.emitted.values()))] == [
        {"m": given_, "s": {"m": given_}}
    ]


def _with_spout() -> TopologyBuilder:
    builder = TopologyBuilder()
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="zk:1", scheme=string_scheme("text")
    )
    builder.set_spout("texts", spout)
    return builder


@pytest.fixture
def by_value() -> Iterator[None]:
    """Let Spark's workers get the classes and functions of this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def check_on_spark(spark: SparkSession, given_: list[Case], folder: Path) -> None:
    """Check that Spark gives what a run without it gives, for bolts in one job, and for Trident in one batch."""
    here, of_bolts, of_trident = (folder / uuid.uuid4().hex for _ in range(3))
    for one in (here, of_bolts, of_trident):
        one.mkdir()
    local = run_topology(trident(given_, here), {"texts": lines_of(given_)})
    expected, failed = kept_in(here), reasons(local.failed)
    check(given_, expected, failed)
    rows = spark.createDataFrame([(line,) for line in lines_of(given_)], "text string")
    builder = TopologyBuilder(spark)
    builder.set_spout("texts", DataFrameSpout(rows))
    bolts(builder, given_, of_bolts).run_batch()
    there = run_on_spark(
        spark, cast(Any, SimpleNamespace(topology=trident(given_, of_trident))), lines_of(given_)
    )
    assert reasons(there) == failed
    for found in (kept_in(of_bolts), kept_in(of_trident)):
        check(given_, found, failed)


@pytest.mark.usefixtures("by_value")
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases(5, 4))
def test_drawn_values_come_back_on_spark(spark: SparkSession, tmp_path: Path, given_: list[Case]) -> None:
    check_on_spark(spark, given_, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("by_value")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases(5, 4))
def test_many_drawn_values_come_back_on_spark(
    spark: SparkSession, tmp_path: Path, given_: list[Case]
) -> None:
    check_on_spark(spark, given_, tmp_path)
