"""What listings and looks make runs write, beside the modules before: the same multis in the same order."""

from __future__ import annotations

import pytest
from thorough import examples
from twins.old_listing.shadow import shadowed

from model.story import play


@pytest.mark.parametrize("family", ["trim", "padded", "restored-folder"])
def test_schedules_write_what_they_wrote(family: str) -> None:
    with shadowed() as shadow:
        told = [play(family, seed) for seed in range(1, 1 + examples(40))]
    assert not any(one.world.violations for one in told)
    assert shadow.listed > 0
