"""The schedules that seeds draw, and the faults behind their names; `make long` plays one, `make chaos` fifty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import RedisServer

from chaos.fault_table import FAULT_CLASSES
from chaos.play import Outcome, play
from chaos.report import line_of, section_of
from chaos.schedule import FAULTS, JOBS, draw
from chaos.world import World

SEEDS = range(1, 51)

ONE_LIFE = {"kill a Python worker", "iterators expire", "a shard is split", "Redis restarted"}
"""Faults that a job outlives."""


def test_a_seed_draws_one_schedule() -> None:
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert len({str(draw(seed)) for seed in SEEDS}) == len(SEEDS)


def test_the_schedules_of_make_chaos_have_every_job_and_every_fault() -> None:
    schedules = [draw(seed) for seed in SEEDS]
    assert {one.job for one in schedules} == set(JOBS)
    assert {strike.fault for one in schedules for strike in one.strikes} == set(FAULTS)


def test_a_schedule_is_bounded_and_its_faults_fit_its_job() -> None:
    for schedule in map(draw, range(1, 2001)):
        faults = [strike.fault for strike in schedule.strikes]
        assert 2 <= len(faults) == len(set(faults)) <= 4
        assert all(schedule.job in FAULTS[fault].jobs for fault in faults)
        assert not any(FAULTS[fault].last for fault in faults[:-1])
        assert schedule.rounds * schedule.records <= 200


def test_each_name_of_a_fault_has_its_class() -> None:
    assert list(FAULT_CLASSES) == list(FAULTS)


def outcome(seed: int, *broken: str, left_out: str = "") -> Outcome:
    """What comes of a schedule whose faults have all struck."""
    schedule = draw(seed)
    figures = Counter(lives=2, batches=9, records=100, looks=30, deliveries=120)
    figures.update(strike.fault for strike in schedule.strikes)
    return Outcome(schedule, [*broken], 12.3, {} if left_out else dict(figures), left_out)


def test_a_failing_schedule_says_what_is_broken_and_how_to_play_it_again() -> None:
    said = line_of(outcome(21, "a count is wrong: word-1"))
    assert said.startswith("seed 21: FAILED, 12 s, 2 lives, 9 batches, 100 records; ")
    assert said.endswith("\n  a count is wrong: word-1\n  again: make faults SEED=21 COUNT=1")
    assert line_of(outcome(21)).startswith("seed 21: exact, 12 s, ")


def test_the_figures_count_the_schedules_of_each_fault() -> None:
    section = section_of([outcome(1), outcome(2, "a count is wrong: word-1"), outcome(3, left_out="no disk")])
    rows = {row[0]: row[1:] for row in section.rows}
    assert rows.pop("all") == ["2", "1", "4", "18", "200"]
    assert list(rows) == list(FAULTS)
    of_both = [{strike.fault for strike in draw(seed).strikes} for seed in (1, 2)]
    assert {fault: int(row[0]) for fault, row in rows.items()} == {
        fault: sum(fault in faults for faults in of_both) for fault in FAULTS
    }
    assert "2 schedules were played, 1 of them kept every promise. 1 were left out." in section.note
    assert section.command == "make faults SEED=1 COUNT=3"


@pytest.fixture
def world(tmp_path: Path, redis_server: RedisServer) -> Iterator[World]:
    """Servers of its own, for it restarts them. Where Redis is missing, the fixture of the shared one says so."""
    with World(tmp_path) as one:
        yield one


@pytest.mark.long
def test_a_job_keeps_its_promises_through_faults(world: World, tmp_path: Path) -> None:
    """Each of these faults alone has its test, and tests/e2e/test_demo.py kills a whole job."""
    outcome = play(draw(1, faults=ONE_LIFE), world, tmp_path / "1")
    assert outcome.broken == []
    assert outcome.figures["lives"] == 1
    assert outcome.figures["steps"] > 10
