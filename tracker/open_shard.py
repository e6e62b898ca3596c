"""The records of one shard that are not done, and the safe checkpoint below them: a value. Pure.

Three things hold the checkpoint back: runs that wait for a retry, runs that are dead and not dead-lettered yet, and
rows of turns that wait for their acks. `tracker.settling` says what a turn makes of a shard, and `OpenShard` what
people and other processes ask for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import lt
from typing import NamedTuple

import msgspec
import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Failure, Kind, parse
from kinesis_trident.tracker.held_turns import AckWait, HeldTurn, Rows
from kinesis_trident.tracker.position_keys import (
    KeyPositions,
    Keys,
    concatenate,
    count_above,
    counts,
    key_of,
    keys_of_texts,
)
from kinesis_trident.tracker.records import Order, PendingRun, RecordPosition, Run, orders_of
from kinesis_trident.tracker.retry import Fate, Fates, State
from kinesis_trident.tracker.runs import Edit, Runs
from kinesis_trident.tracker.turns_by_txid import HeldTurns

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
            first = KeyPositions(starts)[int(overlap[0])]
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

    def _find_runs(self, runs: Runs[Run], orders: Sequence[Order]) -> list[int]:
        """Return the index of the run that holds each record, as far as its beginning is stored, or a turn has it.

        -1: none does.
        """
        found = list(map(runs.find_holder, orders))
        unsure = sorted({at for at in found if at is not None and not runs[at].first})
        located = self.held.locate([runs[at] for at in unsure])
        begins = {unsure[index]: self.held[txid].order(row) for index, (txid, row) in located.items()}
        return [
            -1 if at is None or begins.get(at, order) > order else at
            for at, order in zip(found, orders, strict=True)
        ]

    def at_rest(self, done: Callable[[], Iterable[str]] = tuple) -> OpenShard:
        """Return the shard with its checkpoint right before the first record above it that is open.

        `done`: the last records of what is done now, in any order: where the record before the first open one is not
        known, the checkpoint comes at least as far.
        """
        found = min(self._first_open(), default=None, key=lambda one: one[0])
        texts = found[1:] if found is not None else ()
        first, before = [RecordPosition.parse(text) if text else None for text in texts] or (None, None)
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
        self, some: Mapping[int, Rows], decide: Callable[[AckWait], Fate]
    ) -> tuple[OpenShard, list[str]]:
        """Return the shard once rows of its turns, which wait, have failed; and the last of those that are done."""
        held, parts = self.held.fail(some, decide, self.safe)
        waiting, dead = (
            Runs.sort([run for fate, run in parts if fate.state is state])
            for state in (State.WAITING, State.DEAD)
        )
        shard = replace(self, held=held).change(revived=waiting, exhausted=dead)
        return shard, [run.last for fate, run in parts if fate.state is State.ACKED]

    def ack(self, keys: Keys, attempt: int | None = None) -> tuple[OpenShard, AckCounts]:
        """Records are done, wherever they are: pending, waiting for a retry, or dead and not yet dead-lettered.

        With an `attempt`, here and below: only those that are pending in this attempt, as Storm ignores what is said of
        an earlier one.
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
        return shard, self._count(wanted, changed, late)

    def fail(
        self, keys: Keys, text: str, fates: Fates, attempt: int | None = None
    ) -> tuple[OpenShard, AckCounts]:
        """Pending records failed, for a stored text: they wait for a retry, or are dead. Others stay as they are."""
        failure = parse(text)
        if failure.kind <= Kind.HELD:
            # An earlier release has stored it as somebody said it: nobody holds records from outside.
            failure = Failure.said(text)
        wanted, _, chosen = self.held.find_named(keys, attempt)
        shard, done = self.fail_rows(chosen, lambda one: fates.decide(failure, one.attempt, one.failures))
        return shard.at_rest(lambda: done), self._count(wanted, sum(map(len, chosen.values())))

    def reset(self, keys: Keys, until_at: int, attempt: int | None = None) -> tuple[OpenShard, AckCounts]:
        """Pending records have until a time, in epoch milliseconds; all others are left as they are."""
        wanted, _, chosen = self.held.find_named(keys, attempt)
        held = self.held.change(chosen, lambda turn, rows: turn.postpone(rows, until_at))
        return replace(self, held=held), self._count(wanted, sum(map(len, chosen.values())))

    def time_out(self, now_at: int, fates: Fates) -> tuple[OpenShard, int]:
        """Fail what nobody has acked in time, with the kind `TIMEOUT`; return also how many records."""
        late = self.held.find_late(now_at)
        shard, done = self.fail_rows(late, lambda one: fates.decide(_TIMEOUT, one.attempt, one.failures))
        return shard.at_rest(lambda: done), sum(map(len, late.values()))

    def _count(self, wanted: Keys, changed: int, late: int = 0) -> AckCounts:
        unknown = count_above(wanted, self.high)
        return AckCounts(changed, late, len(wanted) - changed - late - unknown, unknown)

    def replay(
        self, positions: Sequence[RecordPosition], now_at: int, *, takes_done: bool = True
    ) -> tuple[OpenShard, tuple[RecordPosition, ...]]:
        """Somebody asks for records again: they are due now, with a fresh count (no delivery, no failure).

        A record of a run that waits or is dead takes its whole run along, because a run shares one fate.
        Records done before, at or below the checkpoint too, become runs of their own; the checkpoint does not
        move back for them, and those above it hold it until they are done again. What is pending is being
        delivered: nothing changes. Returns also the positions that are refused: beyond what was ever delivered
        here, or known to be none, or done, unless it `takes_done` ones.
        """
        due = now_at // 1_000 * 1_000
        wanted = sorted(set(positions))
        known = wanted[: 0 if self.high is None else bisect_right(wanted, self.high)]
        orders = [position.order for position in known]
        of_waiting, of_dead = self._find_runs(self.waiting, orders), self._find_runs(self.dead, orders)
        again = [
            {
                at: msgspec.structs.replace(runs[at], attempt=0, due=due, failures=())
                for at in sorted({*found} - {-1})
            }
            for runs, found in ((self.waiting, of_waiting), (self.dead, of_dead))
        ]
        done = [
            position
            for position, waits, is_dead in zip(known, of_waiting, of_dead, strict=True)
            if waits < 0 and is_dead < 0
        ]
        new, refused = list[Run](), list[RecordPosition]()
        for position, (is_pending, before) in zip(done, self._find_following(done), strict=True):
            is_none = before is not None and orders_of([before])[0] < position.order
            if not is_pending and (is_none or not takes_done):
                refused.append(position)
            elif not is_pending:
                new.append(Run(str(position), str(position), 1, None, 0, due))
        waiting, dead = again
        shard = self.change(
            [(at, at + 1, (run,)) for at, run in waiting.items()],
            [(at, at + 1, ()) for at in dead],
            revived=Runs.sort([*dead.values(), *new]),
        )
        return shard.at_rest(), (*refused, *wanted[len(known) :])

    def _find_following(self, positions: Sequence[RecordPosition]) -> Iterator[tuple[bool, str | None]]:
        """Yield whether records are pending, and the record before the first open one after each, if that is known.

        Between neighbours that are pending nothing is known to be none.
        """
        turns = list(self.held.values())
        waits = [np.flatnonzero(turn.waits) for turn in turns]
        keys = concatenate([turn.keys[rows] for turn, rows in zip(turns, waits, strict=True)])
        by_key = np.argsort(keys.array, kind="stable")
        whose = np.repeat(np.arange(len(turns)), list(map(len, waits)))[by_key].tolist()
        rows = np.concatenate([np.empty(0, np.int64), *waits])[by_key].tolist()
        wanted = keys_of_texts(list(map(str, positions)))
        starts, ends = (counts(keys[by_key], wanted, through=some).tolist() for some in (False, True))
        for position, start, end in zip(positions, starts, ends, strict=True):
            found = list[tuple[Order, str | None]]()
            for runs in (self.waiting, self.dead):
                at = runs.find(position.order)
                if at < len(runs):
                    found.append((runs.lasts[at], runs[at].prev))
            if start < len(rows):
                turn, row = turns[whose[start]], rows[start]
                is_after = start and (whose[start - 1], rows[start - 1]) == (whose[start], row - 1)
                if end > start or (
                    is_after and turn.waits[row - 1] == turn.waits[row] and row not in turn.befores
                ):
                    yield True, None
                    continue
                found.append((turn.order(row), turn.before(row)))
            yield False, min(found, key=lambda one: one[0])[1] if found else None

    def take_back(self, positions: Sequence[RecordPosition]) -> OpenShard:
        """Somebody takes back that done records were asked for again: those that wait, or are dead, are done again.

        One that is in a run with others is done if all of these are meant; what is being delivered stays.
        """
        orders = [position.order for position in sorted(set(positions))]
        after, done = list[Runs[Run]](), list[str]()
        for runs in (self.waiting, self.dead):
            meant = Counter(at for at in self._find_runs(runs, orders) if at >= 0)
            taken = [at for at, count in meant.items() if runs[at].count == count]
            done += [runs[at].last for at in taken]
            after.append(runs.change([(at, at + 1, ()) for at in taken]))
        return replace(self, waiting=after[0], dead=after[1]).at_rest(lambda: done)

    def bury(self, positions: Sequence[RecordPosition]) -> tuple[OpenShard, tuple[RecordPosition, ...]]:
        """Somebody gives up runs that wait, each named by its last record: they are dead now, as after the last retry.

        Returns also the positions of which no waiting run ends.
        """
        edits, dead, refused = list[Edit](), list[Run](), list[RecordPosition]()
        for position in sorted(set(positions)):
            at = self.waiting.find_named(position.order)
            if at is None:
                refused.append(position)
                continue
            edits.append((at, at + 1, ()))
            dead.append(msgspec.structs.replace(self.waiting[at], due=0))
        return self.change(edits, exhausted=dead), tuple(refused)


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
