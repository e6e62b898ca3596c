"""Every state that explicit acks can reach within small bounds, and what breaks their promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from thorough import cases

from spec.acks import ACK_MUTANTS, AckWorld, search_acks

REACHED = (
    (AckWorld(), 1_184),
    (AckWorld(starts=3, answers=3), 11_764),
    (AckWorld(records=2), 66_395),
)

WIDE = ((AckWorld(records=2, starts=3), 648_418),)
"""What `make chaos` searches."""

STORIES = {
    "held": ("LOST", 5),
    "between": ("AGAIN", 9),
    "first": ("AGAIN", 8),
    "attempt": ("JUDGED", 12),
    "one write": ("AGAIN", 10),
    "fence": ("AGAIN", 11),
}
"""What each mutant breaks, and by how many steps."""


@pytest.mark.chaos
@pytest.mark.parametrize(("world", "states"), cases(*REACHED, chaos=WIDE))
def test_what_was_acked_in_time_is_done_and_nothing_else(world: AckWorld, states: int) -> None:
    assert search_acks(world) == ("", (), states)


@pytest.mark.parametrize("mutant", ACK_MUTANTS)
def test_each_mutant_breaks_a_promise_of_acks(mutant: str) -> None:
    found = search_acks(replace(AckWorld(), mutant=mutant))
    assert (found.broken.partition(":")[0], len(found.story)) == STORIES[mutant], found.story
