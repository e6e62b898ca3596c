"""The in-flight records of one shard, and its safe checkpoint: `InflightRecordTracker`.

After the class of that name in awslabs/kinesis-storm-spout 1.1.1, without its defects: a limit of 0 still
moves the checkpoint, a record acked or failed twice or too late cannot block the shard, retries wait for
their time, memory follows what is not done, and records of one aggregate are told apart by their
sub-sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.bulk import Ordinals
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State
from kinesis_trident.tracker.inflight.ledger import with_failure
from kinesis_trident.tracker.inflight.turns import Turns
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import RetryHandler, RetryPolicy, RetryQueue

__all__ = ["InflightRecordTracker"]


_MASK = 0xFFFF_FFFF_FFFF_FFFF


class InflightRecordTracker(Ordinals, Turns):
    """The in-flight records of one shard, told one at a time, as arrays (`Ordinals`), by turns (`Turns`).

    All three work on the same entries and may be mixed. Here, a record is addressed by its position, and a
    stored run, which shares one fate, by the position of its last record. `handler` decides on the retries of
    this surface; by default it is a `RetryQueue` driven by `policy`. Not thread-safe.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        checkpoint: RecordPosition | None = None,
        handler: RetryHandler | None = None,
    ) -> None:
        super().__init__(policy, checkpoint)
        self._handler = handler

    def emit(self, position: RecordPosition, id: int = 0, retry: bool = False) -> bool:
        """A record was delivered; `id` is the XOR of the ids of the tuples made of it, 0 when none are kept.

        Returns whether it is tracked by this call: not when it is tracked or done already, nor, with `retry`,
        when it does not wait for one.

        Raises:
            OrderError: a new record does not come after all emitted before, and is not behind the checkpoint.
        """
        if retry:
            entry = self._find(position)[1]
            if entry is None or entry.state is not State.WAITING:
                return False
            self._retries.emitted(position)
            entry.state, entry.attempt, entry.value = State.PENDING, entry.attempt + 1, id & _MASK
            return True
        high = self.high
        if high is not None and position <= high:
            if not (
                self._is_done(position) or self._find(position)[1] or self.ordinal_of(position) is not None
            ):
                msg = f"record {position} was emitted after {high}, which comes later in the shard"
                raise OrderError(msg)
            return False
        self._entries.append(Entry(position, position, 1, high, State.PENDING, 1, 0, (), id & _MASK))
        return True

    def ack(self, position: RecordPosition, id: int = 0) -> bool:
        """XOR an id into the record's value: done when that is zero, so at once where no ids are kept.

        A record that waits for a retry, or is dead, is done by an ack without an id; one with an id is of a
        tree that failed, and ignored. Returns whether the record is done by this call; unknown ones are
        ignored.
        """
        entries, entry = self._find(position)
        if entry is None:
            return self._ack_ordinal(position, id)
        if entry.state is State.ACKED:
            return False
        if entry.state is State.PENDING:
            entry.value = (entry.value or 0) ^ (id & _MASK)
            if entry.value:
                return False
        elif id:
            return False
        if entry.state is not State.PENDING or self._handler is not None:
            self._retries.acked(position)
        if entries is self._entries:
            self._done(entry)
        else:
            entries.remove(entry)
        return True

    def fail(self, position: RecordPosition, now_ms: int, reason: str, rng: random.Random) -> bool:
        """A record failed, whatever its value is. Returns whether it will be retried.

        A record without retries left is dead until it is acked, once it has been dead-lettered; with a policy
        without dead letters it is done. Records that wait already, are dead, done or unknown are ignored.
        """
        _, entry = self._find(position)
        if entry is None:
            ordinal = self.ordinal_of(position)
            if ordinal is not None:
                self.fail_many(np.array([ordinal]), now_ms, reason, rng)
                _, entry = self._find(position)
            return entry is not None and entry.state is State.WAITING
        if entry.state is not State.PENDING:
            return False
        entry.failures, entry.value = with_failure(entry.failures, now_ms, reason), 0
        due = self._retries.failed(position, entry.attempt, now_ms, rng)
        if due is not None:
            entry.state, entry.due = State.WAITING, due
        elif self._policy.dead_letter:
            entry.state, entry.due = State.DEAD, 0
        else:
            self.ack(position)
        return due is not None

    def next_retry(self, now_ms: int) -> RecordPosition | None:
        """The record to deliver again now: the same one until it is emitted with `retry`, or acked."""
        stale: RecordPosition | None = None
        while (position := self._retries.next(now_ms)) is not None and position != stale:
            _, entry = self._find(position)
            if entry is not None and entry.state is State.WAITING:
                return position
            # Settled through another surface, or a handler that forgot an ack: it must not block the others.
            self._retries.acked(position)
            stale = position
        return None

    def should_retry(self, now_ms: int) -> bool:
        """Whether a record is due to be delivered again."""
        return self.next_retry(now_ms) is not None

    @property
    def _retries(self) -> RetryHandler:
        if self._handler is not None:
            return self._handler
        if self._queue is None:
            self._queue = RetryQueue(self._policy)
            for entry in self._all():
                self._waits(entry)
        return self._queue

    def _find(self, position: RecordPosition) -> tuple[EntryList, Entry | None]:
        entry = self._entries.find(position)
        if entry is None:
            entry = self._beside.find(position)
            return (self._entries if entry is None else self._beside), entry
        # The last record of an array is not the array.
        return self._entries, (entry if entry.base < 0 or entry.count == 1 else None)

    def _is_done(self, position: RecordPosition) -> bool:
        return self._checkpoint is not None and position <= self._checkpoint

    def _ack_ordinal(self, position: RecordPosition, id: int) -> bool:
        ordinal = self.ordinal_of(position)
        if ordinal is None or not self._open(ordinal):
            return False
        self.ack_many(np.array([ordinal]), np.array([id & _MASK], np.uint64) if id else None)
        return not self._open(ordinal)

    @classmethod
    def restore(
        cls,
        checkpoint: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        policy: RetryPolicy | None = None,
        *,
        through: RecordPosition | None = None,
    ) -> InflightRecordTracker:
        """The tracker of a shard from what is stored of it.

        Between the checkpoint and the last position known, everything but the runs is done. `through` is the
        last record that was ever delivered, where that is known: the checkpoint can then reach it again.

        Raises:
            OrderError: runs overlap each other or the checkpoint, or one has no beginning.
        """
        tracker = cls(policy, checkpoint)
        entries = [Entry.of(run, State.WAITING) for run in waiting]
        tracker._place([*entries, *(Entry.of(run, State.DEAD) for run in dead)], through)
        return tracker

    def _place(self, entries: Sequence[Entry], through: RecordPosition | None) -> None:
        """Link what is not done; everything else up to `through` is."""
        checkpoint = self._checkpoint
        end: RecordPosition | None = None
        for entry in sorted(entries, key=lambda entry: entry.last):
            low = entry.first if entry.first is not None else entry.last
            beside = checkpoint is not None and entry.last <= checkpoint
            floor = end if beside or checkpoint is None else max(checkpoint, end or checkpoint)
            if floor is not None and low <= floor:
                msg = (
                    f"stored run from {low} to {entry.last} overlaps another, or the checkpoint {checkpoint}"
                )
                raise OrderError(msg)
            end = entry.last
            if beside:
                self._beside.append(entry)
                continue
            high = self.high
            if entry.prev is not None and (high is None or entry.prev > high):
                self._append_done(entry.prev)
            self._entries.append(entry)
        high = self.high
        if through is not None and (high is None or through > high):
            self._append_done(through)
