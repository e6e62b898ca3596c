"""What runs write between two batches, beside the module before it: the same multis in the same order, and shards."""

from __future__ import annotations

import pytest
from thorough import examples
from twins.old_requests.shadow import shadowed

from model.crashes import crashes, play as play_story, steps
from model.story import play


@pytest.mark.parametrize("family", ["requests", "operators", "explicit"])
def test_schedules_write_what_they_wrote(family: str) -> None:
    with shadowed() as shadow:
        told = [play(family, seed) for seed in range(1, 1 + examples(40))]
    assert not any(one.world.violations for one in told)
    assert shadow.written > 3


def test_a_crash_before_or_after_each_write_leaves_what_it_left() -> None:
    every = [*crashes(steps("explicit"))]
    with shadowed() as shadow:
        for crash in every[:: max(1, len(every) // examples(400))]:
            assert not play_story("explicit", crash)[1], crash
    assert shadow.written > 3
    assert shadow.cut
