"""OpenEntries of records that are not done, in a list, and the safe checkpoint below them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt
from twins.old_face.retry_queue import RetryQueue

from kinesis_trident.tracker.records import Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy, State

Positions = Sequence[RecordPosition] | Sequence[str]
"""Positions by ordinal, looked up only where runs begin or end: a list, an Arrow or numpy array of texts."""

_LAST = attrgetter("last")

_LINGERING = 64
"""Done entries that stay in the list although few are open."""


class Rows(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Records that were delivered as an array: `positions[i]` is that of row i, whose ordinal is `base + i`."""

    positions: Positions
    base: int

    def position(self, row: int) -> RecordPosition:
        """Return the position of a row."""
        return as_position(self.positions[row])


# Very many of these exist at a time, and none can be part of a cycle: the garbage collector need not look at them.
class Entry(msgspec.Struct, eq=False, gc=False):
    """One record, or a run of neighbours that share their fate.

    `first` is None where only the record before the run is known; `prev` is that record, where known. `attempt`
    counts the deliveries made. `value` is the XOR of the ids outstanding in the entry, None when it is not kept.

    Those emitted as arrays know their records one by one: `rows` has them, from row `start` on; `bits[i]` is 1 once
    record i is done.
    """

    last: RecordPosition
    first: RecordPosition | None = None
    count: int = 1
    prev: RecordPosition | None = None
    state: State = State.PENDING
    attempt: int = 1
    due: int = 0
    failures: tuple[Noted, ...] = ()
    value: int | None = 0
    rows: Rows | None = None
    start: int = 0
    bits: bytearray | None = None

    @property
    def base(self) -> int:
        """The ordinal of the first record."""
        assert self.rows is not None
        return self.rows.base + self.start

    def run(self) -> Run:
        """Return the entry as it is stored."""
        first, prev = (
            ("" if self.first is None else str(self.first)),
            (None if self.prev is None else str(self.prev)),
        )
        return Run(first, str(self.last), self.count, prev, self.attempt, self.due, self.failures)

    def become(self, state: State, attempt: int, due: int, failures: tuple[Noted, ...]) -> None:
        """Give all records another fate."""
        self.state, self.attempt, self.due, self.failures = state, attempt, due, failures

    def position(self, index: int) -> RecordPosition:
        """Return the position of record `index` of an entry with rows."""
        assert self.rows is not None
        return self.rows.position(self.start + index)

    def is_open(self) -> npt.NDArray[np.bool_]:
        """Return for each record of an entry with rows whether it is not done."""
        if self.bits is None:
            return np.ones(self.count, np.bool_)
        return np.logical_not(np.frombuffer(self.bits, np.uint8))

    def drop_done(self) -> None:
        """Leave out the first records, as far as they are done."""
        if self.bits is not None and (done := self.bits.find(0)) > 0:
            self.first, self.prev = self.position(done), self.position(done - 1)
            self.start, self.count = self.start + done, self.count - done
            self.bits = self.bits[done:]

    def covers(self, position: RecordPosition) -> bool:
        """Return whether a position lies within the run, as far as its ends are known."""
        if position > self.last:
            return False
        if self.first is not None:
            return position >= self.first
        return position == self.last or (self.prev is not None and position > self.prev)

    def part(self, start: int, until: int, fate: Entry) -> Entry:
        """Return the records from `start` until `until` of an entry with rows, with the fate of another."""
        return Entry(
            self.position(until - 1),
            self.position(start),
            until - start,
            self.position(start - 1) if start else self.prev,
            fate.state,
            fate.attempt,
            fate.due,
            fate.failures,
            value=None,
            rows=self.rows,
            start=self.start + start,
            bits=self.bits[start:until] if fate is self and self.bits is not None else None,
        )


