"""Settles a turn of a shard in one pass over its failed runs. Pure.

Thousands of runs may wait. To link them as `InflightRecordTracker` does, in which records can be acked one by one,
takes several times as long as to go through them once in shard order. This gives exactly what it gives, where whole
runs were delivered again; what it does not cover, the tracker settles.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from msgspec.structs import replace

from kinesis_trident.tracker.inflight.entries import State
from kinesis_trident.tracker.inflight.fates import Fate, Fates, FatesOfDelivery
from kinesis_trident.tracker.inflight.pieces import cut
from kinesis_trident.tracker.inflight.turns import is_all_of
from kinesis_trident.tracker.records import (
    PARSED,
    NotDone,
    Place,
    Places,
    RecordPosition,
    Run,
    are_comparable,
    in_shard_order,
)
from kinesis_trident.tracker.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class ShardRuns:
    """The failed runs of a shard in shard order, and its positions in text form, each None before the first record.

    `checkpoint`: everything up to it is done. `through`: the last record ever delivered, where that is known.
    """

    checkpoint: str | None
    waiting: Sequence[Run]
    dead: Sequence[Run]
    through: str | None


@dataclass(frozen=True, slots=True)
class SettledRuns:
    """The failed runs of a shard after a turn, its safe checkpoint, and the exhausted runs that the turn has served."""

    checkpoint: RecordPosition | None
    waiting: tuple[Run, ...]
    dead: tuple[Run, ...]
    buried: tuple[Run, ...]


def settle_runs(
    shard: ShardRuns,
    due: Sequence[tuple[Run, bool]],
    served: Sequence[int],
    fresh: tuple[str, int] | None,
    failed: Sequence[NotDone],
    policy: RetryPolicy,
    now_ms: int,
    rng: random.Random,
) -> SettledRuns | None:
    """Settle a turn as `TurnOutcomes` does, if it has delivered its due runs whole or not at all; else return None.

    `due`: the runs taken up again in shard order, each with True if it is exhausted; `served`: how many records of each
    were found, -1 if it was not reached. `fresh`: the last of the new records, and their number. `failed`: the
    outcome. None as well if what is given does not fit together: then the tracker says what is wrong.

    Raises:
        OrderError: the outcome names records that the turn did not deliver.
    """
    if not policy.dead_letter:
        return None
    given = shard, due, served, fresh, failed, Fates(policy), now_ms, rng
    if are_comparable(list(_texts(shard, fresh, failed))):
        return _Pass[str](list).settle(*given)
    return _Pass[RecordPosition](PARSED).settle(*given)


def _texts(shard: ShardRuns, fresh: tuple[str, int] | None, failed: Sequence[NotDone]) -> Iterator[str]:
    """Yield all positions that are compared."""
    yield from filter(None, (shard.checkpoint, shard.through, fresh and fresh[0]))
    for pieces in (shard.waiting, shard.dead, failed):
        yield from [piece.last for piece in pieces]
        yield from [piece.first for piece in pieces if piece.first]
        yield from [piece.prev for piece in pieces if piece.prev is not None]


class _Pass(Generic[Place]):
    """One pass over a shard, in order; `places` brings its positions into a form that compares.

    Attributes:
        checkpoint: the end of what is done, up to the first run that is not.
        waiting, dead: the runs so far that are not.
    """

    def __init__(self, places: Places[Place]) -> None:
        self._places: Places[Place] = places
        self.checkpoint: Place | None = None
        self.waiting: list[Run] = []
        self.dead: list[Run] = []
        self._is_open = False
        self._last: tuple[Run, Place, list[Run], bool] | None = None

    def settle(
        self,
        shard: ShardRuns,
        due: Sequence[tuple[Run, bool]],
        served: Sequence[int],
        fresh: tuple[str, int] | None,
        failed: Sequence[NotDone],
        fates: Fates,
        now_ms: int,
        rng: random.Random,
    ) -> SettledRuns | None:
        """Return what `settle_runs` does."""
        end = self.checkpoint = self._place(shard.checkpoint)
        pieces = in_shard_order(failed)
        ends = self._places([piece.last for piece in pieces])
        seen = taken_up = 0
        buried: list[Run] = []
        for run, is_dead, first, last, prev in self._stored(shard):
            if run.count < 1 or not self._is_next(end, prev, first, last):
                return None
            end = last
            if taken_up == len(due) or due[taken_up][0].last != run.last:
                self._keep(run, last, prev, is_dead)
                continue
            taken, as_dead = due[taken_up]
            count = served[taken_up] if taken_up < len(served) else -1
            taken_up += 1
            start, seen = seen, bisect_right(ends, last, seen)
            if count < 0:
                self._keep(run, last, prev, is_dead)
                continue
            if (as_dead, taken.attempt, taken.count, count) != (is_dead, run.attempt, run.count, run.count):
                return None
            if is_dead:
                buried.append(taken)
            if is_dead or seen == start:
                self._done(last)
                continue
            again = fates.after(run.attempt + 1, run.failures, now_ms, rng)
            mine = pieces[start:seen]
            if is_all_of(mine, taken):
                self._failed(run, last, prev, again.of(mine[0].reason))
            else:
                self._cut(mine, again, first=first, prev=prev, last=last, count=count)
        if taken_up < len(due):
            return None
        high = max((place for place in (end, self._place(shard.through)) if place is not None), default=None)
        self._done(high)
        if fresh is not None:
            last, count = self._places([fresh[0]])[0], fresh[1]
            if count < 1 or not self._is_next(high, None, last, last):
                return None
            new = fates.after(1, (), now_ms, rng)
            self._cut(pieces[seen:], new, first=None, prev=high, last=last, count=count)
        return SettledRuns(self._parsed(), tuple(self.waiting), tuple(self.dead), tuple(buried))

    def _parsed(self) -> RecordPosition | None:
        """Return the checkpoint."""
        return None if self.checkpoint is None else RecordPosition.parse(str(self.checkpoint))

    @staticmethod
    def _is_next(end: Place | None, prev: Place | None, first: Place | None, last: Place) -> bool:
        """Return True if a run comes after `end`, and where it begins is known."""
        if first is None:
            return prev is not None and prev < last and (end is None or end < last)
        return (end is None or end < first) and (prev is None or prev < first)

    def _place(self, text: str | None) -> Place | None:
        return None if text is None else self._places([text])[0]

    def _stored(self, shard: ShardRuns) -> Iterator[tuple[Run, bool, Place | None, Place, Place | None]]:
        """Yield the runs of a shard in order: whether each is dead, its first and last place, the one before it."""
        runs = [*shard.waiting, *shard.dead]
        lasts = self._places([run.last for run in runs])
        befores = iter(self._places([run.prev for run in runs if run.prev is not None]))
        prevs = [None if run.prev is None else next(befores) for run in runs]
        order: Sequence[int] = range(len(runs))
        if shard.dead:
            order = sorted(order, key=lasts.__getitem__)
        alive = len(shard.waiting)
        for index in order:
            run, last = runs[index], lasts[index]
            first = last if run.first == run.last else self._place(run.first or None)
            yield run, index >= alive, first, last, prevs[index]

    def _cut(
        self,
        failed: Sequence[NotDone],
        fates: FatesOfDelivery,
        *,
        first: Place | None,
        prev: Place | None,
        last: Place,
        count: int,
    ) -> None:
        """Take in delivered neighbours of which these have failed, as `pieces.cut` has them."""
        for piece in cut(failed, self._places, first=first, prev=prev, last=last, count=count):
            if piece.reason is None:
                self._done(piece.last)
                continue
            before = None if piece.prev is None else str(piece.prev)
            run = Run(str(piece.first), str(piece.last), piece.count, before)
            self._failed(run, piece.last, piece.prev, fates.of(piece.reason))

    def _done(self, last: Place | None) -> None:
        """Everything after the runs so far, up to `last`, is done."""
        if last is not None and not self._is_open and (self.checkpoint is None or last > self.checkpoint):
            self.checkpoint = last

    def _failed(self, run: Run, last: Place, prev: Place | None, fate: Fate) -> None:
        """Take in the next run, which has failed."""
        state, attempt, due, failures = fate
        run = Run(run.first, run.last, run.count, run.prev, attempt, due, failures)
        self._keep(run, last, prev, state is State.DEAD, is_new=True)

    def _keep(
        self, run: Run, last: Place, prev: Place | None, is_dead: bool, *, is_new: bool = False
    ) -> None:
        """Take in the next run that is not done: joined to the one before if they share their fate, and one is new."""
        runs = self.dead if is_dead else self.waiting
        if not self._is_open:
            self._done(prev)
            self._is_open = True
        before = self._last
        if (
            before is not None
            and (is_new or before[3])
            and prev == before[1]
            and runs is before[2]
            and _share_a_fate(before[0], run)
        ):
            run = replace(before[0], last=run.last, count=before[0].count + run.count)
            runs.pop()
        runs.append(run)
        self._last = run, last, runs, is_new


def _share_a_fate(one: Run, other: Run) -> bool:
    """Return True if two neighbouring runs, both waiting or both dead, are one run."""
    return (one.attempt, one.due) == (other.attempt, other.due) and (
        one.failures is other.failures or one.failures == other.failures
    )
