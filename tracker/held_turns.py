"""Records of one turn that wait for their acks. Pure; a turn never changes.

What Storm's `ack(messageId)`, `fail(messageId)` and `topology.message.timeout.secs` do for a spout, over whole arrays
of records: acks come as keys (`tracker.position_keys`) and are looked up in the turns that delivered the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.position_keys import Keys, find, keys_of_texts
from kinesis_trident.tracker.records import Noted, PendingRun, RecordPosition, Run, orders_of
from kinesis_trident.tracker.retry import Fate, Fates

Rows = npt.NDArray[np.int64]


class AckWait(NamedTuple):
    """What records that wait for their acks have in common: their deliveries, their deadline, and what failed before.

    `deadline` is in epoch milliseconds.
    """

    attempt: int
    deadline: int
    failures: tuple[Noted, ...] = ()


class HeldRows(NamedTuple):
    """Rows of a turn that follow each other in the shard, and the record before them, if it is known."""

    rows: range
    before: str | None
    delivery: AckWait


@dataclass(frozen=True, slots=True, eq=False)
class HeldTurn:
    """The records of one turn: a row of it either waits for its ack, or is done, or has failed and is in a run.

    Attributes:
        txid: of the batch that delivered them.
        keys: their positions, in shard order.
        waits: for each row the number of its delivery, from 1; 0 if it does not wait.
        deliveries: those that the rows name.
        befores: the record before a row, where that is not the row before; None if it is not known.
    """

    txid: int
    keys: Keys
    waits: npt.NDArray[np.int32]
    deliveries: tuple[AckWait, ...] = ()
    befores: Mapping[int, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, txid: int, keys: Keys, segments: Sequence[HeldRows] = ()) -> HeldTurn:
        """Return a turn of which these rows wait.

        Raises:
            OrderError: it has no such rows, or one waits twice.
        """
        bounds = [np.array([[rows.start, rows.stop]]) for rows, _, _ in segments]
        return cls._of(txid, keys, bounds, [(before, delivery) for _, before, delivery in segments])

    @classmethod
    def _of(
        cls, txid: int, keys: Keys, bounds: Sequence[Rows], waits: Sequence[tuple[str | None, AckWait]]
    ) -> HeldTurn:
        """Return a turn of which rows wait, as neighbours from one row until another, in any order.

        Each delivery has some of these, and the record before the first of them.
        """
        numbers = dict[AckWait, int]()
        named = [numbers.setdefault(delivery, len(numbers) + 1) for _, delivery in waits]
        spans = np.concatenate([np.empty((0, 2), np.int64), *bounds])
        number = np.repeat(np.array(named, np.int32), [len(some) for some in bounds])
        order = np.argsort(spans[:, 0], kind="stable")
        starts, stops = spans[order].T
        wrong = (starts >= stops) | (starts < np.r_[0, stops[:-1]]) | (stops > len(keys))
        if wrong.any():
            at = int(wrong.argmax())
            msg = (
                f"rows {starts[at]} to {stops[at]} of txid {txid} are none of its {len(keys)}, or named twice"
            )
            raise OrderError(msg)
        changes = np.zeros(len(keys) + 1, np.int32)
        changes[starts] = number[order]
        changes[stops] -= number[order]
        befores = {
            start: before
            for start, (before, _) in zip([int(some[0, 0]) for some in bounds], waits, strict=True)
            if not start or before != str(keys.at(start - 1))
        }
        return cls(txid, keys, np.cumsum(changes[:-1], dtype=np.int32), tuple(numbers), befores)

    @classmethod
    def read(cls, txid: int, keys: Keys, runs: Sequence[PendingRun]) -> HeldTurn:
        """Return a turn whose rows wait as it is stored.

        Raises:
            OrderError: the runs do not fit the turn.
        """
        bounds = list[Rows]()
        for run in runs:
            some = np.array(run.open, np.int64)
            if not len(some) or len(some) % 2 or not (np.diff(some) > 0).all() or some[-1] > len(keys):
                raise misfit(run, len(keys))
            bounds.append(some.reshape(-1, 2))
        waits = [(run.prev, AckWait(run.attempt, run.due, run.failures)) for run in runs]
        return cls._of(txid, keys, bounds, waits)

    @property
    def count(self) -> int:
        """The number of records that wait."""
        return int(np.count_nonzero(self.waits))

    @property
    def last(self) -> RecordPosition | None:
        """The last record that waits; None if there is none."""
        rows = np.flatnonzero(self.waits)
        return self.keys.at(int(rows[-1])) if len(rows) else None

    def text(self, row: int) -> str:
        """Return the position of a row."""
        return str(self.keys.at(row))

    def before(self, row: int) -> str | None:
        """Return the record before a row, if it is known."""
        return self.befores[row] if row in self.befores else self.text(row - 1) if row else None

    def first_waiting(self, start: int = 0) -> int | None:
        """Return the first row, from `start` on, that waits."""
        rest = self.waits[start:] != 0
        at = int(rest.argmax()) if len(rest) else 0
        return start + at if len(rest) and rest[at] else None

    def choose(self, rows: Rows, attempt: int | None = None) -> Rows:
        """Return those of these rows that wait, in a certain delivery if one is named."""
        waits = self.waits[rows]
        are_meant = np.array([False, *(attempt in (None, one.attempt) for one in self.deliveries)])
        chosen: Rows = rows[are_meant[waits]]
        return chosen

    def find_late(self, now_at: int) -> Rows:
        """Return the rows whose deadline is over."""
        are_late = np.array([False, *(one.deadline <= now_at for one in self.deliveries)])
        return np.flatnonzero(are_late[self.waits])

    def close(self, rows: Rows) -> HeldTurn:
        """Return the turn once some rows no longer wait."""
        waits = self.waits.copy()
        waits[rows] = 0
        return HeldTurn(self.txid, self.keys, waits, self.deliveries, self.befores)

    def postpone(self, rows: Rows, until_at: int) -> HeldTurn:
        """Return the turn once some rows, which wait, have until another time."""
        waits = self.waits.copy()
        numbers = {one: number for number, one in enumerate(self.deliveries, 1)}
        changed = np.zeros(len(self.deliveries) + 1, np.int32)
        for number in np.unique(waits[rows]).tolist():
            other = self.deliveries[number - 1]._replace(deadline=until_at)
            changed[number] = numbers.setdefault(other, len(numbers) + 1)
        waits[rows] = changed[waits[rows]]
        return HeldTurn(self.txid, self.keys, waits, tuple(numbers), self.befores)

    def fail(
        self, rows: Rows, failure: Failure, fates: Fates, apart: int
    ) -> tuple[HeldTurn, list[tuple[Fate, Run]]]:
        """Return the turn once some rows, which wait, have failed, and the runs that these are then.

        None goes over the row `apart`, here and below.
        """
        parts = list[tuple[Fate, Run]]()
        known = dict[int, Fate]()
        starts, ends = self._spans(rows, apart)
        for start, until in zip(starts.tolist(), ends.tolist(), strict=True):
            number = int(self.waits[start])
            if number not in known:
                attempt, _, failures = self.deliveries[number - 1]
                known[number] = fates.decide(failure, attempt, failures)
            fate = known[number]
            first = self.text(start)
            last = first if until == start + 1 else self.text(until - 1)
            parts.append((fate, Run(first, last, until - start, self.before(start), *fate[1:])))
        return self.close(rows), parts

    def spans(self, apart: int) -> tuple[Keys, Keys]:
        """Return the first and the last records of those that wait, as neighbours of one delivery."""
        starts, ends = self._spans(np.flatnonzero(self.waits), apart)
        return self.keys[starts], self.keys[ends - 1]

    def _spans(self, rows: Rows, apart: int) -> tuple[Rows, Rows]:
        """Return where neighbours among rows begin, and where they end."""
        return split_rows(rows, (np.diff(rows) != 1) | self._differ(rows, apart))

    def _differ(self, rows: Rows, apart: int) -> npt.NDArray[np.bool_]:
        """Return for each row but the first whether it cannot be stored with the one before it."""
        later = rows[1:]
        differs: npt.NDArray[np.bool_] = (np.diff(self.waits[rows]) != 0) | (later == apart)
        differs |= np.isin(later, np.fromiter(self.befores, np.int64))
        return differs

    def pending(self, apart: int) -> Iterator[tuple[int, PendingRun]]:
        """Yield what waits as it is stored, each with its first row."""
        starts, ends = self._spans(np.flatnonzero(self.waits), apart)
        spans = np.stack((starts, ends), axis=1)
        for some in np.split(spans, np.flatnonzero(self._differ(starts, apart)) + 1) if len(spans) else ():
            bounds = some.ravel().tolist()
            yield bounds[0], self._pending(int(self.waits[bounds[0]]), bounds)

    def _pending(self, number: int, bounds: Sequence[int]) -> PendingRun:
        attempt, deadline, failures = self.deliveries[number - 1]
        return PendingRun(self.txid, tuple(bounds), attempt, deadline, self.before(bounds[0]), failures)

    def locate(self, runs: Sequence[Run]) -> list[int]:
        """Return the first row of each of these runs, which are in shard order; -1 if the turn has not all of them."""
        rows, are_found = find(self.keys, keys_of_texts([run.last for run in runs]))
        ends = iter(rows.tolist())
        return [
            self._start_of(run, next(ends)) if is_found else -1
            for run, is_found in zip(runs, are_found.tolist(), strict=True)
        ]

    def _start_of(self, run: Run, end: int) -> int:
        """Return the first row of a run whose last one this is; -1 if these are not its records."""
        if run.count == 1 and run.first == run.last:
            return end
        start = end + 1 - run.count
        if start < 0:
            return -1
        # As many rows as the run has records, between the same ends: so they are its records.
        first = self.keys.at(start)
        if run.first:
            return start if RecordPosition.parse(run.first) == first else -1
        return start if run.prev is not None and orders_of([run.prev])[0] < first.order else -1

    def cut(self, run: Run, start: int, rows: Rows) -> list[Run]:
        """Return what is left of a run that begins with a row, without some of its rows."""
        parts = list[Run]()
        before, end = run.prev, start + run.count
        for row in (*rows.tolist(), end):
            if row > start:
                first, last = self.text(start), self.text(row - 1)
                parts.append(
                    Run(first, last, row - start, before, run.attempt, run.due, run.failures),
                )
            if row < end:
                start, before = row + 1, self.text(row)
        return parts


def split_rows(rows: Rows, are_new: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Return where runs of rows begin, and where they end; each row but the first is told whether it begins one."""
    if not len(rows):
        return rows, rows
    at = np.flatnonzero(are_new) + 1
    return rows[np.r_[0, at]], rows[np.r_[at, len(rows)] - 1] + 1


def misfit(run: PendingRun, held: int | str) -> OrderError:
    """Return the error of a stored run that does not fit its turn, which has so many rows."""
    return OrderError(
        f"stored pending records {run.open[:6]} of txid {run.txid}, whose turn has {held} rows, do not fit it"
    )
