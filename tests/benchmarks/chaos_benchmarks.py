"""Each benchmark, small, from its command to the tables that it prints: `make chaos`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from job_environment import job_environment

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import importlib, json, sys
name, constants, given = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
module = importlib.import_module("benchmarks." + name)
for constant, value in constants.items():
    assert hasattr(module, constant), constant
    setattr(module, constant, value)
sys.argv = ["benchmarks." + name, "--dry-run", *given]
module.main()
"""
"""Makes a benchmark small, and writes nothing to the pages."""

CASES: list[tuple[str, tuple[str, ...], Mapping[str, Any], list[str]]] = [
    ("acker", (), {"TREES": 80_000, "ONES": 2_000}, ["The acker"]),
    ("bolts", ("small", "json", "1"), {}, ["small batch", "one record"]),
    ("calls", (), {"ROUNDS": 1, "CALLS": 400}, ["What a call costs"]),
    ("emits", (), {"TUPLES": 10_000, "ROUNDS": 2}, ["tracking costs an emit"]),
    ("functions", (), {"RECORDS": 1_000, "ROUNDS": 2}, ["What the border of functions costs"]),
    ("failing_queries", ("--rounds", "1"), {"BATCHES": 5}, ["Failing records through Spark"]),
    ("failures", ("--rounds", "1"), {}, ["Failing records", "Very many failing records"]),
    ("fetch", (), {"PAGES": 2, "BOTO3_PAGES": 1}, ["Reading from Kinesis"]),
    ("latency", ("first",), {"SINGLES": 2, "IDLE": 1.0}, ["after idleness"]),
    ("latency", ("trickle",), {"WARM": 2.0, "SECONDS": 2.0}, ["a trickle"]),
    (
        "growth",
        (),
        {name: [20, 40, 80, 160] for name in ("NAMED", "WAITING", "KEYS", "ROWS")}
        | {"SHARDS": [5, 10, 20, 40]},
        ["How cost grows"],
    ),
    ("limits", ("few",), {"WARM": 2.0, "SECONDS": 2.0}, ["At the limits that AWS has"]),
    ("many_shards", (), {"SHARDS": [200, 400]}, ["A query of very many shards"]),
    ("planning", (), {"SHARDS": [10, 20]}, ["Planning very many shards"]),
    ("sink", (), {"COUNT": 1_000, "ROUNDS": 2}, ["Writing to Kinesis"]),
    ("savings", ("1",), {"BATCHES": 7}, ["What saves time in a small batch"]),
    ("small_server", (), {"STREAMS": {"2 shards": (2, 40)}}, ["Failed records on a small ZooKeeper"]),
    ("small_batches", ("1",), {"BATCHES": 7}, ["Small batches", "What is imported"]),
    (
        "source",
        (),
        {"PAGES": 40, "READY_BATCHES": 3, "TURNS": 1},
        ["Through Spark", "What a batch costs"],
    ),
    ("stages", (), {"DECODED": 1, "LARGE": 40}, ["Where the time of a record goes"]),
    ("states", (), {"KEYS": 10_000, "ONE_BY_ONE": 200}, ["Updating states"]),
    ("task_memory", (), {}, ["Memory of a task"]),
    ("registry", (), {"RECORDS": 2_000, "BATCH": 1_000}, ["Records of a schema registry"]),
    ("tracker", (), {"RECORDS": 50_000, "ONE_BY_ONE": 2_000}, ["Tracking what is in flight"]),
    ("word_count", (), {"ROUNDS": 1}, ["Streaming word count", "Where a batch of the word count"]),
    ("branches", (), {"ROUNDS": 1}, ["Several states on one stream"]),
]
"""Its name, arguments, constants that make it small, and what its tables are called."""


@pytest.mark.parametrize(
    ("name", "given", "constants", "titles"), CASES, ids=[" ".join([case[0], *case[1]]) for case in CASES]
)
def test_a_benchmark_runs_to_its_end(
    name: str, given: tuple[str, ...], constants: Mapping[str, Any], titles: list[str]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", RUN, name, json.dumps(constants), *given],
        cwd=ROOT,
        env=job_environment(os.environ) | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    for title in titles:
        assert title in run.stdout


def test_no_benchmark_of_make_bench_is_left_out() -> None:
    (line,) = re.findall(r"^BENCHMARKS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == {f"benchmarks.{name}" for name, *_ in CASES}
