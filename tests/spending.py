"""What the tests cost: seconds of a processor and of the clock, by file, by kind, and the dearest tests.

A plugin of pytest: `make test WORKERS=0 ARGS=--spent` prints its tables. One process runs all tests then:
each process of pytest-xdist would count its own.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

import psutil
import pytest

__all__ = ["Spending", "lines_of"]

_SHOWN = 40


class Spent(NamedTuple):
    """Seconds until now."""

    clock: float
    own: float
    """Of a processor, by this process."""
    java: float
    """By JVMs: Spark, ZooKeeper."""
    others: float
    """By the other processes that the tests have started: Python workers, jobs, servers."""

    def since(self, earlier: Spent) -> Spent:
        """Return what was spent since then."""
        return Spent(*(max(0.0, now - before) for now, before in zip(self, earlier, strict=True)))

    @property
    def cpu(self) -> float:
        return self.own + self.java + self.others


def spent() -> Spent:
    """Return what this process and those below it have spent; also dead ones for which somebody waited."""
    own = psutil.Process()
    took = own.cpu_times()
    seconds = {"java": 0.0, "others": took.children_user + took.children_system}
    for process in own.children(recursive=True):
        try:
            name, times = process.name(), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds["java" if name == "java" else "others"] += times.user + times.system
        seconds["others"] += times.children_user + times.children_system
    return Spent(time.monotonic(), took.user + took.system, **seconds)


class Spending:
    """Counts what each test and each start costs."""

    def __init__(self, read: Callable[[], Spent] = spent) -> None:
        self._read = read
        self.tests: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By test: the seconds of each kind."""
        self._kinds = Counter[str]()
        self._started = Spent(0, 0, 0, 0)
        """Of the starts in this test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Count the start of what many tests share apart."""
        if fixturedef.scope == "function":
            return (yield)
        before, within = self._read(), self._started
        try:
            return (yield)
        finally:
            # What it has started itself was counted there.
            took = self._read().since(before).since(self._started.since(within))
            self._started = Spent(*map(sum, zip(self._started, took, strict=True)))
            self._kinds["Spark's start" if fixturedef.argname == "spark" else "starts of servers"] += took.cpu

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Count a test with its fixtures."""
        before, self._started = self._read(), Spent(0, 0, 0, 0)
        self._kinds = self.tests[item.nodeid]
        try:
            return (yield)
        finally:
            took = self._read().since(before)
            work = took.since(self._started)
            self._kinds["waiting"] += max(0.0, took.clock - took.cpu)
            self._kinds["work of JVMs"] += work.java
            self._kinds["work of other processes"] += work.others
            self._kinds["work of the tests' own process"] += work.own


def lines_of(tests: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield the lines of the tables: kinds, files, tests."""
    kinds = sum(tests.values(), Counter[str]())
    yield from _table("kind", kinds.most_common())
    files: Counter[str] = Counter()
    for test, took in tests.items():
        files[test.partition("::")[0]] += cpu_of(took)
    yield from _table("file, seconds of a processor", files.most_common(_SHOWN))
    dearest = Counter({test: cpu_of(took) for test, took in tests.items()})
    yield from _table("test, seconds of a processor", dearest.most_common(_SHOWN))


def cpu_of(took: Counter[str]) -> float:
    """Return the seconds of a processor of a test."""
    return took.total() - took["waiting"]


def _table(what: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"   seconds  {what}"
    for name, seconds in rows:
        yield f"{seconds:10.1f}  {name}"
