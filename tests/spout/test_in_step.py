"""Shards with unequal backlogs are read in step, over reshards, restarts and replays: without Spark and servers."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from by_hand import Row, SparkCheckpoint, numbers
from memory_streams import MemoryStreams
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery

from kinesis_trident.spout.kinesis import Kinesis, Page, ThrottledError
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

HOUR = 3600
MINUTE = 60


class Backlog:
    """Ten hours of records whose number says when they arrived, in seconds.

    Args:
        time: that passes.
        rates: records an hour of each shard.
    """

    def __init__(self, time: FakeTime, rates: Iterable[int], hours: int = 10) -> None:
        self.time = time
        self.kinesis = MemoryKinesis(shards=len(tuple(rates)), clock=time.milliseconds)
        self._begun = time.now
        rng = Random(1)
        open_shards = self.kinesis.open_shards
        puts = sorted(
            (rng.random() * hours * HOUR, n) for n, rate in enumerate(rates) for _ in range(rate * hours)
        )
        for at, n in puts:
            if at > hours * HOUR / 3 and len(open_shards) == len(self.kinesis.open_shards):
                # The fullest shard goes on in one child.
                self._at(at)
                open_shards[0] = self.kinesis.split(open_shards[0])[0]
            self.put(open_shards[n], at)
        self._at(hours * HOUR)
        self.count = len(puts)

    def put(self, shard: str, at: float) -> None:
        self._at(at)
        self.kinesis.put(shard, str(int(at * 1000)).encode())

    def _at(self, at: float) -> None:
        self.time.now = max(self.time.now, self._begun + at)


def late(batches: Iterable[list[Row]], margin: float) -> int:
    """Count the rows that are older than the newest row of the batches before, minus a margin."""
    count, newest = 0, 0
    for rows in batches:
        count += sum(row[0] < newest - margin * 1000 for row in rows)
        newest = max([newest, *(row[0] for row in rows)])
    return count


RATES = (300, 30, 3, 90, 3, 120, 3, 60)


def read_all(
    backlog: Backlog,
    checkpoint: SparkCheckpoint,
    kinesis: Kinesis | None = None,
    ends: float = 0.15,
    **options: str,
) -> list[list[Row]]:
    """Read a backlog; some lives end in the middle of batches, before and after they have pinned theirs."""
    time, rng = backlog.time, Random(2)
    zookeeper = MemoryZooKeeper(time.milliseconds)

    def start() -> SteppedQuery:
        return SteppedQuery(
            kinesis or backlog.kinesis, time, zookeeper, checkpoint, minFetchPeriod="0ms", **options
        )

    query, batches = start(), []
    while sum(map(len, batches)) < backlog.count:
        query.planned()
        if rng.random() < ends:
            first = query.rows() if rng.random() < 0.5 else None
            query.end()
            time.sleep(MINUTE)
            query = start()
            batches.append(query.batch())
            assert first is None or first == batches[-1]
        else:
            batches.append(query.batch())
        time.sleep(1)
    query.end()
    return batches


def test_streams_that_are_read_together_are_in_step(time: FakeTime) -> None:
    kinesis = MemoryStreams("orders", "payments", clock=time.milliseconds)
    for minute in range(0, 600, 10):
        time.sleep(10 * MINUTE)
        kinesis.put("orders", minute)
        kinesis.put("orders", minute)
        if minute % 60 == 0:
            kinesis.put("payments", minute)
    query = SteppedQuery(
        kinesis,
        time,
        streamName="orders,payments",
        minFetchPeriod="0ms",
        maxFetchRecordsPerShard="5",
        maxShardSkew="1h",
    )
    rows: list[Row] = []
    newest = 0
    while len(rows) < 130:
        batch = query.batch()
        assert min(row[0] for row in batch) >= newest - 61
        newest = max(newest, *(row[0] for row in batch))
        rows += batch
        time.sleep(1)
    assert len({row[1] for row in rows}) == 130


def two_shards(time: FakeTime) -> MemoryKinesis:
    """One with a record an hour, one with two records of ten hours later."""
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    first, other = kinesis.open_shards
    for number in range(10):
        kinesis.put(first, str(number).encode())
        time.sleep(HOUR)
    for number in (10, 11):
        kinesis.put(other, str(number).encode())
    return kinesis


def test_a_blocked_shard_holds_the_others_for_five_minutes_and_the_log_says_so(
    time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = two_shards(time)
    query = SteppedQuery(
        kinesis, time, maxRetryingRecords="1", retryLimit="9", retryBackoff="1h..1h x1", minFetchPeriod="0ms"
    )
    assert numbers(query.batch(failing=[0])) == [0]
    begun = time.now
    query.planned()
    assert 5 * MINUTE <= time.now - begun < 6 * MINUTE
    assert numbers(query.rows()) == [10, 11]
    assert "could not be read for 300 s, so the other shards wait no longer (maxShardSkew)" in caplog.text


def test_a_shard_that_waits_for_the_others_says_so_until_it_is_read(time: FakeTime) -> None:
    kinesis = two_shards(time)
    first, other = kinesis.open_shards
    query = SteppedQuery(kinesis, time, minFetchPeriod="0ms", maxFetchRecordsPerShard="3")
    rows: list[Row] = []
    said: list[str | None] = []
    while numbers(rows) != list(range(12)):
        rows += query.batch()
        query.plan()
        shards = query.run.report()["shards"]
        assert "standing" not in shards[first]
        said.append(shards[other].get("standing"))
    assert said[0] == "ahead"
    # Once the others are there it is read.
    assert said == [*filter(None, said), *[None] * said.count(None)]
    assert said[-1] is None


def test_a_trigger_that_is_too_slow_for_a_given_bound_is_said(
    time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    # With a bound on all shards together, no answer tells how far the next turn reads at least.
    query = SteppedQuery(
        two_shards(time), time, maxShardSkew="1m", minFetchPeriod="0ms", maxBytesPerTrigger="1GiB"
    )
    for number in range(6):
        assert numbers(query.batch()) == [number]
        time.sleep(10 * MINUTE)
    assert caplog.text.count("the query does not catch up. Set maxShardSkew") == 1


def test_no_row_of_a_backlog_is_late(time: FakeTime) -> None:
    backlog = Backlog(time, RATES)
    checkpoint = SparkCheckpoint()
    batches = read_all(backlog, checkpoint, maxShardSkew="30m", maxFetchRecordsPerShard="100")
    assert late(batches, 31 * MINUTE) == 0
    # A page is cut where the bound is.
    plans = [checkpoint.at(count) for count in range(1, len(checkpoint.offsets) + 1)]
    assert any(plan.upto for plan in plans)
    assert len({row[1] for rows in batches for row in rows}) == backlog.count
    free = read_all(backlog, SparkCheckpoint(), maxShardSkew="off", maxFetchRecordsPerShard="100")
    assert late(free, 31 * MINUTE) > 100
    assert len(batches) <= 1.25 * len(free)


class Refusing:
    """Refuses every twentieth read, as where other applications read the stream."""

    def __init__(self, kinesis: MemoryKinesis) -> None:
        self.describe, self.list_shards, self.iterator = (
            kinesis.describe,
            kinesis.list_shards,
            kinesis.iterator,
        )
        self.put_records, self._get_records = kinesis.put_records, kinesis.get_records
        self._rng = Random(3)

    def get_records(self, iterator: str, limit: int) -> Page:
        if self._rng.random() < 0.05:
            msg = "slow down"
            raise ThrottledError(msg)
        return self._get_records(iterator, limit)


def test_no_row_is_late_where_reads_are_refused_now_and_then(time: FakeTime) -> None:
    backlog = Backlog(time, RATES)
    refusing = Refusing(backlog.kinesis)
    batches = read_all(
        backlog, SparkCheckpoint(), refusing, maxShardSkew="30m", maxFetchRecordsPerShard="100"
    )
    assert late(batches, 31 * MINUTE) == 0
    assert len({row[1] for rows in batches for row in rows}) == backlog.count


def test_shards_of_equal_rates_catch_up_together(time: FakeTime) -> None:
    """A turn reads four minutes of the five that a shard may be ahead, more or less: the slowest are looked at."""
    backlog = Backlog(time, (150,) * 12 + (15, 2), hours=3)
    turn = {"maxFetchRecordsPerShard": "10"}
    batches = read_all(backlog, SparkCheckpoint(), ends=0.03, maxShardSkew="5m", **turn)
    assert late(batches, 6 * MINUTE) == 0
    assert len({row[1] for rows in batches for row in rows}) == backlog.count
    free = read_all(backlog, SparkCheckpoint(), ends=0.03, maxShardSkew="off", **turn)
    assert len(free) >= 0.84 * len(batches)
