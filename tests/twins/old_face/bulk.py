"""Tracking by arrays: a million records emitted in one call, acked and failed as arrays of their ordinals.

A run of records costs one entry, plus a byte a record while only some of its records are done. Failed records
leave their run and become entries of their own.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from twins.old_face.entries import Entry, OpenEntries, Rows

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import xor_of
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import Fates, State

OrdinalArray = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

CHUNK = 65_536
"""Records of one entry at most, so that what is done is let go although a neighbour is still open."""

_SPARSE = 2_048
"""With fewer than one open record in so many, open ones become entries: cheaper than a byte for all."""

_BASE = attrgetter("base")

_FEW = 4
"""Up to so many entries, an array is split with a mask for each; beyond that, it is sorted once."""


class BulkTracking:
    """The records of a shard that came in arrays, by ordinal: an ordinal counts all of them here, from 0."""

    def __init__(self, runs: OpenEntries) -> None:
        self._runs = runs
        self._next = 0
        self._chunks: list[Entry] = []
        self._forget_at = 64

    def number(self, count: int) -> int:
        """Return the first ordinal of so many records that come next."""
        self._next += count
        return self._next - count

    def emit(self, rows: Rows, until: int, ids: Ids | None = None) -> None:
        """Track new neighbours: the first `until` rows.

        Raises:
            OrderError: they do not come after all that was emitted before.
        """
        runs = self._runs
        if until and runs.high is not None and (first := rows.position(0)) <= runs.high:
            msg = f"{until} records from {first} on: expected them after {runs.high}"
            raise OrderError(msg)
        for at in range(0, until, CHUNK):
            end = min(at + CHUNK, until)
            value = None if ids is None else xor_of(ids[at:end])
            last, first = rows.position(end - 1), rows.position(at)
            entry = Entry(last, first, end - at, runs.high, value=value, rows=rows, start=at)
            runs.append(entry)
            insort(self._chunks, entry, key=_BASE)

    def ack(self, ordinals: OrdinalArray, ids: Ids | None = None) -> None:
        """Records are done, or, with `ids`, tuples of their trees: see `InflightRecordTracker.ack_many`."""
        for entry, offsets, which in self._groups(ordinals):
            if ids is not None:
                if entry.value is not None:
                    entry.value ^= xor_of(ids[which])
                    if entry.value == 0:
                        self._runs.mark_done(entry)
            elif entry.state is State.PENDING:
                self._ack(entry, offsets)
            else:
                self.split(entry, runs_of(np.unique(offsets)), None)

    def fail(self, ordinals: OrdinalArray, now_ms: int, failure: Failure, rng: random.Random) -> None:
        """Records failed: see `InflightRecordTracker.fail_many`."""
        fates = Fates(self._runs.policy, now_ms, rng)
        for entry, failed in self._pending(ordinals):
            fate = Entry(entry.last)
            fate.become(*fates.decide(failure, entry.attempt, entry.failures))
            self.split(entry, runs_of(failed), fate if fate.state is not State.ACKED else None)

    def take_due(self, now_ms: int) -> OrdinalArray:
        """Deliver again what is due: see `InflightRecordTracker.retry_many`."""
        due = [e for e in self._runs if e.state is State.WAITING and e.rows is not None and e.due <= now_ms]
        for entry in due:
            entry.become(State.PENDING, entry.attempt + 1, entry.due, entry.failures)
        spans = [np.arange(entry.base, entry.base + entry.count) for entry in due]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def split(self, entry: Entry, cuts: Sequence[tuple[int, int]], fate: Entry | None) -> None:
        """Cut runs of records (offsets: from, until) out of an entry: they take their fate from another.

        Without a fate they are done.
        """
        parts: list[Entry] = []
        end = 0
        for start, until in (*cuts, (entry.count, entry.count)):
            if start > end and (entry.bits is None or entry.bits.find(0, end, start) >= 0):
                parts.append(entry.part(end, start, entry))
            if fate is not None and start < until:
                parts.append(entry.part(start, until, fate))
            end = until
        index = bisect_left(self._chunks, entry.base, key=_BASE)
        self._chunks[index : index + 1] = parts
        if parts:
            self._runs.splice(entry, parts)
        else:
            self._runs.mark_done(entry)

    def ordinal_of(self, position: RecordPosition) -> int | None:
        """Return the ordinal of a record while its run is not done; else None."""
        if not self._chunks:
            return None
        entry = self._runs.find_from(position)
        if entry is None or entry.rows is None or not entry.covers(position):
            return None
        offset = bisect_left(range(entry.count), position, key=entry.position)
        return entry.base + offset if entry.position(offset) == position else None

    def is_open(self, ordinal: int) -> bool:
        """Return whether a record is not done."""
        index = bisect_right(self._chunks, ordinal, key=_BASE) - 1
        entry = self._chunks[index] if index >= 0 else None
        if entry is None or entry.state is State.ACKED or ordinal - entry.base >= entry.count:
            return False
        return entry.bits is None or not entry.bits[ordinal - entry.base]

    def _pending(self, ordinals: OrdinalArray) -> Iterator[tuple[Entry, OrdinalArray]]:
        """Yield the entries in which some of the records are pending, with the offsets of these, ascending."""
        for entry, offsets, _ in self._groups(ordinals):
            if entry.state is State.PENDING:
                each = np.unique(offsets)
                still_open = each if entry.bits is None else each[entry.is_open()[each]]
                if len(still_open):
                    yield entry, still_open

    def _groups(self, ordinals: OrdinalArray) -> Iterator[tuple[Entry, OrdinalArray, OrdinalArray | slice]]:
        """Ordinals by the entry that they belong to: the entry, offsets in it, and indexes."""
        if not len(ordinals):
            return
        chunks = self._chunks
        low = bisect_right(chunks, int(ordinals.min()), key=_BASE) - 1
        high = bisect_right(chunks, int(ordinals.max()), key=_BASE) - 1
        touched = chunks[max(low, 0) : high + 1]
        if len(touched) == 1 and low == high:
            spans: list[OrdinalArray | slice] = [slice(None)]
        elif len(touched) <= _FEW:
            spans = [
                np.flatnonzero((ordinals >= entry.base) & (ordinals < entry.base + entry.count))
                for entry in touched
            ]
        else:
            order = np.argsort(ordinals)
            bases = np.array([entry.base for entry in touched])
            cuts = np.searchsorted(ordinals, bases, sorter=order)
            spans = list(np.split(order, cuts)[1:])
        for entry, which in zip(touched, spans, strict=True):
            if entry.state is State.ACKED:
                continue
            # Others are unknown, or done since: the checkpoint may have moved into an entry meanwhile.
            offsets = ordinals[which] - entry.base
            inside: OrdinalArray | slice = which
            if len(offsets) and (int(offsets.max()) >= entry.count or int(offsets.min()) < 0):
                known = np.flatnonzero((offsets >= 0) & (offsets < entry.count))
                inside = known if isinstance(which, slice) else which[known]
                offsets = offsets[known]
            if len(offsets):
                yield entry, offsets, inside
        if len(self._chunks) > self._forget_at:
            # What is done, once it can be as much as the rest.
            self._chunks = [entry for entry in self._chunks if entry.state is not State.ACKED]
            self._forget_at = 2 * len(self._chunks) + 64

    def _ack(self, entry: Entry, offsets: OrdinalArray) -> None:
        """Mark pending records as done."""
        if entry.bits is None:
            entry.bits = bytearray(entry.count)
        view = np.frombuffer(entry.bits, np.uint8)
        view[offsets] = 1
        left = entry.count - int(np.count_nonzero(view))
        if not left:
            self._runs.mark_done(entry)
        elif left * _SPARSE <= entry.count:
            self.split(entry, runs_of(np.flatnonzero(~entry.is_open())), None)
        else:
            self._runs.advance()


def runs_of(offsets: OrdinalArray) -> list[tuple[int, int]]:
    """Return sorted, distinct offsets as runs of neighbours: from, until."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
