"""The nodes in ZooKeeper: one struct for each kind, stored as JSON with a version.

Every node is a JSON object that begins with its version, `"v": 1`. A missing field, a wrong value, bad JSON or an
unknown version is an error that names the path: nothing ever starts over silently.

**The rule of the format.** A query can go back to the release before, and its nodes and offsets must be read there:

- A field with a default is left out while it has that default. A field that was released without a default never
  gets one: the releases before require it.
- Unknown fields are ignored (by 1.0.0 they are refused). So a new field is optional, and only what an older release
  can do without: it reads the node as if it had written it itself, and drops the field when it writes the node again.
- What is needed for a right reading raises the version of the node, and of those that contain it, in the nodes that
  have it (`codec`); all others stay as they are. An older release then stops, and says that a newer one has
  written the node.
- Each kind that holds something has a required field that others have not: a node at another's place is an error.

`tests/checkpoint/model/test_releases.py` has the fields of each release, and why older ones may ignore the new ones.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_left
from itertools import repeat
from typing import Annotated, Literal

import msgspec

from kinesis_trident.tracker.records import (
    SEQUENCE,
    NotDone,
    Number,
    PendingRun,
    PositionText,
    Run,
    Time,
    keys_of_piece,
    orders_of,
    with_keys,
)

__all__ = [
    "VERSION",
    "BatchOutcome",
    "BatchNode",
    "CheckpointNode",
    "DeadLetterRecord",
    "DeadLettersNode",
    "EpochNode",
    "ExternalNode",
    "FencedNode",
    "InflightNode",
    "JudgingNode",
    "NameNode",
    "NotDone",
    "OwnerNode",
    "PastNode",
    "Pin",
    "Plan",
    "Replay",
    "ReportNode",
    "SettledNode",
    "ShardLineage",
    "ShardsNode",
    "StartNode",
    "StatesNode",
    "StopNode",
    "StreamsNode",
    "TaskReport",
    "mark_of",
]

VERSION = 1

StartText = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"\A(TRIM_HORIZON|AT_TIMESTAMP -?[0-9]{{1,16}}|A(FTER|T)_SEQUENCE_NUMBER {SEQUENCE}|"
        rf"SHARD_END( {SEQUENCE})?)\Z"
    ),
]
"""The position at which reading starts, in the text form of `spout.positions`, checked when decoded."""

Sequence = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,129}\Z")]

TaskCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

_MARK = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-(?:([0-9a-f]{8})-)?")

Ordinal = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count, a txid or an epoch."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION):
    """A node; its version `v` is no attribute, but what is stored first."""


class EpochNode(Node, frozen=True, kw_only=True):
    """`epoch`: raised by each start. The znode's version is the epoch, so a multi can check it.

    `tool`: who has raised it to change the state, and how, if that was no query; `last` is the epoch of the last query
    then.
    """

    run: str
    host: str
    pid: Number
    since: Time
    tool: str = ""
    last: Ordinal = 0


class PastNode(Node, frozen=True, kw_only=True):
    """`past`: what was used before, and is not among the other nodes: epochs and txids go on above it.

    It is of the homes from which this one takes over its streams; or of batches that Spark's checkpoint names while
    ZooKeeper's data was lost, or is an older copy: `lost_upto` is their highest epoch, `plan` the mark of `txid`.
    """

    epoch: Ordinal
    txid: Ordinal
    plan: str = ""
    lost_upto: Ordinal


class OwnerNode(Node, frozen=True, kw_only=True):
    """`owner`: ephemeral, for information; not a lock."""

    epoch: Ordinal
    host: str
    pid: Number
    since: Time


class FencedNode(Node, frozen=True, kw_only=True):
    """`fenced/<epoch>`: an active run that was replaced: the run that stopped, and its successor."""

    epoch: Ordinal
    by_epoch: Ordinal
    by_host: str
    by_pid: Number


class StartNode(Node, frozen=True, kw_only=True):
    """`start`: LATEST resolved to a time, once, before first use. Milliseconds by the server's clock."""

    timestamp: Time


class StreamsNode(Node, frozen=True, kw_only=True):
    """`streams`: the streams that share this home, name to creation time in epoch milliseconds.

    `active`: those that the newest run reads; the state of the others is kept, in case they are read again.
    """

    streams: dict[str, Number]
    active: tuple[str, ...]


