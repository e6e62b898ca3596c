"""The world outside a query: the stream, ZooKeeper, the sink and the dead letters; and what must be true of them."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kinesis_trident.checkpoint.model.codec import decode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, SettledNode
from kinesis_trident.checkpoint.zookeeper.operations import Create, Op, Write
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.shards.lineage import ancestors
from kinesis_trident.spout.testing import MemoryKinesis
from model.sinks import Sink
from model.zookeeper import MemoryZooKeeper

__all__ = ["Record", "Row", "World"]

_BEGINNING = 1_700_000_000_000


@dataclass(frozen=True)
class Record:
    """A record of the stream: how often it fails before it succeeds."""

    shard: str
    sequence: int
    failures: int


class Row(NamedTuple):
    """A record as a task gave it."""

    number: int
    shard: str
    sequence: int
    attempt: int
    txid: int


@cache
def _parsed(given: frozenset[tuple[str, str]]) -> SourceOptions:
    """Parse options once: very many lives have the same."""
    return SourceOptions.parse(dict(given))


class World:
    """Everything that outlives a process, and the observer that compares it with what was promised.

    Args:
        rng: the dice.
        sink: where batches go.
        folder: for the dead letters.
        rows_may_differ: records vanish, or turns are not pinned before their rows.

    Attributes:
        now: epoch milliseconds; only who waits sets it on.
        calm: nothing goes wrong any more.
        odd: how likely a record cannot be decoded, or has no key.
        dies_written: how likely a life is killed once a batch is written and before Spark commits it.
        records: what was written to the stream, by number.
        done: records that are finished otherwise than by the sink: acked, or gone from the stream.
        retry_limit: as the last option said.
        reason: the text of a record's failure, by its number.
        acked: records somebody has acked.
        delivered: the last row given of each record, to those who ack.
        epochs: of each session that raised one.
        kinds: of the queries that have read each txid.
        refused: the records that failed before a verdict, by txid.
        overtaken: the txids that Spark has committed under a run that was replaced already.
        committed: the epoch of the run under which Spark has committed each txid.
        violations: what must not be and was.
        stats: what happened, counted.
    """

    def __init__(
        self, rng: random.Random, sink: Sink, folder: Path, *, shards: int, rows_may_differ: bool = False
    ) -> None:
        self.rng = rng
        self.sink = sink
        self.folder = folder
        self.now = _BEGINNING
        self.calm = False
        self.odd = self.dies_written = 0.0
        self.zookeeper = MemoryZooKeeper(lambda: self.now)
        self.zookeeper.observers.append(self._on_write)
        self.kinesis = MemoryKinesis(shards=shards, clock=lambda: self.now)
        self.records: dict[int, Record] = {}
        self.done: set[int] = set()
        self.retry_limit = 2
        self.reason: Callable[[int], str] = lambda number: f"ValueError: {number % 2}"
        self.acked: set[int] = set()
        self.delivered: dict[int, Row] = {}
        self.epochs: dict[int, int] = {}
        self.kinds: dict[int, set[str]] = defaultdict(set)
        self.refused: dict[int, set[int]] = defaultdict(set)
        self.overtaken: set[int] = set()
        self.unreadable: set[int] = set()
        self.committed: dict[int, int] = {}
        self.violations: list[str] = []
        self.stats: Counter[str] = Counter()
        self._digits = 0
        self._rows_may_differ = rows_may_differ
        self._rows: dict[tuple[int, str, str], list[Row]] = {}
        self._readers: dict[tuple[int, str, str], list[int]] = defaultdict(list)
        self._settlers: dict[int, int] = {}
        self._checkpoints: dict[str, int] = {}
        self._settled_path = ""

    def pad(self, digits: int) -> None:
        """Let the server fill its sequence numbers up to so many digits, and compare them as texts."""
        self._digits = digits
        self.kinesis.pad(digits)

    def text_of(self, sequence: int) -> str:
        """Return a sequence number as the server writes it."""
        return str(sequence).zfill(self._digits)

    def put(self, count: int) -> None:
        """Write records to open shards; some of them fail, once, twice or always."""
        shards = self.kinesis.open_shards
        for _ in range(count):
            self.put_one(self.rng.choice(shards), self.rng.choice([0, 0, 0, 0, 1, 2, 99]))

    def put_one(self, shard: str, failures: int) -> None:
        """Write a record."""
        number = len(self.records) + 1
        is_odd = self.odd and self.rng.random() < self.odd
        key = None if self.odd and self.rng.random() < self.odd else "key"
        sequence = self.kinesis.put(shard, str(number).encode(), key)
        if is_odd:
            failures = 99
            self.unreadable.add(number)
            self.kinesis.garble(shard, sequence, {"Data": {"S3": str(number)}})
            self.stats["records that cannot be decoded"] += 1
        self.records[number] = Record(shard, sequence, failures)

    def reshard(self) -> None:
        """Split a shard, or merge two."""
        shards = self.kinesis.open_shards
        if self.rng.random() < 0.6 or len(shards) < 2:
            self.kinesis.split(self.rng.choice(shards))
        else:
            self.kinesis.merge(shards[0], shards[1])

    def trim(self) -> None:
        """Let retention take what is oldest in some shards."""
        for shard in sorted({record.shard for record in self.records.values()}):
            if self.rng.random() < 0.5:
                mine = [n for n, record in self.records.items() if record.shard == shard]
                cut = self.rng.randint(1, len(mine))
                self.kinesis.trim(shard, self.records[mine[cut - 1]].sequence)
                self.done |= set(mine[:cut])

    def restore(self, nodes: object) -> None:
        """ZooKeeper comes back from an older copy: what was promised for later counts no more."""
        self.zookeeper.restore(nodes)  # type: ignore[arg-type]
        self._checkpoints = {}

    def options(self, **more: str) -> SourceOptions:
        """The options of the next life."""
        given = {
            "streamName": "orders",
            "endpointUrl": "http://localhost:1",
            "region": "us-east-1",
            "applicationName": "app",
            "zookeeper.hosts": "memory:1",
            "startingPosition": "TRIM_HORIZON",
            "retryBackoff": "1ms..1ms x1",
            "retryLimit": str(self.retry_limit),
            "deadLetter": "/folder",
            "minFetchPeriod": "0ms",
            "maxFetchTime": "60s",
            "describeShardInterval": "1ms",
            "shardsPerTask": self.rng.choice(["1", "2", "auto"]),
            # One turn at a time: a task's threads run in an order of their own.
            "maxFetchBytesPerTask": "16MiB",
            "maxFetchBytesPerShard": "16MiB",
            "maxFetchRecordsPerShard": str(self.rng.choice([2, 3, 5, 100_000])),
        }
        return replace(_parsed(frozenset((given | more).items())), dead_letter=str(self.folder))

    def violation(self, what: str) -> None:
        """Note that something is as it must not be."""
        self.violations.append(what)

    def given(self, part: TurnsPartition, rows: Sequence[Row]) -> None:
        """A task has given rows: each reading of a turn gives the same."""
        for shard in (turn.shard for turn in part.turns):
            mine = [row for row in rows if row.shard == shard]
            turn = (part.txid, part.plan, shard)
            self._readers[turn].append(part.epoch)
            known = self._rows.setdefault(turn, mine)
            if known != mine and not self._rows_may_differ:
                self.violation(f"txid {part.txid}, plan {part.plan}, {shard}: first {known}, then {mine}")

    def doubtful(self, *, mixed: bool = False) -> set[int]:
        """The records of turns that the run that planned them need not have read, and may have committed.

        They are of batches that another run has settled than the one under which Spark has committed them. `mixed`:
        runs of both kinds are among them, so that one that has read its turns need not have published what failed.
        """
        found: set[int] = set()
        for (txid, plan, shard), readers in self._readers.items():
            planner = int(plan.partition("-")[0])
            if self.committed.get(txid) != self._settlers.get(txid) and (
                readers[0] > planner or (mixed and max(readers) > planner)
            ):
                found |= {row.number for row in self._rows[txid, plan, shard]}
        return found

    def find_deliveries(self) -> dict[int, set[int]]:
        """Return the txids of the batches that have delivered each record, by number."""
        found: dict[int, set[int]] = {}
        for (txid, _, _), rows in self._rows.items():
            for row in rows:
                found.setdefault(row.number, set()).add(txid)
        return found

    def find_following(self, record: Record) -> list[int]:
        """Return the records behind one: of its shard, and of those that come of it."""
        parents = {shard.id: shard.parents for shard in self.kinesis.list_shards("orders")}
        behind = {shard for shard in parents if record.shard in ancestors(parents, [shard])}
        return [
            number
            for number, other in self.records.items()
            if other.shard in behind or (other.shard == record.shard and other.sequence > record.sequence)
        ]

    @property
    def reads(self) -> int:
        """Return how often Kinesis was asked for records."""
        return sum(count for (call, _), count in self.kinesis.calls.items() if call == "get_records")

    @property
    def settled(self) -> int:
        """The newest settled txid, as the leader knows it."""
        node = self.zookeeper.nodes.get(self._settled_path)
        return decode(self._settled_path, node.data, SettledNode).txid if node else 0

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return max(
            (node.version for path, node in self.zookeeper.nodes.items() if path.endswith("/epoch")),
            default=0,
        )

    def dead_letters(self) -> Counter[int]:
        """Return how often each record is in the dead letters."""
        letters = read_dead_letters(str(self.folder))
        number = {f"orders/{one.shard}:{self.text_of(one.sequence)}": at for at, one in self.records.items()}
        return Counter(number[letter.message_id] for letter in letters if letter.data is not None)

    def left_in_flight(self) -> list[str]:
        """The nodes that still hold records that are not done."""
        held = re.compile(rb'"(waiting|dead|pending)":(\[\{|")')
        return [
            f"{path} holds {node.data.decode()}"
            for path, node in self.zookeeper.nodes.items()
            if "/inflight/" in path and held.search(node.data)
        ]

    def _on_write(self, session: int, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Create | Write):
                if op.path.endswith("/epoch"):
                    self.epochs[session] = self.epoch
                elif op.path.endswith("/settled"):
                    self._settled_path = op.path
                    settled = decode(op.path, op.data, SettledNode)
                    self._settlers[settled.txid] = self.epochs.get(session, 0)
                elif "/checkpoints/" in op.path:
                    self._on_checkpoint(op.path, decode(op.path, op.data, CheckpointNode))

    def _on_checkpoint(self, path: str, node: CheckpointNode) -> None:
        """A checkpoint never moves back, and passes only what is done."""
        if node.checkpoint is None:
            return
        shard, at = path.rpartition("/")[2], int(node.checkpoint)
        before = self._checkpoints.get(shard, 0)
        self._checkpoints[shard] = at
        if at < before:
            self.violation(f"the checkpoint of {shard} moves back from {before} to {at} (txid {node.txid})")
        if at <= before:
            return
        passed = {
            n for n, r in self.records.items() if r.shard == shard and before < r.sequence <= at
        } - self.done
        passed -= self.sink.counts().keys()
        if passed:
            passed -= self.dead_letters().keys()
        for number in sorted(passed):
            self.violation(
                f"the checkpoint of {shard} passes record {number} (txid {node.txid}), which is neither in the sink "
                "nor in the dead letters"
            )
