"""Topologies run where there is no Java, and without a process or a connection: the examples of the page do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A topology without servers")[2].partition("\n## ")[0]
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```$", SECTION, re.M | re.S))

GUARD = """
import socket, subprocess, sys

def refused(*args, **kwargs):
    raise AssertionError("a topology without servers started a process, or connected to one")

subprocess.Popen.__init__ = socket.socket.connect = socket.socket.bind = refused
"""
RUN = """
from pyspark import SparkContext

tests = [value for name, value in list(globals().items()) if name.startswith("test_")]
for test in tests:
    test()
assert SparkContext._gateway is None
assert "moto" not in sys.modules
print("passed", *(test.__name__ for test in tests))
"""


def test_the_examples_of_the_page_run_without_java_processes_and_connections(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(GUARD + CODE + RUN, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, program],
        env={**environment, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["passed", *re.findall(r"^def (test_\w+)", CODE, re.M)]
    assert len(done.stdout.split()) == 4
