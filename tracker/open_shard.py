"""The records of one shard that are not done, and the safe checkpoint below them: a value. Pure.

Three things hold the checkpoint back: runs that wait for a retry, runs that are dead and not dead-lettered yet, and
rows of turns that wait for their acks. `tracker.settling` says what a turn makes of a shard, `tracker.requests` what
people ask for, and `OpenShard` what acks do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import lt
from typing import NamedTuple

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure, Kind, parse
from kinesis_trident.tracker.held_turns import HeldTurn, Rows
from kinesis_trident.tracker.position_keys import (
    Keys,
    concatenate,
    count_through,
    counts,
    key_of,
    keys_of_texts,
    sort_keys,
)
from kinesis_trident.tracker.records import Order, PendingRun, RecordPosition, Run, orders_of
from kinesis_trident.tracker.retry import Fates, State
from kinesis_trident.tracker.runs import Edit, Runs
from kinesis_trident.tracker.turns_by_txid import HeldTurns

_TIMEOUT = Failure(Kind.TIMEOUT)


class AckCounts(NamedTuple):
    """The effect of acks or fails by name, in records.

    `changed`: pending ones that are done, or failed, by them. `late`: acked ones that waited for a retry, or for the
    dead letter, and do not come again. `known`: those that changed nothing: done or failed before, or no
    records at all among those that were read. `unknown`: positions beyond all that was ever read. `permanent`: all that
    are changed, if no retry can help them, else 0.
    """

    changed: int = 0
    late: int = 0
    known: int = 0
    unknown: int = 0
    permanent: int = 0


@dataclass(frozen=True, slots=True)
class OpenShard:
    """The records of a shard that are not done, of which none is in two places.

    Attributes:
        safe: everything up to this record is done, but for what somebody asked for again; None before the first.
        high: the last record that was delivered, or is known to be done.
        waiting: what failed and comes again.
        dead: what is exhausted or expired, for the dead letter.
        held: the turns whose records are acked by name, by txid.
    """

    safe: RecordPosition | None = None
    high: RecordPosition | None = None
    waiting: Runs[Run] = field(default_factory=Runs)
    dead: Runs[Run] = field(default_factory=Runs)
    held: HeldTurns = field(default_factory=HeldTurns)

    @classmethod
    def read(
        cls,
        safe: RecordPosition | None,
        waiting: Sequence[Run],
        dead: Sequence[Run],
        *,
        pending: Sequence[PendingRun] = (),
        turns: Mapping[int, Keys] | None = None,
        through: RecordPosition | None = None,
    ) -> OpenShard:
        """Return a shard from what is stored of it.

        Between the checkpoint and the last position known, everything but the runs is done. `through` is the
        last record that was ever delivered, where that is known: the checkpoint can then reach it again.
        `turns` are the keys of the rows of past batches, by txid: of all that `pending` names. What waits can be
        acked one by one as far as they hold it, otherwise as whole runs only.

        Raises:
            OrderError: runs overlap each other or the checkpoint, one has no beginning, or a pending one is of none
                of the turns.
        """
        shard = cls(safe, None, Runs.sort(waiting), Runs.sort(dead), HeldTurns.read(turns or {}, pending))
        shard._check_order()
        return shard.resume(through)

    def resume(self, through: RecordPosition | None) -> OpenShard:
        """Return the shard as it is between two turns: see `read`."""
        lasts = [runs[-1].last for runs in (self.waiting, self.dead) if runs]
        known = [
            self.safe,
            through,
            *map(RecordPosition.parse, lasts),
            *(turn.last for turn in self.held.values()),
        ]
        return replace(self, high=max(filter(None, known), default=None)).at_rest()

    def _check_order(self) -> None:
        """Check that the checkpoint, and all that is open, can be.

        Raises:
            OrderError: runs overlap each other or the checkpoint, or one has no beginning.
        """
        runs = [*self.waiting, *self.dead]
        wrong = next((run for run in runs if run.count < 1 or not (run.first or run.prev)), None)
        if wrong is not None:
            msg = (
                f"stored run of {wrong.count} records up to {wrong.last}: no first record and none before it"
            )
            raise OrderError(msg)
        if not runs and len(self.held) < 2:
            # The rows of one turn are in order.
            return
        firsts, ends = [run.first or run.last for run in runs], [run.last for run in runs]
        if not self.held and not self.dead:
            # Nearly all shards, with up to very many runs.
            lows = self.waiting.lasts if firsts == ends else orders_of(firsts)
            is_rising = all(map(lt, self.waiting.lasts, islice(lows, 1, None)))
            safe = None if self.safe is None else self.safe.order
            if is_rising and (safe is None or bisect_right(lows, safe) == self.waiting.first_after(safe)):
                return
        spans = self.held.spans(self.safe)
        # All of one width, so that their digits compare.
        parts = (
            keys_of_texts(ends),
            *(last for _, last in spans),
            keys_of_texts(firsts),
            *(low for low, _ in spans),
        )
        keys, size = concatenate(parts), sum(map(len, parts)) // 2
        by_last = np.argsort(keys.array[:size], kind="stable")
        lasts, starts = keys[by_last], keys[by_last + size]
        overlap = np.flatnonzero(starts.array[1:] <= lasts.array[:-1]) + 1
        if self.safe is not None and not len(overlap):
            done, begun = (int(counts(some, key_of(self.safe), through=True)[0]) for some in (lasts, starts))
            overlap = np.arange(done, begun)
        if len(overlap):
            first = starts.at(int(overlap[0]))
            msg = f"stored run from {first} on overlaps another, or the checkpoint {self.safe}"
            raise OrderError(msg)

    @property
    def count(self) -> int:
        """The number of records that are not done: what `maxInflightRecords` bounds."""
        return self.waiting.records + self.dead.records + self.held.count

    @property
    def pending(self) -> tuple[PendingRun, ...]:
        """The records that nobody has acked or failed yet, as they are stored."""
        return self.held.pending(self.safe)

    def stored(self, waiting: Sequence[Run], dead: Sequence[Run]) -> OpenShard:
        """Return the shard as it is stored: without turns that no record needs, and with the reasons that are kept."""
        return replace(
            self,
            waiting=Runs(waiting, self.waiting.lasts),
            dead=Runs(dead, self.dead.lasts),
            held=self.held.in_use(self.waiting, self.dead),
        )

    def at_rest(self, done: Callable[[], Iterable[str]] = tuple) -> OpenShard:
        """Return the shard with its checkpoint right before the first record above it that is open.

        `done`: the last records of what is done now, in any order: where the record before the first open one is not
        known, the checkpoint comes at least as far.
        """
        _, *texts = min(self._first_open(), default=(Order(""), "", None), key=lambda one: one[0])
        first, before = [RecordPosition.parse(text) if text else None for text in texts]
        safe = find_safe(self.safe, self.high, first, before, lambda: RecordPosition.parse_all(list(done())))
        return self if safe is self.safe else replace(self, safe=safe)

    def _first_open(self) -> Iterator[tuple[Order, str, str | None]]:
        """Yield what is open first above the checkpoint: a record of it, its first one, and the one before it."""
        safe = None if self.safe is None else self.safe.order
        for runs in (self.waiting, self.dead):
            at = runs.first_after(safe)
            if at < len(runs):
                yield runs.lasts[at], runs[at].first, runs[at].prev
        yield from self.held.first_open(self.safe)

    def change(
        self,
        waiting: Iterable[Edit] = (),
        dead: Iterable[Edit] = (),
        *,
        revived: Sequence[Run] = (),
        exhausted: Sequence[Run] = (),
    ) -> OpenShard:
        """Return the shard with other runs in some places, with those that wait from now on, and the dead ones.

        New runs are joined with neighbours of the same fate. None is below and above the checkpoint; and of a shard
        with turns none is of two of these, because its records could not be acked by name.
        """
        safe = None if self.safe is None else self.safe.order
        changing = partial(Runs.change, joins=not self.held, apart=safe)
        adding = partial(Runs.add, joins=not self.held, apart=safe)
        return replace(
            self,
            waiting=adding(changing(self.waiting, waiting), revived),
            dead=adding(changing(self.dead, dead), exhausted),
        )

    def fail_rows(
        self, some: Mapping[int, Rows], failure: Failure, fates: Fates
    ) -> tuple[OpenShard, list[str]]:
        """Return the shard once rows of its turns, which wait, have failed; and the last of those that are done."""
        held, parts = self.held.fail(some, failure, fates, self.safe)
        waiting, dead = (
            Runs.sort([run for fate, run in parts if fate.state is state])
            for state in (State.WAITING, State.DEAD)
        )
        shard = replace(self, held=held).change(revived=waiting, exhausted=dead)
        return shard, [run.last for fate, run in parts if fate.state is State.ACKED]

    def ack(self, keys: Keys, attempt: int | None = None) -> tuple[OpenShard, AckCounts]:
        """Records are done, wherever they are: pending, waiting for a retry, or dead and not yet dead-lettered.

        One that is named several times is known from the second on. With an `attempt`, here and below: only those that
        are pending in this attempt, as Storm ignores what is said of an earlier one.
        """
        wanted, hits, chosen = self.held.find_named(keys, attempt)
        held = self.held.change(chosen, HeldTurn.close)
        changed, late = sum(map(len, chosen.values())), 0
        waiting, dead, gone = self.waiting, self.dead, list[str]()
        if attempt is None:
            waiting, of_waiting = self.held.take_out(waiting, wanted, hits, gone)
            dead, of_dead = self.held.take_out(dead, wanted, hits, gone)
            late = of_waiting + of_dead

        def done() -> Iterator[str]:
            for txid, rows in chosen.items():
                yield from map(held[txid].text, rows.tolist())
            yield from gone

        shard = replace(self, held=held, waiting=waiting, dead=dead).at_rest(done)
        return shard, self._count(wanted if len(wanted) == len(keys) else sort_keys(keys), changed, late)

    def fail(
        self, keys: Keys, text: str, fates: Fates, attempt: int | None = None
    ) -> tuple[OpenShard, AckCounts]:
        """Pending records failed, for a stored text: they wait for a retry, or are dead. Others stay as they are."""
        failure = parse(text)
        if failure.kind <= Kind.HELD:
            # An earlier release has stored it as somebody said it: nobody holds records from outside.
            failure = Failure.said(text)
        wanted, _, chosen = self.held.find_named(keys, attempt)
        shard, done = self.fail_rows(chosen, failure, fates)
        counts = self._count(wanted, sum(map(len, chosen.values())))
        permanent = counts.changed if failure.kind is Kind.PERMANENT else 0
        return shard.at_rest(lambda: done), counts._replace(permanent=permanent)

    def reset(self, keys: Keys, until_at: int, attempt: int | None = None) -> tuple[OpenShard, AckCounts]:
        """Pending records have until a time, in epoch milliseconds; all others are left as they are."""
        wanted, _, chosen = self.held.find_named(keys, attempt)
        held = self.held.change(chosen, lambda turn, rows: turn.postpone(rows, until_at))
        return replace(self, held=held), self._count(wanted, sum(map(len, chosen.values())))

    def time_out(self, now_at: int, fates: Fates) -> tuple[OpenShard, int]:
        """Fail what nobody has acked in time, with the kind `TIMEOUT`; return also how many records."""
        late = self.held.find_late(now_at)
        shard, done = self.fail_rows(late, _TIMEOUT, fates)
        return shard.at_rest(lambda: done), sum(map(len, late.values()))

    def _count(self, wanted: Keys, changed: int, late: int = 0) -> AckCounts:
        unknown = len(wanted) - count_through(wanted, self.high)
        return AckCounts(changed, late, len(wanted) - changed - late - unknown, unknown)


def find_safe(
    safe: RecordPosition | None,
    high: RecordPosition | None,
    first: RecordPosition | None,
    before: RecordPosition | None,
    done: Callable[[], Iterable[RecordPosition]],
) -> RecordPosition | None:
    """Return the checkpoint of a shard: right before the first record above it that is open. It never goes back.

    Without an open one it is `high`, and at least the last of `done` where the record before the first is not known.
    """
    if before is not None:
        known: RecordPosition | None = before
    else:
        known = high if first is None else max((one for one in done() if one < first), default=None)
    return safe if known is None or (safe is not None and known <= safe) else known