class ShardLineage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard's place in the history of resharding.

    `state` is open, closed (no more writes) or drained (read to its end). `start` is the position, in text form, at
    which its reading begins while it has no checkpoint. `listed`: when it was listed first, epoch milliseconds by
    the server's clock: its records of then were still there; 0 if unknown.
    """

    parents: tuple[str, ...] = ()
    state: Literal["open", "closed", "drained"] = "open"
    start: StartText = "TRIM_HORIZON"
    listed: Time = 0


class ShardsNode(Node, frozen=True, kw_only=True):
    """`shards`: the lineage of all shards seen and not yet forgotten."""

    shards: dict[str, ShardLineage]


class CheckpointNode(Node, frozen=True, kw_only=True):
    """`checkpoints/<shard>`: the safe checkpoint and the position at which reading continues.

    `checkpoint`/`sub`: every record up to this one is done (None before the first). `position`: where the next turn
    starts, in the text form of `spout.positions`. `arrival`: of the last record read, epoch milliseconds. `seen`:
    when the shard was last known to hold no unread record, by the server's clock. `behind_ms`: the lag then.
    `read`: how many records were delivered for the first time, by all runs together. `held`: how many runs of records
    its node of `inflight` has at least, so that one that is lost is found out.
    """

    checkpoint: Sequence | None
    sub: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    txid: Ordinal
    position: StartText
    arrival: Time | None = None
    seen: Time | None = None
    behind_ms: Number = 0
    read: Number = 0
    held: Ordinal = 0


class InflightNode(Node, frozen=True, kw_only=True):
    """`inflight/<shard>`: the unfinished records, in shard order.

    `waiting`: failed, due again at `Run.due`. `dead`: exhausted or expired, to be dead-lettered by the next plan.
    Runs at or below the checkpoint come from a requested replay. `pending`: delivered, and with `ackMode=explicit`
    not acked yet. `turns`: the batches whose pins hold the positions of all these, and are kept for that. `counted`:
    its writer knows `CheckpointNode.held`; one that does not leaves an older number there.
    """

    txid: Ordinal
    waiting: tuple[Run, ...]
    dead: tuple[Run, ...] = ()
    blocked: str = ""
    pending: tuple[PendingRun, ...] = ()
    turns: tuple[Ordinal, ...] = ()
    counted: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is in flight."""
        return not (self.waiting or self.dead or self.pending or self.blocked or self.turns)

    @property
    def size(self) -> int:
        """Return the number of its runs of records: `CheckpointNode.held`."""
        return len(self.waiting) + len(self.dead) + len(self.pending)


def mark_of(epoch: int, now: int, whose: str, bits: int) -> str:
    """Return the mark of a plan that the run of `epoch` makes `now`, in epoch milliseconds, from 96 random bits.

    `whose`: `Layout.digest`. All are parts of the mark, and no fields, so that an earlier release reads the plan, in
    Spark's offset too.
    """
    return f"{epoch}-{now}-{whose}-{bits:024x}"


