"""How runs settle, beside the modules before it: the same multis in the same order, and the same shards."""

from __future__ import annotations

import pytest
from thorough import examples
from twins.old_settle.shadow import shadowed

from model.crashes import KINDS, crashes, play as play_story, steps
from model.families import FAMILIES
from model.story import play


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"joined"}))
def test_schedules_settle_as_they_did(family: str) -> None:
    with shadowed() as shadow:
        told = [play(family, seed) for seed in range(1, 1 + examples(8))]
    assert not any(one.world.violations for one in told)
    assert shadow.settled


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_before_or_after_each_write_leaves_what_it_left(kind: str) -> None:
    every = [*crashes(steps(kind))]
    with shadowed() as shadow:
        for crash in every[:: max(1, len(every) // examples(200))]:
            assert not play_story(kind, crash)[1], crash
    assert shadow.settled > 3
    assert shadow.cut
