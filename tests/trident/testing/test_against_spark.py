"""Test that a topology gives without Spark what it gives on Spark: each operation of frames, and drawn topologies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drawn_topologies
import pytest
from drawn_topologies import OPERATIONS, Drawn, build, kept_in, plain, run_on_spark
from hypothesis import given, settings, strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from thorough import examples

from kinesis_trident.testing import run_topology

cloudpickle.register_pickle_by_value(drawn_topologies)

LETTERS = ["a", "b", "", "ab", "B", None]
LINES = st.tuples(
    st.sampled_from(LETTERS),
    st.sampled_from([0, 1, 2, 7, -1, None]),
    st.sampled_from(["1.5", "-0.0", "0.0", "nan", "inf", "2.0", None]),
    st.sampled_from([0, 1_700_000_000, -1, None]),
    st.sampled_from([b"", b"\xff", b"a", None]),
    st.sampled_from(["1.25", "-1.00", "0", None]),
    st.sampled_from([[], ["a"], ["a", "b"], [None], None]),
    st.sampled_from([(1, "0.5"), (None, "nan"), (2, "-0.0"), None]),
).map(repr)
NUMBERS = st.integers(0, 1 << 20)
DRAWN = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=5
)


def check_equal(spark: SparkSession, drawn: Sequence[Drawn], lines: Sequence[str]) -> None:
    here, there = build(None, drawn), build(None, drawn)
    result = run_topology(here.topology, {"lines": lines})
    failed = run_on_spark(spark, there, lines)
    assert (result.failed, failed) == ([], [])
    assert kept_in(here) == kept_in(there)
    check_emitted(here, result)


def check_emitted(drawing: drawn_topologies.Drawing, result: Any) -> None:
    """Each operation has a name of its own, and what came at the ends has been emitted."""
    names = [name for name in result.emitted if name != "lines"]
    assert len(names) == len(drawing.made) + len(drawing.states)
    by_stream = dict(zip(map(id, (one.node for one in drawing.made)), names, strict=False))
    ends = [stream for at, stream in enumerate(drawing.streams) if at not in drawing.used]
    for stream, kept in zip(ends, kept_in(drawing), strict=True):
        name = by_stream.get(id(stream.node))
        if name is not None:
            rows = (plain(row.asDict()) for row in result.emitted[name])
            assert Counter(rows) == Counter(kept)


def of_kinds(*kinds: str) -> list[Drawn]:
    """Operations one after the other, each on the newest stream and the one before."""
    names = list(OPERATIONS)
    return [(names.index(kind), at, max(0, at - 1), 17 * at + 3) for at, kind in enumerate(kinds)]


SOME = [
    repr(("a", 1, "1.5", 0, b"x", "1.25", ["a"], (1, "0.5"))),
    repr(("a", 2, "nan", None, None, None, None, None)),
    repr(("b", None, "-0.0", 5, b"", "-1.00", [], (None, "nan"))),
    repr((None, 7, "0.0", 0, b"x", "0", [None], (1, "0.5"))),
]


@pytest.mark.parametrize("kind", OPERATIONS)
def test_each_operation_gives_what_it_gives_on_spark(spark: SparkSession, kind: str) -> None:
    check_equal(spark, of_kinds("filter", kind), SOME)


@pytest.mark.parametrize("kind", ["merge", "join", "multi_reduce"])
def test_tuples_beside_new_values_of_a_state(spark: SparkSession, kind: str) -> None:
    at = list(OPERATIONS).index
    check_equal(spark, [(at("persistent"), 0, 0, 1), (at(kind), 0, 1, 5)], SOME)


@settings(max_examples=examples(32), deadline=None)
@given(DRAWN, st.lists(LINES, min_size=1, max_size=8))
def test_drawn_topologies_give_what_they_give_on_spark(
    spark: SparkSession, drawn: list[Drawn], lines: list[str]
) -> None:
    check_equal(spark, drawn, lines)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(DRAWN, st.lists(LINES, min_size=1, max_size=8))
def test_many_drawn_topologies_give_what_they_give_on_spark(
    spark: SparkSession, drawn: list[Drawn], lines: list[str]
) -> None:
    check_equal(spark, drawn, lines)


PLAYED = """
import ast, json, sys
from drawn_topologies import build, kept_in
from kinesis_trident.testing import run_topology
found = []
for drawn in ast.literal_eval(sys.argv[1]):
    drawing = build(None, drawn)
    run_topology(drawing.topology, {"lines": ast.literal_eval(sys.argv[2])})
    found.append([sorted(one.items()) for one in kept_in(drawing)])
print(json.dumps(found))
"""


def test_no_hash_seed_changes_what_a_topology_gives(spark: SparkSession) -> None:
    drawn = [[*of_kinds("each", "join"), *of_kinds("project", "join", "merge")]]
    here = Path(__file__).parent
    expected = []
    for one in drawn:
        there = build(None, one)
        assert run_on_spark(spark, there, SOME) == []
        expected.append([sorted(map(list, kept.items())) for kept in kept_in(there)])
    for seed in range(4):
        done = subprocess.run(
            [sys.executable, "-c", PLAYED, repr(drawn), repr(SOME)],
            env={**os.environ, "PYTHONPATH": str(here), "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout.splitlines()[-1]) == expected
