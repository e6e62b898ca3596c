"""What the states of a topology must know of a batch, and the driver's notes of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinesis_trident.bolt.tracking.current_batch import CurrentBatch

_ATTEMPTS_A_RUN = 1 << 32


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


@dataclass(slots=True)
class StateNotes:
    """The notes of one query's driver: its attempts, and which batches its states hold."""

    _count: int = 0
    _begun: int | None = None
    _epoch: int | None = None
    _applied: dict[str, int] = field(default_factory=dict)

    def next_attempt(self, epoch: int) -> int:
        """Return the number of the next attempt of a run."""
        self._count += 1
        return epoch * _ATTEMPTS_A_RUN + self._count

    def facts(self, batch: CurrentBatch, *, applied: bool = False) -> StateFacts:
        """Return the facts of the next attempt at a batch, with `applied` or without."""
        if applied and self._epoch != batch.epoch:
            # Another run may have applied batches; from now on only this one does.
            self._epoch, self._applied = batch.epoch, batch.applied_to_states()
        return StateFacts(
            self.next_attempt(batch.epoch),
            batch.application,
            batch.home,
            frozenset(batch.merged_homes),
            self._applied,
            self.is_first(batch),
        )

    def is_first(self, batch: CurrentBatch) -> bool:
        """Return whether no attempt at the batch has begun to change states.

        The first batch of a run may have been begun by the run before, if there was one.
        """
        return batch.txid != self._begun and (self._begun is not None or batch.epoch == 1)

    def begin(self, batch: CurrentBatch) -> None:
        """Note that an attempt at the batch begins to change states."""
        self._begun = batch.txid

    def note(self, batch: CurrentBatch, updated: Iterable[str], states: Iterable[str]) -> None:
        """Note in ZooKeeper which states hold the batch, so that a store that loses it is found out.

        Raises:
            FencedError: a newer run has taken over.
        """
        if changed := dict.fromkeys(updated, batch.txid):
            kept = {name: self._applied[name] for name in states if name in self._applied}
            self._applied = kept | changed
            batch.note_applied(self._applied)
