"""A short night on call, as `make night` plays it; and what it says of one in which something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncall.night import LATE, Case
from oncall.situations import SITUATIONS, Healthy, Poison
from oncall.ways import WAYS, Sight

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "runbook.md"
SEEN = dict.fromkeys(WAYS, 9.0)


@pytest.mark.long
def test_a_night() -> None:
    path = [str(TESTS.parent), *(str(TESTS / name) for name in ("", "e2e", "checkpoint", "workers"))]
    done = subprocess.run(
        [sys.executable, "-m", "oncall", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.parametrize("make", SITUATIONS)
def test_each_remedy_is_that_of_the_runbook(make: Any) -> None:
    situation = make()
    entry = PAGE.read_text().partition(f"### {situation.see}\n")[2].partition("\n### ")[0]
    remedy = " ".join(entry.partition("**Do.**")[2].split())
    assert situation.remedy in remedy
    assert bool(situation.remedy) == bool(situation.code)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"seen": SEEN | {"page": LATE + 1}}, ["page said so after 61 s"]),
        ({"seen": {way: 9.0 for way in WAYS if way != "alert"}}, ["alert never said so"]),
        ({"beside": {"check: warning throttled"}}, ["a false alarm: check: warning throttled"]),
        ({"well": None}, ["the remedy did not help"]),
        ({"whole": False}, ["the sink is not whole"]),
    ],
)
def test_a_night_with_something_wrong_says_what(changes: dict[str, Any], wrong: list[str]) -> None:
    given: dict[str, Any] = {"seen": SEEN, "well": 20.0, "whole": True} | changes
    assert Case(Poison(), cast(Any, SimpleNamespace()), **given).wrong == wrong
    alone = {"beside": given.get("beside", set()), "whole": given["whole"]}
    assert Case(Healthy(), cast(Any, SimpleNamespace()), **alone).wrong == [
        one for one in wrong if "false" in one or "sink" in one
    ]


@pytest.mark.parametrize(
    ("sight", "is_seen"),
    [
        (
            Sight(
                "warning", said="1 record was dead-lettered, the last 3 s ago: ValueError: a poisoned order"
            ),
            True,
        ),
        (Sight("warning", said="1 record was dead-lettered, the last 3 s ago: KeyError: 'n'"), False),
        (Sight("warning", "dead-letters"), True),
        (Sight("warning", "throttled"), False),
        (Sight("note", "dead-letters"), False),
    ],
)
def test_another_cause_is_not_this_one(sight: Sight, is_seen: bool) -> None:
    assert Poison().is_seen("status", [sight]) is is_seen
