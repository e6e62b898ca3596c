"""Tracking by arrays: a million records emitted in one call, acked and failed as arrays of their ordinals.

A run of records costs one entry, plus a byte a record while only some of its records are done. Failed records
leave their run and become entries of their own; a run that is done folds into its neighbours.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.entries import Entry, Positions, State, as_position
from kinesis_trident.tracker.inflight.ledger import Ledger, with_failure
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import RetryPolicy

__all__ = ["CHUNK", "Ids", "OrdinalArray", "Ordinals", "runs_of"]

OrdinalArray = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

CHUNK = 65_536
"""Records of one entry at most, so that what is done folds away although a neighbour is still open."""

_SPARSE = 2_048
"""With fewer than one open record in so many, open ones become entries: cheaper than a byte for all."""

_FEW = 4
"""Up to so many entries, an array is split with a mask for each; beyond that, it is sorted once."""


class Ordinals(Ledger):
    """The surface for bulk. A record's ordinal counts all records that were emitted as arrays here."""

    def __init__(self, policy: RetryPolicy | None = None, checkpoint: RecordPosition | None = None) -> None:
        super().__init__(policy, checkpoint)
        self._next = 0
        self._chunks: list[Entry] = []
        self._forget_at = 64

    def emit_many(self, count: int, positions: Positions, ids: Ids | None = None) -> range:
        """Track `count` new neighbours, the record after the last one emitted being the first of them.

        `positions[i]` is the place of record i; it is kept, not copied, and looked up only where a run begins
        or ends. `ids` are the ids outstanding, one a record: only their XOR is kept, a run of records.
        Returns the records' ordinals.

        Raises:
            OrderError: they do not come after all that was emitted before.
        """
        high = self.high
        ordinals = range(self._next, self._next + count)
        if count and high is not None and as_position(positions[0]) <= high:
            msg = f"{count} records from {as_position(positions[0])} on: expected them after {high}"
            raise OrderError(msg)
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            entry = Entry(
                as_position(positions[start + size - 1]),
                as_position(positions[start]),
                size,
                self.high,
                value=None if ids is None else _xor(ids[start : start + size]),
                base=self._next,
                positions=positions,
                start=start,
            )
            self._entries.append(entry)
            self._chunks.append(entry)
            self._next += size
        return ordinals

    def ack_many(self, ordinals: OrdinalArray, ids: Ids | None = None) -> None:
        """Records are done; failed ones after all. Those that are done already, or unknown, are ignored.

        With `ids` (one an ordinal) the acks are those of tuple trees: they are XORed into the value of the
        run that the record is in, and when that is zero the whole run is done. A run in which a record failed
        has no value any more: acks with ids are ignored there, its records are told one by one, without ids.
        """
        for entry, offsets, which in self._groups(ordinals):
            if ids is not None:
                if entry.value is not None:
                    entry.value ^= _xor(ids[which])
                    if entry.value == 0:
                        self._done(entry)
            elif entry.state is State.PENDING:
                self._ack(entry, offsets)
            else:
                self._split(entry, runs_of(np.unique(offsets)), Entry(entry.last))

    def fail_many(self, ordinals: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
        """Records failed: they wait for a retry; with none left they are dead (done, without dead letters).

        Those that wait already, are dead, done or unknown are ignored: a second fail costs no retry.
        """
        dues: dict[int, int] = {}
        for entry, offsets, _ in self._groups(ordinals):
            if entry.state is not State.PENDING:
                continue
            failed = np.unique(offsets)
            if entry.bits is not None:
                failed = failed[_view(entry.bits)[failed] == 0]
            if not len(failed):
                continue
            fate = Entry(entry.last, attempt=entry.attempt)
            fate.failures = with_failure(entry.failures, now_ms, reason)
            if not self._policy.exhausted(entry.attempt):
                fate.state = State.WAITING
                if entry.attempt not in dues:
                    dues[entry.attempt] = self._policy.due(entry.attempt, now_ms, rng)
                fate.due = dues[entry.attempt]
            elif self._policy.dead_letter:
                fate.state = State.DEAD
            self._split(entry, runs_of(failed), fate)

    def retry_many(self, now_ms: int) -> OrdinalArray:
        """The ordinals of failed records that are due, in shard order; they count as delivered again."""
        due = [e for e in self._entries if e.state is State.WAITING and e.base >= 0 and e.due <= now_ms]
        for entry in due:
            entry.state, entry.attempt = State.PENDING, entry.attempt + 1
        spans = [np.arange(entry.base, entry.base + entry.count) for entry in due]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def ordinal_of(self, position: RecordPosition) -> int | None:
        """The ordinal of a record that was emitted in an array, while its run is not done; else None."""
        index = bisect_left(self._chunks, position, key=lambda entry: entry.last)
        if index == len(self._chunks):
            return None
        entry = self._chunks[index]
        if not self._live(entry) or not entry.covers(position):
            return None
        offset = bisect_left(range(entry.count), position, key=entry.position)
        return entry.base + offset if entry.position(offset) == position else None

    def _open(self, ordinal: int) -> bool:
        """Whether a record that was emitted in an array is not done."""
        index = bisect_right(self._chunks, ordinal, key=lambda entry: entry.base) - 1
        entry = self._chunks[index] if index >= 0 else None
        if entry is None or not self._live(entry) or not entry.skip <= ordinal - entry.base < entry.count:
            return False
        return entry.bits is None or not entry.bits[ordinal - entry.base]

    def _live(self, entry: Entry) -> bool:
        return entry.positions is not None and self._entries.find(entry.last) is entry

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
            if len(offsets) and self._live(entry):
                yield entry, offsets, inside
        self._forget()

    def _forget(self) -> None:
        """Drop the chunks that are done, once they can be as many as the others."""
        if len(self._chunks) > self._forget_at:
            self._chunks = [entry for entry in self._chunks if self._live(entry)]
            self._forget_at = 2 * len(self._chunks) + 64

    def _ack(self, entry: Entry, offsets: OrdinalArray) -> None:
        if entry.bits is None:
            entry.bits = bytearray(entry.count)
        view = _view(entry.bits)
        view[offsets] = 1
        still_open = entry.count - int(np.count_nonzero(view))
        if not still_open:
            self._done(entry)
        elif still_open * _SPARSE <= entry.count:
            done = runs_of(np.flatnonzero(view[entry.skip :]) + entry.skip)
            self._split(entry, done, Entry(entry.last))
        elif entry is self._entries.first:
            self._advance()

    def _split(self, entry: Entry, runs: list[tuple[int, int]], fate: Entry) -> None:
        """Cut runs of records (offsets: from, until) out of an entry: they take their fate from another.

        A fate that is PENDING means done.
        """
        parts = self._parts(entry, runs, fate)
        cut_out = {start + entry.base for start, _ in runs}
        self._entries.replace(entry, parts)
        index = bisect_left(self._chunks, entry.base, key=lambda chunk: chunk.base)
        self._chunks[index : index + 1] = parts
        for part in parts:
            settled = part.base in cut_out and fate.state is State.PENDING
            if settled or (part.bits is not None and part.bits.find(0) < 0):
                self._done(part)
            else:
                self._waits(part)
        self._advance()

    def _parts(self, entry: Entry, runs: list[tuple[int, int]], fate: Entry) -> list[Entry]:
        """An entry in pieces: those of the runs with their fate from another, and what is between them."""
        parts: list[Entry] = []
        end = entry.skip
        for start, until in runs:
            if start > end:
                parts.append(self._part_of(entry, end, start, entry))
            parts.append(self._part_of(entry, start, until, fate))
            end = until
        if end < entry.count:
            parts.append(self._part_of(entry, end, entry.count, entry))
        return parts

    @staticmethod
    def _part_of(entry: Entry, start: int, until: int, fate: Entry) -> Entry:
        part = Entry(
            entry.position(until - 1),
            entry.position(start),
            until - start,
            entry.position(start - 1) if start else entry.prev,
            fate.state,
            fate.attempt,
            fate.due,
            fate.failures,
            value=None,
            base=entry.base + start,
            positions=entry.positions,
            start=entry.start + start,
        )
        if fate is entry and entry.bits is not None:
            part.bits = entry.bits[start:until]
        return part


def _view(bits: bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bits, np.uint8)


def _xor(ids: Ids) -> int:
    return int(np.bitwise_xor.reduce(ids)) & 0xFFFF_FFFF_FFFF_FFFF


def runs_of(offsets: OrdinalArray) -> list[tuple[int, int]]:
    """Sorted, distinct offsets as runs of neighbours: from, until."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
