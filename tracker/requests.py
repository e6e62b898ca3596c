"""Requests of people about the records of a shard: replays, their end, and runs that are given up. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import concatenate, counts, keys_of_texts
from kinesis_trident.tracker.records import Order, RecordPosition, Run, orders_of
from kinesis_trident.tracker.runs import Edit, Runs


def replay(
    shard: OpenShard, positions: Sequence[RecordPosition], now_at: int, *, takes_done: bool = True
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
    known = wanted[: 0 if shard.high is None else bisect_right(wanted, shard.high)]
    of_waiting, of_dead = (_find_runs(shard, runs, known) for runs in (shard.waiting, shard.dead))
    waiting, dead = (
        {
            at: msgspec.structs.replace(runs[at], attempt=0, due=due, failures=())
            for at in sorted({*found} - {-1})
        }
        for runs, found in ((shard.waiting, of_waiting), (shard.dead, of_dead))
    )
    done = [one for one, *found in zip(known, of_waiting, of_dead, strict=True) if found == [-1, -1]]
    new, refused = list[Run](), list[RecordPosition]()
    for position, (is_pending, before) in zip(done, _find_following(shard, done), strict=True):
        is_none = before is not None and orders_of([before])[0] < position.order
        if not is_pending and (is_none or not takes_done):
            refused.append(position)
        elif not is_pending:
            new.append(Run(str(position), str(position), 1, None, 0, due))
    after = shard.change(
        [(at, at + 1, (run,)) for at, run in waiting.items()],
        [(at, at + 1, ()) for at in dead],
        revived=Runs.sort([*dead.values(), *new]),
    )
    return after.at_rest(), (*refused, *wanted[len(known) :])


def _find_runs(shard: OpenShard, runs: Runs[Run], positions: Sequence[RecordPosition]) -> list[int]:
    """Return the index of the run that holds each record, as far as its beginning is stored, or a turn has it.

    -1: none does.
    """
    orders = [position.order for position in positions]
    found = list(map(runs.find_holder, orders))
    unsure = sorted({at for at in found if at is not None and not runs[at].first})
    located = shard.held.locate([runs[at] for at in unsure])
    begins = {unsure[index]: shard.held[txid].keys.at(row).order for index, (txid, row) in located.items()}
    return [
        -1 if at is None or begins.get(at, order) > order else at
        for at, order in zip(found, orders, strict=True)
    ]


def _find_following(
    shard: OpenShard, positions: Sequence[RecordPosition]
) -> Iterator[tuple[bool, str | None]]:
    """Yield whether records are pending, and the record before the first open one after each, if that is known.

    Between neighbours that are pending nothing is known to be none.
    """
    turns = list(shard.held.values())
    waits = [np.flatnonzero(turn.waits) for turn in turns]
    keys = concatenate([turn.keys[rows] for turn, rows in zip(turns, waits, strict=True)])
    by_key = np.argsort(keys.array, kind="stable")
    whose = np.repeat(np.arange(len(turns)), list(map(len, waits)))[by_key].tolist()
    rows = np.concatenate([np.empty(0, np.int64), *waits])[by_key].tolist()
    wanted = keys_of_texts(list(map(str, positions)))
    starts, ends = (counts(keys[by_key], wanted, through=some).tolist() for some in (False, True))
    for position, start, end in zip(positions, starts, ends, strict=True):
        found = list[tuple[Order, str | None]]()
        for runs in (shard.waiting, shard.dead):
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
            found.append((turn.keys.at(row).order, turn.before(row)))
        yield False, min(found, key=lambda one: one[0])[1] if found else None


def cancel(shard: OpenShard, positions: Sequence[RecordPosition]) -> OpenShard:
    """Somebody takes back that done records were asked for again: those that wait, or are dead, are done again.

    One that is in a run with others is done if all of these are meant; what is being delivered stays.
    """
    wanted = sorted(set(positions))
    after, done = list[Runs[Run]](), list[str]()
    for runs in (shard.waiting, shard.dead):
        meant = Counter(at for at in _find_runs(shard, runs, wanted) if at >= 0)
        taken = [at for at, count in meant.items() if runs[at].count == count]
        done += [runs[at].last for at in taken]
        after.append(runs.change([(at, at + 1, ()) for at in taken]))
    return replace(shard, waiting=after[0], dead=after[1]).at_rest(lambda: done)


def bury(
    shard: OpenShard, positions: Sequence[RecordPosition]
) -> tuple[OpenShard, tuple[RecordPosition, ...]]:
    """Somebody gives up runs that wait, each named by its last record: they are dead now, as after the last retry.

    Returns also the positions of which no waiting run ends.
    """
    edits, dead, refused = list[Edit](), list[Run](), list[RecordPosition]()
    for position in sorted(set(positions)):
        at = shard.waiting.find_named(position.order)
        if at is None:
            refused.append(position)
            continue
        edits.append((at, at + 1, ()))
        dead.append(msgspec.structs.replace(shard.waiting[at], due=0))
    return shard.change(edits, exhausted=dead), tuple(refused)
