"""Tests of the measured processor time."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ORPHAN = "import time\nwhile time.process_time() < 0.3: pass"
_PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_ORPHAN!r}])"
_MEASURED = f"""
import os, subprocess, sys
from benchmarks.processors import PYTHON, spent, spent_below

before = spent_below()
assert subprocess.call([sys.executable, "-c", {_PARENT!r}]) == 0
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(spent_below() - before > 0.25, spent()[PYTHON] > 0.25)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives an orphan to another process than the first"
)
def test_a_worker_counts_whose_parent_ended_before_it() -> None:
    # In a process of its own, because it takes the orphans of all below it.
    measured = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, check=True)
    assert measured.stdout.split() == ["True", "True"], measured.stderr
