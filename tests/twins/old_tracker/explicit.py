"""Records that stay in flight after their batch, until somebody acks or fails them, or their time is up.

What Storm's `ack(messageId)`, `fail(messageId)` and `topology.message.timeout.secs` do for a spout, over whole
arrays of records: acks come as keys (`tracker.position_keys`) and are looked up in the turns that delivered
the records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from twins.old_tracker.bulk import BulkTracking, OrdinalArray, runs_of
from twins.old_tracker.entries import Entry, Rows
from twins.old_tracker.runs import OpenRuns

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure, Kind, parse
from kinesis_trident.tracker.position_keys import (
    Keys,
    count_through,
    find,
    key_of,
    keys_of_texts,
    merge_keys,
)
from kinesis_trident.tracker.records import NotDone, PendingRun, RecordPosition, Run
from kinesis_trident.tracker.retry import State

_TIMEOUT = Failure(Kind.TIMEOUT)


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
    """The records of one shard that are acked and failed by name, after the batches that delivered them."""

    def __init__(self, runs: OpenRuns, bulk: BulkTracking) -> None:
        self._runs = runs
        self._bulk = bulk
        self._turns: dict[int, Rows] = {}

    def read(
        self, failed: Sequence[Entry], pending: Sequence[PendingRun], turns: Mapping[int, Keys]
    ) -> list[Entry]:
        """Return the entries of stored pending runs; those of failed ones get their rows, as far as turns have them.

        `turns`: the keys of the rows of past batches, by txid.

        Raises:
            OrderError: a pending run is of none of the turns.
        """
        for txid, keys in sorted(turns.items()):
            self._rows_of(txid, keys)
        left = sorted(failed, key=lambda entry: entry.last)
        for turn in reversed(self._turns.values()):
            if left:
                left = _locate(left, turn)
        return [entry for run in pending for entry in _entries_of(run, self._turns.get(run.txid))]

    def give(self, txid: int, keys: Keys, start: int, deadline: int) -> None:
        """New records were delivered: the rows from `start` on of a turn with these keys. They wait for their acks.

        `deadline`: when they time out, in epoch milliseconds.

        Raises:
            OrderError: they do not come after all that was delivered before.
        """
        self._bulk.emit(self._rows_of(txid, keys), start, len(keys), due=deadline)

    def give_again(
        self,
        run: Run,
        served: int,
        through: RecordPosition | str | None,
        *,
        txid: int,
        keys: Keys,
        start: int,
        deadline: int,
    ) -> None:
        """A waiting run was delivered again, `served` of its records: the rows from `start` on of a turn.

        `through` as in `TurnOutcomes.redeliver`; what was not reached waits on.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: the numbers do not fit the run, or the rows are not its records.
        """
        self._runs.parse()
        entry = self._runs.find_run(run, State.WAITING)
        self.hand_over(entry, served, through, txid=txid, keys=keys, start=start, deadline=deadline)

    def hand_over(
        self,
        entry: Entry,
        served: int,
        through: RecordPosition | str | None,
        *,
        txid: int,
        keys: Keys,
        start: int,
        deadline: int,
    ) -> None:
        """Do what `give_again` does, with the entry of the run."""
        last = self._runs.find_served_until(entry, served, through)
        if last is None:
            return
        turn = self._rows_of(txid, keys)
        found = turn.position(start + served - 1) if start + served <= len(keys) else None
        if found != last:
            msg = (
                f"{served} records up to {last} came again in txid {txid}, whose rows there end with {found}"
            )
            raise OrderError(msg)
        given = Entry(
            last, None, served, entry.prev, attempt=entry.attempt + 1, due=deadline, failures=entry.failures
        )
        parts = [_held_by(turn, given, start)]
        if served < entry.count and entry.rows is not None:
            parts.append(entry.part(served, entry.count, entry))
        elif served < entry.count:
            fate = entry.state, entry.attempt, entry.due, entry.failures
            parts.append(Entry(entry.last, None, entry.count - served, last, *fate))
        self._runs.replace(entry, parts)
        for part in parts:
            self._bulk.register(part)

    def fail_given(self, txid: int, pieces: Sequence[NotDone], now_ms: int, rng: random.Random) -> int:
        """Records failed in the batch that delivered them; returns how many of them are gone from the stream since.

        Those that a bolt holds wait for their acks like all others.
        """
        turn = self._turns[txid]
        gone = 0
        for piece in pieces:
            failure = parse(piece.text)
            if failure.kind is Kind.HELD:
                continue
            at, _ = find(turn.keys, key_of(RecordPosition.parse(piece.first)))
            if len(at):
                first = turn.base + int(at[0])
                self._bulk.fail(np.arange(first, first + piece.count), now_ms, failure, rng)
            else:
                gone += piece.count
        return gone

    def ack(self, keys: Keys, attempt: int | None = None) -> AckCounts:
        """Records are done, wherever they are: pending, waiting for a retry, or dead and not yet dead-lettered.

        With an `attempt`, here and below: only those that are pending in this attempt, as Storm ignores what is said of
        an earlier one.
        """
        wanted = merge_keys([keys])
        done, late = self._bulk.ack(self._ordinals_of(wanted), attempt=attempt)
        for entry in self._find_single(wanted) if attempt is None else ():
            self._runs.mark_done(entry)
            late += 1
        return self._counts(wanted, done, late)

    def fail(
        self, keys: Keys, now_ms: int, text: str, rng: random.Random, attempt: int | None = None
    ) -> AckCounts:
        """Pending records failed, for a stored text: they wait for a retry, or are dead. Others stay as they are."""
        wanted, failure = merge_keys([keys]), parse(text)
        if failure.kind <= Kind.HELD:
            # An earlier release has stored it as somebody said it: nobody holds records from outside.
            failure = Failure.said(text)
        return self._counts(wanted, self._bulk.fail(self._ordinals_of(wanted), now_ms, failure, rng, attempt))

    def reset(self, keys: Keys, deadline: int, attempt: int | None = None) -> AckCounts:
        """Pending records have until `deadline`, in epoch milliseconds; all others are left as they are."""
        wanted = merge_keys([keys])
        return self._counts(wanted, self._bulk.postpone(self._ordinals_of(wanted), deadline, attempt))

    def time_out(self, now_ms: int, rng: random.Random) -> int:
        """Fail what nobody has acked in time, with the kind `TIMEOUT`; returns how many records."""
        late = [
            np.flatnonzero(entry.is_open()) + entry.base for entry in self._pending() if entry.due <= now_ms
        ]
        return self._bulk.fail(np.concatenate(late), now_ms, _TIMEOUT, rng) if late else 0

    @property
    def turns_in_use(self) -> dict[int, Keys]:
        """The turns that hold the records that are not done, by txid: what must be kept for their acks."""
        if not self._turns:
            return {}
        used = {entry.rows.txid for entry in self._runs if entry.rows is not None}
        return {txid: turn.keys for txid, turn in self._turns.items() if txid in used}

    @property
    def pending(self) -> tuple[PendingRun, ...]:
        """Return the runs that nobody has acked or failed yet, as they are stored."""
        found: list[PendingRun] = []
        if not self._turns:
            return ()
        # What is at or below the checkpoint is kept apart when it is read again.
        lowest = next((one for one in self._runs.entries if one.state is not State.ACKED), None)
        for entry in self._pending():
            run = _pending_run(entry)
            if found and entry is not lowest and _goes_on(found[-1], run, entry):
                bounds, more = found[-1].open, run.open
                touching = bounds[-1] == more[0]
                both = (*bounds[:-1], *more[1:]) if touching else (*bounds, *more)
                run = msgspec.structs.replace(found.pop(), open=both)
            found.append(run)
        return tuple(found)

    def _pending(self) -> Iterator[Entry]:
        return (one for one in self._runs if one.state is State.PENDING and one.rows is not None)

    def _rows_of(self, txid: int, keys: Keys) -> Rows:
        known = self._turns.get(txid)
        if known is None:
            base = self._bulk.number(len(keys))
            known = self._turns[txid] = Rows(keys.positions, base, txid, keys)
        return known

    def _ordinals_of(self, wanted: Keys) -> OrdinalArray:
        """Return the ordinals of records, in each turn that has them: all but the newest of a record are done."""
        self._runs.parse()
        rows = [find(turn.keys, wanted)[0] + turn.base for turn in self._turns.values()]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def _find_single(self, wanted: Keys) -> list[Entry]:
        """The entries of one record that no turn knows, of those wanted: there because of a replay."""
        alone = [entry for entry in self._runs if entry.rows is None and entry.count == 1]
        _, are_wanted = find(wanted, keys_of_texts([str(entry.last) for entry in alone]))
        return [entry for entry, is_wanted in zip(alone, are_wanted, strict=True) if is_wanted]

    def _counts(self, wanted: Keys, changed: int, late: int = 0) -> AckCounts:
        unknown = len(wanted) - count_through(wanted, self._runs.high)
        return AckCounts(changed, late, len(wanted) - changed - late - unknown, unknown)


def _held_by(turn: Rows, entry: Entry, start: int) -> Entry:
    """Let an entry stand for the rows of a turn from `start` on."""
    entry.rows, entry.start, entry.first = turn, start, turn.position(start)
    entry.value = entry.stored = None
    return entry


def _locate(entries: Sequence[Entry], turn: Rows) -> list[Entry]:
    """Give stored runs, in shard order, their rows in a turn if it has all of their records; return the others."""
    rows, are_found = find(turn.keys, keys_of_texts([str(entry.last) for entry in entries]))
    ends = iter(rows.tolist())
    left = []
    for entry, is_found in zip(entries, are_found.tolist(), strict=True):
        start = next(ends) + 1 - entry.count if is_found else -1
        # As many rows as the run has records, between the same ends: so they are its records.
        first = turn.position(start) if start >= 0 else None
        if first is not None and (
            first == entry.first or (entry.first is None and entry.prev is not None and entry.prev < first)
        ):
            _held_by(turn, entry, start)
        else:
            left.append(entry)
    return left


def _entries_of(run: PendingRun, turn: Rows | None) -> Iterator[Entry]:
    """Yield the entries of a stored pending run, whose turn this is.

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
            prev = turn.position(start - 1)
        entry = Entry(turn.position(until - 1), None, until - start, prev)
        entry.attempt, entry.due, entry.failures = run.attempt, run.due, run.failures
        yield _held_by(turn, entry, start)


def _pending_run(entry: Entry) -> PendingRun:
    """Return a pending entry as it is stored."""
    assert entry.rows is not None
    ranges = [(0, entry.count)] if entry.bits is None else runs_of(np.flatnonzero(entry.is_open()))
    first = ranges[0][0]
    prev = entry.position(first - 1) if first else entry.prev
    return PendingRun(
        entry.rows.txid,
        tuple([entry.start + bound for pair in ranges for bound in pair]),
        entry.attempt,
        entry.due,
        None if prev is None else str(prev),
        entry.failures,
    )


def _goes_on(one: PendingRun, other: PendingRun, entry: Entry) -> bool:
    """Return whether an entry's run can be stored with another one: the row before each range is its neighbour."""
    return (
        (one.txid, one.attempt, one.due, one.failures)
        == (other.txid, other.attempt, other.due, other.failures)
        and entry.start > 0
        and entry.prev == entry.position(-1)
    )
