"""Runs tests in a copy of the checkout, in processes that this one forks: what they all import is imported once.

Nothing of the product may be imported here: a fork takes it from the copy.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import pytest

__all__ = ["Forked", "copy_checkout", "failing", "in_copy", "run_tests", "warm_up"]

T = TypeVar("T")

_WARM = ("boto3", "hypothesis", "kazoo.client", "numpy", "pyarrow", "pyspark.sql", "xdist")
_SLOWER = 10
"""Other processes may have the processors: the clock allows for so many times the seconds of a processor."""


class Forked(msgspec.Struct, Generic[T]):
    """How a function ended that was called in a fork."""

    came: T | None
    """What it returned, if it did."""
    code: int
    """The exit code; negative: the signal that ended it."""
    cpu_s: float
    """Of a processor, that it and its children took."""


def warm_up() -> None:
    """Import what is not of this project and what every run needs."""
    for name in _WARM:
        __import__(name)


def copy_checkout(root: Path, folder: Path) -> None:
    """Copy the files of a checkout that git knows or would, with its links; its environment is linked to.

    Raises:
        subprocess.CalledProcessError: this is no clone.
    """
    command = ["/usr/bin/env", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_symlink() or (root / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)


def in_copy(folder: Path, run: Callable[[], T], returned: type[T], *, cpu_s: float, log: Path) -> Forked[T]:
    """Call a function in a fork, in a folder from which the product is imported; its output goes to a file.

    It is ended after so many seconds of its own processor time, and by the clock after ten times that.
    """
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if not child:
        # Threads that an error left behind are not waited for, and nothing goes on in the caller's place.
        try:
            _become(folder, cpu_s, log)
            result.write_bytes(msgspec.json.encode(run()))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    code = _ended(child, cpu_s * _SLOWER)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    came = msgspec.json.decode(result.read_bytes(), type=returned) if result.exists() else None
    return Forked(came, code, took)


def _become(folder: Path, cpu_s: float, log: Path) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    soft = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 5))
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    os.environ["PYTHONPATH"] = str(folder)


def _ended(child: int, seconds: float) -> int:
    """Wait for a process, end its group when it is over or has taken too long, and return its code."""
    end = time.monotonic() + seconds
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    # Its number is not given away before it is waited for.
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Failing:
    """A plugin of pytest that notes which tests fail."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails, or whose fixtures do."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)


def failing(tests: Sequence[str], *more: str) -> list[str]:
    """Run tests in this process, a fork, and return those that fail; files that cannot be imported among them."""
    noted = Failing()
    run_tests(tests, noted, *more)
    return noted.failed


def run_tests(tests: Sequence[str], plugin: object, *more: str) -> None:
    """Run tests in this process, a fork: without what shares them, repeats them or keeps what it saw."""
    without = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "rerunfailures")]
    pytest.main(["-q", "--no-header", "--tb=line", *without, *more, *tests], plugins=[plugin])
