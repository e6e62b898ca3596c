"""The ordered linked map of what is in flight, and the nine cells by which acked entries leave it.

The table is that of `InflightRecordTracker` in awslabs/kinesis-storm-spout 1.1.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import Failure, RecordPosition, Run

Positions = Sequence[RecordPosition] | Sequence[str]
"""Positions by ordinal, looked up only where runs begin or end: a list, an Arrow or numpy array of texts."""


class State(Enum):
    """The state of an entry's records. All but ACKED hold the checkpoint back."""

    PENDING = "delivered, no outcome yet"
    WAITING = "failed, to be delivered again"
    ACKED = "done, not yet behind the checkpoint"
    DEAD = "exhausted or expired, to be dead-lettered"


class Entry(msgspec.Struct, eq=False):
    """One record, or a run of neighbours, that is not yet behind the checkpoint.

    `first` is None where only the record before the run is known; `prev` is that record, where known.
    `attempt` counts the deliveries made. `value` is the XOR of the ids outstanding in the entry, None when it
    is not kept. An acked entry stands, with its `last`, for all the acked records that end there.

    Entries emitted as arrays know their records one by one: `base` is the ordinal of the first (-1 for other
    entries), `positions[start + i]` the place of record i, `bits[i]` is 1 once it is done, and the first
    `skip` are behind the checkpoint.

    `stored` is the run that the entry was read from, as long as it has the same records.
    """

    last: RecordPosition
    first: RecordPosition | None = None
    count: int = 1
    prev: RecordPosition | None = None
    state: State = State.PENDING
    attempt: int = 1
    due: int = 0
    failures: tuple[Failure, ...] = ()
    value: int | None = 0
    base: int = -1
    positions: Positions | None = None
    start: int = 0
    bits: bytearray | None = None
    skip: int = 0
    stored: Run | None = None
    before: Entry | None = None
    after: Entry | None = None

    def __repr__(self) -> str:
        # Without its neighbours, of which each would show its own.
        return f"Entry({self.state.name}, {self.run()})"

    @classmethod
    def all_of(cls, runs: Sequence[Run], state: State) -> list[Entry]:
        """The entries of stored runs; OrderError when one has no beginning."""
        entries: list[Entry] = []
        befores = iter(RecordPosition.parse_all([run.prev for run in runs if run.prev is not None]))
        for run, last in zip(runs, RecordPosition.parse_all([run.last for run in runs]), strict=True):
            first = last if run.first == run.last else RecordPosition.parse(run.first) if run.first else None
            prev = next(befores) if run.prev is not None else None
            if (first is None and prev is None) or run.count < 1:
                msg = f"stored run of {run.count} records up to {last}: no first record and none before it"
                raise OrderError(msg)
            entry = cls(last, first, run.count, prev, state, run.attempt, run.due, run.failures)
            entry.stored = run
            entries.append(entry)
        return entries

    def run(self) -> Run:
        """The entry as it is stored."""
        stored = self.stored
        if stored is not None:
            return Run(
                stored.first, stored.last, stored.count, stored.prev, self.attempt, self.due, self.failures
            )
        first, prev = self.first, self.prev
        if self.skip and self.positions is not None:
            first, prev = self.position(self.skip), self.position(self.skip - 1)
        last = str(self.last)
        return Run(
            last if first is self.last else str(first) if first is not None else "",
            last,
            self.count - self.skip,
            str(prev) if prev is not None else None,
            self.attempt,
            self.due,
            self.failures,
        )

    def position(self, index: int) -> RecordPosition:
        """The place of record `index` of an entry that was emitted as an array."""
        assert self.positions is not None
        return as_position(self.positions[self.start + index])

    def covers(self, position: RecordPosition) -> bool:
        """Return True if a position lies within the run, as far as its ends are known."""
        if position > self.last:
            return False
        if self.first is not None:
            return position >= self.first
        return position == self.last or (self.prev is not None and position > self.prev)

    def continues(self, left: Entry) -> bool:
        """Return True if this entry starts right after `left` and shares its fate, so that both are one run."""
        return (
            self.state is left.state
            and self.prev == left.last
            and self.state in (State.WAITING, State.DEAD)
            and (self.attempt, self.due, self.failures) == (left.attempt, left.due, left.failures)
            and self.base < 0
            and left.base < 0
        )


