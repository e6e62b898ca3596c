"""The part of ZooKeeper's store that a batch needs, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, Pin

__all__ = ["SHARD", "LocalStore"]

SHARD = "shardId-000000000000"
"""The shard of all given tuples."""


@dataclass
class LocalStore:
    """The pin of a batch's one turn, its outcome, and the note of what states hold: in the place of a `SourceStore`."""

    layout: Layout
    pin: Pin
    applied: dict[str, int]
    outcome: BatchOutcome | None = None

    @property
    def batches(self) -> Self:
        """The batches."""
        return self

    judging = epochs = states = batches

    def get_pins(self, _txid: int, _shards: Sequence[str], *, fresh: bool) -> dict[str, Pin]:
        """Return the pins."""
        return {SHARD: self.pin}

    def put_outcome(self, outcome: BatchOutcome, _epoch: int) -> tuple[BatchOutcome, bool]:
        """Publish the outcome."""
        self.outcome = outcome
        return outcome, True

    def get(self) -> dict[str, int]:
        """Return the newest batch that was applied to each state."""
        return dict(self.applied)

    def put(self, applied: Mapping[str, int], _epoch: int) -> None:
        """Note the newest batch that was applied to each state."""
        self.applied.update(applied)

    def say(self, _epoch: int) -> None:
        """Nobody else judges."""

    def check_epoch(self, _epoch: int) -> None:
        """Nobody takes over."""
