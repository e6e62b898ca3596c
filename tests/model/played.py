"""An application played by hand over a ZooKeeper in memory, stage by stage, and what its sinks hold."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import cycle
from threading import Event
from typing import Any

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.nodes import BatchNode
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.query_by_hand import DeliveredRow, QueryByHand, SparkCheckpoint
from kinesis_trident.spout.testing import MemoryKinesis
from model.inline import InlineExecutor
from model.session import Session
from model.sinks import FolderSink, OpaqueState, Sink, Written
from model.zookeeper import MemoryZooKeeper, Nodes

__all__ = ["STAGES", "Played"]

_OPTIONS = {
    "streamName": "orders",
    "endpointUrl": "http://localhost:1",
    "region": "us-east-1",
    "applicationName": "app",
    "zookeeper.hosts": "memory:1",
    "startingPosition": "TRIM_HORIZON",
    "retryBackoff": "1ms..1ms x1",
    "minFetchPeriod": "0ms",
    # By a real clock: a schedule must not depend on how busy the machine is.
    "maxFetchTime": "60s",
    "describeShardInterval": "1ms",
    "deadLetter": "/nowhere",
}


STAGES = ("logged", "stored", "read", "written", "published", "committed", "settled")
"""How far the last batch came."""


class Played:
    """An application over a ZooKeeper in memory, and two sinks that replace by txid; some records fail once.

    `protocols`: of Spark's calls, one life after the other.
    """

    def __init__(self, *, failing: bool = True, protocols: Sequence[SparkProtocol] = ("4.0", "4.2")) -> None:
        self._failing = failing
        self._protocols = cycle(protocols)
        self.now = 1_700_000_000_000
        # Of all lives: the marks of their plans differ.
        self.jitter = random.Random(1)
        self.zookeeper = MemoryZooKeeper(lambda: self.now)
        self.kinesis: Any = MemoryKinesis(shards=1, clock=lambda: self.now)
        self.folder: Sink = FolderSink()
        self.state: Sink = OpaqueState()
        self.count = 0
        self.last: dict[int, int] = {}
        self.written: list[tuple[int, int]] = []
        self.used: set[int] = set()
        self.copies: dict[str, Nodes] = {"empty": self.zookeeper.nodes}

    def put(self, count: int) -> None:
        for _ in range(count):
            self.kinesis.put(self.kinesis.open_shards[0], str(self.count).encode())
            self.count += 1

    def start(self, checkpoint: SparkCheckpoint, judges: bool | None = None, **options: str) -> QueryByHand:
        """Start a life; that takes half a minute."""
        self.now += 30_000
        return QueryByHand(
            SourceOptions.parse({name: value for name, value in (_OPTIONS | options).items() if value}),
            self.kinesis,
            self.session(),
            checkpoint,
            self.clock,
            hold=0,
            look_period=0,
            judges=judges,
            protocol=next(self._protocols),
            steady=self.clock,
            rng=self.jitter,
            wait=self.wait,
            executor=InlineExecutor(),
            reconnect=self.session,
            status_period=None,
        )

    def session(self) -> Session:
        """Open a session of a run."""
        return Session(self.zookeeper)

    def clock(self) -> float:
        return self.now / 1000

    def wait(self, woken: Event, seconds: float) -> bool:
        self.now += max(1, int(seconds * 1000))
        return woken.is_set()

    def batch(self, life: QueryByHand, upto: str = "committed") -> None:
        """Run the batch in hand, or the next one, up to this stage; a folder is written first, a state last."""
        for stage in STAGES[: STAGES.index(upto) + 1]:
            if stage == "logged":
                if life.in_hand is None and life.plan() is None:
                    return
            elif stage == "stored":
                parts = life.parts()
            elif stage == "read":
                rows = [row for part in parts for row in life.task(part)]
                batch = life.store.batches.newest()
                if parts:
                    CurrentBatch.newest(life.store).say_judging()
                if not self.used:
                    self.last |= {int(row.data): row.txid for row in rows}
            elif stage == "written" and parts:
                assert batch is not None
                self.folder.write(self._written(life, batch), self._good(life, batch, rows), lambda: None)
            elif stage == "published" and parts:
                assert batch is not None
                life.publish(row for row in rows if not self._succeeds(row))
                self.state.write(self._written(life, batch), self._good(life, batch, rows), lambda: None)
            elif stage == "committed":
                life.commit()
            elif stage == "settled":
                life.run.settle_finished(life.committed)
            self.copies[stage] = self.zookeeper.nodes

    def drain(self, life: QueryByHand) -> None:
        life.run.drain_and_end()
        while life.in_hand is not None or life.plan() is not None:
            self.batch(life)
        life.end()

    def misses(self) -> dict[str, dict[int, int]]:
        """The records that are not once in a sink."""
        sinks = {"folder": self.folder.counts(), "state": self.state.counts()}
        return {
            name: wrong
            for name, counts in sinks.items()
            if (wrong := {n: counts[n] for n in range(self.count) if counts[n] != 1})
        }

    def _written(self, life: QueryByHand, batch: BatchNode) -> Written:
        self.written.append((batch.plan.txid, batch.epoch))
        return Written(None, life.store.layout.element, batch.plan.txid, batch.epoch)

    def _succeeds(self, row: DeliveredRow) -> bool:
        return row.attempt > 1 or int(row.data) % 7 != 3 or not self._failing

    def _good(self, life: QueryByHand, batch: BatchNode, rows: Iterable[DeliveredRow]) -> list[int]:
        """The rows that succeed, by the published outcome where there is one."""
        published = life.store.batches.get_outcome(batch.plan.txid)
        if published is None or published.plan != batch.plan.plan:
            return [int(row.data) for row in rows if self._succeeds(row)]
        source_of = life.store.layout.source_of
        out = {
            f"{source_of(shard)}:{piece.first}"
            for shard, some in published.not_done.items()
            for piece in some
        }
        return [int(row.data) for row in rows if row.message_id not in out]
