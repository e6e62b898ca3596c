"""Looks at shards as the planning process does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinesis_trident.spout.planner.tip.looks import Question
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import Position


def look(probe: TipProbe, positions: Mapping[str, Position], **asked: Any) -> dict[str, bool | None]:
    """Look at each shard at its position; `asked`: the rest of each `Question`."""
    found = probe.look({shard: Question(position, **asked) for shard, position in positions.items()})
    if found.error is not None:
        raise found.error
    return {shard: look.more for shard, look in found.looks.items()}
