"""The entries of one shard, its checkpoint and its retry policy: what every way of tracking works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from kinesis_trident.tracker.errors import OrderError, UnknownRunError
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State
from kinesis_trident.tracker.reasons import make_reason
from kinesis_trident.tracker.records import Failure, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy, RetryQueue

EXPIRED = "EXPIRED"
"""The reason of records that the stream no longer holds."""

KEPT_FAILURES = 16
"""Failures kept of a record, the newest: a high retry limit must not grow the stored state without bound."""


def with_failure(failures: tuple[Failure, ...], now_ms: int, reason: str) -> tuple[Failure, ...]:
    """Return the failures of a record after one more."""
    return (*failures, Failure(now_ms, make_reason(reason)))[-KEPT_FAILURES:]


class Ledger:
    """The state of one shard. The checkpoint is the last record of the done prefix, and never moves back.

    Invariants: the first entry is never acked; no two neighbours are acked; every entry is above the
    checkpoint. Runs at or below the checkpoint, there because somebody asked for them again, are kept beside
    the entries.

    Attributes:
        policy: how failed records are retried.
        entries: what is above the checkpoint, in shard order.
        beside: what is at or below it, in shard order.
        queue: of what waits for a retry; None as long as nobody asks for records one at a time.
    """

    def __init__(self, policy: RetryPolicy, checkpoint: RecordPosition | None) -> None:
        self.policy = policy
        self.entries = EntryList()
        self.beside = EntryList()
        self.queue: RetryQueue | None = None
        self._checkpoint = checkpoint

    @property
    def checkpoint(self) -> RecordPosition | None:
        """Everything up to this record is done; None before the first."""
        return self._checkpoint

    @property
    def high(self) -> RecordPosition | None:
        """The last record delivered or known to be done; None before the first."""
        return self.entries.last.last if self.entries.last is not None else self._checkpoint

    def __iter__(self) -> Iterator[Entry]:
        """All entries in shard order: those beside are at or below the checkpoint, the others above it."""
        yield from self.beside
        yield from self.entries

    def runs(self, state: State) -> tuple[Run, ...]:
        """Return the entries in a state, in shard order, as they are stored."""
        return tuple(
            [
                entry.run()
                for entries in (self.beside, self.entries)
                for entry in entries
                if entry.state is state
            ]
        )

    def count_open(self) -> tuple[int, int]:
        """Count the records that are pending, and those that wait or are dead."""
        pending = others = 0
        for entry in self:
            if entry.state is State.PENDING:
                pending += entry.count if entry.bits is None else entry.bits.count(0)
            elif entry.state is not State.ACKED:
                others += entry.count
        return pending, others

    def list_of(self, entry: Entry) -> EntryList | None:
        """Return the list that an entry stands in; None when it was replaced or is done."""
        for entries in (self.entries, self.beside):
            if entries.find(entry.last) is entry:
                return entries
        return None

    def find_run(self, run: Run, state: State, last: RecordPosition | None = None) -> Entry:
        """Return the entry of a stored run; `last` is its last position, if that is known already.

        Raises:
            UnknownRunError: there is none in this state.
        """
        if last is None:
            last = run.last_position
        for entries in (self.entries, self.beside):
            entry = entries.find(last)
            if entry is not None and (entry.state, entry.attempt, entry.count) == (
                state,
                run.attempt,
                run.count,
            ):
                return entry
        msg = (
            f"no {state.name.lower()} run of {run.count} records up to {run.last} after delivery "
            f"{run.attempt} (checkpoint {self._checkpoint}): it was settled before, or planned elsewhere"
        )
        raise UnknownRunError(msg)

    def replace(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Put the parts of an entry, in order, in its place."""
        entries = self.list_of(entry)
        assert entries is not None, "only what stands in the ledger is replaced"
        entries.replace(entry, parts)

    def append(self, entry: Entry) -> None:
        """Take in an entry with its outcome, as `settle`, after the last one."""
        self.entries.append(entry)
        if entry.state is State.PENDING:
            self._fold(entry)
        else:
            self.waits(self.entries.merge(entry))

    def append_done(self, last: RecordPosition) -> None:
        """Take in that everything after the last entry and up to `last` is done."""
        before = self.entries.last
        if before is not None and before.state is not State.ACKED:
            # The cell of the table that keeps it: nearly always the case, and there may be very many.
            self.entries.append(Entry(last, state=State.ACKED))
            return
        entry = Entry(last)
        self.entries.append(entry)
        self._fold(entry)

    def settle(self, part: Entry) -> None:
        """Take in an entry that has its outcome: a PENDING one is done, the others join their equal neighbours."""
        entries = self.list_of(part)
        assert entries is not None, "only what stands in the ledger is settled"
        if part.state is State.PENDING:
            self.done(part)
        else:
            self.waits(entries.merge(part))

    def done(self, entry: Entry) -> None:
        """All records of an entry are done: the checkpoint moves where it stood first."""
        if self.beside.find(entry.last) is entry:
            self.beside.remove(entry)
            return
        self._fold(entry)

    def advance(self) -> None:
        """Move the checkpoint into the first entry as far as its records are done."""
        head = self.entries.first
        if head is not None and head.bits is not None:
            still_open = head.bits.find(0, head.skip)
            if still_open > head.skip:
                head.skip = still_open
                self._move(head.position(still_open - 1))

    def waits(self, entry: Entry) -> None:
        """Tell the queue of an entry that waits, where there is a queue."""
        if self.queue is not None and entry.state is State.WAITING:
            self.queue.acked(entry.last)
            self.queue.schedule(entry.last, entry.due)

    def place(self, entries: Sequence[Entry], through: RecordPosition | None) -> None:
        """Link what is not done; everything else up to `through` is.

        Raises:
            OrderError: the entries overlap each other or the checkpoint.
        """
        checkpoint = self._checkpoint
        end: RecordPosition | None = None
        for entry in sorted(entries, key=attrgetter("last")):
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
                self.beside.append(entry)
                continue
            if entry.prev is not None:
                self._done_until(entry.prev)
            self.entries.append(entry)
        if through is not None:
            self._done_until(through)

    def _done_until(self, last: RecordPosition) -> None:
        high = self.high
        if high is None or last > high:
            self.append_done(last)

    def _fold(self, entry: Entry) -> None:
        moved = self.entries.fold(entry)
        if moved is not None:
            self._move(moved)
            self.advance()

    def _move(self, checkpoint: RecordPosition) -> None:
        if self._checkpoint is not None and checkpoint < self._checkpoint:
            msg = f"the checkpoint must not move back from {self._checkpoint} to {checkpoint}"
            raise OrderError(msg)
        self._checkpoint = checkpoint
