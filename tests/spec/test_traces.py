"""The real code takes no step that the specification does not have: schedules of the model are followed."""

from __future__ import annotations

import os

import pytest
from model.families import FAMILIES
from model.story import play
from thorough import CHAOS

from spec.figures import families_table, planted_table
from spec.follow import NOT_FOLLOWED, RefusedError, bounds_of, follow
from spec.planted import PLANTED, Planted
from spec.rules import RULES
from spec.seen import watching

SEEDS = int(os.environ.get("TRACED_SCHEDULES", "40" if CHAOS else "2"))

_MOST_SEEDS = 60
"""A schedule that comes to the place of a planted error is found long before."""


def test_the_families_that_are_not_followed_are_on_the_page() -> None:
    assert NOT_FOLLOWED.keys() <= FAMILIES.keys()
    assert families_table().render() == families_table().read()


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NOT_FOLLOWED.keys()))
def test_the_code_takes_the_steps_of_the_specification(family: str) -> None:
    matched = 0
    for seed in range(1, SEEDS + 1):
        with watching() as events:
            told = play(family, seed)
        assert not told.world.violations, told.again
        matched += follow(told, events, bounds_of(family))
    assert matched > 10 * SEEDS


def test_the_planted_errors_are_on_the_page() -> None:
    assert len(PLANTED) >= 20
    assert {planted.rule for planted in PLANTED} <= RULES.keys()
    assert planted_table().render() == planted_table().read()


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_rule_that_is_broken_in_the_code_is_refused(
    monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    planted.plant(monkeypatch)
    assert any(_is_refused(planted.family, seed) for seed in (planted.seed, *range(1, _MOST_SEEDS)))


def _is_refused(family: str, seed: int) -> bool:
    with watching() as events:
        told = play(family, seed)
    try:
        follow(told, events, bounds_of(family))
    except RefusedError:
        return True
    return False
