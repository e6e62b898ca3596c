from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest
from stepped import SlowKinesis, SteppedQuery

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.kinesis import KinesisError, ShardMissingError, ThrottledError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

SHARDS = 200


def test_the_first_call_looks_at_all_shards_however_slow_their_answers_are(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    """With a trigger Spark calls again after its interval: a look at a part of them a call took as many intervals."""
    kinesis = MemoryKinesis(shards=SHARDS)
    for shard in kinesis.list_shards("orders"):
        kinesis.put(shard.id, b"data")
    given = {"streamName": "orders", "applicationName": app, "startingPosition": "TRIM_HORIZON"}
    options = SourceOptions.parse(given | {"zookeeper.hosts": zookeeper.hosts})
    # More time passes from one question to the next than a call for many shards takes once it has found something.
    seconds = count(1_000)
    around = Surroundings(steady=lambda: float(next(seconds)))
    run = SourceRun(options, kinesis, connect(options.zookeeper), around)
    plan = run.latest(run.initial(), None)
    run.close()
    assert plan is not None
    assert len(plan.read) == SHARDS


class Away(SlowKinesis):
    """Does not know a shard, and says nothing of the stream that would explain that."""

    def __init__(self, kinesis: MemoryKinesis, time: FakeTime) -> None:
        super().__init__(kinesis, time, 0.0)
        self.is_away = False
        self.describe = partial(self._ask, kinesis.describe, ThrottledError("too many"))
        self.iterator = partial(self._ask, kinesis.iterator, ShardMissingError("no such shard"))

    def _ask(self, call: Callable[..., Any], error: KinesisError, *asked: str) -> Any:
        if self.is_away:
            raise error
        return call(*asked)


class ShortQuery(SteppedQuery):
    """A life that waits for a minute at most, all in all."""

    left = 60.0

    def _wait(self, woken: Event, seconds: float) -> bool:
        self.left -= seconds
        assert self.left > 0, "the call does not end"
        return super()._wait(woken, seconds)


def test_a_shard_that_cannot_be_looked_at_does_not_hold_the_first_call() -> None:
    """A query cannot be stopped in a call."""
    time = FakeTime()
    kinesis = Away(MemoryKinesis(clock=time.milliseconds), time)
    query = ShortQuery(kinesis, time)
    kinesis.is_away = True
    for _ in range(5):
        assert query.plan() is None
    query.end()


@pytest.mark.parametrize(("waits", "read"), [(5.0, SHARDS), (0.0, 64)])
def test_a_call_looks_at_all_shards_where_spark_waits_for_its_trigger(
    zookeeper: EmbeddedZooKeeper, app: str, waits: float, read: int
) -> None:
    """What is found after the call waits for the next trigger; without one the first records are read at once."""
    kinesis, clock = MemoryKinesis(shards=SHARDS), Clock()
    given = {"streamName": "orders", "applicationName": app, "startingPosition": "TRIM_HORIZON"}
    options = SourceOptions.parse(given | {"zookeeper.hosts": zookeeper.hosts})
    around = Surroundings(clock=clock, steady=clock, wait=clock.wait, status_period=None)
    run = SourceRun(options, kinesis, connect(options.zookeeper), around)
    start = run.initial()

    def put() -> None:
        for shard in kinesis.list_shards("orders"):
            kinesis.put(shard.id, b"data")
        # An answer takes so long that a part of the shards takes more than a call for many of them has.
        clock.step = 0.002

    assert run.latest(start, None) is None
    clock.seconds += waits
    if waits:
        assert run.latest(start, None) is None
        clock.seconds += waits
        put()
    else:
        # The records come while the call waits for some.
        clock.meanwhile = put
    plan = run.latest(start, None)
    run.close()
    assert plan is not None
    assert len(plan.read) == read


@pytest.mark.parametrize(("took", "answer", "read"), [(5.0, 0.01, SHARDS), (0.0, 0.01, 64), (60.0, 0.1, 128)])
def test_looks_may_take_half_of_what_a_batch_took(took: float, answer: float, read: int) -> None:
    """A start of very many shards would read one part of them a batch, with all the waiting between batches."""
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds, shards=SHARDS)
    shards = kinesis.list_shards("orders")
    for shard in shards:
        kinesis.put(shard.id, b"1")
    slow = SlowKinesis(kinesis, time, 0.0)
    query = SteppedQuery(slow, time, minFetchPeriod="0ms")
    assert len(query.batch()) == SHARDS
    time.sleep(took)
    for shard in shards:
        kinesis.put(shard.id, b"2")
    slow.seconds = answer
    plan = query.planned()
    query.end()
    assert len(plan.read) == read


class Clock:
    """A clock that goes on by a step whenever somebody asks for the time."""

    def __init__(self) -> None:
        self.seconds, self.step, self._lock = 1_000.0, 0.0, threading.Lock()
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        with self._lock:
            self.seconds += self.step
            return self.seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Go on by so many seconds at once; what happens meanwhile happens once."""
        self.seconds += seconds
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return event.is_set()
