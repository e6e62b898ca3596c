"""The files of docs/conftest.md, as a project of their own: its test passes, and mypy finds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import fast_spark
import pytest
from doc_page import ROOT

from kinesis_trident.checkpoint.embedded.java import ensure_java

PAGE = ROOT / "docs" / "conftest.md"
FILES = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, code in FILES.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def test_the_project_passes_its_test(project: Path) -> None:
    with fast_spark.warm_python() as warm:
        environment = {**os.environ, **warm, "JAVA_HOME": str(ensure_java()), "PYTHONPATH": str(ROOT)}
        environment.pop("PYSPARK_PYTHON", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_mypy_finds_nothing_in_the_project(project: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(project / "cache"), "."]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
