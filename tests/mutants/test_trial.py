"""A trial of a small project: errors are planted in a copy, and found by the tests that execute them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACE = """\
def count(most):
    seen = 0
    while seen < most:
        seen += 1
    return seen


def unused(most):
    return most + 1
"""
TESTS = """\
import os
from pathlib import Path

from tracker.pace import count


def test_none():
    assert count(0) == 0


def test_some():
    assert count(3) == 3


def test_only_in_the_checkout():
    assert (Path(os.environ["CHECKOUT"]) / "tracker").samefile("tracker")
"""
PROGRAM = """
import sys
from pathlib import Path

import msgspec
from mutants import trial
from mutants.nearness import choose_tests
from mutants.planting import mutants_of

root, folder = map(Path, sys.argv[1:])
trial.begin(root, folder)
near = trial.collect(["test_pace.py"], 60.0)
errors = mutants_of("tracker/pace.py", (root / "tracker/pace.py").read_text())
outcomes = [trial.play(one, [*choose_tests(one, near, 60.0)], 3.0) for one in errors if one.after != "pass"]
fails = trial.fails_without(["test_pace.py"], 60.0)
print(msgspec.json.encode([sorted(near["test_pace.py"].seconds), outcomes, fails]).decode())
"""


def test_errors_are_found_in_a_copy_by_the_tests_that_execute_them(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "tracker").mkdir(parents=True)
    (project / "tracker" / "__init__.py").touch()
    (project / "tracker" / "pace.py").write_text(PACE)
    (project / "test_pace.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q", project], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, project, tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "CHECKOUT": str(project)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not done.returncode, done.stderr
    seen, outcomes, fails = json.loads(done.stdout)
    assert seen == ["test_pace.py::test_none", "test_pace.py::test_some"]
    assert fails == ["test_pace.py::test_only_in_the_checkout"]
    assert {one["mutant"]["after"]: one["verdict"] for one in outcomes} == {
        "seen = 1": "found",
        "while seen <= most:": "found",
        # It ends a loop without an end.
        "seen -= 1": "found",
        "seen += 2": "found",
        "return most - 1": "not executed",
        "return most + 2": "not executed",
    }
    # The quicker one comes first, which may be either.
    by = {one["mutant"]["after"]: one["by"] for one in outcomes}
    assert by["seen = 1"] in seen
    assert (by["seen -= 1"], by["seen += 2"], by["return most - 1"]) == ("", "test_pace.py::test_some", "")
    assert (project / "tracker" / "pace.py").read_text() == PACE
