"""Objects of which each process has its own: a fork begins with none, whatever holds their lock in the parent."""

from __future__ import annotations

import os

from kinesis_trident.common.per_process import PerProcess


def test_a_value_is_made_once_for_each_key() -> None:
    made: list[str] = []
    values: PerProcess[str, list[str]] = PerProcess()

    def make() -> list[str]:
        made.append("one")
        return made[-1:]

    assert values.get("a", make) is values.get("a", make)
    assert values.get("b", make) is not values.get("a", make)
    assert len(made) == 2


def test_a_value_that_is_not_usable_is_made_again() -> None:
    values: PerProcess[str, list[int]] = PerProcess()
    first = values.get("a", lambda: [1], is_usable=bool)
    assert values.get("a", lambda: [2], is_usable=bool) is first
    first.clear()
    assert values.get("a", lambda: [2], is_usable=bool) == [2]


def test_the_last_values_to_be_asked_for_are_kept() -> None:
    values: PerProcess[str, object] = PerProcess(most=2)
    first, second = values.get("a", object), values.get("b", object)
    assert values.get("a", object) is first
    values.get("c", object)
    assert values.get("a", object) is first
    assert values.get("b", object) is not second


def test_a_value_that_nobody_asks_for_is_not_kept() -> None:
    now = 0.0
    values: PerProcess[str, object] = PerProcess(idle=10.0, clock=lambda: now)
    first, second = values.get("a", object), values.get("b", object)
    now = 9.0
    assert values.get("b", object) is second
    now = 11.0
    values.get("c", object)
    assert values.get("b", object) is second
    assert values.get("a", object) is not first


def test_a_child_makes_its_own_also_where_the_parent_is_making_one() -> None:
    values: PerProcess[str, int] = PerProcess()

    def make() -> int:
        # The lock is held now; the child has a copy of it that nobody would ever release.
        child = os.fork()
        if child == 0:
            os._exit(values.get("a", lambda: 7))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert values.get("a", make) == 7
    assert values.get("a", lambda: 8) == 7
