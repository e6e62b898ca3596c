"""Schedules of each family; `make model` plays more of them, or one again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.__main__ import main
from model.families import FAMILIES
from model.story import play

SCHEDULES = int(os.environ.get("MODEL_SCHEDULES", "8"))
"""Of each family; `make long` and `make chaos` play others."""

_FIRST = {"lagging-reader": 30}
"""The first seed of families whose guard is missed before: without `sync` the schedules of seeds 36 and 41 fail."""

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("family", FAMILIES)
def test_no_schedule_breaks_a_promise(family: str) -> None:
    failed = []
    first = _FIRST.get(family, 1)
    for seed in range(first, first + SCHEDULES):
        told = play(family, seed)
        if told.world.violations:
            failed.append(f"{told.again}\n  {told.world.violations[0]}")
    assert not failed, f"{len(failed)} of {SCHEDULES} schedules fail:\n" + "\n".join(failed[:5])


def test_schedules_with_prefetch_read_beside_their_batches() -> None:
    assert sum(play("prefetch", seed).world.stats["reads beside a batch"] for seed in range(1, 6)) > 20


def test_a_seed_plays_the_same_schedule_again() -> None:
    played = (
        "from model.story import play\n"
        "for seed in range(1, 6):\n"
        "    told = play('sessions', seed)\n"
        "    print(told.trace, told.world.stats)"
    )
    players = [
        subprocess.Popen(
            [sys.executable, "-c", played],
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    outputs = [player.communicate()[0] for player in players]
    assert [player.returncode for player in players] == [0, 0]
    # Names that no two processes may choose alike are no part of a schedule.
    first, second = (re.sub("[0-9a-f]{32}", "", output) for output in outputs)
    assert first == second
    assert "killed" in first


def test_a_failing_schedule_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A sink that counts twice is what no schedule may do.
    monkeypatch.setattr("model.sinks.OpaqueState.counts", lambda _: {1: 2})
    assert main("one", "3", "1") == 1
    said = capsys.readouterr().out
    assert "make model FAMILY=one SEED=3 COUNT=1" in said
    assert re.search(r"\n  the checkpoint of \S+ passes record \d+", said)
