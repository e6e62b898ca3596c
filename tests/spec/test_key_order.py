"""Every state that an order by key can reach within small bounds, and what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spec.key_order import MUTANTS, KeyWorld, search_keys

ONE_SHARD = KeyWorld(((0, 1, 0),))
CHILD = KeyWorld(((0, 0), (0,)), {1: (0,)})
GRANDCHILD = KeyWorld(((0,), (1,), (0,)), {1: (0,), 2: (1,)})

REACHED = [
    (ONE_SHARD, 392),
    (replace(ONE_SHARD, limit=2), 986),
    (CHILD, 373),
    (GRANDCHILD, 642),
    (KeyWorld(((0,), (1,), (0, 1)), {2: (0, 1)}), 5_228),
]

STORIES = {
    "none": (ONE_SHARD, "ORDER", 3),
    "in-batch": (ONE_SHARD, "ORDER", 3),
    "unreached": (ONE_SHARD, "ORDER", 4),
    "taken-up": (CHILD, "ORDER", 3),
    "lineage": (CHILD, "ORDER", 4),
    "grandparent": (GRANDCHILD, "ORDER", 5),
    "closure": (ONE_SHARD, "VAIN", 2),
}
"""Each mutant with a world in which it breaks something, and by how many steps."""


@pytest.mark.parametrize(("world", "states"), REACHED)
def test_the_records_of_a_key_become_done_in_order(world: KeyWorld, states: int) -> None:
    assert search_keys(world) == ("", (), states)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_breaks_the_order_or_delivers_in_vain(mutant: str) -> None:
    world, kind, steps = STORIES[mutant]
    broken, story, _ = search_keys(replace(world, mutant=mutant))
    assert broken.partition(":")[0] == kind, story
    assert len(story) == steps, story
