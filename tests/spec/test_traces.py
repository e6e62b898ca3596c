"""The real code takes no step that the specification does not have: schedules of the model are followed."""

from __future__ import annotations

import os

import pytest
from model.families import FAMILIES
from model.story import play
from thorough import CHAOS

from spec.follow import NOT_FOLLOWED, bounds_of, follow
from spec.planted import PLANTED, Planted
from spec.rules import RULES
from spec.schedules import families_table, follow_schedule, measured_in, planted_table
from spec.seen import watching

SEEDS = int(os.environ.get("TRACED_SCHEDULES", "40" if CHAOS else "2"))

_MOST_SEEDS = 60
"""A schedule that comes to the place of a planted error is found long before."""


def test_each_family_is_on_the_page() -> None:
    followed = FAMILIES.keys() - NOT_FOLLOWED.keys()
    assert NOT_FOLLOWED.keys() <= FAMILIES.keys()
    empty = families_table([[""] * 3] * len(followed))
    measured = measured_in(empty, 2)[: len(followed)]
    assert families_table(measured).render() == empty.read()
    assert {refused for _, _, refused in measured} == {"0"}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NOT_FOLLOWED.keys()))
def test_the_code_takes_the_steps_of_the_specification(family: str) -> None:
    steps = 0
    for seed in range(1, SEEDS + 1):
        with watching() as events:
            told = play(family, seed)
        assert not told.world.violations, told.again
        steps += follow(told, events, bounds_of(family))
    assert steps > 10 * SEEDS


def test_turns_are_pinned_as_empty_in_any_order() -> None:
    """Two of them count as unread here; which comes first is not the same in each process."""
    assert follow_schedule("plain", 40)[0]


def test_the_planted_errors_are_on_the_page() -> None:
    assert len(PLANTED) >= 20
    assert {planted.rule for planted in PLANTED} <= RULES.keys()
    empty = planted_table([[""]] * len(PLANTED))
    measured = measured_in(empty, 3)[: len(PLANTED)]
    assert all(cell for (cell,) in measured)
    assert planted_table(measured).render() == empty.read()


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_rule_that_is_broken_in_the_code_is_refused(
    monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    planted.plant(monkeypatch)
    seeds = (planted.seed, *range(1, _MOST_SEEDS))
    assert any(not follow_schedule(planted.family, seed)[0] for seed in seeds)
