"""Very many failing records: what a batch writes to ZooKeeper and to Spark's log, on a server with 256 MB of heap.

python -m benchmarks.failures

Planning, reading, publishing and settling are the real ones, and so is ZooKeeper; Kinesis is held in memory, and time
passes as the benchmark says. Records are numbered as Kinesis does, with neighbours that differ in 27 digits at random:
nothing packs worse. Each measurement has a process and a server of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.memory import resident
from benchmarks.report import Section, publish
from bolt.outcomes import few_reasons
from checkpoint.client import connect
from checkpoint.embedded import EmbeddedZooKeeper
from checkpoint.nodes import Acks, NotDone, Plan
from checkpoint.store import SourceStore
from spout.offsets import offset_from_plan, plan_from_offset
from spout.options import Options
from spout.run import SourceRun
from spout.testing import MemoryKinesis
from spout.turns import TurnReader
from tracker.records import RecordPosition

__all__ = ["Figures", "Life", "measured"]

ROOT = Path(__file__).resolve().parents[1]
A_BATCH = 10.0
"""Seconds that the clock goes on with each batch."""


class Figures(msgspec.Struct, frozen=True):
    """Of all batches: characters and bytes at most, seconds at least, and what was resident half-way and at the end.

    `offset`: the plan as Spark logs it. `event`: what Spark's progress event holds of the source: its report, and two
    offsets. `written`: bytes of the writes to ZooKeeper from one plan to the next. `waiting`: failed records that wait.
    `settle`: a batch settled and the next one planned, the longest; `least`: the shortest of those with most to settle.
    """

    batches: int
    offset: int
    event: int
    written: int
    waiting: int
    settle: float
    half_way: int
    at_end: int


class ScatteredKinesis(MemoryKinesis):
    """A stream whose sequence numbers have gaps as wide as the service's, at random."""

    def __init__(self, shards: int, clock: Clock, rng: random.Random) -> None:
        super().__init__(shards=shards, clock=clock.milliseconds)
        self._rng = rng

    def fill(self, count: int) -> None:
        """Write so many records to each shard; they say their numbers."""
        for shard in self.open_shards:
            for _ in range(count):
                self._stream._sequence += self._rng.randrange(10**27)
                self.put(shard, b"%d" % self._rng.getrandbits(30))


class Clock:
    """Time that goes on by itself, and more when it is told to."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def milliseconds(self) -> int:
        return int(self() * 1000)


class Life:
    """A query over a stream of its own, driven by hand as Spark does."""

    def __init__(self, hosts: str, shards: int, seed: int = 7, **options: str) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.kinesis = ScatteredKinesis(shards, self.clock, self.rng)
        self.options = Options.parse(
            {
                "streamName": "orders",
                "applicationName": uuid.uuid4().hex,
                "zookeeper.hosts": hosts,
                "startingPosition": "TRIM_HORIZON",
                "retryBackoff": "60s..600s x2",
                "onExhausted": "skip",
                "minFetchPeriod": "0ms",
                "maxFetchRate": "100000",
                "retryBytesPerShard": "1GiB",
                **options,
            }
        )
        client = connect(self.options.zookeeper)
        self.run = SourceRun(self.options, self.kinesis, client, clock=self.clock, rng=self.rng)
        self.reader = SourceStore(client, self.run.layout)
        self.before = logged(self.run.initial())
        self.offset = self.event = self.written = self.waiting = 0
        self.settle = 0.0

    def batch(self, share: float) -> bool:
        """One batch, of whose records such a share fails; False where there was nothing to do."""
        began, wrote = perf_counter(), self._wrote
        plan = self.run.latest(self.before, None)
        self.settle = max(self.settle, perf_counter() - began)
        report = self.run.report()
        self.waiting = max(self.waiting, report["retrying"])
        if plan is None:
            return False
        text = json.dumps(offset_from_plan(plan))
        end = logged(plan)
        last = json.dumps(offset_from_plan(self.before))
        self.offset = max(self.offset, len(text))
        self.event = max(self.event, len(last) + len(text) + len(json.dumps(report)))
        failed: dict[str, list[NotDone]] = {}
        for part in self.run.partitions(self.before, end):
            for rows in TurnReader(part, self.kinesis, self.reader, look_first=part.replay).rows():
                ids = rows.column("messageId").to_pylist()
                for shard, piece in self._failing(ids, share):
                    failed.setdefault(shard, []).append(piece)
        acks = Acks(txid=end.txid, plan=end.plan, epoch=self.run.epoch, not_done=few_reasons(failed))
        self.reader.put_acks(acks, self.run.epoch)
        self.before = end
        self.run.purge()
        self.clock.ahead += A_BATCH
        self.written = max(self.written, self._wrote - wrote)
        return True

    def end(self) -> None:
        """The process is gone."""
        self.run.close()

    @property
    def _wrote(self) -> int:
        return self.run.written + self.reader.written

    def _failing(self, ids: list[str], share: float) -> Iterable[tuple[str, NotDone]]:
        """Some of the rows of a shard, each with a reason of 200 characters."""
        before: dict[str, str] = {}
        for row, id_ in enumerate(ids):
            source, _, position = id_.partition(":")
            shard = source.rpartition("/")[2]
            fails = row % 2 == 0 if share == 0.5 else self.rng.random() < share
            if fails:
                reason = f"ValueError: record {position} is not what it should be".ljust(200, ".")
                yield shard, NotDone(position, position, 1, reason, before.get(shard))
            before[shard] = position


def logged(plan: Plan) -> Plan:
    """A plan as it goes to Spark and comes back."""
    return plan_from_offset(json.loads(json.dumps(offset_from_plan(plan))))


def measured(hosts: str, shards: int, records: int, share: float, batches: int) -> Figures:
    """So many batches with so many new records a shard, of which such a share fails each time they come."""
    life = Life(hosts, shards)
    half_way = 0
    for number in range(batches):
        life.kinesis.fill(records)
        life.batch(share)
        if number == batches // 2:
            half_way = resident()
    # The last one is settled, too.
    life.run.latest(life.before, None)
    life.end()
    return Figures(
        batches,
        life.offset,
        life.event,
        life.written,
        life.waiting,
        life.settle,
        half_way,
        resident(),
    )
