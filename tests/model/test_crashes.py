"""A life ends before or after each of its writes, and the next one too: nothing is lost, nothing comes twice."""

from __future__ import annotations

import pytest
from thorough import cases

from model.crashes import KINDS, crashes, play, steps


@pytest.mark.parametrize(
    ("kind", "stride"), cases(("batch", 873), ("failures", 4001), long=tuple((kind, 97) for kind in KINDS))
)
def test_a_crash_at_each_step_and_another_one_after_it(kind: str, stride: int) -> None:
    """Of the second crashes one in `stride` is played, others after each first one."""
    failed = []
    for offset, first in enumerate(crashes(steps(kind))):
        lived, violations = play(kind, first)
        failed += [f"{first}: {what}" for what in violations[:1]]
        for second in list(crashes(lived[1]))[3 * offset % stride :: stride]:
            _, violations = play(kind, first, second)
            failed += [f"{first}, {second}: {what}" for what in violations[:1]]
    assert not failed, "\n".join(failed[:5])
