"""Every state that the protocol can reach within small bounds, and the story of each rule."""

from __future__ import annotations

import pytest
from thorough import cases

from spec.bounds import RULES, Bounds
from spec.search import search
from spec.stories import DOCUMENTED, STORIES, Story

REACHED = {
    "two starts": (Bounds(), 4_950),
    "retries": (Bounds(txids=3, tries=2), 19_195),
    "a new checkpoint": (Bounds(checkpoints=1), 21_249),
    "servers that lag": (Bounds(lag=True), 5_301),
    "a plain query": (Bounds(shards=(1,), starts=3, kinds=(True,), leaves_out=1), 3_135),
    "both kinds": (Bounds(shards=(1,), starts=3, kinds=(False, True)), 58_190),
    "both kinds over a state": (Bounds(shards=(1,), starts=3, kinds=(False, True), sink="state"), 56_152),
    "two shards": (Bounds(shards=(1, 1), starts=3), 98_671),
    "dead letters": (Bounds(fickle=(0,), starts=3, txids=3), 117_579),
}
"""Each with the number of states that are reached."""

LONG = {
    "three starts": (Bounds(starts=3), 170_067),
    "a state": (Bounds(starts=3, sink="state"), 148_395),
    "a fenced transaction": (Bounds(starts=3, sink="fenced"), 168_207),
    "ZooKeeper restored": (Bounds(shards=(1,), starts=3, restores=1, late_copies=True), 164_504),
    "restored, and continued": (
        Bounds(shards=(1,), starts=3, restores=1, late_copies=True, go_on=True),
        168_502,
    ),
}


@pytest.mark.parametrize("name", cases(*REACHED, long=tuple(LONG)))
def test_every_state_keeps_the_promises(name: str) -> None:
    bounds, states = (REACHED | LONG)[name]
    is_exact = len(bounds.kinds) == 1 and not (bounds.kinds[0] or bounds.go_on)
    found = search(bounds, only=() if is_exact else ("LOST",))
    assert not found.broken, str(found)
    assert found.is_complete
    assert found.states == states


@pytest.mark.parametrize("story", [*STORIES, *DOCUMENTED], ids=str)
def test_each_rule_has_its_story(story: Story) -> None:
    without = frozenset(filter(None, story.without.split(",")))
    bounds = story.bounds.dropping(without)
    found = search(bounds, only=(story.broken,) if story.broken else ("LOST", "TWICE", "EARLY"))
    assert found.broken.partition(":")[0] == story.broken, str(found)
    assert len(found.story) == story.steps, str(found)
    assert found.is_complete or story.broken


def test_each_rule_is_dropped_in_a_story() -> None:
    dropped = {rule for story in STORIES for rule in story.without.split(",")}
    assert dropped | {"past"} == RULES.keys()
