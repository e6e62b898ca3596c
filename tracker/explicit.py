"""Records that stay in flight after their batch, until somebody acks or fails them, or their time is up.

What Storm's `ack(messageId)`, `fail(messageId)` and `topology.message.timeout.secs` do for a spout, over whole
arrays of records: acks come as keys (`tracker.keys`) and are looked up in the turns that delivered the records.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from tracker.entries import Entry, EntryList, State
from tracker.errors import OrderError
from tracker.inflight import InflightRecordTracker
from tracker.keys import KeyPositions, Keys, above, find, joined, key_of
from tracker.ledger import with_failure
from tracker.ordinals import CHUNK, OrdinalArray, runs_of
from tracker.records import NotDone, PendingRun, RecordPosition, Run
from tracker.retry import RetryPolicy

__all__ = ["TIMEOUT", "ExplicitTracker", "Told"]

TIMEOUT = "TIMEOUT"
"""The reason of records that nobody acked in time."""


class Told(NamedTuple):
    """What acks or fails came to, in records.

    `changed`: pending ones that are done, or failed, by them. `late`: acked ones that waited for a retry, or for the
    dead letter, and do not come again. `known`: those that changed nothing: done or failed before, or no records at all
    among those that were read. `unknown`: positions beyond all that was ever read.
    """

    changed: int = 0
    late: int = 0
    known: int = 0
    unknown: int = 0

    def plus(self, other: Told) -> Told:
        """Both together."""
        return Told(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class _Turn:
    """The rows of a delivery: their keys, sorted; row i has the ordinal `base + i`."""

    keys: Keys
    positions: KeyPositions
    base: int


class ExplicitTracker(InflightRecordTracker):
    """One shard whose records are acked and failed by name, after the batches that delivered them."""

    def __init__(self, policy: RetryPolicy | None = None, checkpoint: RecordPosition | None = None) -> None:
        super().__init__(policy, checkpoint)
        self._turns: dict[int, _Turn] = {}

    @classmethod
    def of(
        cls,
        checkpoint: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        pending: Sequence[PendingRun],
        turns: Mapping[int, Keys],
        policy: RetryPolicy | None = None,
        *,
        through: RecordPosition | None = None,
    ) -> ExplicitTracker:
        """The tracker of a shard from what is stored of it, as `InflightRecordTracker.restore`.

        `turns` are the keys of the rows of past batches, by txid: of all that `pending` names. What waits can be acked
        one by one as far as they hold it, otherwise as whole runs only.

        Raises:
            OrderError: runs overlap, or a pending one is of none of the turns.
        """
        tracker = cls(policy, checkpoint)
        for txid, keys in sorted(turns.items()):
            tracker._know(txid, keys)
        entries = [tracker._located(Entry.of(run, State.WAITING)) for run in waiting]
        entries += [tracker._located(Entry.of(run, State.DEAD)) for run in dead]
        entries += [entry for run in pending for entry in tracker._entries_of(run)]
        tracker._place(entries, through)
        for entry in tracker._entries:
            tracker._register(entry)
        return tracker

    def give(self, txid: int, keys: Keys, start: int, deadline: int) -> None:
        """New records were delivered: the rows from `start` on of a turn with these keys. They wait for their acks.

        `deadline`: when they time out, in epoch milliseconds.

        Raises:
            OrderError: they do not come after all that was delivered before.
        """
        turn = self._know(txid, keys)
        for first in range(start, len(keys), CHUNK):
            high = self.high
            until = min(first + CHUNK, len(keys))
            entry = Entry(turn.positions[until - 1], None, until - first, high, due=deadline)
            self._at(entry, turn, first)
            if high is not None and entry.first is not None and entry.first <= high:
                msg = f"new records from {entry.first} on: expected them after {high}"
                raise OrderError(msg)
            self._entries.append(entry)
            self._register(entry)

    def give_again(
        self,
        run: Run,
        served: int,
        through: RecordPosition | None,
        *,
        txid: int,
        keys: Keys,
        start: int,
        deadline: int,
    ) -> None:
        """A waiting run was delivered again, `served` of its records: the rows from `start` on of a turn.

        `through` as in `redelivered`; what was not reached waits on.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: the numbers do not fit the run, or the rows are not its records.
        """
        entries, entry = self._lookup(run, State.WAITING)
        if self._unreached(run, served, through, ()):
            return
        turn = self._know(txid, keys)
        last = entry.last if served == run.count or through is None else through
        found = turn.positions[start + served - 1] if start + served <= len(keys) else None
        if found != last:
            msg = (
                f"{served} records up to {last} came again in txid {txid}, whose rows there end with {found}"
            )
            raise OrderError(msg)
        given = Entry(
            last, None, served, entry.prev, attempt=entry.attempt + 1, due=deadline, failures=entry.failures
        )
        parts = [self._at(given, turn, start)]
        if served < entry.count and entry.positions is not None:
            parts.append(self._part_of(entry, served, entry.count, entry))
        elif served < entry.count:
            rest = replace(entry, first=None, count=entry.count - served, prev=last, before=None, after=None)
            parts.append(rest)
        entries.replace(entry, parts)
        if entries is self._entries:
            for part in parts:
                self._register(part)

    def fail_given(self, txid: int, pieces: Sequence[NotDone], now_ms: int, rng: random.Random) -> int:
        """Records failed in the batch that delivered them; returns how many of them are gone from the stream since."""
        turn = self._turns[txid]
        gone = 0
        for piece in pieces:
            at, _ = find(turn.keys, key_of(RecordPosition.parse(piece.first)))
            if not len(at):
                gone += piece.count
                continue
            self._fail(turn, np.arange(at[0], at[0] + piece.count), now_ms, piece.reason, rng)
        return gone

    def ack_keys(self, wanted: Keys) -> Told:
        """Records are done, wherever they are: pending, waiting for a retry, or dead and not yet dead-lettered."""
        wanted = joined([wanted])
        before = self._counted()
        for turn in self._turns.values():
            at, _ = find(turn.keys, wanted)
            if len(at):
                self.ack_many(at + turn.base)
                self._beside_cut(turn, at, Entry(RecordPosition(0)))
        for entries, entry in self._single(wanted):
            self._forget_single(entries, entry)
        after = self._counted()
        return self._told(wanted, before[0] - after[0], before[1] - after[1])

    def fail_keys(self, wanted: Keys, now_ms: int, reason: str, rng: random.Random) -> Told:
        """Pending records failed: they wait for a retry, or are dead. All others are left as they are."""
        wanted = joined([wanted])
        before = self._counted()
        for turn in self._turns.values():
            at, _ = find(turn.keys, wanted)
            if len(at):
                self._fail(turn, at, now_ms, reason, rng)
        return self._told(wanted, before[0] - self._counted()[0], 0)

    def reset_keys(self, wanted: Keys, deadline: int) -> Told:
        """Pending records have until `deadline`, in epoch milliseconds; all others are left as they are."""
        wanted = joined([wanted])
        changed = 0
        for turn in self._turns.values():
            at, _ = find(turn.keys, wanted)
            if len(at):
                changed += sum(
                    self._put_off(entry, at - entry.start, deadline)
                    for entry in list(self._all())
                    if entry.state is State.PENDING and entry.positions is turn.positions
                )
        return self._told(wanted, changed, 0)

    def _put_off(self, entry: Entry, offsets: OrdinalArray, deadline: int) -> int:
        """Give those of an entry's records that are open another deadline; returns how many."""
        offsets = np.intersect1d(offsets, _still_open(entry))
        if not len(offsets):
            return 0
        fate = Entry(entry.last, attempt=entry.attempt, due=deadline, failures=entry.failures)
        parts = self._parts(entry, runs_of(offsets), fate)
        if any(one is entry for one in self._beside):
            self._beside.replace(entry, parts)
        else:
            self._entries.replace(entry, parts)
            index = bisect_left(self._chunks, entry.base, key=lambda chunk: chunk.base)
            self._chunks[index : index + 1] = parts
            for part in parts:
                if part.bits is not None and part.bits.find(0) < 0:
                    self._done(part)
        return len(offsets)

    def time_out(self, now_ms: int, rng: random.Random) -> int:
        """Fail what nobody has acked in time, with the reason `TIMEOUT`; returns how many records."""
        before = self._counted()[0]
        for turn in self._turns.values():
            late = [
                _still_open(entry) + entry.start
                for entry in self._all()
                if entry.state is State.PENDING and entry.positions is turn.positions and entry.due <= now_ms
            ]
            if late:
                self._fail(turn, np.concatenate(late), now_ms, TIMEOUT, rng)
        return before - self._counted()[0]

    def replay(self, positions: Sequence[RecordPosition], now_ms: int) -> tuple[RecordPosition, ...]:
        """As `Turns.replay`; records that are done come again although their neighbours are still pending."""
        for entry in self._entries:
            if entry.bits is not None:
                done = np.flatnonzero(np.frombuffer(entry.bits[entry.skip :], np.uint8)) + entry.skip
                if len(done):
                    self._split(entry, runs_of(done), Entry(entry.last))
        return super().replay(positions, now_ms)

    @property
    def next_timeout(self) -> int | None:
        """When the first pending record times out, in epoch milliseconds; None when none is pending."""
        return min((entry.due for entry in self._all() if entry.state is State.PENDING), default=None)

    @property
    def open(self) -> int:
        """How many records nobody has acked or failed yet."""
        return self._counted()[0]

    @property
    def held(self) -> int:
        """How many records are not done: what `maxInflightRecords` bounds."""
        return sum(self._counted())

    @property
    def turns_in_use(self) -> dict[int, Keys]:
        """The turns that hold the records that are not done, by txid: what must be kept for their acks."""
        used = {id(entry.positions) for entry in self._all() if entry.state is not State.ACKED}
        return {txid: turn.keys for txid, turn in self._turns.items() if id(turn.positions) in used}

    @property
    def unacked(self) -> tuple[PendingRun, ...]:
        """What is pending, as it is stored."""
        txids = {id(turn.positions): txid for txid, turn in self._turns.items()}
        found: list[PendingRun] = []
        for entry in self._all():
            if entry.state is not State.PENDING:
                continue
            ranges = runs_of(_still_open(entry) + entry.start)
            run = PendingRun(
                txids[id(entry.positions)],
                tuple(bound for pair in ranges for bound in pair),
                entry.attempt,
                entry.due,
                _before(entry, ranges[0][0]),
                entry.failures,
            )
            # What is at or below the checkpoint is kept apart when it is read again.
            if found and entry is not self._entries.first and _goes_on(found[-1], run, entry):
                bounds, more = found[-1].open, run.open
                touching = bounds[-1] == more[0]
                both = (*bounds[:-1], *more[1:]) if touching else (*bounds, *more)
                run = msgspec.structs.replace(found.pop(), open=both)
            found.append(run)
        return tuple(found)

    def _know(self, txid: int, keys: Keys) -> _Turn:
        known = self._turns.get(txid)
        if known is None:
            known = self._turns[txid] = _Turn(keys, KeyPositions(keys), self._next)
            self._next += len(keys)
        return known

    @staticmethod
    def _at(entry: Entry, turn: _Turn, start: int) -> Entry:
        """Let an entry stand for the rows of a turn from `start` on."""
        entry.first, entry.positions, entry.start = turn.positions[start], turn.positions, start
        entry.base, entry.value = turn.base + start, None
        return entry

    def _register(self, entry: Entry) -> None:
        if entry.base >= 0:
            insort(self._chunks, entry, key=lambda chunk: chunk.base)

    def _located(self, entry: Entry) -> Entry:
        """An entry of a stored run, with its rows in the newest turn that has all of them."""
        for turn in reversed(self._turns.values()):
            at, _ = find(turn.keys, key_of(entry.last))
            start = int(at[0]) + 1 - entry.count if len(at) else -1
            if start < 0:
                continue
            # As many rows as the run has records, between the same ends: so they are its records.
            first = turn.positions[start]
            if first == entry.first or (
                entry.first is None and entry.prev is not None and entry.prev < first
            ):
                return self._at(entry, turn, start)
        return entry

    def _entries_of(self, run: PendingRun) -> Iterator[Entry]:
        turn = self._turns.get(run.txid)
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
            yield self._at(entry, turn, start)

    def _counted(self) -> tuple[int, int]:
        """How many records are pending, and how many wait or are dead."""
        pending = others = 0
        for entry in self._all():
            if entry.state is State.PENDING:
                pending += entry.count if entry.bits is None else entry.bits.count(0)
            elif entry.state is not State.ACKED:
                others += entry.count
        return pending, others

    def _told(self, wanted: Keys, changed: int, late: int) -> Told:
        unknown = above(wanted, self.high)
        return Told(changed, late, len(wanted) - changed - late - unknown, unknown)

    def _fail(self, turn: _Turn, at: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
        self.fail_many(at + turn.base, now_ms, reason, rng)
        for entry in self._beside_of(turn, at):
            if entry.state is not State.PENDING:
                continue
            fate = Entry(entry.last, attempt=entry.attempt)
            fate.failures = with_failure(entry.failures, now_ms, reason)
            if not self._policy.exhausted(entry.attempt):
                fate.state, fate.due = State.WAITING, self._policy.due(entry.attempt, now_ms, rng)
            elif self._policy.dead_letter:
                fate.state = State.DEAD
            self._cut_beside(entry, at, fate)

    def _beside_cut(self, turn: _Turn, at: OrdinalArray, fate: Entry) -> None:
        for entry in self._beside_of(turn, at):
            self._cut_beside(entry, at, fate)

    def _beside_of(self, turn: _Turn, at: OrdinalArray) -> list[Entry]:
        """The entries at or below the checkpoint that hold rows of a turn, of those at these places."""
        return [
            entry
            for entry in self._beside
            if entry.positions is turn.positions
            and np.any((at >= entry.start) & (at < entry.start + entry.count))
        ]

    def _cut_beside(self, entry: Entry, at: OrdinalArray, fate: Entry) -> None:
        """As `_split`, beside the entries: what is done there is gone."""
        inside = at[(at >= entry.start) & (at < entry.start + entry.count)] - entry.start
        runs = runs_of(np.unique(inside))
        cut_out = {start + entry.base for start, _ in runs}
        parts = self._parts(entry, runs, fate)
        self._beside.replace(
            entry, [part for part in parts if fate.state is not State.PENDING or part.base not in cut_out]
        )

    def _single(self, wanted: Keys) -> list[tuple[EntryList, Entry]]:
        """The entries of one record that no turn knows, of those wanted: there because of a replay."""
        return [
            (entries, entry)
            for entries in (self._entries, self._beside)
            for entry in entries
            if entry.positions is None
            and entry.count == 1
            and entry.state is not State.ACKED
            and len(find(wanted, key_of(entry.last))[0])
        ]

    def _forget_single(self, entries: EntryList, entry: Entry) -> None:
        if entries is self._entries:
            self._done(entry)
        else:
            entries.remove(entry)


def _still_open(entry: Entry) -> OrdinalArray:
    """The offsets of an entry's records without an outcome."""
    if entry.bits is None:
        return np.arange(entry.count)
    return np.flatnonzero(np.frombuffer(entry.bits, np.uint8) == 0)


def _before(entry: Entry, row: int) -> str | None:
    """The record just before a row of an entry's turn."""
    prev = entry.position(row - entry.start - 1) if row > entry.start else entry.prev
    return str(prev) if prev is not None else None


def _goes_on(one: PendingRun, other: PendingRun, entry: Entry) -> bool:
    """Whether the run of an entry can be told with another one: then the row before each range is its neighbour."""
    return (
        (one.txid, one.attempt, one.due, one.failures)
        == (other.txid, other.attempt, other.due, other.failures)
        and entry.start > 0
        and entry.prev == entry.position(-1)
    )
