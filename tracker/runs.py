"""Runs of one shard in order, with what is done to many of them at a time. Pure.

A run that nothing happens to stays the object that is stored: there may be very many of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import lt
from typing import TypeVar, overload

import msgspec

from kinesis_trident.tracker.records import NotDone, Order, RecordPosition, Run, begin_of, orders_of

ALL = ""
"""Stands for each key, where those of some records are not known, or too many to be named."""

MOST_KEYS = 4_096
"""The number of keys of a shard that are named: more take tens of kilobytes in each of its nodes."""

_JOINED = 64
"""The number of keys up to which neighbours become one run: those of a run come again together."""

Edit = tuple[int, int, Sequence[Run]]
"""What stands in the place of the runs from one index until another: nothing, what is left of them, or new runs."""


R = TypeVar("R", bound=Run | NotDone)


class Runs(Sequence[R]):
    """Runs without common records, each of one fate, in shard order; also pieces of an outcome. They never change.

    Attributes:
        lasts: the order of the last record of each.
    """

    __slots__ = ("_runs", "lasts")

    def __init__(self, runs: Sequence[R] = (), lasts: Sequence[Order] | None = None) -> None:
        self._runs = runs
        self.lasts = orders_of([run.last for run in runs]) if lasts is None else lasts

    @classmethod
    def sort(cls, runs: Sequence[R]) -> Runs[R]:
        """Return runs that come in any order."""
        some = cls(runs)
        lasts = some.lasts
        if all(map(lt, lasts, islice(lasts, 1, None))):
            return some
        order = sorted(range(len(runs)), key=lasts.__getitem__)
        return cls([runs[index] for index in order], [lasts[index] for index in order])

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[R]:
        return iter(self._runs)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R]: ...
    def __getitem__(self, index: int | slice) -> R | Sequence[R]:
        return self._runs[index]

    @property
    def records(self) -> int:
        """The number of their records."""
        return sum([run.count for run in self._runs])

    def find(self, order: Order, start: int = 0) -> int:
        """Return the index of the first run, from `start` on, that does not end before a record."""
        return bisect_left(self.lasts, order, start)

    def find_holder(self, order: Order) -> int | None:
        """Return the index of the run that holds a record, as far as its beginning tells; None if there is none."""
        at = self.find(order)
        return at if at < len(self) and begin_of(self._runs[at]).order <= order else None

    def find_named(self, order: Order, start: int = 0) -> int | None:
        """Return the index of the run that ends with a record; None if there is none from `start` on."""
        at = self.find(order, start)
        return at if at < len(self) and self.lasts[at] == order else None

    def first_after(self, order: Order | None) -> int:
        """Return the index of the first run that ends after a record."""
        return 0 if order is None else bisect_right(self.lasts, order)

    def union(self, others: Sequence[R]) -> Runs[R]:
        """Return these and those of others, in any order, whose last record none of these holds."""
        lasts = orders_of([run.last for run in others])
        held = map(self.find_holder, lasts)
        return self.sort([*self, *(run for run, at in zip(others, held, strict=True) if at is None)])

    def change(
        self: Runs[Run], edits: Iterable[Edit], *, joins: bool = False, apart: Order | None = None
    ) -> Runs[Run]:
        """Return these with other runs in some places: edits in order, none over another.

        `joins`: new runs become one with neighbours of the same fate, but for one that ends with the record `apart`.
        """
        edits = list(edits)
        if not edits:
            return self
        news = iter(orders_of([run.last for _, _, some in edits for run in some]))
        runs, lasts, at, is_new = list[Run](), list[Order](), 0, False
        for start, stop, some in (*edits, (len(self), len(self), ())):
            while is_new and at < start:
                # One that has become part of a new run is new itself.
                is_new = _append(runs, lasts, self._runs[at], self.lasts[at], apart)
                at += 1
            if at < start:
                runs += self._runs[at:start]
                lasts += self.lasts[at:start]
            for run, last in zip(some, news, strict=False) if some else ():
                if joins:
                    is_new = True
                    _append(runs, lasts, run, last, apart)
                else:
                    runs.append(run)
                    lasts.append(last)
            at = stop
        return Runs(runs, lasts)

    def add(
        self: Runs[Run], new: Sequence[Run], *, joins: bool = False, apart: Order | None = None
    ) -> Runs[Run]:
        """Return these with new runs in order, of other records: see `change`."""
        at = map(self.find, orders_of([run.last for run in new]))
        return self.change(
            [(index, index, (run,)) for index, run in zip(at, new, strict=True)], joins=joins, apart=apart
        )


def cut(run: Run, count: int, through: str | None) -> tuple[Run, tuple[Run, ...]]:
    """Return the first `count` records of a run, until `through`, and the others, if any: unchanged.

    A run whose last record was reached is whole, although records of it may be gone.
    """
    if count == run.count or through is None or RecordPosition.parse(through) >= run.last_position:
        return run, ()
    replace = msgspec.structs.replace
    return replace(run, last=through, count=count), (
        replace(run, first="", count=run.count - count, prev=through),
    )


def lean(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return runs (in shard order) without their failures, which are stored once, and without their neighbours.

    The first run keeps the record before it, which is the safe checkpoint.
    """
    return tuple(
        [
            Run(run.first, run.last, run.count, None if at and run.first else run.prev, run.attempt, run.due)
            for at, run in enumerate(runs)
        ]
    )


def full(runs: Sequence[Run], known: Sequence[Run]) -> tuple[Run, ...]:
    """Return lean runs with the failures of those that are known, each by its last record."""
    failures = {run.last: run.failures for run in known}
    return tuple(
        [msgspec.structs.replace(run, failures=run.failures or failures.get(run.last, ())) for run in runs]
    )


def _append(runs: list[Run], lasts: list[Order], run: Run, last: Order, apart: Order | None) -> bool:
    """Append a run, or join it with the one before if that is its neighbour with the same fate: return which."""
    before = runs[-1] if runs else None
    if (
        before is None
        or run.prev != before.last
        or run.attempt != before.attempt
        or run.due != before.due
        or (run.failures is not before.failures and run.failures != before.failures)
        or lasts[-1] == apart
        or not (joined := join_keys(before.keys, run.keys))[1]
    ):
        runs.append(run)
        lasts.append(last)
        return False
    count = before.count + run.count
    runs[-1] = Run(
        before.first, run.last, count, before.prev, before.attempt, before.due, before.failures, joined[0]
    )
    lasts[-1] = last
    return True


def is_free(keys: Collection[str], held: Collection[str]) -> bool:
    """Return whether none of some keys is held; `ALL` stands for each."""
    if not held or not keys:
        return True
    return not (ALL in keys or ALL in held) and not any(key in held for key in keys)


def join_keys(some: Sequence[str], others: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the keys of two neighbours as those of one run, and whether they may become one."""
    if not some and not others:
        return (), True
    joined = tuple(sorted({*some, *others}))
    return joined, bool(some and others) and len(joined) <= _JOINED
