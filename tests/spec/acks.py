"""Explicit acks, specified: a record is done once any process says so, however runs of the query follow each other.

As in docs/acks.md. A delivery is a record with its attempt. Somebody outside acks or fails deliveries that he has seen,
at any time and in any order; a run applies what he has said between two batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spec.breadth import Searched, search_states

__all__ = ["ACK_MUTANTS", "AckWorld", "Acked", "search_acks"]

ACK_MUTANTS = {
    "held": "settling leaves out what waits for its ack",
    "between": "what was said is applied while a batch is in hand, and what is not in flight yet is ignored",
    "first": "times run out, although what was said is not applied yet",
    "attempt": "what is said of one attempt counts for another one",
    "one write": "what was said is removed, and applied in a later write",
    "fence": "a run that was replaced writes",
}
"""What is done wrongly, and breaks a promise."""

Delivery = tuple[int, int]
"""A record and its attempt, from 1 on."""

Deliveries = frozenset[Delivery]
_NONE: Deliveries = frozenset()


class Said(NamedTuple):
    """An ack of a delivery, or that it failed."""

    record: int
    attempt: int
    is_ack: bool


class AckRun(NamedTuple):
    """A run: what it does next, and the batch that it has in hand; `taken`: what it is about to apply."""

    step: str
    epoch: int
    batch: Deliveries = _NONE
    taken: frozenset[Said] = frozenset()


class Acked(NamedTuple):
    """Everything; of ZooKeeper are `epoch`, `at`, `waiting`, `flying`, `batch` and `requests`.

    `waiting`: records with the attempts that failed. `flying`: deliveries that are not answered. `given`: all that
    somebody has seen. `confirmed`: deliveries that were acked while their time was not up.
    """

    epoch: int = 0
    at: int = 0
    waiting: Deliveries = _NONE
    flying: Deliveries = _NONE
    batch: Deliveries = _NONE
    requests: frozenset[Said] = frozenset()
    is_committed: bool = False
    runs: tuple[AckRun, ...] = ()
    given: Deliveries = _NONE
    said: frozenset[Said] = frozenset()
    confirmed: Deliveries = _NONE
    done: frozenset[int] = frozenset()
    letters: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AckWorld:
    """The smallness of a world: records, starts, attempts before the dead letter, and how often somebody answers."""

    records: int = 1
    starts: int = 2
    tries: int = 2
    answers: int = 2
    mutant: str = ""


Step = tuple[str, Acked]


def steps(world: AckWorld, s: Acked) -> Iterator[Step]:
    """Return all steps from a state."""
    if len(s.runs) < world.starts:
        step = "settle" if s.is_committed else "give" if s.batch else "idle"
        run = AckRun(step, s.epoch + 1, s.batch)
        yield f"run {len(s.runs) + 1} starts", s._replace(epoch=s.epoch + 1, runs=(*s.runs, run))
    for record, attempt in s.given if len(s.said) < world.answers else ():
        for is_ack in (True, False):
            one = Said(record, attempt, is_ack)
            if one not in s.said:
                after = s._replace(requests=s.requests | {one}, said=s.said | {one})
                if is_ack and (record, attempt) in s.flying | s.batch:
                    after = after._replace(confirmed=s.confirmed | {(record, attempt)})
                what = "acks" if is_ack else "fails"
                yield f"somebody {what} r{record + 1}, attempt {attempt}", after
    for i, run in enumerate(s.runs):
        for name, after in _steps_of(world, s, i, run):
            yield f"run {i + 1} {name}", after


def _steps_of(world: AckWorld, s: Acked, i: int, run: AckRun) -> Iterator[Step]:
    def go(after: Acked, now: AckRun) -> Acked:
        return after._replace(runs=(*s.runs[:i], now, *s.runs[i + 1 :]))

    is_newest = s.epoch == run.epoch or world.mutant == "fence"
    if run.step == "give":
        yield "gives its rows", go(s._replace(given=s.given | run.batch), run._replace(step="commit"))
    elif run.step == "commit" and s.batch == run.batch:
        # Spark commits without ZooKeeper, so a run that was replaced can.
        yield "commits", go(s._replace(is_committed=True), run._replace(step="settle"))
    elif not is_newest:
        return
    elif run.step == "settle":
        yield "settles", go(_settle(world, s, run.batch), AckRun("idle", run.epoch))
    elif run.step == "apply":
        yield "applies what it took", go(_apply(world, s, run.taken), AckRun("idle", run.epoch))
    elif run.step == "idle" and not s.batch:
        if s.requests and world.mutant == "one write":
            taken = AckRun("apply", run.epoch, taken=s.requests)
            yield "takes what was said", go(s._replace(requests=frozenset()), taken)
        elif s.requests:
            yield "applies what was said", _apply(world, s._replace(requests=frozenset()), s.requests)
        if not s.requests or world.mutant == "first":
            for one in s.flying:
                lost = s._replace(flying=s.flying - {one}, waiting=s.waiting | {one})
                yield f"sees that the time of r{one[0] + 1} is up", lost
            yield from ((name, go(after, now)) for name, after, now in _plan(world, s, run))
    if world.mutant == "between" and s.requests and s.batch:
        yield "applies what was said", _apply(world, s._replace(requests=frozenset()), s.requests)


def _plan(world: AckWorld, s: Acked, run: AckRun) -> Iterator[tuple[str, Acked, AckRun]]:
    """Plan what waits, and so many new records; what has failed too often becomes a dead letter."""
    dead = {one for one in s.waiting if one[1] >= world.tries}
    again = {(record, attempt + 1) for record, attempt in s.waiting - dead}
    after = s._replace(waiting=s.waiting - dead, letters=s.letters | {record for record, _ in dead})
    for end in range(s.at, world.records + 1):
        batch = frozenset(again | {(record, 1) for record in range(s.at, end)})
        if batch:
            planned = after._replace(batch=batch, is_committed=False)
            yield f"plans {_show(batch)}", planned, run._replace(step="give", batch=batch)
        elif dead:
            yield "writes dead letters", after, run


def _settle(world: AckWorld, s: Acked, batch: Deliveries) -> Acked:
    """Move on behind a batch: all of it is in flight."""
    records = {record for record, _ in batch}
    return s._replace(
        at=max([s.at, *(record + 1 for record, attempt in batch if attempt == 1)]),
        waiting=frozenset(one for one in s.waiting if one[0] not in records),
        flying=s.flying if world.mutant == "held" else s.flying | batch,
        batch=_NONE,
        is_committed=False,
    )


def _apply(world: AckWorld, s: Acked, said: frozenset[Said]) -> Acked:
    """Apply what was said of deliveries in flight; an ack counts as well while its record waits for the next one."""
    for record, attempt, is_ack in sorted(said, key=lambda one: not one.is_ack):
        of = {one for one in s.flying if one[0] == record}
        found = of if world.mutant == "attempt" else of & {(record, attempt)}
        if is_ack and not found and (record, attempt) in s.waiting:
            s = s._replace(waiting=s.waiting - {(record, attempt)}, done=s.done | {record})
        elif found and is_ack:
            s = s._replace(flying=s.flying - found, done=s.done | {record})
        elif found:
            s = s._replace(flying=s.flying - found, waiting=s.waiting | found)
    return s


def broken(before: Acked, name: str, s: Acked) -> str:
    """Return what is wrong with a step."""
    waiting, flying = ({record for record, _ in some} for some in (s.waiting, s.flying))
    for record in range(s.at):
        here = record in s.done or record in s.letters or record in waiting or record in flying
        if not here and record not in {one for one, _ in s.batch}:
            return f"LOST: r{record + 1} is behind the position, and nobody has acked it"
    for record, attempt in s.batch - before.batch:
        if any(one == record and earlier < attempt for one, earlier in s.confirmed):
            return f"AGAIN: r{record + 1} is delivered, and was acked in time"
    if s.done & s.letters:
        return "AGAIN: a record is acked, and a dead letter"
    for record, attempt in before.flying - s.flying:
        answers = {one.is_ack for one in s.said if one[:2] == (record, attempt)}
        is_right = (True in answers) if record in s.done else (False in answers or "time" in name)
        if not is_right:
            return f"JUDGED: attempt {attempt} of r{record + 1} ends, and nobody has said so"
    return ""


def _show(batch: Deliveries) -> str:
    return ", ".join(f"r{record + 1} (attempt {attempt})" for record, attempt in sorted(batch))


def search_acks(world: AckWorld) -> Searched:
    """Search all states of a world."""
    return search_states(
        Acked(), lambda s: ((name, after, broken(s, name, after)) for name, after in steps(world, s))
    )
