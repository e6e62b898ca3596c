"""The outcomes of batches that judge their records: a turn is settled in a few calls, each O(runs)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.bulk import BulkTracking
from kinesis_trident.tracker.inflight.entries import Entry, EntryList, State
from kinesis_trident.tracker.inflight.fates import Fates, FatesOfDelivery, exhausted
from kinesis_trident.tracker.inflight.ledger import EXPIRED, Ledger, with_failure
from kinesis_trident.tracker.inflight.pieces import Piece, cut, runs_of
from kinesis_trident.tracker.records import PARSED, Failure, NotDone, RecordPosition, Run


class TurnOutcomes:
    """The outcomes of a shard's records in a batch. A call applies as a whole, or raises and changes nothing.

    Args:
        ledger: the entries of the shard.
        bulk: those of them that came in arrays.
    """

    def __init__(self, ledger: Ledger, bulk: BulkTracking) -> None:
        self._ledger = ledger
        self._bulk = bulk
        self._fates = Fates(ledger.policy)

    def delivered(
        self,
        last: RecordPosition,
        count: int,
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
    ) -> None:
        """New records of a turn ran, `count` of them up to `last`: all are done but the failed pieces.

        The checkpoint becomes the record before the first one that is not done: exactly, where the piece
        names it (`NotDone.prev`) or nothing is done in between, else the last record below it that is known
        to be done.

        Raises:
            OrderError: `last` is not after all that was delivered before, or the pieces do not fit.
        """
        ledger = self._ledger
        high = ledger.high
        if count < 1 or (high is not None and last <= high):
            msg = f"{count} new records up to {last}: expected some, after {high}"
            raise OrderError(msg)
        fates = self._fates.after(1, (), now_ms, rng)
        for piece in cut(failed, PARSED, first=None, prev=high, last=last, count=count):
            if piece.reason is None:
                ledger.append_done(piece.last)
            else:
                ledger.append(_entry_of(piece, fates))

    def redelivered(
        self,
        run: Run,
        served: int,
        through: RecordPosition | None,
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
    ) -> None:
        """A waiting run was delivered again: `served` of its records, in shard order, up to `through`.

        Failed pieces have failed once more: they wait again, or are dead when the retries are used up; the
        rest of what was served is done; what was not reached waits on unchanged. `through` may be None when all
        records were served. Of a run whose records are partly gone from the stream, tell `expired` first, and
        give what it returns here.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: `served` or `through` do not fit the run, or the pieces do not fit what was served.
        """
        entry = self._ledger.find_run(run, State.WAITING, through if served == run.count else None)
        if is_unreached(run, served, through, failed):
            return
        if served == run.count and not failed:
            # The end of nearly every retry.
            self._ledger.done(entry)
            return
        attempt = entry.attempt + 1
        if is_all_of(failed, run) and entry.positions is None:
            # The same without cutting, where very many fail again.
            fates = self._fates.after(attempt, entry.failures, now_ms, rng)
            entry.state, entry.attempt, entry.due, entry.failures = fates.of(failed[0].reason)
            self._ledger.settle(entry)
            return
        last = entry.last if served == run.count or through is None else through
        pieces = cut(failed, PARSED, first=entry.first, prev=entry.prev, last=last, count=served)
        fates = self._fates.after(attempt, entry.failures, now_ms, rng)
        parts = [_entry_of(piece, fates) for piece in pieces]
        self._replace(entry, parts, _rest(entry, served, last))

    def dead_lettered(self, run: Run, served: int, through: RecordPosition | None) -> None:
        """A dead run was dead-lettered: `served` records of it, in shard order, up to `through`: done.

        `through` may be None when all of them were. Records written without their payload, because the stream no
        longer holds them, count as served.

        Raises:
            UnknownRunError: no such run is dead here.
            OrderError: `served` or `through` do not fit the run.
        """
        entry = self._ledger.find_run(run, State.DEAD, through if served == run.count else None)
        if is_unreached(run, served, through, ()):
            return
        last = entry.last if served == run.count or through is None else through
        self._replace(entry, [Entry(last)], _rest(entry, served, last))

    def expired(self, run: Run, served: int, now_ms: int) -> Run | None:
        """All but `served` records of a waiting run are gone from the stream: dead, with no more retries.

        A stream drops its oldest records, so those gone are the run's first ones, and the served ones its
        last. Where the first served one stands is not known: the dead run then ends with the last position
        that is known to be gone. Returns the run of the served ones, for `redelivered`; None when there are
        none.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: `served` is negative, or not below the run's count.
        """
        entry = self._ledger.find_run(run, State.WAITING)
        if not 0 <= served < run.count:
            msg = f"{served} records found of {run.count} up to {run.last}: then none are gone"
            raise OrderError(msg)
        failures = with_failure(entry.failures, now_ms, EXPIRED)
        if not served:
            gone = Piece(entry.first, entry.last, entry.count, entry.prev, EXPIRED)
            self._replace(entry, [self._dead(gone, entry.attempt, failures)], None)
            return None
        gone_until = entry.first if entry.first is not None else _just_after(entry.prev)
        assert gone_until is not None, "a run has a first record or one before it"
        rest = Entry(
            entry.last, None, served, gone_until, State.WAITING, entry.attempt, entry.due, entry.failures
        )
        gone = Piece(entry.first, gone_until, entry.count - served, entry.prev, EXPIRED)
        self._replace(entry, [self._dead(gone, entry.attempt, failures)], rest)
        return rest.run()

    def replay(self, positions: Sequence[RecordPosition], now_ms: int) -> tuple[RecordPosition, ...]:
        """Somebody asks for records again: they are due now, with a fresh count (no delivery, no failure).

        A record of a run that waits or is dead takes its whole run along, because a run shares one fate.
        Records done before, at or below the checkpoint too, become runs of their own; the checkpoint does not
        move back for them, and those above it hold it until they are done again. What is pending is being
        delivered: nothing changes. Returns the positions that are refused: beyond what was ever delivered
        here, or known to be none.
        """
        ledger = self._ledger
        for entry in ledger.entries:
            # Records that are done come again although their neighbours are still pending.
            if entry.bits is not None:
                done = np.flatnonzero(np.frombuffer(entry.bits[entry.skip :], np.uint8)) + entry.skip
                if len(done):
                    self._bulk.split(entry, runs_of(done), None)
        refused: list[RecordPosition] = []
        for position in sorted(set(positions)):
            high = ledger.high
            if high is None or position > high:
                refused.append(position)
                continue
            behind = ledger.checkpoint is not None and position <= ledger.checkpoint
            if not self._revive(ledger.beside if behind else ledger.entries, position, now_ms):
                refused.append(position)
        return tuple(refused)

    def bury(self, positions: Sequence[RecordPosition]) -> tuple[RecordPosition, ...]:
        """Somebody gives up runs that wait, each named by its last record: they are dead now, as after the last retry.

        Returns the positions of which no waiting run ends.
        """
        ledger = self._ledger
        refused: list[RecordPosition] = []
        for position in sorted(set(positions)):
            for entries in (ledger.entries, ledger.beside):
                entry = entries.find(position)
                if entry is not None and entry.state is State.WAITING:
                    entry.state, entry.due = State.DEAD, 0
                    ledger.waits(entries.merge(entry))
                    break
            else:
                refused.append(position)
        return tuple(refused)

    def _dead(self, piece: Piece[RecordPosition], attempt: int, failures: tuple[Failure, ...]) -> Entry:
        state = exhausted(self._ledger.policy)
        return Entry(piece.last, piece.first, piece.count, piece.prev, state, attempt, 0, failures)

    def _replace(self, entry: Entry, parts: list[Entry], rest: Entry | None) -> None:
        self._ledger.replace(entry, parts if rest is None else [*parts, rest])
        for part in parts:
            self._ledger.settle(part)

    def _revive(self, entries: EntryList, position: RecordPosition, now_ms: int) -> bool:
        """Make a record due now with a fresh count; False when there is no such record."""
        at = entries.at_or_after(position)
        due = now_ms // 1_000 * 1_000
        if at is not None and at.state is not State.ACKED and at.covers(position):
            if at.state is not State.PENDING:
                at.state, at.attempt, at.due, at.failures = State.WAITING, 0, due, ()
                self._ledger.waits(entries.merge(at))
            return True
        if at is not None and at.state is not State.ACKED and at.prev is not None and at.prev < position:
            return False
        entry = Entry(position, position, state=State.WAITING, attempt=0, due=due)
        if at is not None and at.last == position:
            entries.replace(at, [entry])
        else:
            entries.insert(entry, at)
        self._ledger.waits(entries.merge(entry))
        return True


def _entry_of(piece: Piece[RecordPosition], fates: FatesOfDelivery) -> Entry:
    """Return the entry of a piece; where it is done it stays PENDING, for `Ledger.settle`."""
    if piece.reason is None:
        return Entry(piece.last)
    return Entry(piece.last, piece.first, piece.count, piece.prev, *fates.of(piece.reason))


def is_unreached(run: Run, served: int, through: RecordPosition | None, failed: Sequence[NotDone]) -> bool:
    """Say whether nothing of a run was served, of which these numbers were told.

    Raises:
        OrderError: they do not fit the run.
    """
    if not 0 <= served <= run.count or (served == 0 and failed):
        msg = f"{served} records served, {len(failed)} pieces failed of the {run.count} up to {run.last}"
        raise OrderError(msg)
    if 0 < served < run.count and not (through is not None and _inside(run, through)):
        msg = f"{served} of {run.count} records up to {run.last} were served, but the last one is {through}"
        raise OrderError(msg)
    return served == 0


def is_all_of(failed: Sequence[NotDone], run: Run) -> bool:
    """Return True if the pieces are one, which is the whole run."""
    if len(failed) != 1:
        return False
    (piece,) = failed
    return (piece.first, piece.last, piece.count) == (run.first, run.last, run.count)


def _rest(entry: Entry, served: int, through: RecordPosition) -> Entry | None:
    """Return the part of a run that was not reached, unchanged: its records after `through`."""
    if served == entry.count:
        return None
    return Entry(
        entry.last,
        None,
        entry.count - served,
        through,
        entry.state,
        entry.attempt,
        entry.due,
        entry.failures,
    )


def _just_after(position: RecordPosition | None) -> RecordPosition | None:
    """The smallest position after one."""
    return None if position is None else RecordPosition(position.sequence, position.sub + 1)


def _inside(run: Run, through: RecordPosition) -> bool:
    """Return True if `through` can be a record of the run that is not its last one."""
    after_start = (
        through >= RecordPosition.parse(run.first)
        if run.first
        else run.prev is None or through > RecordPosition.parse(run.prev)
    )
    return after_start and through < run.last_position
