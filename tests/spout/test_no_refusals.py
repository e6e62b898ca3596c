"""A query that is alone on a stream is never refused: its looks, tasks and retries share the calls."""

from __future__ import annotations

import random
from typing import Any

import pytest
from by_hand import Lives
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis import Page, ThrottledError, rate_limit
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas, ScriptedKinesis

MIB = 2**20
CALLS = 400
"""How many are played."""


class Distant(MemoryKinesis):
    """A stream with the limits of AWS, to which a call and its answer travel for a while. It counts what it refuses."""

    def __init__(self, time: FakeTime, rng: random.Random, shards: int) -> None:
        super().__init__(shards=shards, clock=time.milliseconds, quotas=Quotas())
        self._time = time
        self._rng = rng
        self.refused = 0

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis.iterator`."""
        self._travel()
        return super().iterator(stream, shard, position)

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        self._travel()
        try:
            return super().get_records(iterator, limit)
        except ThrottledError:
            self.refused += 1
            raise
        finally:
            self._travel()

    def _travel(self) -> None:
        self._time.sleep(self._rng.choice([0.001, 0.01, 0.2]))


class ManyProcesses(SteppedQuery):
    """A life whose tasks run in any of some processes, each of which has limits of its own."""

    def __init__(self, *given: Any, rng: random.Random, processes: int, **options: str) -> None:
        self._limits = [PerProcess[tuple[object, ...], rate_limit.ShardLimiter]() for _ in range(processes)]
        self._rng = rng
        super().__init__(*given, **options)

    def task(self, part: TurnsPartition) -> list[Any]:
        """See `QueryByHand.task`."""
        rate_limit._limiters = self._rng.choice(self._limits)
        return super().task(part)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that no other test has."""
    monkeypatch.setattr(rate_limit, "_limiters", rate_limit._limiters)


def calls_of(kinesis: MemoryKinesis) -> int:
    return sum(count for (name, _), count in kinesis.calls.items() if name == "get_records")


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(("prefetch", "processes"), cases(("false", 3), ("true", 1), long=(("true", 3),)))
def test_nothing_is_refused(time: FakeTime, prefetch: str, processes: int) -> None:
    """10,000 calls of each were played so; where tasks counted only what they knew themselves, a fifth was refused."""
    rng = random.Random(0)
    kinesis = Distant(time, rng, shards=2)
    zookeeper = MemoryZooKeeper(time.milliseconds)
    options = {"prefetch": prefetch, "shardsPerTask": "1", "describeShardInterval": "10s", "retryLimit": "2"}
    query = ManyProcesses(
        kinesis, time, zookeeper, rng=rng, processes=processes, maxFetchTime="1s", **options
    )
    query.during = lambda: query.beside(rng.choice([0.0, 0.05, 0.6, 3.0]))
    number = 0
    while calls_of(kinesis) < CALLS:
        for shard in kinesis.open_shards:
            for _ in range(rng.choice([0, 0, 1, 3, 12])):
                kinesis.put(shard, b"%d" % number + b" " * rng.choice([1, 1, 1000, 900_000]))
                number += 1
        if query.plan() is not None:
            query.batch(failing=range(0, number, 7))
        time.sleep(rng.choice([0.0, 0.0, 0.1, 1.5]))
        zookeeper.forget()
    assert kinesis.refused == 0


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("processes", [1, 3])
def test_a_backlog_is_read_as_fast_as_a_shard_allows(time: FakeTime, processes: int) -> None:
    """Four seconds of work a batch, half of them before its task begins: the shard is free again by then."""
    rng = random.Random(0)
    kinesis = Distant(time, rng, shards=1)
    query = ManyProcesses(
        kinesis, time, MemoryZooKeeper(time.milliseconds), rng=rng, processes=processes, shardsPerTask="1"
    )
    query.during = lambda: time.sleep(2)
    (shard,) = kinesis.open_shards
    for number in range(400):
        kinesis.put(shard, b"%d" % number + b" " * (MIB // 5))
    began, read = time.now, 0
    while time.now - began < 30:
        assert query.plan() is not None
        read += len(query.batch())
    assert kinesis.refused == 0
    # One MiB of it in the first answer, for which nothing was waited.
    assert read / 5 / (time.now - began) > 1.9


@pytest.mark.usefixtures("apart")
def test_an_endpoint_refuses_nothing(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    """In real time, so it is short: 5,000 calls with the limits of one process, and of three, were played so."""
    rng = random.Random(0)
    limits = [PerProcess[tuple[object, ...], rate_limit.ShardLimiter]() for _ in range(3)]
    lives = Lives(zookeeper.hosts, app, minFetchPeriod="200ms", maxFetchTime="1s", prefetch="true")
    with ScriptedKinesis() as server:
        server.create_stream("orders", 4)
        query = lives.begin(endpointUrl=server.endpoint_url, retryLimit="2")
        number = 0
        try:
            while sum(count for (name, _), count in server.calls.items() if name == "GetRecords") < 60:
                for shard in server.shards("orders"):
                    for _ in range(rng.choice([0, 1, 3])):
                        server.put("orders", shard, b"%d" % number + b" " * rng.choice([1, 100_000]))
                        number += 1
                if query.plan() is not None:
                    rate_limit._limiters = rng.choice(limits)
                    query.batch(failing=range(0, number, 7))
        finally:
            lives.end()
        assert server.calls["GetRecords", server.shards("orders")[0]] > 10
        assert not server.refused
