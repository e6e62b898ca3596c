"""Measure a benchmark's processes by their role: Spark's JVM, its Python processes, the servers, the driver."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

__all__ = [
    "DRIVER",
    "JVM",
    "PYTHON",
    "REDIS",
    "Rate",
    "SPARK",
    "ZOOKEEPER",
    "running",
    "spent",
    "spent_below",
]

DRIVER, JVM, PYTHON = "the driver's Python", "Spark's JVM", "Spark's Python processes"
REDIS, ZOOKEEPER = "Redis", "ZooKeeper"
SPARK = (DRIVER, JVM, PYTHON)
"""The processes of Spark, without servers."""

_SERVERS = {
    "org.apache.zookeeper": ZOOKEEPER,
    "redis-server": REDIS,
    "org.apache.spark": JVM,
    "pyspark.daemon": PYTHON,
}

_PR_SET_CHILD_SUBREAPER = 36

_WORKERS: dict[psutil.Process, float] = {}
"""The processor seconds of each Python worker as last seen: its daemon ignores SIGCHLD (`pyspark/daemon.py`), so the
kernel forgets them when it ends, which the JVM makes it do a minute after its last task."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Records a second by the clock, and a second of the processors that are spent on them."""

    clock: float
    processors: float


def adopt_orphans() -> None:
    """Become the parent of each process below this one whose parent ends, so that its time is not lost (Linux).

    A worker that nobody waited for went to the first process of the machine before, and a later sum was less than an
    earlier one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spent() -> dict[str, float]:
    """Return the processor seconds of this process and those below it, by role, since each began.

    Processes of other roles, such as an endpoint, are left out. A process that has ended counts when its parent has
    asked for its end, as the JVM does at once, or has ended itself; a Python worker counts as it was seen last.
    """
    adopt_orphans()
    while True:
        seconds: dict[str, float] = defaultdict(float)
        found = list(running())
        seen = {process for _, process in found}
        daemons = {process.pid for role, process in found if role == PYTHON}
        workers: dict[psutil.Process, float] = {}
        for role, process in found:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[role] += times.user + times.system
                # What the JVM has waited for were Python processes.
                ended = PYTHON if role == JVM else role
                if role != DRIVER:
                    seconds[ended] += times.children_user + times.children_system
                if process.ppid() in daemons:
                    workers[process] = times.user + times.system
        # One that has ended meanwhile counts neither as itself nor with its parent, which was read before.
        if {process for _, process in running()} == seen:
            _WORKERS.update(workers)
            seconds[PYTHON] += sum(last for worker, last in _WORKERS.items() if worker not in seen)
            return seconds


def running() -> Iterator[tuple[str, psutil.Process]]:
    """Yield this process and those below it, each with its role; those of other roles are left out."""
    own = psutil.Process()
    yield DRIVER, own
    for child in own.children():
        with suppress(psutil.NoSuchProcess):
            role = _role_of(child)
            if role is not None:
                yield role, child
                for each in child.children(recursive=True):
                    yield (PYTHON if role == JVM else role), each


def spent_below() -> float:
    """Return the processor seconds of this process and of all below it, since each began.

    A process that has ended counts when its parent has asked for its end, or has ended itself.
    """
    adopt_orphans()
    own = psutil.Process()
    seconds = float(sum(own.cpu_times()[:4]))
    for child in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:4])
    return seconds


def _role_of(child: psutil.Process) -> str | None:
    if child.status() == psutil.STATUS_ZOMBIE:
        # An adopted one, which has no command any more: those that a benchmark starts itself are waited for.
        return PYTHON if child.name().startswith("python") else None
    command = " ".join(child.cmdline())
    return next((role for word, role in _SERVERS.items() if word in command), None)
