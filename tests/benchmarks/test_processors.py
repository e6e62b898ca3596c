"""Tests of the measured processor time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Self

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
import signal, subprocess, sys
{{setting}}
worker = subprocess.Popen([sys.executable, "-c", {_WORKER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdout.readline()
print("ready", flush=True)
input()
worker.communicate(b"end\\n")
print("ended", flush=True)
input()
"""


class Daemon:
    """A daemon with one worker, which has used 0.3 seconds of a processor."""

    def __init__(self, setting: str) -> None:
        program = _DAEMON.format(setting=setting)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._says() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("end")

    def end_worker(self) -> None:
        print("end", file=self._process.stdin, flush=True)
        assert self._says() == "ended"

    def running(self) -> Iterator[tuple[str, psutil.Process]]:
        parent = psutil.Process(self._process.pid)
        workers = parent.children()
        yield PYTHON, parent
        yield from ((PYTHON, worker) for worker in workers)

    def _says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "adopt_orphans", lambda: None)
    monkeypatch.setattr(processors, "_WORKERS", {})


def test_a_worker_counts_that_ends_while_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with Daemon("") as daemon:
        looks = 0

        def running() -> Iterator[tuple[str, psutil.Process]]:
            nonlocal looks
            looks += 1
            first, *others = daemon.running()
            yield first
            if looks == 1:
                daemon.end_worker()
            yield from others

        monkeypatch.setattr(processors, "running", running)
        assert processors.spent()[PYTHON] > 0.25


def test_a_worker_counts_as_it_was_seen_when_its_daemon_ignores_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Daemon("signal.signal(signal.SIGCHLD, signal.SIG_IGN)") as daemon:
        monkeypatch.setattr(processors, "running", daemon.running)
        before = processors.spent()[PYTHON]
        daemon.end_worker()
        assert processors.spent()[PYTHON] >= before > 0.25
