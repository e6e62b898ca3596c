"""Records that stay in flight after their batch, until somebody acks or fails them, or their time is up.

What Storm's `ack(messageId)`, `fail(messageId)` and `topology.message.timeout.secs` do for a spout, over whole
arrays of records: acks come as keys (`tracker.position_keys`) and are looked up in the turns that delivered
the records.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.ack_counts import Told
from kinesis_trident.tracker.inflight.bulk import CHUNK, runs_of
from kinesis_trident.tracker.inflight.deliveries import entries_of, pending_runs, still_open
from kinesis_trident.tracker.inflight.entries import Entry, State
from kinesis_trident.tracker.inflight.keyed import KeyedTracker
from kinesis_trident.tracker.position_keys import Keys, find, joined, key_of
from kinesis_trident.tracker.records import NotDone, PendingRun, RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy

__all__ = ["TIMEOUT", "ExplicitTracker"]

TIMEOUT = "TIMEOUT"
"""The reason of records that nobody acked in time."""


class ExplicitTracker(KeyedTracker):
    """One shard whose records are acked and failed by name, after the batches that delivered them."""

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
        entries += [entry for run in pending for entry in entries_of(run, tracker._turns.get(run.txid))]
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
            turn.held_by(entry, first)
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
        parts = [turn.held_by(given, start)]
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
            if len(at):
                self._fail(turn, np.arange(at[0], at[0] + piece.count), now_ms, piece.reason, rng)
            else:
                gone += piece.count
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
            if entries is self._entries:
                self._done(entry)
            else:
                entries.remove(entry)
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

    def time_out(self, now_ms: int, rng: random.Random) -> int:
        """Fail what nobody has acked in time, with the reason `TIMEOUT`; returns how many records."""
        before = self._counted()[0]
        for turn in self._turns.values():
            late = [
                still_open(entry) + entry.start
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
        return pending_runs(self._all(), self._entries.first, self._turns)
