"""The steps of a real job, from what it leaves behind, and whether the specification has them.

ZooKeeper's transaction logs hold each write with its zxid, and the check of the epoch beside it says which run has made
it. Spark's checkpoint holds each offset and commit, and the job's output each batch that was written, with the times of
the files. What such a file shows has happened before the first write to ZooKeeper that follows from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spec.abstraction import Abstraction
from spec.bounds import Bounds
from spec.follow import RefusedError, follow_events
from spec.seen import Event, SeenLog

from chaos.zookeeper_log import Transaction

__all__ = ["SparkEntry", "Traced", "Written", "follow_job", "read_spark", "read_written"]

_MANY = 1000


class SparkEntry(NamedTuple):
    """A file of Spark's checkpoint: when it was written, and of which checkpoint; `offset`: empty if it is a commit."""

    at: float
    checkpoint: str
    number: int
    offset: str


class Written(NamedTuple):
    """A batch in the output of a job: when it was written, its txid, the epoch, and the numbers of its records."""

    at: float
    txid: int
    epoch: int
    numbers: tuple[int, ...]


class Traced(NamedTuple):
    """What is known of a job at its end; times are in seconds.

    Attributes:
        home: the node of its application and stream.
        transactions: of ZooKeeper.
        lives: when each began, and its Spark checkpoint.
        entries: of the Spark checkpoints.
        written: None if it writes to a state.
        records: the shard and the sequence number of each record.
        parents: of each shard.
        tries: deliveries before a dead letter.
        trimmed: when retention took records, and which.
    """

    home: str
    transactions: Sequence[Transaction]
    lives: Sequence[tuple[float, str]]
    entries: Sequence[SparkEntry]
    written: Sequence[Written] | None
    records: Mapping[int, tuple[str, int]]
    parents: Mapping[str, Sequence[str]]
    tries: int
    trimmed: Sequence[tuple[float, tuple[int, ...]]] = ()


def read_spark(checkpoints: Iterable[Path]) -> list[SparkEntry]:
    """Return what Spark's checkpoints hold, in the order of their batches; each once."""
    found = []
    for checkpoint in dict.fromkeys(checkpoints):
        for kind in ("offsets", "commits"):
            for path in (checkpoint / kind).glob("*"):
                if path.name.isdigit():
                    offset = path.read_text().splitlines()[2] if kind == "offsets" else ""
                    found.append(SparkEntry(path.stat().st_mtime, str(checkpoint), int(path.name), offset))
    return sorted(found, key=lambda one: (one.checkpoint, one.number, not one.offset))


def read_written(out: Path) -> list[Written]:
    """Return the batches in the folder of a job's output."""
    return [
        Written(
            path.stat().st_mtime,
            *map(int, path.stem.split("-")),
            tuple(row["n"] for row in json.loads(path.read_text())),
        )
        for path in out.glob("*.json")
    ]


class _Node(NamedTuple):
    data: bytes
    version: int = 0


class _Seen(NamedTuple):
    """Something that is seen, and when: in seconds; `upto`: it is before that number of the writes to ZooKeeper."""

    at: float
    event: Event
    upto: int


def follow_job(job: Traced) -> tuple[int, str]:
    """Follow what a job has done: how many steps were matched, and what the specification does not have."""
    alpha = Abstraction(job.records, job.parents)
    bounds = Bounds(
        starts=_MANY,
        txids=len(job.entries),
        tries=job.tries,
        without=frozenset({"starts"}),
        merged=False,
        sink="state" if job.written is None else "folder",
    )
    try:
        return follow_events(alpha, _Tracer(job, alpha).events(), bounds), ""
    except RefusedError as refused:
        return 0, str(refused)


