"""Looks at shards as the planning process does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.planner.tip.looks import Look, Question
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, Position

_LAST: WeakKeyDictionary[TipProbe, dict[str, Look]] = WeakKeyDictionary()


def answers(found: Mapping[str, bool | None]) -> dict[str, Look]:
    """Return looks that have found something, nothing, or not what there is, by shard."""
    return {shard: Look(ShardCursor(TRIM_HORIZON), more) for shard, more in found.items()}


def last_looks(probe: TipProbe) -> dict[str, Look]:
    """Return the last look at each shard; the next one goes on from it."""
    return _LAST.setdefault(probe, {})


def look(probe: TipProbe, positions: Mapping[str, Position], **asked: Any) -> dict[str, bool | None]:
    """Look at each shard at its position; `asked`: the rest of each `Question`."""
    last = last_looks(probe)
    questions = {
        shard: Question(position, last=last.get(shard), **asked) for shard, position in positions.items()
    }
    found = probe.look(questions)
    last |= found.looks
    if found.error is not None:
        raise found.error
    return {shard: look.more for shard, look in found.looks.items()}
