"""The turns that delivered records, and what is still pending of them as it is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.bulk import OrdinalArray
from kinesis_trident.tracker.inflight.entries import Entry, State
from kinesis_trident.tracker.inflight.pieces import runs_of
from kinesis_trident.tracker.position_keys import KeyPositions, Keys, find, key_of
from kinesis_trident.tracker.records import PendingRun, RecordPosition


@dataclass(frozen=True, slots=True)
class DeliveredTurn:
    """The rows of a delivery: their keys, sorted; row i has the ordinal `base + i`."""

    keys: Keys
    positions: KeyPositions
    base: int

    def held_by(self, entry: Entry, start: int) -> Entry:
        """Let an entry stand for the rows from `start` on."""
        entry.first, entry.positions, entry.start = self.positions[start], self.positions, start
        entry.base, entry.value, entry.stored = self.base + start, None, None
        return entry

    def start_of(self, entry: Entry) -> int | None:
        """The row that a stored run begins with; None where the turn does not have all of its records."""
        at, _ = find(self.keys, key_of(entry.last))
        start = int(at[0]) + 1 - entry.count if len(at) else -1
        if start < 0:
            return None
        # As many rows as the run has records, between the same ends: so they are its records.
        first = self.positions[start]
        whole = first == entry.first or (
            entry.first is None and entry.prev is not None and entry.prev < first
        )
        return start if whole else None


def entries_of(run: PendingRun, turn: DeliveredTurn | None) -> Iterator[Entry]:
    """The entries of a stored pending run, whose turn this is.

    Raises:
        OrderError: it does not fit its turn.
    """
    bounds = run.open
    rising = all(low < high for low, high in pairwise(bounds))
    if turn is None or not bounds or len(bounds) % 2 or not rising or bounds[-1] > len(turn.keys):
        held = len(turn.keys) if turn is not None else "unknown"
        msg = f"stored pending records {bounds[:6]} of txid {run.txid}, whose turn has {held} rows, do not fit it"
        raise OrderError(msg)
    prev = RecordPosition.parse(run.prev) if run.prev is not None else None
    for start, until in zip(bounds[::2], bounds[1::2], strict=True):
        if start != bounds[0]:
            prev = turn.positions[start - 1]
        entry = Entry(
            turn.positions[until - 1],
            None,
            until - start,
            prev,
            attempt=run.attempt,
            due=run.due,
            failures=run.failures,
        )
        yield turn.held_by(entry, start)


def pending_runs(
    entries: Iterable[Entry], lowest: Entry | None, turns: Mapping[int, DeliveredTurn]
) -> tuple[PendingRun, ...]:
    """The pending ones of a shard's entries, as they are stored.

    `lowest`: the first entry above the checkpoint. What is at or below that is kept apart when it is read again.
    """
    txids = {id(turn.positions): txid for txid, turn in turns.items()}
    found: list[PendingRun] = []
    for entry in entries:
        if entry.state is not State.PENDING:
            continue
        ranges = runs_of(still_open(entry) + entry.start)
        run = PendingRun(
            txids[id(entry.positions)],
            tuple(bound for pair in ranges for bound in pair),
            entry.attempt,
            entry.due,
            _before(entry, ranges[0][0]),
            entry.failures,
        )
        if found and entry is not lowest and _goes_on(found[-1], run, entry):
            bounds, more = found[-1].open, run.open
            touching = bounds[-1] == more[0]
            both = (*bounds[:-1], *more[1:]) if touching else (*bounds, *more)
            run = msgspec.structs.replace(found.pop(), open=both)
        found.append(run)
    return tuple(found)


def still_open(entry: Entry) -> OrdinalArray:
    """The offsets of an entry's records without an outcome."""
    if entry.bits is None:
        return np.arange(entry.count)
    return np.flatnonzero(np.frombuffer(entry.bits, np.uint8) == 0)


def _before(entry: Entry, row: int) -> str | None:
    """The record just before a row of an entry's turn."""
    prev = entry.position(row - entry.start - 1) if row > entry.start else entry.prev
    return str(prev) if prev is not None else None


def _goes_on(one: PendingRun, other: PendingRun, entry: Entry) -> bool:
    """Return True if an entry's run can be stored with another one: the row before each range is its neighbour."""
    return (
        (one.txid, one.attempt, one.due, one.failures)
        == (other.txid, other.attempt, other.due, other.failures)
        and entry.start > 0
        and entry.prev == entry.position(-1)
    )
