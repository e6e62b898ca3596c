"""The wider worlds of the commit protocol, which take minutes: every state that it can reach in each of them."""

from __future__ import annotations

import pytest
from spec.figures import CHAOS, explore

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", CHAOS)
def test_every_state_of_a_wide_world_keeps_the_promises(name: str) -> None:
    found = explore(name)
    assert not found.broken, str(found)
    assert found.is_complete
    assert found.states == CHAOS[name][1]
