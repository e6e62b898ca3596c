"""A query without Spark and without threads: what is read beside a batch is done where the test says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from threading import Event
from typing import Any, cast

from by_hand import Query, Row, SparkCheckpoint
from model.inline import InlineExecutor
from model.session import Session
from model.zookeeper import MemoryZooKeeper

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.kinesis import Kinesis, Page
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.fan_out import Subscriber
from kinesis_trident.spout.testing import FakeTime

__all__ = ["SlowKinesis", "SteppedQuery"]

_GIVEN = {
    "streamName": "orders",
    "region": "us-east-1",
    "applicationName": "app",
    "zookeeper.hosts": "memory:1",
    "startingPosition": "TRIM_HORIZON",
    "retryBackoff": "1ms..1ms x1",
    "retryLimit": "1",
    "onExhausted": "skip",
    "describeShardInterval": "1ms",
    # One turn at a time: ZooKeeper in memory is for one thread.
    "maxFetchBytesPerTask": "16MiB",
}

_lives = count(1)


class SlowKinesis:
    """Calls whose answers take a time of `FakeTime`."""

    def __init__(self, kinesis: Kinesis, time: FakeTime, seconds: float) -> None:
        self._time = time
        self.seconds = seconds
        self.describe = kinesis.describe
        self.list_shards = kinesis.list_shards
        self.iterator = kinesis.iterator
        self.put_records = kinesis.put_records
        self._get_records = kinesis.get_records

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        self._time.sleep(self.seconds)
        return self._get_records(iterator, limit)


class SteppedQuery(Query):
    """A life whose clock is `time`; ZooKeeper is in memory.

    Args:
        kinesis: serves the records.
        time: of all that is waited for.
        zookeeper: that several lives may share.
        consumer: the ARN with which `kinesis`, a client, subscribes; None to poll.
        status_period: seconds between two notes of what the run sees; None for none.
        steady: the clock that never steps back; `time` if there is none.
        options: of the format, beside those that each needs.

    Attributes:
        tasks: the tasks of the last batch.
        during: is called before and after each task of a batch.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        time: FakeTime,
        zookeeper: MemoryZooKeeper | None = None,
        checkpoint: SparkCheckpoint | None = None,
        consumer: str | None = None,
        status_period: float | None = None,
        steady: Callable[[], float] | None = None,
        **options: str,
    ) -> None:
        self.checkpoint = checkpoint or SparkCheckpoint()
        self.kinesis = kinesis
        self.time = time
        self.tasks: list[TurnsPartition] = []
        self.during: Callable[[], object] = lambda: None
        self._subscriber = cast(Subscriber, kinesis) if consumer else None
        self._most_records = None
        self._step: Callable[[], float | None] | None = None
        self._woken = Event()
        # A process has one limiter for a shard of an endpoint: the clock of this one is its own.
        endpoint = {"endpointUrl": f"http://stepped{next(_lives)}:1"}
        self._client = client = Session(zookeeper or MemoryZooKeeper(time.milliseconds))
        self.run = SourceRun(
            SourceOptions.parse(_GIVEN | endpoint | options),
            kinesis,
            client,
            Surroundings(
                clock=time,
                steady=steady or time,
                rng=random.Random(1),
                wait=self._wait,
                executor=InlineExecutor(),
                status_period=status_period,
                beside=self._keep_step,
            ),
            consumers={"orders": consumer} if consumer else None,
        )
        self.store = SourceStore(client, self.run.layout)  # type: ignore[arg-type]
        self._begin(None)

    def rows(self) -> list[Row]:
        """See `QueryByHand.rows`."""
        self.tasks = self.parts()
        found: list[Row] = []
        for part in self.tasks:
            self.during()
            found += self.task(part)
            self.during()
        return sorted(found)

    def task(self, part: TurnsPartition) -> list[Any]:
        """See `QueryByHand.task`; what it waits for is of `FakeTime`."""
        for turn in part.turns:
            key = part.layout.key_of(turn.shard)
            limiter = shard_limiter(part.options, key.stream, key.shard)
            limiter.clock, limiter.sleep, limiter.wall = self.time, self.time.sleep, self.time
        return super().task(part)

    def beside(self, seconds: float = 10.0) -> None:
        """Let time pass beside a batch, and the planning process do what it does meanwhile."""
        until = self.time.now + seconds
        while self._step is not None and self.time.now < until:
            # What kazoo calls in its own threads.
            self._client.deliver()
            rest = self._step()
            if rest is None:
                self._step = None
            elif self._woken.is_set():
                self._woken.clear()
            else:
                self.time.sleep(min(rest, max(0.001, until - self.time.now)))

    @property
    def carried(self) -> int:
        """Return how many records the tasks of the last batch were given."""
        cursors = (turn.cursor for part in self.tasks for turn in part.turns)
        pages = (cursor.page for cursor in cursors if cursor is not None)
        return sum(page.records.num_rows for page in pages if page is not None)

    def _keep_step(self, step: Callable[[], float | None], woken: Event) -> None:
        self._step, self._woken = step, woken

    def _wait(self, woken: Event, seconds: float) -> bool:
        self.time.sleep(seconds)
        return woken.is_set()