class Plan(Node, frozen=True, kw_only=True):
    """The offset that Spark logs: the plan of one batch, complete.

    Shards have their names in the layout. `positions`: the position from which each known shard is read, in the
    text form of `spout.positions`; ancestors of its shards that are not in it are done, other shards that are not in it
    are new. `read`: the shards whose new records this batch reads. `retries`, `dead`: runs
    this batch delivers again, or dead-letters, by shard; their reasons are in ZooKeeper. `notDone`: the runs that
    wait for a later batch, by shard. `limit`, `limitBytes`: new records, and their payload, a shard, None for no
    bound. `room`: new records of single shards, if fewer fit. `streams`: name to creation time in epoch
    milliseconds. `resume`: the position from which a shard is read again if ZooKeeper's data is lost; it is before
    `positions` if records in between are not acked yet, or wait and are too many for `notDone`. `deaggregate`: True
    if the batch splits aggregates, however often it is read; None in plans of older releases, and if nothing is
    read. `tasks`: the number of tasks that are enough for what is expected, the same however often the batch is read;
    None if the options alone decide. `plan`: the mark of this plan, as `mark_of` makes it. `adopter`: the run that has
    given this plan to another Spark checkpoint than that for which it was made; 0 for none. `upto`: each turn ends
    before the first record that arrived later, in epoch milliseconds; None if it reads whatever there is.
    """

    txid: Ordinal
    plan: str
    streams: dict[str, Number]
    positions: dict[str, StartText]
    read: tuple[str, ...] = ()
    retries: dict[str, tuple[Run, ...]] = {}
    dead: dict[str, tuple[Run, ...]] = {}
    notDone: dict[str, tuple[Run, ...]] = {}
    limit: Number | None = None
    limitBytes: Number | None = None
    room: dict[str, Number] = {}
    resume: dict[str, StartText] = {}
    deaggregate: bool | None = None
    tasks: TaskCount | None = None
    adopter: Ordinal = 0
    upto: Time | None = None

    @property
    def epoch(self) -> int:
        """Return the epoch of the run that made this plan; 0 if that is not known."""
        return self._made[0]

    @property
    def made_at(self) -> int:
        """Return when this plan was made, in epoch milliseconds; 0 if that is not known."""
        return self._made[1]

    @property
    def whose(self) -> str:
        """Return the digest of the application that made this plan (`Layout.digest`); empty if that is not known."""
        return self._made[2]

    @property
    def _made(self) -> tuple[int, int, str]:
        found = _MARK.match(self.plan)
        return (int(found[1]), int(found[2]), found[3] or "") if found else (0, 0, "")

    @property
    def shards(self) -> list[str]:
        """Return the shards that this batch touches, sorted: a shard's index here is its index in the record ids."""
        return sorted({*self.read, *self.retries, *self.dead})

    @property
    def is_empty(self) -> bool:
        """Return whether this batch can deliver nothing, as one that was abandoned."""
        return not (self.read or self.retries or self.dead)

    def reads(self, shard: str) -> bool:
        """Return whether this batch reads new records of a shard; `read` is sorted, and may be long."""
        at = bisect_left(self.read, shard)
        return at < len(self.read) and self.read[at] == shard

    def most_new(self, shard: str) -> int | None:
        """Return the maximum of new records of one shard; None for no bound."""
        return min((most for most in (self.limit, self.room.get(shard)) if most is not None), default=None)

    def due(self, shard: str) -> list[tuple[Run, bool]]:
        """Return the runs of one shard that this batch takes up again, in shard order, each with True if it is dead.

        Pins count the served records by the index in this list.
        """
        runs = [
            *zip(self.retries.get(shard, ()), repeat(False)),
            *zip(self.dead.get(shard, ()), repeat(True)),
        ]
        lasts = orders_of([run.last for run, _ in runs])
        return [runs[at] for at in sorted(range(len(runs)), key=lasts.__getitem__)]


class BatchNode(Node, frozen=True, kw_only=True):
    """`batches/<txid>`: the plan, and the epoch of the run that works on it."""

    epoch: Ordinal
    plan: Plan


class Subscribing(enum.IntEnum):
    """How a turn subscribed to its shard by enhanced fan-out.

    `NOT`: it went on with an open subscription, or polled. `BEGUN`: it began one. `REFUSED`: another one was less than
    5 seconds old. `TAKEN`: another one took its place while the turn read.
    """

    NOT = 0
    BEGUN = 1
    REFUSED = 2
    TAKEN = 3


