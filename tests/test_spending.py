"""The tables of what the tests cost: each second is counted once, a start apart from the work of its test."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

from spending import Spending, Spent, lines_of, spent


def ended(hook: Any) -> None:
    """Let a wrapper see that what it wraps has returned."""
    next(hook)
    for _ in hook:
        raise AssertionError


def test_a_start_is_counted_once_and_apart_from_the_work_of_its_test() -> None:
    now = Spent(0, 0, 0, 0)
    spending = Spending(lambda: now)

    def fixture(name: str, scope: str = "session") -> Any:
        return spending.pytest_fixture_setup(SimpleNamespace(argname=name, scope=scope))  # type: ignore[arg-type]

    test = spending.pytest_runtest_protocol(SimpleNamespace(nodeid="a.py::one"))  # type: ignore[arg-type]
    next(test)
    outer, inner = fixture("zookeeper"), fixture("spark")
    next(outer)
    now = Spent(10, 1, 2, 0)
    next(inner)
    now = Spent(20, 2, 6, 0)
    assert [*inner] == []
    now = Spent(30, 3, 6, 1)
    assert [*outer] == []
    ended(fixture("app", "function"))
    now = Spent(50, 7, 8, 2)
    assert [*test] == []
    assert spending.tests == {
        "a.py::one": Counter(
            {
                "Spark's start": 5,
                "starts of servers": 5,
                "work of the tests' own process": 4,
                "work of JVMs": 2,
                "work of other processes": 1,
                "waiting": 33,
            }
        )
    }


def test_the_tables_have_the_dearest_first() -> None:
    tests = {"a.py::one": Counter(waiting=9.0, work=1.0), "b.py::two": Counter(work=2.0)}
    assert [line.split() for line in lines_of(tests)] == [
        ["seconds", "kind"],
        ["9.0", "waiting"],
        ["3.0", "work"],
        ["seconds", "file,", "seconds", "of", "a", "processor"],
        ["2.0", "b.py"],
        ["1.0", "a.py"],
        ["seconds", "test,", "seconds", "of", "a", "processor"],
        ["2.0", "b.py::two"],
        ["1.0", "a.py::one"],
    ]


def test_what_a_child_has_spent_is_counted_also_when_it_is_over() -> None:
    before = spent()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    took = spent().since(before)
    assert took.others >= 0.2
    assert took.cpu >= took.others
