"""After each change of a run's shards: no checkpoint moves back, and no record is in two runs of its shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import pytest
from thorough import examples

from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.shard_events import HomeUnit, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.tracker.records import begin_of
from model.families import FAMILIES
from model.story import play


def find_wrong(was: ShardState | None, state: ShardState) -> Iterator[str]:
    """Yield what cannot be of a shard, and of what it was before a change."""
    if was is not None and was.safe is not None and (state.safe is None or state.safe < was.safe):
        yield f"the checkpoint moves back from {was.safe} to {state.safe}"
    spans = sorted((begin_of(run), run.last_position) for run in (*state.waiting, *state.dead))
    for one, other in pairwise(spans):
        if other[0] <= one[1]:
            yield f"{one} and {other} have a record in common"
    if not spans and not state.pending and state.safe is not None and state.position.record != state.safe:
        yield f"nothing is open behind {state.safe}, and it stands at {state.position}"


@contextmanager
def checked() -> Iterator[list[str]]:
    """Check each change of the shards of all runs of this process."""
    real, wrong, changes = SourceState._become, list[str](), list[str]()

    def become(state: SourceState, event: ShardEvent, after: Shards) -> None:
        before = state.shards
        for shard, one in after.states.items():
            was = None if isinstance(event, HomeUnit) else before.states.get(shard)
            if one is not was:
                changes.append(shard)
                wrong.extend(f"{shard}, {type(event).__name__}: {what}" for what in find_wrong(was, one))
        real(state, event, after)

    with mock.patch.object(SourceState, "_become", become):
        yield changes
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"joined"}))
def test_no_record_is_twice_in_a_shard(family: str) -> None:
    with checked() as changes:
        for seed in range(1, 1 + examples(8)):
            assert not play(family, seed).world.violations
    assert changes
