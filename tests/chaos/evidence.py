"""Reads what an observer may see, with the clients of others: boto3, kazoo, redis-py, JSON. None of our code.

docs/zookeeper.md says what the nodes hold, docs/states.md what an opaque state stores, docs/retries.md what a dead
letter is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from chaos.observer import Delivery, Kind, Look, Position, Record, Shard

__all__ = ["Nodes", "Witness", "created", "notes_of", "read_parents", "read_records"]

_ROOT = "/kinesis-trident"
_ANSWER_SECONDS = 2.0


def created(kinesis: Any, stream: str) -> int:
    """Return when a stream was created, in epoch milliseconds."""
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    return round(summary["StreamCreationTimestamp"].timestamp() * 1000)


def read_parents(kinesis: Any, stream: str) -> dict[str, list[str]]:
    """Return the parents of each shard of a stream."""
    names = ("ParentShardId", "AdjacentParentShardId")
    listed = kinesis.list_shards(StreamName=stream)["Shards"]
    return {one["ShardId"]: [one[name] for name in names if name in one] for one in listed}


def read_records(kinesis: Any, stream: str) -> list[Record]:
    """Return all records of a stream, shard by shard."""
    born = created(kinesis, stream)
    found = []
    for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
        place = Shard(born, shard["ShardId"])
        iterator = kinesis.get_shard_iterator(
            StreamName=stream, ShardId=place.name, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = kinesis.get_records(ShardIterator=iterator, Limit=10_000)
            for one in answer["Records"]:
                said = json.loads(one["Data"])
                found.append(
                    Record(said["n"], said["word"], Kind(said["kind"]), place, int(one["SequenceNumber"]))
                )
            iterator = answer.get("NextShardIterator")
            if not answer["Records"] and not answer["MillisBehindLatest"]:
                break
    return found


def notes_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that processes of the job have noted.

    What stands behind the last newline is being written, or was when the process was killed.
    """
    for path in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, path.read_text().split("\n")[:-1])


@dataclass
class Nodes:
    """The nodes of an application that say how far it is; what they said last, while ZooKeeper does not answer."""

    keeper: KazooClient
    application: str
    checkpoints: dict[Shard, Position] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    txid: int = 0
    """The newest batch that was planned."""
    settled: int = 0
    open: bool = False
    """Whether a batch is under way."""

    def look(self) -> bool:
        """Read them; False if ZooKeeper does not answer."""
        if not self.keeper.connected:
            return False
        try:
            for home in self._children(f"{_ROOT}/{self.application}"):
                stream, _, born = home.rpartition("@")
                if stream == self.application:
                    self._read(f"{_ROOT}/{self.application}/{home}", int(born))
        except (KazooException, KazooTimeoutError):
            return False
        return True

    def _read(self, home: str, born: int) -> None:
        shards = self._children(f"{home}/checkpoints")
        for shard in shards:
            node = self._node(f"{home}/checkpoints/{shard}")
            if node and node["checkpoint"] is not None:
                self.checkpoints[Shard(born, shard)] = Position(int(node["checkpoint"]), node.get("sub", -1))
        inflight = {
            shard: self._node(f"{home}/inflight/{shard}") for shard in self._children(f"{home}/inflight")
        }
        self.unfinished = [
            f"{home}/inflight/{shard} holds {kind}"
            for shard, node in inflight.items()
            for kind in ("waiting", "dead", "pending")
            if node.get(kind)
        ]
        batches = [int(name) for name in self._children(f"{home}/batches")]
        self.settled = self._node(f"{home}/settled").get("txid", 0)
        self.txid = max([*batches, self.settled])
        self.open = any(txid > self.settled for txid in batches)

    def _children(self, path: str) -> list[str]:
        with suppress(NoNodeError):
            return sorted(self.keeper.get_children_async(path).get(timeout=_ANSWER_SECONDS))
        return []

    def _node(self, path: str) -> dict[str, Any]:
        with suppress(NoNodeError):
            data, _ = self.keeper.get_async(path).get(timeout=_ANSWER_SECONDS)
            return dict(json.loads(data or b"{}"))
        return {}


@dataclass
class Witness:
    """Looks at an application and at its output, again and again, and keeps each look at moved checkpoints."""

    job: str
    nodes: Nodes
    folder: Path
    letters_folder: Path
    store: redis.Redis
    looks: list[Look] = field(default_factory=list)

    def look(self) -> None:
        """Read the checkpoints, and only then what they say is done."""
        if not self.nodes.look():
            return
        seen = dict(self.nodes.checkpoints)
        if not self.looks or seen != self.looks[-1].checkpoints:
            with suppress(redis.ConnectionError, redis.TimeoutError):
                letters = frozenset(number for number, _ in self.letters())
                self.looks.append(Look(seen, self.counts(), self.done(), letters))

    def counts(self) -> dict[str, int]:
        """Return what the opaque state holds: `[txid, current, previous]` under each word."""
        prefix = f"{self.nodes.application}/"
        keys = [key for key in self.store.scan_iter(f"{prefix}*", count=1000) if b"$" not in key]
        values = self.store.mget(keys) if keys else []
        return {
            key.decode().removeprefix(prefix): json.loads(value)[1]
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }

    def rows(self) -> list[int]:
        """Return the numbers in the output: of each batch those of the run with the highest epoch, as docs say."""
        newest: dict[int, Path] = {}
        for path in sorted(
            (self.folder / "out").glob("*.json"), key=lambda path: [*map(int, path.stem.split("-"))]
        ):
            newest[int(path.stem.partition("-")[0])] = path
        return [row["n"] for path in newest.values() for row in json.loads(path.read_text())]

    def acked(self) -> frozenset[int]:
        """Return the numbers of the records that the sink was about to confirm, or has confirmed."""
        return frozenset(note["acked"] for note in notes_of(self.folder / "acker"))

    def done(self) -> frozenset[int]:
        """Return the numbers of the records whose success can be seen."""
        return self.acked() if self.job == "acks" else frozenset(self.rows())

    def letters(self) -> list[tuple[int, int]]:
        """Return (number, deliveries) of each line of the dead letters."""
        found = []
        for path in sorted(self.letters_folder.rglob("*.jsonl")):
            # What stands behind the last newline is being written.
            for line in path.read_text().split("\n")[:-1]:
                letter = json.loads(line)
                found.append((json.loads(base64.b64decode(letter["data"]))["n"], letter["attempts"]))
        return found

    def deliveries(self) -> list[Delivery]:
        """Return each record that a function of the job was given."""
        return [
            Delivery(note["life"], note["txid"], note["n"], note["attempt"])
            for note in notes_of(self.folder / "notes")
            if "n" in note
        ]

    def whole(self) -> frozenset[tuple[int, int]]:
        """Return (life, txid) of the batches that were processed as a whole."""
        return frozenset(
            (note["life"], note["txid"]) for note in notes_of(self.folder / "notes") if "n" not in note
        )
