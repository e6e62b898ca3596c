"""What is paused is in no plan: the rule that sees it sees a filter that lets something through."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinesis_trident.spout.planner.shards.source_shards import Shards
from model.story import play

SEEDS = range(1, 30)


def violations(seeds: range = SEEDS) -> list[str]:
    """Return what the first broken schedule breaks."""
    return next((found for seed in seeds if (found := play("paused", seed).world.violations)), [])


@pytest.mark.parametrize(
    ("name", "sabotaged"),
    [
        ("paused", lambda _: {}),
        ("coming", lambda shards: shards.active),
        # A pause that ends for its run at once, and one that a run does not load.
        ("lasting", lambda shards: tuple(one for one in shards.pauses.values() if one.until is None)),
    ],
)
def test_a_sabotaged_filter_breaks_the_rule(
    monkeypatch: pytest.MonkeyPatch, name: str, sabotaged: Callable[[Shards], object]
) -> None:
    monkeypatch.setattr(Shards, name, property(sabotaged))
    found = violations()
    assert found
    assert "which is paused" in found[0]


def test_a_change_that_no_watch_tells_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_trident.spout.planner.steps.PlanningSteps.note_pauses", lambda _: None)
    assert "which is paused" in "".join(violations(range(1, 60)))


def test_schedules_have_plans_beside_pauses() -> None:
    stats = [play("paused", seed).world.stats for seed in range(1, 11)]
    for what in ("plans beside a pause", "paused", "paused with all", "resumed"):
        assert sum(one[what] for one in stats) > 5, what
