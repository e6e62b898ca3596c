"""Which tests execute which line of the core: collected once with coverage, and kept in build/mutants.

The tests of a file are collected again where its text is another one; all, where one of the core is.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import coverage
import msgspec
import pytest

from mutants.planting import Mutant

__all__ = ["CORE", "Collecting", "FileOfTests", "Near", "digest_of", "sources_of", "choose_tests"]

CORE = (
    "bolt/tracking",
    "checkpoint/model",
    "checkpoint/store",
    "checkpoint/zookeeper",
    "spout/planner",
    "spout/reader",
    "tracker",
    "trident/run",
)
"""The folders of the core."""


class FileOfTests(msgspec.Struct):
    """What was seen of the tests of one file: only of those that passed."""

    digest: str = ""
    """Of the file's text and of the core's."""
    seconds: dict[str, float] = {}
    """By test: how long it takes, with its fixtures."""
    lines: dict[str, dict[int, list[str]]] = {}
    """By module of the core and line: the tests that execute it."""


Near = dict[str, FileOfTests]
"""By file of tests."""


def sources_of(root: Path) -> dict[str, str]:
    """Return the text of each module of the core, by its path from the root."""
    return {
        str(path.relative_to(root)): path.read_text()
        for folder in CORE
        for path in sorted((root / folder).rglob("*.py"))
    }


def digest_of(text: str, sources: Mapping[str, str]) -> str:
    """Return what stands for the text of a file of tests and the core that it was run with."""
    return hashlib.blake2b(repr((text, sorted(sources.items()))).encode(), digest_size=16).hexdigest()


def choose_tests(mutant: Mutant, near: Near, seconds: float) -> Iterator[str]:
    """Yield tests that execute the line of an error, the quickest first, until they take so many seconds.

    One case of each test comes before its further cases. A line that is executed as its module is imported has the
    tests that execute most of the module's other lines.
    """
    took = {test: each for file in near.values() for test, each in file.seconds.items()}
    found = _executing(mutant, near) if mutant.begins else _of_module(mutant.path, near)
    cases: defaultdict[str, int] = defaultdict(int)
    order = []
    for test in sorted(found, key=lambda test: (took[test], test)):
        function = test.partition("[")[0]
        order.append((cases[function] > 0, -found[test], took[test], test))
        cases[function] += 1
    for *_, each, test in sorted(order):
        seconds -= each
        if seconds < 0:
            return
        yield test


def _executing(mutant: Mutant, near: Near) -> dict[str, int]:
    modules = [file.lines.get(mutant.path, {}) for file in near.values()]
    for line in (mutant.line, mutant.begins):
        if found := [test for module in modules for test in module.get(line, ())]:
            return dict.fromkeys(found, 0)
    return {}


def _of_module(path: str, near: Near) -> dict[str, int]:
    executed: defaultdict[str, int] = defaultdict(int)
    for file in near.values():
        for tests in file.lines.get(path, {}).values():
            for test in tests:
                executed[test] += 1
    return executed


class Collecting:
    """A plugin of pytest that notes which tests execute which line; made before the product is imported."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._coverage = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[f"{root / folder}/*" for folder in CORE],
            messages=False,
        )
        self._coverage.start()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._bad: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note the lines as of a test, from its fixtures to their ends."""
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what a test takes, and leave out one that did not pass."""
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._bad.add(report.nodeid)

    def collected(self) -> Near:
        """Return what the tests have executed."""
        self._coverage.stop()
        data = self._coverage.get_data()
        near: defaultdict[str, FileOfTests] = defaultdict(FileOfTests)
        for test in sorted(self._seconds.keys() - self._bad):
            near[_file_of(test)].seconds[test] = round(self._seconds[test], 3)
        for name in data.measured_files():
            path = str(Path(name).relative_to(self._root))
            for line, contexts in data.contexts_by_lineno(name).items():
                for test in sorted(contexts):
                    file = near[_file_of(test)] if test else FileOfTests()
                    if test in file.seconds:
                        file.lines.setdefault(path, {}).setdefault(line, []).append(test)
        return dict(near)


def _file_of(test: str) -> str:
    return test.partition("::")[0]
