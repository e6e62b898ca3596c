"""Tests of the measured processor time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks import processors
from benchmarks.processors import PYTHON

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


_WORKER = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
_DAEMON = f"""
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", {_WORKER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdout.readline()
print("ready", flush=True)
input()
worker.communicate(b"end\\n")
print("ended", flush=True)
input()
"""


def test_a_worker_counts_that_ends_while_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        looks = 0

        def running() -> Iterator[tuple[str, psutil.Process]]:
            nonlocal looks
            looks += 1
            parent = psutil.Process(daemon.pid)
            workers = parent.children()
            yield PYTHON, parent
            if looks == 1:
                print("end", file=daemon.stdin, flush=True)
                assert daemon.stdout is not None
                assert daemon.stdout.readline() == "ended\n"
            yield from ((PYTHON, worker) for worker in workers)

        monkeypatch.setattr(processors, "running", running)
        monkeypatch.setattr(processors, "adopt_orphans", lambda: None)
        assert processors.spent()[PYTHON] > 0.25
        daemon.communicate("end")