def as_position(value: object) -> RecordPosition:
    """A position from what `Positions` hold: itself, its text, or an Arrow or numpy text scalar."""
    if isinstance(value, RecordPosition):
        return value
    if hasattr(value, "as_py"):
        value = value.as_py()
    return RecordPosition.parse(value.decode() if isinstance(value, bytes) else str(value))


class EntryList:
    """Entries in shard order, linked both ways, and found by the position of their last record."""

    def __init__(self) -> None:
        self.first: Entry | None = None
        self.last: Entry | None = None
        self._by_last: dict[RecordPosition, Entry] = {}

    def __len__(self) -> int:
        return len(self._by_last)

    def __iter__(self) -> Iterator[Entry]:
        entry = self.first
        while entry is not None:
            # Taken first, so that the entry may be removed or replaced by whoever iterates.
            following = entry.after
            yield entry
            entry = following

    def unlink(self) -> None:
        """Take the entries apart, which refer to each other: then they are freed without the garbage collector."""
        for entry in self._by_last.values():
            entry.before = entry.after = None
        self.first = self.last = None
        self._by_last.clear()

    def find(self, last: RecordPosition) -> Entry | None:
        """The entry that ends with this record."""
        return self._by_last.get(last)

    def at_or_after(self, position: RecordPosition) -> Entry | None:
        """The first entry that does not end before `position`: it is the one that covers it, if any does."""
        return next((entry for entry in self if entry.last >= position), None)

    def append(self, entry: Entry) -> None:
        """Link an entry after the last one.

        Raises:
            OrderError: it does not end after the last one.
        """
        before, last = self.last, entry.last
        if before is None or before.last >= last:
            self.insert(entry, None)
            return
        # As `insert` does: most come here, and may be very many.
        entry.before, entry.after = before, None
        before.after = self.last = self._by_last[last] = entry

    def insert(self, entry: Entry, after: Entry | None) -> None:
        """Link an entry in front of `after`; at the end when that is None.

        Raises:
            OrderError: it would not stand in shard order there.
        """
        before = self.last if after is None else after.before
        if (before is not None and before.last >= entry.last) or (
            after is not None and after.last <= entry.last
        ):
            between = f"{before and before.last} and {after and after.last}"
            msg = f"record {entry.last} is out of order: between {between}"
            raise OrderError(msg)
        entry.before, entry.after = before, after
        if before is None:
            self.first = entry
        else:
            before.after = entry
        if after is None:
            self.last = entry
        else:
            after.before = entry
        self._by_last[entry.last] = entry

    def remove(self, entry: Entry) -> None:
        """Unlink an entry."""
        before, after = entry.before, entry.after
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self.last = before
        else:
            after.before = before
        entry.before = entry.after = None
        del self._by_last[entry.last]

    def replace(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Link the parts of an entry, in order, in its place."""
        after = entry.after
        self.remove(entry)
        for part in parts:
            self.insert(part, after)

    def fold(self, entry: Entry) -> RecordPosition | None:
        """Mark an entry acked and drop what the table says; return the checkpoint when it moves.

        | previous, next: | acked | pending | none |
        |---|---|---|---|
        | none | drop current and next; checkpoint = next | drop current; checkpoint = current | the same |
        | pending | drop current | keep | keep |
        | acked | drop previous and current | drop previous | drop previous |
        """
        before, after = entry.before, entry.after
        entry.state = State.ACKED
        entry.positions = entry.bits = None
        next_acked = after is not None and after.state is State.ACKED
        if before is None:
            checkpoint = entry.last
            if after is not None and next_acked:
                checkpoint = after.last
                self.remove(after)
            self.remove(entry)
            return checkpoint
        if before.state is State.ACKED:
            self.remove(before)
        if next_acked:
            self.remove(entry)
        return None

    def merge(self, entry: Entry) -> Entry:
        """Join an entry with the neighbours that it shares its fate with; return what stands for it then."""
        before, after = entry.before, entry.after
        if after is not None and after.continues(entry):
            self.remove(entry)
            after.first, after.prev, after.count = entry.first, entry.prev, after.count + entry.count
            entry = after
            entry.stored = None
        if before is not None and entry.continues(before):
            self.remove(before)
            entry.first, entry.prev, entry.count = before.first, before.prev, entry.count + before.count
            entry.stored = None
        return entry