class Pin(Node, frozen=True, kw_only=True):
    """`batches/<txid>/<shard>`: the content of this turn of the shard, fixed before its first row is seen.

    `start`, `end`: positions in text form. `last`: the last new record, None when the turn has none. `first`: the first
    one, where `start` does not name the record before it. `count`: of all records, retries included; `fresh`: of the
    new ones. `unreadable`: those among them that cannot be decoded, and so have no row: they have failed. `digest`:
    xxh3 of the records' positions in order. `xor`: of the tuple ids. `served`: how many records of each planned retry
    and dead run, merged in shard order, were found; runs beyond its length were not reached. `missing`: indexes into
    the same list whose records are (at least partly) gone from the stream; `invalid`: those of these whose position was
    never one of the stream. `through`: the last retried position. `lost`: records an earlier pin of this turn held that
    a replay no longer found. `positions`: with `ackMode=explicit`, those of all records in order, as
    `tracker.position_keys.pack_in_parts` gives them. `gone`: retention had removed the shard before the turn. `cost`:
    bytes of the new records, throttled reads, renewed iterators, GetRecords calls, milliseconds that the shard's limits
    were busy after it, and how it subscribed (a `Subscribing`), without zeros at its end. `ahead`: of the records that
    the turn has seen behind its end, when the first one arrived, and the time up to which another turn reads them at
    least. `epoch`: of the newest run that has read the turn; `maker`: of the first one, 0 where that is the same.
    """

    txid: Ordinal
    plan: str
    epoch: Ordinal
    start: StartText
    end: StartText
    last: PositionText | None
    count: Ordinal
    fresh: Ordinal
    digest: str
    xor: int
    closed: bool = False
    arrival: Time | None = None
    seen: Time | None = None
    behind_ms: Number = 0
    served: tuple[Number, ...] = ()
    missing: tuple[Ordinal, ...] = ()
    through: PositionText | None = None
    lost: Ordinal = 0
    positions: tuple[str, ...] = ()
    gone: bool = False
    cost: tuple[Number, ...] = ()
    unreadable: tuple[NotDone, ...] = ()
    first: PositionText | None = None
    ahead: tuple[Time, Time] | None = None
    invalid: tuple[Ordinal, ...] = ()
    maker: Ordinal = 0

    @classmethod
    def empty(cls, txid: int, plan: str, epoch: int, at: str, digest: str = "") -> Pin:
        """Return the pin of a turn that gives no rows, and stays where it is."""
        return cls(
            txid=txid,
            plan=plan,
            epoch=epoch,
            start=at,
            end=at,
            last=None,
            count=0,
            fresh=0,
            digest=digest,
            xor=0,
        )

    @property
    def first_reader(self) -> int:
        """Return the first run that has read the turn."""
        return self.maker or self.epoch

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.count - sum(piece.count for piece in self.unreadable)

    @property
    def busy_ms(self) -> int:
        """Return for how many milliseconds after the turn the limits of its shard allowed no call."""
        return self.cost[4] if len(self.cost) > 4 else 0

    @property
    def reads(self) -> int:
        """Return the number of GetRecords calls of the turn."""
        return self.cost[3] if len(self.cost) > 3 else 0

    @property
    def subscribing(self) -> int:
        """Return how the turn subscribed, as a number of `Subscribing`."""
        return self.cost[5] if len(self.cost) > 5 else Subscribing.NOT


class BatchOutcome(Node, frozen=True, kw_only=True):
    """`acks/<txid>`: the outcome of a batch: the records that are *not* done, by shard; all others are done.

    `keys`: only where it is stored, by shard, `Run.keys` of each of its records with spaces in between.
    """

    txid: Ordinal
    plan: str
    epoch: Ordinal
    not_done: dict[str, tuple[NotDone, ...]]
    keys: dict[str, tuple[str, ...]] = {}

    @property
    def stored(self) -> BatchOutcome:
        """Return the form that is stored: the keys of records stand beside them."""
        keys = {
            shard: tuple(" ".join(keys_of_piece(piece)) for piece in pieces)
            for shard, pieces in self.not_done.items()
            if any(map(keys_of_piece, pieces))
        }
        if not keys:
            return self
        bare = {s: tuple(map(_bare, pieces)) for s, pieces in self.not_done.items()}
        return msgspec.structs.replace(self, not_done=bare, keys=keys)

    @property
    def keyed(self) -> BatchOutcome:
        """Return an outcome that was stored so with the keys of its records.

        Raises:
            ValueError: they are not of these records.
        """
        if not self.keys:
            return self
        found = {
            shard: tuple(
                with_keys(piece, tuple(keys.split(" ")) if keys else ())
                for piece, keys in zip(self.not_done[shard], keys_of_each, strict=True)
            )
            for shard, keys_of_each in self.keys.items()
            if shard in self.not_done
        }
        return msgspec.structs.replace(self, not_done=self.not_done | found, keys={})


def _bare(piece: NotDone) -> NotDone:
    return NotDone(piece.first, piece.last, piece.count, piece.text, piece.prev)


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """The records of one shard that an operator saw in one task, and the failures: as in `bolt.tracking.reports`."""

    tag: int
    operator: str
    shard: int
    rows: int
    consumed: int
    emitted: int
    produced: int
    stage: int
    partition: int
    span: int
    failed: tuple[tuple[int, int, str, str, str | None, str], ...] = ()


class SlowCall(msgspec.Struct, frozen=True):
    """A call of a user's function that goes on and on.

    `since`: when it was first seen. `shards`: how many records of each were in hand, by its index in the plan. `epoch`:
    of the run.
    """

    operator: str
    function: str
    since: Time
    shards: dict[int, Ordinal]
    epoch: Ordinal = 0


