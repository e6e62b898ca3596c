"""Tracking by arrays: a million records emitted in one call, acked and failed as arrays of their ordinals.

A run of records costs one entry, plus a byte a record while only some of its records are done. Failed records
leave their run and become entries of their own; a run that is done folds into its neighbours.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.ids import xor_of
from kinesis_trident.tracker.inflight.entries import Entry, Positions, State, as_position
from kinesis_trident.tracker.inflight.ledger import Ledger, with_failure
from kinesis_trident.tracker.inflight.pieces import parts_of, runs_of
from kinesis_trident.tracker.records import RecordPosition

OrdinalArray = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

CHUNK = 65_536
"""Records of one entry at most, so that what is done folds away although a neighbour is still open."""

_SPARSE = 2_048
"""With fewer than one open record in so many, open ones become entries: cheaper than a byte for all."""

_FEW = 4
"""Up to so many entries, an array is split with a mask for each; beyond that, it is sorted once."""


class BulkTracking:
    """The records of a shard that came in arrays, by ordinal: an ordinal counts all of them here, from 0.

    Args:
        ledger: where their entries stand.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next = 0
        self._chunks: list[Entry] = []
        self._forget_at = 64

    def number(self, count: int) -> range:
        """Return the ordinals of so many records that come next."""
        self._next += count
        return range(self._next - count, self._next)

    def emit_new(self, count: int, positions: Positions, ids: Ids | None) -> range:
        """Track new neighbours: see `InflightRecordTracker.emit_many`."""
        ordinals = range(self._next, self._next + count)
        self.emit(positions, 0, ordinals, ids=ids)
        self._next = ordinals.stop
        return ordinals

    def emit(
        self, positions: Positions, start: int, ordinals: range, *, due: int = 0, ids: Ids | None = None
    ) -> None:
        """Track new neighbours: those with these ordinals, of which `positions[start]` is the first.

        Raises:
            OrderError: they do not come after all that was emitted before.
        """
        ledger, count = self._ledger, len(ordinals)
        high = ledger.high
        if count and high is not None and as_position(positions[start]) <= high:
            msg = f"{count} records from {as_position(positions[start])} on: expected them after {high}"
            raise OrderError(msg)
        for at in range(0, count, CHUNK):
            size = min(CHUNK, count - at)
            entry = Entry(
                as_position(positions[start + at + size - 1]),
                as_position(positions[start + at]),
                size,
                ledger.high,
                due=due,
                value=None if ids is None else xor_of(ids[at : at + size]),
                base=ordinals[at],
                positions=positions,
                start=start + at,
            )
            ledger.entries.append(entry)
            self.register(entry)

    def register(self, entry: Entry) -> None:
        """Find an entry by its ordinals from now on, where it has any."""
        if entry.base >= 0:
            insort(self._chunks, entry, key=lambda chunk: chunk.base)

    def ack(self, ordinals: OrdinalArray, ids: Ids | None = None) -> None:
        """Records are done, or, with `ids`, tuples of their trees: see `InflightRecordTracker.ack_many`."""
        for entry, offsets, which in self._groups(ordinals):
            if ids is not None:
                if entry.value is not None:
                    entry.value ^= xor_of(ids[which])
                    if entry.value == 0:
                        self._ledger.done(entry)
            elif entry.state is State.PENDING and self._ledger.list_of(entry) is self._ledger.entries:
                self._ack(entry, offsets)
            else:
                self.split(entry, runs_of(np.unique(offsets)), None)

    def fail(self, ordinals: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
        """Records failed: see `InflightRecordTracker.fail_many`."""
        policy = self._ledger.policy
        dues: dict[int, int] = {}
        for entry, offsets, _ in self._groups(ordinals):
            if entry.state is not State.PENDING:
                continue
            failed = np.unique(offsets)
            if entry.bits is not None:
                failed = failed[_view(entry.bits)[failed] == 0]
            if not len(failed):
                continue
            fate: Entry | None = Entry(entry.last, attempt=entry.attempt)
            assert fate is not None
            fate.failures = with_failure(entry.failures, now_ms, reason)
            if not policy.exhausted(entry.attempt):
                fate.state = State.WAITING
                if entry.attempt not in dues:
                    dues[entry.attempt] = policy.due(entry.attempt, now_ms, rng)
                fate.due = dues[entry.attempt]
            elif policy.dead_letter:
                fate.state = State.DEAD
            else:
                fate = None
            self.split(entry, runs_of(failed), fate)

    def take_due(self, now_ms: int) -> OrdinalArray:
        """Deliver again what is due: see `InflightRecordTracker.retry_many`."""
        due = [e for e in self._ledger if e.state is State.WAITING and e.base >= 0 and e.due <= now_ms]
        for entry in due:
            entry.state, entry.attempt = State.PENDING, entry.attempt + 1
        spans = [np.arange(entry.base, entry.base + entry.count) for entry in due]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def split(self, entry: Entry, runs: Sequence[tuple[int, int]], fate: Entry | None) -> None:
        """Cut runs of records (offsets: from, until) out of an entry: they take their fate from another.

        Without a fate they are done.
        """
        parts = parts_of(entry, runs, Entry(entry.last) if fate is None else fate)
        done = {entry.base + start for start, _ in runs} if fate is None else set()
        self._ledger.replace(entry, parts)
        index = bisect_left(self._chunks, entry.base, key=lambda chunk: chunk.base)
        self._chunks[index : index + 1] = parts
        for part in parts:
            if part.base in done or (part.bits is not None and part.bits.find(0) < 0):
                self._ledger.done(part)
            else:
                self._ledger.waits(part)
        self._ledger.advance()

    def ordinal_of(self, position: RecordPosition) -> int | None:
        """Return the ordinal of a record while its run is not done; else None."""
        index = bisect_left(self._chunks, position, key=lambda entry: entry.last)
        if index == len(self._chunks):
            return None
        entry = self._chunks[index]
        if not self._is_live(entry) or not entry.covers(position):
            return None
        offset = bisect_left(range(entry.count), position, key=entry.position)
        return entry.base + offset if entry.position(offset) == position else None

    def is_open(self, ordinal: int) -> bool:
        """Say whether a record is not done."""
        index = bisect_right(self._chunks, ordinal, key=lambda entry: entry.base) - 1
        entry = self._chunks[index] if index >= 0 else None
        if entry is None or not self._is_live(entry) or not entry.skip <= ordinal - entry.base < entry.count:
            return False
        return entry.bits is None or not entry.bits[ordinal - entry.base]

    def _is_live(self, entry: Entry) -> bool:
        return entry.positions is not None and self._ledger.list_of(entry) is not None

    def _groups(self, ordinals: OrdinalArray) -> Iterator[tuple[Entry, OrdinalArray, OrdinalArray | slice]]:
        """Ordinals by the entry that they belong to: the entry, offsets in it, and indexes."""
        if not len(ordinals):
            return
        chunks = self._chunks
        low = bisect_right(chunks, int(ordinals.min()), key=lambda entry: entry.base) - 1
        high = bisect_right(chunks, int(ordinals.max()), key=lambda entry: entry.base) - 1
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
            offsets = ordinals[which] - entry.base
            inside: OrdinalArray | slice = which
            if len(offsets) and int(offsets.max()) >= entry.count:
                known = np.flatnonzero(offsets < entry.count)
                inside = known if isinstance(which, slice) else which[known]
                offsets = offsets[known]
            if len(offsets) and self._is_live(entry):
                yield entry, offsets, inside
        self._forget()

    def _forget(self) -> None:
        """Drop the chunks that are done, once they can be as many as the others."""
        if len(self._chunks) > self._forget_at:
            self._chunks = [entry for entry in self._chunks if self._is_live(entry)]
            self._forget_at = 2 * len(self._chunks) + 64

    def _ack(self, entry: Entry, offsets: OrdinalArray) -> None:
        if entry.bits is None:
            entry.bits = bytearray(entry.count)
        view = _view(entry.bits)
        view[offsets] = 1
        still_open = entry.count - int(np.count_nonzero(view))
        if not still_open:
            self._ledger.done(entry)
        elif still_open * _SPARSE <= entry.count:
            done = runs_of(np.flatnonzero(view[entry.skip :]) + entry.skip)
            self.split(entry, done, None)
        elif entry is self._ledger.entries.first:
            self._ledger.advance()


def _view(bits: bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bits, np.uint8)
