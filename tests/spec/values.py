"""The values of which a state of the commit protocol is made: each is immutable, and says all that outlives a step.

Records are numbers, shard after shard; a shard's position is how many of its records are behind it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")

Records = frozenset[int]
Waiting = frozenset[tuple[int, int]]  # Records, each with how often it has failed.
Mark = tuple[int, int]  # The start that made a plan, and its txid: it names the plan for ever.
Turn = tuple[int, Records]  # Up to where a shard is read, and which of those that waited.
Written = tuple[int, Records]  # The epoch and the rows of what counts under a txid.

NONE: frozenset[int] = frozenset()
NO_WAITING: Waiting = frozenset()


class Plan(NamedTuple):
    """What a batch contains; Spark logs it as the batch's offset."""

    txid: int
    mark: Mark
    at: tuple[int, ...]  # Where each shard starts.
    read: frozenset[int]  # The shards with new records.
    due: Waiting  # Delivered again.
    dead: Waiting  # To the dead letter.
    rest: Waiting  # Wait for a later batch.
    epoch: int
    adopter: int = 0  # The run that has given it to another Spark checkpoint.


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
    """What ZooKeeper holds."""

    shards: tuple[Shard, ...]
    epoch: int = 0
    settled: int = 0
    mark: Mark | None = None  # Of the newest settled batch.
    batch: Batch | None = None
    judging: tuple[int, ...] = ()  # The newest run that judges, and earlier ones that have read its batch.
    said: int = 0  # The version of that note.
    past: Past = Past()


class Log(NamedTuple):
    """A checkpointLocation of Spark: the newest batch that is committed, and the one that is logged after it."""

    done: Plan | None = None
    hand: Plan | None = None


class Run(NamedTuple):
    """One start of the query: its planning process, tasks and driver."""

    step: str  # What it does next.
    epoch: int = 0
    log: int = 0
    plain: bool = False
    told: bool = False  # It has noted that it judges.
    plan: Plan | None = None
    own: Mark | None = None  # Of the plan that it has given to Spark.
    driver: tuple[int, int] = (0, 0)  # The txid and the epoch under which its driver works.
    turns: tuple[Turn | None, ...] = ()  # What was read of each shard.
    failed: Records | None = None  # The outcome, once there is one.
    upto: int = 0  # The txid that an adoption settles.
    noted: tuple[tuple[int, ...], int] = ((), 0)  # The note of who judges, as it was before this run.
    follows: bool = False  # It has found the outcome.
    is_plain_now: bool = False  # The note is to be forgotten.
    loaded: tuple[Zk, Log] | None = None  # Read of ZooKeeper and of Spark's log, before it decides.
    missing: Records = NONE  # Had expired when it came to them.

    def rest(self) -> Run:
        """Return it between two batches."""
        return Run("decide", self.epoch, self.log, self.plain, self.told, own=self.own)


class State(NamedTuple):
    """Everything."""

    zk: Zk
    sink: tuple[Written | None, ...]
    logs: tuple[Log, ...] = (Log(),)
    letters: Records = NONE
    runs: tuple[Run, ...] = ()
    fence: int = 0  # Of a database: the highest epoch that has written.
    copy: Zk | None = None
    older: Log | None = None
    before: Zk | None = None  # What a server shows that lags.
    restored: int = 0
    since: int = 0  # How many starts there were before a restore that is heeded.
    failures: frozenset[tuple[int, int]] = frozenset()  # Records with the txids in which they failed.
    expired: Records = NONE  # Retention has taken them.
    late: tuple[int, int, Plan, int] | None = None  # A task that comes late: its run, epoch, plan and shard.
    begun: int = 0  # How many such tasks there were.


Step = tuple[str, State]  # What somebody does, and the state after it.

GONE = Run("gone")


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
