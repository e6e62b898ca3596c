"""Rows of one shard that are not done, each with a number for its fate: what `InflightRecordTracker` holds."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.held_turns import Rows, split_rows
from kinesis_trident.tracker.records import Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import Fate, State

Ids = npt.NDArray[np.int64] | npt.NDArray[np.uint64]

Positions = Sequence[RecordPosition] | Sequence[str]
"""Positions by ordinal, looked up only where runs begin or end: a list, an Arrow or numpy array of texts."""

_FATES = (Fate(State.ACKED, 0, 0, ()), Fate(State.PENDING, 1, 0, ()))
"""Those that have a number everywhere."""
_NEW = 1

_SPARSE = 2_048
"""With fewer than one open record of an array in so many, those are kept alone: cheaper than a byte for all."""

_LINGERING = 64
"""Done rows that stay among those that are kept alone, although few are open."""


class OpenRun(msgspec.Struct, frozen=True, gc=False):
    """Neighbours that share a fate; `first` is None where only the record before them is known, as in `Run`."""

    last: RecordPosition
    first: RecordPosition | None
    count: int
    prev: RecordPosition | None
    state: State
    attempt: int
    due: int
    failures: tuple[Noted, ...]

    def stored(self) -> Run:
        """Return the run as it is stored."""
        first, prev = ("" if self.first is None else str(self.first)), (self.prev and str(self.prev))
        return Run(first, str(self.last), self.count, prev, self.attempt, self.due, self.failures)


class OpenRows:
    """Records of one shard in order, and what has become of each. It changes.

    Those of an array are neighbours, and one run where they share a fate. Of those that come one at a time (`add`)
    each is a run; one can stand for all records of a stored run.

    Args:
        base: the ordinal of an array's first record, or the next one.
        positions: those of an array.
        span: the rows of these.
        prev: the record before the first, if it is known.
        value: the XOR of the ids that are outstanding of an array, if they are kept.

    Attributes:
        last: the last record that was ever here.
        open: the number of rows that are not done.
        is_array: they have ordinals.
        values: the XOR of the ids that are outstanding of records that were delivered alone.
    """

    def __init__(
        self,
        base: int,
        positions: Positions | None = None,
        span: range = range(0),
        prev: RecordPosition | None = None,
        value: int | None = None,
    ) -> None:
        self.base, self.value, self.open = base, value, len(span)
        self.is_array = positions is not None
        self._array, self._span, self._prev = positions, span, prev
        # Rows that are kept alone, each with the record before it; and, of those of an array, their places in it.
        self._alone: list[RecordPosition] = []
        self._befores: list[RecordPosition | None] = []
        self._places: Rows | None = None
        # Where the former are, once somebody asks.
        self._rows: dict[RecordPosition, int] | None = None
        self._wholes: dict[RecordPosition, Run] = {}
        self.values: dict[RecordPosition, int] = {}
        self._numbers = array("B", bytes([_NEW]) * len(span))
        self._fates = list(_FATES)
        # No open row before it holds the checkpoint.
        self._head = 0
        if span:
            self.last = self._position(len(span) - 1)

    def has_waiting(self, rows: Rows) -> bool:
        """Return whether one of these rows waits for a retry."""
        numbers = np.unique(self._view()[rows]) if len(self._fates) > len(_FATES) else ()
        return any(self._fates[number].state is State.WAITING for number in numbers)

    def shares_wait(self, row: int) -> bool:
        """Return whether a record of an array waits for a retry, in one run with a neighbour."""
        numbers, places, number = self._numbers, self._places, self._numbers[row]
        return (
            self.is_array
            and self._fates[number].state is State.WAITING
            and any(
                numbers[at] == number and (places is None or places[at] - places[row] == at - row)
                for at in (row - 1, row + 1)
                if 0 <= at < len(numbers)
            )
        )

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, position: RecordPosition, prev: RecordPosition | None) -> None:
        """Take in a record after all others, which comes by itself, and the one before it."""
        if self._rows is not None:
            self._rows[position] = len(self._alone)
        self._alone.append(position)
        self._befores.append(prev)
        self._numbers.append(_NEW)
        self.open += 1
        self.last = position

    def add_run(self, run: Run, state: State, safe: RecordPosition | None) -> None:
        """Take in a stored run after all others, as one row.

        Those before the checkpoint were asked for again: they do not hold it.
        """
        position = run.last_position
        self.add(position, None if run.prev is None else RecordPosition.parse(run.prev))
        self.become(len(self) - 1, Fate(state, run.attempt, run.due, run.failures))
        self._wholes[position] = run
        if safe is not None and position <= safe:
            self._head = len(self)

    def _position(self, row: int) -> RecordPosition:
        return self._alone[row] if self._array is None else as_position(self._array[self._span[row]])

    def _before(self, row: int) -> RecordPosition | None:
        if self._array is None:
            return self._befores[row]
        return self._position(row - 1) if row else self._prev

    def find(self, position: RecordPosition, *, takes_done: bool = False) -> int | None:
        """Return the row of a record; None if it is not here, or done, unless it `takes_done` ones of an array."""
        if self._array is None:
            if self._rows is None:
                self._rows = {position: row for row, position in enumerate(self._alone)}
            row = self._rows.get(position, -1)
        else:
            row = bisect_left(range(len(self)), position, key=self._position)
            if row < len(self) and self._position(row) != position:
                return None
        if not 0 <= row < len(self):
            return None
        return row if self._numbers[row] or (takes_done and self.is_array) else None

    def locate(self, ordinals: Rows, ids: Ids | None = None) -> tuple[Rows, Ids | None]:
        """Return the rows of ordinals, and their ids; those that are not here are left out."""
        rows = places = ordinals - self.base
        if self._places is not None:
            rows = np.searchsorted(self._places, places)
            is_here = np.append(self._places, -1)[rows] == places
        elif self._array is None:
            is_here = np.zeros(len(rows), np.bool_)
        elif not len(rows) or (int(rows.min()) >= 0 and int(rows.max()) < len(self)):
            return rows, ids
        else:
            is_here = (rows >= 0) & (rows < len(self))
        return rows[is_here], None if ids is None else ids[is_here]

    def fate(self, row: int) -> Fate:
        """Return the fate of a row."""
        return self._fates[self._numbers[row]]

    def become(self, row: int, fate: Fate) -> None:
        """Give an open row another fate, which is not that it is done."""
        self._make_room(1)
        self._numbers[row] = self._number(fate)

    def close_one(self, row: int) -> None:
        """Mark an open row as done."""
        self._numbers[row] = 0
        self.open -= 1
        if row == self._head:
            self._head += 1

    def close(self, rows: Rows) -> None:
        """Mark rows as done."""
        self._set(rows, 0)

    def fail(self, rows: Rows, decide: Callable[[Fate], Fate]) -> None:
        """Decide on the rows that are pending: those that have shared a fate share the next one too."""
        rows = np.unique(rows)
        for row in rows.tolist() if self.values else ():
            self.values.pop(self._position(row), None)
        self._make_room(min(len(rows), len(self._fates)))
        kinds, firsts, kind_of = np.unique(self._view()[rows], return_index=True, return_inverse=True)
        after = kinds.copy()
        for at in np.argsort(firsts).tolist():
            fate = self._fates[kinds[at]]
            if fate.state is State.PENDING:
                # Of an array of which a record has failed, ids say no more that all of it is done.
                self.value, after[at] = None, self._number(decide(fate))
        self._set(rows, after[kind_of])

    def take_due(self, now_ms: int) -> Rows:
        """Deliver again what waits and is due of an array; return the ordinals."""
        fates = self._fates
        are_due = np.array([fate.state is State.WAITING and fate.due <= now_ms for fate in fates])
        if not self.is_array or not are_due.any():
            return np.empty(0, np.int64)
        for at in np.flatnonzero(are_due).tolist():
            fates[at] = fates[at]._replace(state=State.PENDING, attempt=fates[at].attempt + 1)
        rows = np.flatnonzero(are_due[self._view()])
        return self.base + (rows if self._places is None else self._places[rows])

    def spans(self, *states: State) -> tuple[Rows, Rows]:
        """Return where the runs in some states begin, and where they end; without any, all that is open."""
        numbers, is_meant = self._view(), np.array([fate.state in states for fate in self._fates])
        rows = np.flatnonzero(is_meant[numbers] if states else numbers)
        if not self.is_array:
            return rows, rows + 1
        places = rows if self._places is None else self._places[rows]
        return split_rows(rows, (np.diff(places) != 1) | (np.diff(numbers[rows]) != 0))

    def runs(self, *states: State) -> list[OpenRun]:
        """Return the runs in some states; without any, all that is open."""
        starts, ends = self.spans(*states)
        return list(map(self._run, starts.tolist(), ends.tolist()))

    def _run(self, start: int, until: int) -> OpenRun:
        last = self._position(until - 1)
        first = last if until == start + 1 else self._position(start)
        whole = self._wholes.get(last)
        if whole is None:
            return OpenRun(last, first, until - start, self._before(start), *self.fate(start))
        begin = RecordPosition.parse(whole.first) if whole.first else None
        return OpenRun(last, begin, whole.count, self._before(start), *self.fate(start))

    @property
    def records(self) -> int:
        """The number of records that are not done."""
        return sum([run.count for run in self.runs()]) if self._wholes else self.open

    def first_open(self) -> tuple[RecordPosition, RecordPosition | None] | None:
        """Return the first record that holds the checkpoint, and the one before it; of a stored run the last one."""
        numbers, ahead = self._numbers, 64
        while self._head < len(numbers) and not numbers[self._head]:
            coming = numbers[self._head : self._head + ahead].tobytes()
            self._head += (len(coming) - len(coming.lstrip(b"\0"))) // numbers.itemsize
            ahead *= 2
        row = self._head
        return (self._position(row), self._before(row)) if row < len(numbers) else None

    def compact(self) -> None:
        """Let go of what is done once it is much."""
        most = _SPARSE * self.open if self._array is not None else 2 * self.open + _LINGERING
        if len(self._numbers) <= most:
            return
        numbers = self._view()
        rows = np.flatnonzero(numbers)
        if self.is_array:
            self._places = rows if self._places is None else self._places[rows]
        kept = rows.tolist()
        alone, befores = [self._position(row) for row in kept], [self._before(row) for row in kept]
        self._array, self._alone, self._befores, self._rows = None, alone, befores, None
        self._head = int(np.searchsorted(rows, self._head))
        self._numbers = array(self._numbers.typecode, numbers[rows].tobytes())
        self._wholes = {last: self._wholes[last] for last in alone if last in self._wholes}
        self.values = {position: self.values[position] for position in alone if position in self.values}

    def _set(self, rows: Rows, numbers: npt.NDArray[np.unsignedinteger] | int) -> None:
        view = self._view()
        view[rows] = numbers
        self.open = int(np.count_nonzero(view))

    def _number(self, fate: Fate) -> int:
        """Return the number of a fate, for which there is room."""
        if fate.state is State.ACKED:
            return 0
        self._fates.append(fate)
        return len(self._fates) - 1

    def _make_room(self, more: int) -> None:
        """Let there be numbers for more fates: those that no row has any more are free."""
        if len(self._fates) + more <= 256**self._numbers.itemsize:
            return
        view = self._view()
        are_used = np.bincount(view, minlength=len(self._fates)) > 0
        are_used[: len(_FATES)] = True
        self._fates = list(compress(self._fates, are_used))
        # So many that a new look at all rows is worth it.
        needed = max(2 * (len(self._fates) + more), len(view) // 64)
        code = next(code for code in "BHI" if 256 ** array(code).itemsize >= needed)
        self._numbers = array(code, (np.cumsum(are_used) - 1)[view].astype(code).tobytes())

    def _view(self) -> npt.NDArray[np.unsignedinteger]:
        return np.frombuffer(self._numbers, self._numbers.typecode)


def as_position(value: object) -> RecordPosition:
    """Return a position from what `Positions` hold: itself, its text, or an Arrow or numpy text scalar."""
    if isinstance(value, RecordPosition):
        return value
    if hasattr(value, "as_py"):
        value = value.as_py()
    return RecordPosition.parse(value.decode() if isinstance(value, bytes) else str(value))
