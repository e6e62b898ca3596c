"""Looks of the planning process and reads of tasks share the calls that a shard allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import count, product

import pytest
from by_hand import Lives, Query, Row, numbers
from stepped import SteppedQuery

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.errors import StreamRecreatedError
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter, Used, shard_limiter
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.turn_source import TurnSource
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.spout.testing.stream import HeldStream

Start = Callable[..., Query]
A = "shardId-000000000000"


@pytest.fixture
def start(lives: Lives) -> Start:
    return lives.begin


def test_a_pin_says_how_often_its_turn_has_read(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis, maxRecordsPerFetch="2")
    for number in range(5):
        kinesis.put(A, str(number).encode())
    assert numbers(query.batch()) == [0, 1, 2, 3, 4]
    pin = query.store.batches.get_pin(1, A)
    assert pin is not None
    # One look came before, whose record the turn was given.
    assert pin.reads == kinesis.calls["get_records", A] - 1 >= 2


def test_few_records_cost_one_call(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis)
    kinesis.put(A, b"0")
    # How large records are is known from here on.
    assert numbers(query.batch()) == [0]
    calls = dict(kinesis.calls)
    for number in range(1, 10, 3):
        for other in range(3):
            kinesis.put(A, str(number + other).encode())
        assert numbers(query.batch()) == [number, number + 1, number + 2]
    looked = kinesis.calls["get_records", A] - calls["get_records", A]
    empty = looked - 3
    # The harness asks once more after each batch, and is told that there is nothing.
    assert empty <= 3
    assert kinesis.calls["iterator", A] == calls["iterator", A]


def test_what_a_look_brings_is_cut_to_the_limits_of_the_turn(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis, maxFetchRecordsPerShard="2")
    kinesis.put(A, b"0")
    assert numbers(query.batch()) == [0]
    for number in range(1, 8):
        kinesis.put(A, str(number).encode())
    assert [numbers(query.batch()) for _ in range(4)] == [[1, 2], [3, 4], [5, 6], [7]]


def test_a_task_counts_the_look_before_it(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    kinesis = MemoryKinesis()
    kinesis.put(A, b"1")
    options = Lives(zookeeper.hosts, app).parsed(minFetchPeriod="200ms")
    # No time passes.
    run = SourceRun(options, kinesis, connect(options.zookeeper), Surroundings(steady=lambda: 5.0))
    try:
        plan = run.latest(run.initial(), None)
        assert plan is not None
        (part,) = run.partitions(run.initial(), plan)
    finally:
        run.close()
    assert [turn.used for turn in part.turns] == [Used(((0, 0),))]
    limiter = shard_limiter(options, "orders", A)
    limiter.clock, limiter.wall = (lambda: 5.0), (lambda: part.told / 1000)
    TurnSource(part, kinesis).fetcher(part.turns[0])
    for _ in range(4):
        assert limiter.acquire(patience=0)
        limiter.note_end()
    assert not limiter.acquire(patience=0)


class PausedClock:
    """A clock that stands still, but for a pause of 50 ms after the glance number `pause_after`, from 0."""

    def __init__(self) -> None:
        self.now = 5.0
        self.pause_after = -1

    def __call__(self) -> float:
        glance = self.now
        self.now += 0.05 if self.pause_after == 0 else 0.0
        self.pause_after -= 1
        return glance


def test_no_pause_makes_the_calls_of_another_process_older(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    clock, kinesis = PausedClock(), MemoryKinesis()
    kinesis.put(A, b"1")
    options = Lives(zookeeper.hosts, app).parsed(minFetchPeriod="200ms")
    run = SourceRun(options, kinesis, connect(options.zookeeper), Surroundings(clock=clock, steady=clock))
    looked = clock.now
    try:
        plan = run.latest(run.initial(), None)
        assert plan is not None
        for planning, reading in product(range(-1, 3), range(3)):
            clock.pause_after = planning
            (part,) = run.partitions(run.initial(), plan)
            limiter = ShardLimiter(Budget.of(0.2, math.inf), clock=clock, wall=clock)
            clock.pause_after = reading
            limiter.begin_turn(part.txid, part.turns[0].used, part.told)
            for _ in range(4):
                assert limiter.acquire(patience=0)
                limiter.note_end()
            assert clock.now + limiter.wait_of_all() >= looked + 1
    finally:
        run.close()


def test_an_idle_shard_is_looked_at_as_often_as_the_option_says(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis, idlePollInterval="1h", pace={"hold": 0.05, "look_period": None})
    assert query.plan() is None
    assert kinesis.calls["get_records", A] == 1
    kinesis.put(A, b"1")
    assert [query.plan() for _ in range(3)] == [None] * 3
    assert kinesis.calls["get_records", A] == 1


@pytest.fixture
def kinesis(time: FakeTime) -> MemoryKinesis:
    return MemoryKinesis(shards=100, clock=time.milliseconds)


def stepped(kinesis: MemoryKinesis, time: FakeTime, **options: str) -> SteppedQuery:
    return SteppedQuery(kinesis, time, describeShardInterval="10s", **options)


def until(query: SteppedQuery, count: int) -> list[Row]:
    """The rows of as many batches as it takes to have so many."""
    rows: list[Row] = []
    while len(rows) < count:
        rows += query.batch() if query.plan() is not None else []
    return rows


def lists(kinesis: MemoryKinesis) -> int:
    return sum(count for (name, _), count in kinesis.calls.items() if name == "list_shards")


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_however_many_tasks_read_a_stream_it_is_described_once_in_ten_seconds(
    kinesis: MemoryKinesis, time: FakeTime, start: str
) -> None:
    query = stepped(kinesis, time, startingPosition=start, shardsPerTask="1")
    time.sleep(5)
    for at, shard in enumerate(kinesis.open_shards):
        kinesis.put(shard, str(at).encode())
    assert len(until(query, 100)) == 100
    assert kinesis.calls["describe", ""] == 1
    # Others have their first record later, a few a second: the first read of each is one of a stream that is known.
    for at, (shard, *_) in enumerate(zip(kinesis.open_shards, range(40), strict=False)):
        time.sleep(1)
        left, _ = kinesis.split(shard)
        kinesis.put(left, str(at).encode())
        until(query, 1)
    assert kinesis.times.most("describe", 10) == 1
    assert kinesis.calls["describe", ""] >= 4


def test_a_long_chain_of_closed_shards_is_listed_once(time: FakeTime) -> None:
    kinesis = MemoryKinesis(clock=time.milliseconds)
    for number in range(40):
        (shard,) = kinesis.open_shards
        kinesis.put(shard, str(number).encode())
        kinesis.merge(*kinesis.split(shard))
    began = time.now
    query = stepped(kinesis, time)
    assert numbers(until(query, 40)) == list(range(40))
    assert kinesis.times.most("describe", 10) == 1
    # At the start, for which nothing was known, and then in each interval.
    assert lists(kinesis) <= 2 + (time.now - began) // 10


def test_what_comes_after_a_shard_that_was_split_is_listed_at_once_and_once(time: FakeTime) -> None:
    kinesis = MemoryKinesis(clock=time.milliseconds)
    query = stepped(kinesis, time)
    kinesis.put(A, b"0")
    until(query, 1)
    before, began = lists(kinesis), time.now
    for child in kinesis.split(A):
        kinesis.put(child, b"1")
    until(query, 2)
    assert lists(kinesis) == before + 1
    assert time.now - began < 5
    assert kinesis.calls["describe", ""] == 1


@pytest.mark.parametrize("read_before", [True, False])
def test_a_stream_that_is_created_again_is_noticed_within_ten_seconds_and_loses_nothing(
    time: FakeTime, read_before: bool
) -> None:
    """Faster than AWS creates one, and at a position that the new one takes: its records may come twice."""
    kinesis = MemoryKinesis(clock=time.milliseconds)
    query = stepped(kinesis, time)
    if read_before:
        kinesis.put(A, b"0")
        until(query, 1)
    time.sleep(2)
    before = kinesis._stream._sequence
    kinesis._stream = HeldStream("orders", 1, time.milliseconds())
    kinesis._stream._sequence = before + 10**30
    found: list[Row] = []
    put = count(1)

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            kinesis.put(A, b"%d" % next(put))
            while query.plan() is not None:
                found.extend(query.batch())
            time.sleep(1)

    with pytest.raises(StreamRecreatedError):
        go_on(12)
    query = stepped(kinesis, time)
    go_on(2)
    assert set(numbers(found)) == set(range(1, next(put)))
    assert max(Counter(numbers(found)).values()) <= 2