class _Tracer:
    def __init__(self, job: Traced, alpha: Abstraction) -> None:
        self._job = job
        self._alpha = alpha
        self._writes: list[tuple[float, str, dict[str, _Node]]] = []
        """When somebody wrote to ZooKeeper, who, and the nodes after it."""
        self._plans: list[tuple[int, bytes]] = []
        """The writes that store a batch."""
        self._stamps: list[int] = []
        """The newest batch that a shard bears the stamp of, after each of these."""

    def events(self) -> list[Event]:
        """Return what the job has done, in an order that it can have had."""
        self._read_writes()
        seen = sorted([*self._logged(), *self._written(), *self._trimmed()], key=lambda one: one.at)
        found, begun = list[Event](), set[str]()
        for number, (at, who, nodes) in enumerate(self._writes):
            while seen and (seen[0].at < at or any(one.upto <= number for one in seen)):
                found.append(seen.pop(0).event)
            if who not in begun:
                begun.add(who)
                found.append(Event(who, "life", log=self._log_at(found, self._checkpoint_at(at))))
            found.append(Event(who, "zk", nodes))
        return [*found, *(one.event for one in seen)]

    def _log_at(self, events: Sequence[Event], checkpoint: str) -> SeenLog:
        key = hash(checkpoint)
        known = [event.log for event in events if event.log is not None and event.log.key == key]
        return known[-1] if known else SeenLog(key, (), 0)

    def _checkpoint_at(self, at: float) -> str:
        """Return the Spark checkpoint of the newest life."""
        return max(one for one in self._job.lives if one[0] <= at)[1]

    def _read_writes(self) -> None:
        nodes: dict[str, _Node] = {}
        home = self._job.home
        for one in self._job.transactions:
            changes = [change for change in one.changes if change.path.startswith(f"{home}/")]
            epoch = next(
                (x.version - 1 for x in changes if x.path == f"{home}/epoch" and x.kind == "check"), 0
            )
            nodes = dict(nodes)
            for kind, path, data, version in changes:
                if kind in ("create", "set"):
                    nodes[path] = _Node(data, version)
                    if path.rpartition("/")[0] == f"{home}/batches":
                        self._plans.append((len(self._writes), data))
                elif kind == "delete":
                    nodes.pop(path, None)
                if path == f"{home}/epoch" and kind == "set":
                    epoch = version
            if any(change.kind != "check" for change in changes) and f"{home}/epoch" in nodes:
                self._writes.append((one.time / 1000, f"run{epoch}", nodes))
                zk = self._alpha.zk(nodes)
                stamps = (zk.settled, *(shard.stamp for shard in zk.shards)) if zk is not None else (0,)
                self._stamps.append(max(stamps))

    def _logged(self) -> Iterator[_Seen]:
        """Return each entry of Spark's logs."""
        offsets, committed = dict[str, list[str]](), dict[str, int]()
        for at, checkpoint, number, offset in self._job.entries:
            texts = offsets.setdefault(checkpoint, [])
            if offset:
                texts.append(offset)
            else:
                committed[checkpoint] = number + 1
            log = SeenLog(hash(checkpoint), tuple(texts), committed.get(checkpoint, 0))
            plan = self._alpha.plan_of(texts[-1])
            if offset:
                who = f"run{plan.adopter or plan.epoch}"
                yield _Seen(at, Event(who, "log", log=log), self._stored(plan.plan, who))
            else:
                event = Event(f"run{self._newest_on(checkpoint, at)}", "commit", log=log)
                yield _Seen(at, event, self._settling(plan.txid))

    def _stored(self, mark: str, who: str) -> int:
        """Return the number of the first write with which a run stores a plan: one may be logged a second time."""
        text = json.dumps(mark).encode()
        found = (n for n, data in self._plans if text in data and self._writes[n][1] == who)
        return next(found, len(self._writes))

    def _settling(self, txid: int) -> int:
        """Return the number of the first write after which a shard bears the stamp of a batch."""
        return next((n for n, newest in enumerate(self._stamps) if newest >= txid), len(self._stamps))

    def _newest_on(self, checkpoint: str, at: float) -> int:
        """Return the epoch of the newest run on a checkpoint."""
        begun = [
            int(who.removeprefix("run"))
            for time, who, _ in self._writes
            if time <= at and self._checkpoint_at(time) == checkpoint
        ]
        return max(begun, default=0)

    def _written(self) -> Iterator[_Seen]:
        """Return each batch that was written."""
        for at, txid, epoch, numbers in self._job.written or ():
            path, who = f"{self._job.home}/acks/{txid}", f"run{epoch}"
            outcomes = (n for n, (_, by, nodes) in enumerate(self._writes) if by == who and path in nodes)
            event = Event(who, "write", written=(txid, epoch, numbers))
            yield _Seen(at, event, next(outcomes, len(self._writes)))

    def _trimmed(self) -> Iterator[_Seen]:
        """Return what retention has taken; nothing follows from that."""
        for at, numbers in self._job.trimmed:
            yield _Seen(at, Event("", "trim", written=(0, 0, tuple(numbers))), len(self._writes))
