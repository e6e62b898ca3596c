"""Records that stay in flight after their batch, until somebody acks or fails them, or their time is up.

What Storm's `ack(messageId)`, `fail(messageId)` and `topology.message.timeout.secs` do for a spout, over whole
arrays of records: acks come as keys (`tracker.position_keys`) and are looked up in the turns that delivered
the records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.bulk import BulkTracking, OrdinalArray
from kinesis_trident.tracker.inflight.deliveries import DeliveredTurn, entries_of, pending_runs, still_open
from kinesis_trident.tracker.inflight.entries import Entry, State
from kinesis_trident.tracker.inflight.ledger import Ledger
from kinesis_trident.tracker.inflight.pieces import part_of, runs_of
from kinesis_trident.tracker.inflight.turns import is_unreached
from kinesis_trident.tracker.position_keys import KeyPositions, Keys, above, find, joined, key_of
from kinesis_trident.tracker.reasons import TIMEOUT, is_held
from kinesis_trident.tracker.records import NotDone, PendingRun, RecordPosition, Run


class AckCounts(NamedTuple):
    """The effect of acks or fails by name, in records.

    `changed`: pending ones that are done, or failed, by them. `late`: acked ones that waited for a retry, or for the
    dead letter, and do not come again. `known`: those that changed nothing: done or failed before, or no
    records at all among those that were read. `unknown`: positions beyond all that was ever read.
    """

    changed: int = 0
    late: int = 0
    known: int = 0
    unknown: int = 0


class ExplicitAcks:
    """The records of one shard that are acked and failed by name, after the batches that delivered them.

    Args:
        ledger: the entries of the shard.
        bulk: those of them that came in arrays, as all that are given here do.
    """

    def __init__(self, ledger: Ledger, bulk: BulkTracking) -> None:
        self._ledger = ledger
        self._bulk = bulk
        self._turns: dict[int, DeliveredTurn] = {}

    def read_entries(
        self,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        pending: Sequence[PendingRun],
        turns: Mapping[int, Keys],
    ) -> list[Entry]:
        """Return the entries of stored runs, with their rows in these turns, by txid, as far as they have them.

        Raises:
            OrderError: a run has no beginning, or a pending one is of none of the turns.
        """
        for txid, keys in sorted(turns.items()):
            self._know(txid, keys)
        entries = [*Entry.all_of(waiting, State.WAITING), *Entry.all_of(dead, State.DEAD)]
        if turns:
            entries = list(map(self._located, entries))
        return entries + [entry for run in pending for entry in entries_of(run, self._turns.get(run.txid))]

    def give(self, txid: int, keys: Keys, start: int, deadline: int) -> None:
        """New records were delivered: the rows from `start` on of a turn with these keys. They wait for their acks.

        `deadline`: when they time out, in epoch milliseconds.

        Raises:
            OrderError: they do not come after all that was delivered before.
        """
        turn = self._know(txid, keys)
        ordinals = range(turn.base + start, turn.base + len(keys))
        self._bulk.emit(turn.positions, start, ordinals, due=deadline)

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

        `through` as in `TurnOutcomes.redelivered`; what was not reached waits on.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: the numbers do not fit the run, or the rows are not its records.
        """
        entry = self._ledger.find_run(run, State.WAITING)
        if is_unreached(run, served, through, ()):
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
            parts.append(part_of(entry, served, entry.count, entry))
        elif served < entry.count:
            rest = msgspec.structs.replace(
                entry,
                first=None,
                count=entry.count - served,
                prev=last,
                stored=None,
                before=None,
                after=None,
            )
            parts.append(rest)
        self._ledger.replace(entry, parts)
        for part in parts:
            self._bulk.register(part)

    def fail_given(self, txid: int, pieces: Sequence[NotDone], now_ms: int, rng: random.Random) -> int:
        """Records failed in the batch that delivered them; returns how many of them are gone from the stream since.

        Those that a bolt holds wait for their acks like all others.
        """
        turn = self._turns[txid]
        gone = 0
        for piece in pieces:
            if is_held(piece.reason):
                continue
            at, _ = find(turn.keys, key_of(RecordPosition.parse(piece.first)))
            if len(at):
                first = turn.base + int(at[0])
                self._bulk.fail(np.arange(first, first + piece.count), now_ms, piece.reason, rng)
            else:
                gone += piece.count
        return gone

    def ack(self, keys: Keys, attempt: int | None = None) -> AckCounts:
        """Records are done, wherever they are: pending, waiting for a retry, or dead and not yet dead-lettered.

        With an `attempt`, here and below: only those that are pending in this attempt, as Storm ignores what is said of
        an earlier one.
        """
        wanted = joined([keys])
        pending, others = self._ledger.count_open()
        for turn, rows in self._rows_of(wanted, attempt):
            self._bulk.ack(rows + turn.base)
        for entry in self._single(wanted) if attempt is None else ():
            self._ledger.done(entry)
        left = self._ledger.count_open()
        return self._counts(wanted, pending - left[0], others - left[1])

    def fail(
        self, keys: Keys, now_ms: int, reason: str, rng: random.Random, attempt: int | None = None
    ) -> AckCounts:
        """Pending records failed: they wait for a retry, or are dead. All others are left as they are."""
        wanted = joined([keys])
        pending, _ = self._ledger.count_open()
        for turn, rows in self._rows_of(wanted, attempt):
            self._bulk.fail(rows + turn.base, now_ms, reason, rng)
        return self._counts(wanted, pending - self._ledger.count_open()[0])

    def reset(self, keys: Keys, deadline: int, attempt: int | None = None) -> AckCounts:
        """Pending records have until `deadline`, in epoch milliseconds; all others are left as they are."""
        wanted = joined([keys])
        changed = 0
        for turn, rows in self._rows_of(wanted, attempt):
            for entry in self._pending_of(turn):
                offsets = np.intersect1d(rows - entry.start, still_open(entry))
                if len(offsets):
                    fate = Entry(entry.last, attempt=entry.attempt, due=deadline, failures=entry.failures)
                    self._bulk.split(entry, runs_of(offsets), fate)
                    changed += len(offsets)
        return self._counts(wanted, changed)

    def time_out(self, now_ms: int, rng: random.Random) -> int:
        """Fail what nobody has acked in time, with the reason `TIMEOUT`; returns how many records."""
        pending, _ = self._ledger.count_open()
        for turn in self._turns.values():
            late = [still_open(entry) + entry.base for entry in self._pending_of(turn) if entry.due <= now_ms]
            if late:
                self._bulk.fail(np.concatenate(late), now_ms, TIMEOUT, rng)
        return pending - self._ledger.count_open()[0]

    @property
    def turns_in_use(self) -> dict[int, Keys]:
        """The turns that hold the records that are not done, by txid: what must be kept for their acks."""
        if not self._turns:
            return {}
        used = {id(entry.positions) for entry in self._ledger if entry.state is not State.ACKED}
        return {txid: turn.keys for txid, turn in self._turns.items() if id(turn.positions) in used}

    @property
    def pending(self) -> tuple[PendingRun, ...]:
        """Return the runs that nobody has acked or failed yet, as they are stored."""
        if not self._turns:
            return ()
        return pending_runs(self._ledger, self._ledger.entries.first, self._turns)

    def _know(self, txid: int, keys: Keys) -> DeliveredTurn:
        known = self._turns.get(txid)
        if known is None:
            base = self._bulk.number(len(keys)).start
            known = self._turns[txid] = DeliveredTurn(keys, KeyPositions(keys), base)
        return known

    def _located(self, entry: Entry) -> Entry:
        """An entry of a stored run, with its rows in the newest turn that has all of them."""
        for turn in reversed(self._turns.values()):
            start = turn.start_of(entry)
            if start is not None:
                return turn.held_by(entry, start)
        return entry

    def _rows_of(self, wanted: Keys, attempt: int | None) -> Iterator[tuple[DeliveredTurn, OrdinalArray]]:
        """Each turn that has some of the keys, with the rows there; with an attempt, those that are pending in it."""
        for turn in self._turns.values():
            rows, _ = find(turn.keys, wanted)
            if attempt is not None:
                rows = self._pending_in(turn, rows, attempt)
            if len(rows):
                yield turn, rows

    def _pending_in(self, turn: DeliveredTurn, rows: OrdinalArray, attempt: int) -> OrdinalArray:
        found = [
            np.intersect1d(rows, still_open(entry) + entry.start)
            for entry in self._pending_of(turn)
            if entry.attempt == attempt
        ]
        return np.concatenate(found) if found else rows[:0]

    def _pending_of(self, turn: DeliveredTurn) -> list[Entry]:
        return [
            entry
            for entry in self._ledger
            if entry.state is State.PENDING and entry.positions is turn.positions
        ]

    def _single(self, wanted: Keys) -> list[Entry]:
        """The entries of one record that no turn knows, of those wanted: there because of a replay."""
        return [
            entry
            for entry in self._ledger
            if entry.positions is None
            and entry.count == 1
            and entry.state is not State.ACKED
            and len(find(wanted, key_of(entry.last))[0])
        ]

    def _counts(self, wanted: Keys, changed: int, late: int = 0) -> AckCounts:
        unknown = above(wanted, self._ledger.high)
        return AckCounts(changed, late, len(wanted) - changed - late - unknown, unknown)
