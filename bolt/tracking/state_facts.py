"""The facts of a batch that the states of a topology need, and the driver's notes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kinesis_trident.bolt.tracking.batch_run import BatchRun

if TYPE_CHECKING:
    from kinesis_trident.bolt.tracking.current_batch import CurrentBatch


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What the states of a topology must know of a batch.

    Attributes:
        attempt: at the batch, rising, also from one run to the next; None if it is not known.
        application: whose batch it is; empty if nobody numbers batches for it in ZooKeeper.
        home: the name of the stream's state in ZooKeeper, which numbers the batches.
        merged: the names of streams that were read alone before, and are part of this one now.
        applied: the newest batch that each state certainly holds, by their names.
        is_first: this is the first attempt at the batch that changes states.
        isolating: the bolts run to find the records that end their worker, and nothing is to be written.
    """

    attempt: int | None = None
    application: str = ""
    home: str = ""
    merged: frozenset[str] = frozenset()
    applied: Mapping[str, int] = field(default_factory=dict)
    is_first: bool = False
    isolating: bool = False

    @classmethod
    def of(cls, run: BatchRun, batch: CurrentBatch, applied: Mapping[str, int]) -> StateFacts:
        """Return the facts of an attempt at a batch."""
        homes = frozenset(batch.merged_homes)
        return cls(run.attempt, batch.application, batch.home, homes, applied, not run.again)


@dataclass(slots=True)
class StateNotes:
    """The notes of one query's driver on which batches its states hold."""

    _of: tuple[str, int] | None = None
    _applied: dict[str, int] = field(default_factory=dict)

    def read(self, batch: CurrentBatch) -> Mapping[str, int]:
        """Return the newest batch that each state certainly holds."""
        if self._of != (batch.home, batch.epoch):
            # Another run may have applied batches; from now on only this one does.
            self._of, self._applied = (batch.home, batch.epoch), batch.applied_to_states()
        return self._applied

    def note(self, batch: CurrentBatch, updated: Iterable[str], states: Iterable[str]) -> None:
        """Note in ZooKeeper which states hold the batch, so that a store that loses it is found out.

        Raises:
            FencedError: a newer run has taken over.
        """
        if changed := dict.fromkeys(updated, batch.txid):
            kept = {name: self._applied[name] for name in states if name in self._applied}
            self._applied = kept | changed
            batch.note_applied(self._applied)