class ReportNode(Node, frozen=True, kw_only=True):
    """`reports/<txid>/<attempt>-<digest>`: a task's report, used where there is no SparkContext.

    `keys`: of each report the hashes of the keys of its failed records, by ordinal; none if they are not known.

    `reports/<txid>/slow-<id>`: a call that does not end.
    """

    reports: tuple[TaskReport, ...]
    slow: SlowCall | None = None
    keys: tuple[dict[int, str], ...] = ()


class JudgingNode(Node, frozen=True, kw_only=True):
    """`judging`: the newest run whose driver judges records: each batch of it that was run has an outcome.

    `earlier`: the runs before it that have read the first of its batches, and judged too.
    """

    epoch: int
    earlier: tuple[Ordinal, ...] = ()

    def judged(self, run: int) -> bool:
        """Return whether the driver of a run judges records, as far as the current batch is concerned."""
        return run == self.epoch or run in self.earlier


class NameNode(Node, frozen=True, kw_only=True):
    """The parent of an application's homes, once it was renamed; before that it holds nothing.

    `earlier`: the names that the application had, the first one that below which its homes stand. `renamed`: the name
    that it has now, where this is an earlier one; else empty.
    """

    renamed: str
    earlier: tuple[str, ...] = ()


class SettledNode(Node, frozen=True, kw_only=True):
    """`settled`: the newest txid whose every shard carries its stamp.

    `stamped`: how many checkpoints carry it, or a later one, at least; `begun`: how many carry any. Fewer of them show
    that nodes were lost, or put back from an older copy.
    """

    txid: Ordinal
    plan: str
    stamped: Ordinal = 0
    begun: Ordinal = 0


class StatesNode(Node, frozen=True, kw_only=True):
    """`states`: the newest txid that was applied to each state of a topology, by the name of its update."""

    applied: dict[str, Ordinal]


class StopNode(Node, frozen=True, kw_only=True):
    """`stop`: asks the run of `epoch` to plan nothing more; `settled` is its answer, the newest settled txid.

    With `drain`, it first reads what was in the stream when it was asked, and retries what of it fails. `left`: the
    shards, as people name them, of which it was to read nothing, because they are paused.
    """

    epoch: Ordinal
    settled: Ordinal | None = None
    drain: bool = False
    left: str = ""


class ExternalNode(Node, frozen=True, kw_only=True):
    """`external/<shard>/<id>`: a request of another process, consumed between two batches.

    `op`: `replay` of the `records`, `cancel` of that, where a run has taken it in, or `bury` of the runs that end with
    them (they are dead now); or `ack`, `fail` (for `reason`) or `reset` (of the timeout) of those at the `positions`,
    which are packed by `tracker.position_keys`; with an `attempt`, only as far as they are in that one. A `replay`
    leaves out records that were replayed before and are done since, unless it says `again`. One of records that wait
    has an `attempt` too: a release that knows no such one delivers them also if they are done by then.
    """

    op: Literal["replay", "cancel", "bury", "ack", "fail", "reset"]
    records: tuple[PositionText, ...] = ()
    positions: str = ""
    reason: str = ""
    attempt: Ordinal | None = None
    again: bool = False

    @property
    def takes_done(self) -> bool:
        """Return whether a `replay` is also of records that are done by the time of the answer."""
        return self.attempt is None


class DeadLetterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One dead letter, as the console lists it."""

    message_id: str
    attempts: Number
    reason: str
    time: Time
    txid: Ordinal
    count: Number = 1


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dead letters that were asked for again: their `positions`, sorted, packed by `tracker.position_keys`.

    `time`: when the query took the request in. `txid`, `outcome`: the batch with which they ended, done or as dead
    letters again; without an outcome they are in flight, and the batch is that of an earlier replay that was done.
    """

    time: Time
    positions: tuple[str, ...]
    txid: Ordinal = 0
    outcome: Literal["", "done", "failed"] = ""

    @property
    def count(self) -> int:
        """The number of records, with which each packed text begins."""
        return sum(int(text.partition("x")[0]) for text in self.positions)


class DeadLettersNode(Node, frozen=True, kw_only=True):
    """`deadletters/<shard>`: their number, and the last few; the option names the place of the records.

    `replays`: those that were delivered again, the oldest first.
    """

    count: Number
    target: str
    last: tuple[DeadLetterRecord, ...] = ()
    replays: tuple[Replay, ...] = ()

    @property
    def left(self) -> int:
        """Return how many of them were not delivered again, or have failed again since."""
        return max(0, self.count - sum(one.count for one in self.replays))
