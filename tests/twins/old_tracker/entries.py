"""Runs of records that are not done, each with one fate: as they are tracked, and as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from twins.old_tracker.places import Place, Places

from kinesis_trident.tracker.position_keys import NO_KEYS, Keys
from kinesis_trident.tracker.records import Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import Fate, State

Positions = Sequence[RecordPosition] | Sequence[str]
"""Positions by ordinal, looked up only where runs begin or end: a list, an Arrow or numpy array of texts."""


class Rows(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Records that were delivered as an array: `positions[i]` is that of row i, whose ordinal is `base + i`.

    `txid`: of the batch that delivered them, and `keys` the same positions as keys, where they are acked by key.
    """

    positions: Positions
    base: int
    txid: int = 0
    keys: Keys = NO_KEYS

    def position(self, row: int) -> RecordPosition:
        """Return the position of a row."""
        return as_position(self.positions[row])


# Very many of these exist at a time, and none can be part of a cycle: the garbage collector need not look at them.
class Entry(msgspec.Struct, eq=False, gc=False):
    """One record, or a run of neighbours that share their fate.

    `first` is None where only the record before the run is known; `prev` is that record, where known. `attempt`
    counts the deliveries made. `stored` is the entry as it is stored, while it is that. `value` is the XOR of the ids
    outstanding in the entry, None when it is not kept.

    Entries emitted as arrays know their records one by one: `rows` has them, from row `start` on; `bits[i]` is 1 once
    record i is done.

    `floor`: everything between the open run before and this record is done, where more is known than by `prev`.
    `touched`: the round in which the entry got its fate. `parts`: of an acked entry, those that are not.
    """

    last: Place
    first: Place | None = None
    count: int = 1
    prev: Place | None = None
    state: State = State.PENDING
    attempt: int = 1
    due: int = 0
    failures: tuple[Noted, ...] = ()
    stored: Run | None = None
    value: int | None = 0
    rows: Rows | None = None
    start: int = 0
    bits: bytearray | None = None
    floor: Place | None = None
    touched: int = 0
    parts: Sequence[Entry] = ()

    @property
    def base(self) -> int:
        """The ordinal of the first record."""
        assert self.rows is not None
        return self.rows.base + self.start

    def run(self) -> Run:
        """Return the entry as it is stored."""
        if self.stored is None:
            first, last, prev = self.first, str(self.last), self.prev
            self.stored = Run(
                "" if first is None else last if first is self.last else str(first),
                last,
                self.count,
                None if prev is None else str(prev),
                self.attempt,
                self.due,
                self.failures,
            )
        return self.stored

    def become(self, state: State, attempt: int, due: int, failures: tuple[Noted, ...]) -> None:
        """Give all records another fate."""
        self.state, self.attempt, self.due, self.failures, self.stored = state, attempt, due, failures, None

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
            self.start, self.count, self.stored = self.start + done, self.count - done, None
            self.bits = self.bits[done:]

    def covers(self, position: Place) -> bool:
        """Return whether a position lies within the run, as far as its ends are known."""
        if position > self.last:
            return False
        if self.first is not None:
            return bool(position >= self.first)
        return bool(position == self.last or (self.prev is not None and position > self.prev))

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
            floor=None if start else self.floor,
        )


def as_position(value: object) -> RecordPosition:
    """A position from what `Positions` hold: itself, its text, or an Arrow or numpy text scalar."""
    if isinstance(value, RecordPosition):
        return value
    if hasattr(value, "as_py"):
        value = value.as_py()
    return RecordPosition.parse(value.decode() if isinstance(value, bytes) else str(value))


def load_entries(runs: Sequence[Run], state: State, places: Places) -> list[Entry]:
    """Return the entries of stored runs."""
    lasts = places([run.last for run in runs])
    befores = iter(places([run.prev for run in runs if run.prev is not None]))
    return [
        Entry(
            last,
            last if run.first == run.last else places([run.first])[0] if run.first else None,
            run.count,
            None if run.prev is None else next(befores),
            state,
            run.attempt,
            run.due,
            run.failures,
            run,
        )
        for run, last in zip(runs, lasts, strict=True)
    ]


def as_entry(run: Any) -> Any:
    """Return the entry of a stored run that waits, whose positions are held as texts."""
    if not isinstance(run, Run):
        return run
    first = run.last if run.first == run.last else run.first or None
    return Entry(run.last, first, run.count, run.prev, State.WAITING, run.attempt, run.due, run.failures, run)


def make_failed_run(
    first: str, last: str, count: int, prev: str | None, fate: Fate, this_round: int
) -> Entry | Run:
    """Return a run that has failed: it is stored as it stands if it waits."""
    state, attempt, due, failures = fate
    if state is State.WAITING:
        return Run(first, last, count, prev, attempt, due, failures)
    return Entry(last, first or None, count, prev, state, attempt, due, failures, touched=this_round)


def parse_place(place: Place | None) -> RecordPosition | None:
    """Return a position as such."""
    return RecordPosition.parse(place) if isinstance(place, str) else place
