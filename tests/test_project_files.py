"""The files that a project has agree with each other: versions, constraints, workflows, and the map of the house."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import server_programs
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
MATRIX = WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]


def requirements() -> list[Requirement]:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]
    return [Requirement(line) for line in lines]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_every_requirement_has_a_version_in_the_constraints_that_it_allows() -> None:
    pins = constraints()
    for wanted in requirements():
        assert pins[canonicalize_name(wanted.name)] in wanted.specifier, str(wanted)


def test_every_requirement_has_a_lowest_version() -> None:
    """The job with the lowest versions tests what the bounds promise."""
    assert [str(one) for one in requirements() if ">=" not in str(one.specifier)] == []


def test_the_workflow_runs_each_python_that_the_classifiers_name() -> None:
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert MATRIX["python"] == named
    assert all(version in SpecifierSet(PROJECT["requires-python"]) for version in named)


def test_the_workflow_begins_with_the_oldest_spark_that_is_allowed() -> None:
    (spark,) = (Requirement(line) for line in PROJECT["optional-dependencies"]["spark"])
    assert str(spark.specifier) == f">={MATRIX['pyspark'][0]}"
    assert constraints()["pyspark"].startswith(MATRIX["pyspark"][-1])


def test_the_workflow_runs_the_oldest_and_the_newest_spark_with_a_newer_java_too() -> None:
    more = [one["pyspark"] for one in MATRIX["include"] if one["java"] not in MATRIX["java"]]
    assert more == [MATRIX["pyspark"][0], MATRIX["pyspark"][-1]]
    (used,) = (
        step["with"]["java-version"]
        for step in WORKFLOW["jobs"]["tests"]["steps"]
        if "setup-java" in step.get("uses", "")
    )
    assert used == "${{ matrix.java }}"


def test_the_workflow_has_a_job_with_the_lowest_versions() -> None:
    steps: list[dict[str, Any]] = WORKFLOW["jobs"]["lowest"]["steps"]
    assert any("--resolution lowest-direct" in step.get("run", "") for step in steps)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in WORKFLOW["jobs"].values():
        for step in job["steps"]:
            assert set(re.findall(r"\bmake ([a-z]+)", step.get("run", ""))) <= targets


@pytest.mark.parametrize("module", ["chaos", "model", "mutants", "oncall", "release"])
def test_what_make_runs_from_a_path_of_its_own_finds_its_modules(module: str) -> None:
    """pytest has another path: what it finds there, `make faults` may not."""
    recipe = rf"^\t@PYTHONPATH=(\S+) \$\(BIN\)/python -m {module} "
    (path,) = re.findall(recipe, (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = f"import {module}.__main__"
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=True, timeout=120
    )


def test_each_push_runs_what_make_test_leaves_out_too() -> None:
    at_each_push = [job for job in WORKFLOW["jobs"].values() if "if" not in job]
    commands = [step.get("run", "") for job in at_each_push for step in job["steps"]]
    assert {"lint", "test", "long"} <= set(re.findall(r"\bmake ([a-z]+)", "\n".join(commands)))


def test_the_workflow_installs_each_server_that_its_tests_need() -> None:
    """With `CI=true` a missing server is a failure; the runner has Chrome."""
    packages = {how.split()[-1] for _, how in server_programs._PLACES.values() if how.startswith("apt-get")}
    assert set(WORKFLOW["env"]["SERVERS"].split()) == packages - {"chromium"}
    for name, job in WORKFLOW["jobs"].items():
        commands = [step.get("run", "") for step in job["steps"]]
        if any(re.search(r"\bmake (test|chaos|long)\b", command) for command in commands):
            assert any("apt-get install -qy $SERVERS" in command for command in commands), name


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_what_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("https://")]
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`", text)
    assert [one for one in (*links, *paths) if not (ROOT / one).exists()] == []


def test_make_test_says_first_what_it_installs(tmp_path: Path) -> None:
    """The installation is silent and takes minutes: without these lines nothing shows that it runs."""
    command = ["make", "--dry-run", "--no-print-directory", "test", f"VENV={tmp_path / 'venv'}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before, found, after = printed.partition("-m venv")
    assert found
    assert before.startswith('echo "make test:')
    for name in (
        "Redis",
        "memcached",
        "PostgreSQL",
        "MariaDB",
        "Chromium",
        "kinesis-local",
        "kinesalite",
        "MiniStack",
    ):
        assert name in before, name
        assert name in " ".join((ROOT / "CONTRIBUTING.md").read_text().split()), name
    assert after.index("echo ") < after.index("-m pip install")
