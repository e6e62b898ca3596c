"""What all ways of tracking share: the entries of one shard, its checkpoint, and the retry policy."""

from __future__ import annotations

from collections.abc import Iterator

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State
from kinesis_trident.tracker.records import Failure, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy, RetryQueue

__all__ = ["EXPIRED", "KEPT_FAILURES", "REASON_LENGTH", "Ledger", "with_failure"]

EXPIRED = "EXPIRED"
"""The reason of records that the stream no longer holds."""

KEPT_FAILURES = 16
"""Failures kept of a record, the newest: a high retry limit must not grow the stored state without bound."""

REASON_LENGTH = 256
"""Characters kept of a reason."""


def with_failure(failures: tuple[Failure, ...], now_ms: int, reason: str) -> tuple[Failure, ...]:
    """The failures of a record after one more."""
    return (*failures, Failure(now_ms, reason[:REASON_LENGTH]))[-KEPT_FAILURES:]


class Ledger:
    """The state of one shard. The checkpoint is the last record of the done prefix, and never moves back.

    Invariants: the first entry is never acked; no two neighbours are acked; every entry is above the
    checkpoint. Runs at or below the checkpoint, there because somebody asked for them again, are kept beside
    the entries.
    """

    def __init__(self, policy: RetryPolicy | None = None, checkpoint: RecordPosition | None = None) -> None:
        self._policy = policy or RetryPolicy()
        self._checkpoint = checkpoint
        self._entries = EntryList()
        self._beside = EntryList()
        self._queue: RetryQueue | None = None

    @property
    def policy(self) -> RetryPolicy:
        """How failed records are retried."""
        return self._policy

    @property
    def checkpoint(self) -> RecordPosition | None:
        """Everything up to this record is done; None before the first."""
        return self._checkpoint

    @property
    def high(self) -> RecordPosition | None:
        """The last record delivered or known to be done; None before the first."""
        return self._entries.last.last if self._entries.last is not None else self._checkpoint

    def entries(self) -> Iterator[Entry]:
        """What is kept above the checkpoint, in shard order; to look at, not to change."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries) + len(self._beside)

    @property
    def pending(self) -> tuple[Run, ...]:
        """Delivered and without an outcome, in shard order."""
        return self._runs(State.PENDING)

    @property
    def waiting(self) -> tuple[Run, ...]:
        """Failed and due again, in shard order."""
        return self._runs(State.WAITING)

    @property
    def dead(self) -> tuple[Run, ...]:
        """Exhausted or expired, to be dead-lettered, in shard order."""
        return self._runs(State.DEAD)

    @property
    def retrying(self) -> int:
        """How many runs wait or are dead: what `maxRetryingRecords` bounds."""
        return sum(entry.state in (State.WAITING, State.DEAD) for entry in self._all())

    def _all(self) -> Iterator[Entry]:
        """All entries in shard order: those beside are at or below the checkpoint, the others above it."""
        yield from self._beside
        yield from self._entries

    def _runs(self, state: State) -> tuple[Run, ...]:
        return tuple(entry.run() for entry in self._all() if entry.state is state)

    def _append_done(self, last: RecordPosition) -> None:
        """Everything after the last entry and up to `last` is done."""
        entry = Entry(last)
        self._entries.append(entry)
        self._done(entry)

    def _done(self, entry: Entry) -> None:
        """All records of an entry above the checkpoint are done."""
        moved = self._entries.fold(entry)
        if moved is not None:
            self._move(moved)
            self._advance()

    def _advance(self) -> None:
        """The checkpoint moves into the first entry as far as its records are done."""
        head = self._entries.first
        if head is not None and head.bits is not None:
            still_open = head.bits.find(0, head.skip)
            if still_open > head.skip:
                head.skip = still_open
                self._move(head.position(still_open - 1))

    def _waits(self, entry: Entry) -> None:
        """Tell the queue of the record-at-a-time surface, where that is in use."""
        if self._queue is not None and entry.state is State.WAITING:
            self._queue.acked(entry.last)
            self._queue.schedule(entry.last, entry.due)

    def _move(self, checkpoint: RecordPosition) -> None:
        if self._checkpoint is not None and checkpoint < self._checkpoint:
            msg = f"the checkpoint must not move back from {self._checkpoint} to {checkpoint}"
            raise OrderError(msg)
        self._checkpoint = checkpoint
