"""The values of which a state of the commit protocol is made: each is immutable, and says all that outlives a step.

Records are numbers, shard after shard; a shard's position is how many of its records are behind it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")

Records = frozenset[int]
Waiting = frozenset[tuple[int, int]]
"""Records, each with how often it has failed."""

Mark = tuple[int, int]
"""The start that made a plan, and its txid: it names the plan for ever."""

NONE: frozenset[int] = frozenset()
NO_WAITING: Waiting = frozenset()


class Plan(NamedTuple):
    """What a batch contains; Spark logs it as the batch's offset.

    `at`: where each shard starts. `read`: the shards with new records. `due`: delivered again; `dead`: to the dead
    letter; `rest`: wait for a later batch. `adopter`: the run that has given it to another Spark checkpoint.
    """

    txid: int
    mark: Mark
    at: tuple[int, ...]
    read: frozenset[int]
    due: Waiting
    dead: Waiting
    rest: Waiting
    epoch: int
    adopter: int = 0


class Pin(NamedTuple):
    """What a batch reads of a shard: up to where, and which of those that waited; its newest and its first reader."""

    mark: Mark
    to: int
    served: Records
    epoch: int
    maker: int


class Outcome(NamedTuple):
    """The records that failed, as the run of an epoch has published them."""

    mark: Mark
    failed: Records
    epoch: int


class Batch(NamedTuple):
    """The batch after the settled one, and the epoch of the run that has taken it up last."""

    plan: Plan
    epoch: int
    pins: tuple[Pin | None, ...]
    outcome: Outcome | None = None


class Shard(NamedTuple):
    """A shard's position, what waits before it, and the newest batch that is settled here."""

    at: int = 0
    waiting: Waiting = NO_WAITING
    stamp: int = 0


class Past(NamedTuple):
    """The memory of what was used and is not among the other nodes; `lost`: the epochs that a restore took."""

    epoch: int = 0
    txid: int = 0
    mark: Mark | None = None
    lost: int = 0


class Zk(NamedTuple):
    """ZooKeeper. `mark`: of the newest settled batch.

    `judging`: the newest run that judges, and earlier ones that have read its batch; `said`: the version of that note.
    """

    shards: tuple[Shard, ...]
    epoch: int = 0
    settled: int = 0
    mark: Mark | None = None
    batch: Batch | None = None
    judging: tuple[int, ...] = ()
    said: int = 0
    past: Past = Past()


class Log(NamedTuple):
    """A checkpointLocation of Spark: the newest batch that is committed, and the one that is logged after it."""

    done: Plan | None = None
    hand: Plan | None = None


Turn = tuple[int, Records]


class Run(NamedTuple):
    """One start of the query: its planning process, tasks and driver.

    `step`: what it does next. `told`: it has noted that it judges. `own`: the mark of the plan that it has given to
    Spark. `driver`: the txid and the epoch under which its driver works. `turns`: what was read of each shard.
    `failed`: the outcome, once there is one. `upto`: the txid that an adoption settles. `noted`: the note of who
    judges, as it was before this run. `follows`: it has found the outcome. `is_plain_now`: the note is to be forgotten.
    `loaded`: what was read of ZooKeeper and of Spark's log before deciding.
    """

    step: str
    epoch: int = 0
    log: int = 0
    plain: bool = False
    told: bool = False
    plan: Plan | None = None
    own: Mark | None = None
    driver: tuple[int, int] = (0, 0)
    turns: tuple[Turn | None, ...] = ()
    failed: Records | None = None
    upto: int = 0
    noted: tuple[tuple[int, ...], int] = ((), 0)
    follows: bool = False
    is_plain_now: bool = False
    loaded: tuple[Zk, Log] | None = None


Written = tuple[int, Records]
"""The epoch and the rows of what counts under a txid."""


class State(NamedTuple):
    """Everything. `fence`: of a database, the highest epoch that has written. `before`: what a server shows that lags.

    `failures`: each record with the txids in which it failed, to see that none is given up too early. `since`: how many
    starts there were before a restore that is heeded.
    """

    zk: Zk
    sink: tuple[Written | None, ...]
    logs: tuple[Log, ...] = (Log(),)
    letters: Records = NONE
    runs: tuple[Run, ...] = ()
    fence: int = 0
    copy: Zk | None = None
    older: Log | None = None
    before: Zk | None = None
    restored: int = 0
    since: int = 0
    failures: frozenset[tuple[int, int]] = frozenset()


Step = tuple[str, State]
"""What somebody does, and the state after it."""

GONE = Run("gone")


def pins_of(zk: Zk, plan: Plan) -> dict[int, Pin]:
    """Return the pins of a plan, by shard."""
    held = zk.batch.pins if zk.batch is not None else ()
    return {k: pin for k, pin in enumerate(held) if pin is not None and pin.mark == plan.mark}


def outcome_of(zk: Zk, plan: Plan) -> Outcome | None:
    """Return the outcome of a plan, if it was published."""
    found = zk.batch.outcome if zk.batch is not None else None
    return found if found is not None and found.mark == plan.mark else None


def unfinished(zk: Zk) -> Waiting:
    """Return all that waits."""
    return NO_WAITING.union(*(shard.waiting for shard in zk.shards))


def only(records: Waiting) -> Records:
    """Return records without how often they have failed."""
    return frozenset(record for record, _ in records)


def join(one: Past, other: Past) -> Past:
    """Return a memory of both."""
    last = max(one, other, key=lambda past: (past.txid, past.mark or (-1, -1)))
    return Past(max(one.epoch, other.epoch), last.txid, last.mark, max(one.lost, other.lost))


def swap(some: tuple[T, ...], k: int, value: T) -> tuple[T, ...]:
    """Return the same with another value at one place."""
    return (*some[:k], value, *some[k + 1 :])


def show(records: Records) -> str:
    """Name records."""
    return ", ".join(f"r{record + 1}" for record in sorted(records)) or "nothing"