class OpenEntries:
    """The entries of one shard that are not done. Its checkpoint is the last record of the done prefix.

    Attributes:
        policy: how failed records are retried.
        high: the last record delivered or known to be done; None before the first.
        queue: of what waits for a retry; None until somebody asks for records one at a time, and after other changes.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        checkpoint: RecordPosition | None,
        entries: Sequence[Entry] = (),
        high: RecordPosition | None = None,
    ) -> None:
        self.policy = policy
        self.checkpoint = checkpoint
        self.queue: RetryQueue | None = None
        # In shard order. Done ones stay in it until the next `tidy`.
        self._entries = sorted(entries, key=_LAST)
        self._by_last: dict[RecordPosition, Entry] | None = None
        self._done = 0
        # Those before were asked for again: they do not hold the checkpoint.
        self._head = self._above()
        self.high = high or checkpoint
        self.advance()

    def _above(self) -> int:
        checkpoint = self.checkpoint
        return 0 if checkpoint is None else bisect_right(self._entries, checkpoint, key=_LAST)

    def __iter__(self) -> Iterator[Entry]:
        """Return all entries that are not done, in shard order."""
        return (entry for entry in self._entries if entry.state is not State.ACKED)

    def runs(self, state: State) -> tuple[Run, ...]:
        """Return the entries in a state, in shard order, as they are stored."""
        return tuple([entry.run() for entry in self._entries if entry.state is state])

    def find(self, last: RecordPosition) -> Entry | None:
        """Return the entry that ends with this record, and is not done."""
        if self._by_last is None:
            self._by_last = {entry.last: entry for entry in self}
        return self._by_last.get(last)

    def find_from(self, position: RecordPosition) -> Entry | None:
        """Return the first entry that is not done and does not end before a record."""
        start = bisect_left(self._entries, position, key=_LAST)
        rest = islice(self._entries, start, None)
        return next((entry for entry in rest if entry.state is not State.ACKED), None)

    def append(self, entry: Entry) -> None:
        """Take in an entry after all others."""
        self._entries.append(entry)
        self.high = entry.last
        if self._by_last is not None and entry.state is not State.ACKED:
            self._by_last[entry.last] = entry

    def splice(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Mark an entry as done but for these parts, which stand in its place."""
        at = bisect_left(self._entries, entry.last, key=_LAST)
        while self._entries[at] is not entry:
            at += 1
        self._drop(entry)
        self._entries[at : at + 1] = parts
        if self._by_last is not None:
            self._by_last.update([(part.last, part) for part in parts if part.state is not State.ACKED])
        self.queue = None
        self.advance()

    def mark_done(self, entry: Entry) -> None:
        """Mark all records of an entry as done."""
        self._drop(entry)
        entry.bits = None
        self._done += 1
        self.advance()
        if 2 * self._done > _LINGERING + len(self._entries):
            self._entries = list(self)
            self._head, self._done = self._above(), 0
            self.queue, self._by_last = None, None

    def _drop(self, entry: Entry) -> None:
        entry.state = State.ACKED
        if self._by_last is not None:
            del self._by_last[entry.last]

    def advance(self) -> None:
        """Move the checkpoint to the first record that is not done."""
        entries, known = self._entries, [self.checkpoint]
        while self._head < len(entries) and (entry := entries[self._head]).state is State.ACKED:
            known.append(entry.last)
            self._head += 1
        if self._head < len(entries):
            entries[self._head].drop_done()
        known.append(entries[self._head].prev if self._head < len(entries) else self.high)
        self.checkpoint = max(filter(None, known), default=None)


def as_position(value: object) -> RecordPosition:
    """A position from what `Positions` hold: itself, its text, or an Arrow or numpy text scalar."""
    if isinstance(value, RecordPosition):
        return value
    if hasattr(value, "as_py"):
        value = value.as_py()
    return RecordPosition.parse(value.decode() if isinstance(value, bytes) else str(value))


def load_entries(runs: Sequence[Run], state: State) -> list[Entry]:
    """Return the entries of stored runs."""
    return [
        Entry(
            run.last_position,
            RecordPosition.parse(run.first) if run.first else None,
            run.count,
            None if run.prev is None else RecordPosition.parse(run.prev),
            state,
            run.attempt,
            run.due,
            run.failures,
        )
        for run in runs
    ]
