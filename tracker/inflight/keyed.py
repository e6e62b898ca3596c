"""In-flight records that are found by their keys, in the turns that delivered them: one by one, wherever they are."""

from __future__ import annotations

import random
from bisect import bisect_left, insort

import numpy as np

from kinesis_trident.tracker.inflight.ack_counts import Told
from kinesis_trident.tracker.inflight.bulk import OrdinalArray, runs_of
from kinesis_trident.tracker.inflight.deliveries import Turn, still_open
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State
from kinesis_trident.tracker.inflight.ledger import with_failure
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.position_keys import KeyPositions, Keys, above, find, key_of
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import RetryPolicy

__all__ = ["KeyedTracker"]


class KeyedTracker(InflightRecordTracker):
    """The records of one shard, by the turns that hold their keys."""

    def __init__(self, policy: RetryPolicy | None = None, checkpoint: RecordPosition | None = None) -> None:
        super().__init__(policy, checkpoint)
        self._turns: dict[int, Turn] = {}

    def _know(self, txid: int, keys: Keys) -> Turn:
        known = self._turns.get(txid)
        if known is None:
            known = self._turns[txid] = Turn(keys, KeyPositions(keys), self._next)
            self._next += len(keys)
        return known

    def _register(self, entry: Entry) -> None:
        if entry.base >= 0:
            insort(self._chunks, entry, key=lambda chunk: chunk.base)

    def _located(self, entry: Entry) -> Entry:
        """An entry of a stored run, with its rows in the newest turn that has all of them."""
        for turn in reversed(self._turns.values()):
            start = turn.start_of(entry)
            if start is not None:
                return turn.held_by(entry, start)
        return entry

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

    def _fail(self, turn: Turn, at: OrdinalArray, now_ms: int, reason: str, rng: random.Random) -> None:
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

    def _beside_cut(self, turn: Turn, at: OrdinalArray, fate: Entry) -> None:
        for entry in self._beside_of(turn, at):
            self._cut_beside(entry, at, fate)

    def _beside_of(self, turn: Turn, at: OrdinalArray) -> list[Entry]:
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

    def _put_off(self, entry: Entry, offsets: OrdinalArray, deadline: int) -> int:
        """Give those of an entry's records that are open another deadline; returns how many."""
        offsets = np.intersect1d(offsets, still_open(entry))
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
