"""Looks of the planning process and reads of tasks share the calls that a shard allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from by_hand import Lives, Query, numbers

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.turn_source import TurnSource
from kinesis_trident.spout.testing import MemoryKinesis

Start = Callable[..., Query]
A = "shardId-000000000000"


@pytest.fixture
def start(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Start]:
    lives = Lives(zookeeper.hosts, app)
    yield lives.begin
    lives.end()


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
    run = SourceRun(options, kinesis, connect(options.zookeeper), steady=lambda: 5.0)
    try:
        plan = run.latest(run.initial(), None)
        assert plan is not None
        (part,) = run.partitions(run.initial(), plan)
    finally:
        run.close()
    assert [turn.calls for turn in part.turns] == [1]
    limiter = shard_limiter(options, "orders", A)
    limiter.clock = lambda: 5.0
    TurnSource(part, kinesis).fetcher(part.turns[0])
    assert [limiter.acquire(patience=0) for _ in range(5)] == [True] * 4 + [False]


def test_an_idle_shard_is_looked_at_as_often_as_the_option_says(start: Start) -> None:
    kinesis = MemoryKinesis()
    query = start(kinesis, idlePollInterval="1h", pace={"hold": 0.05, "look_period": None})
    assert query.plan() is None
    assert kinesis.calls["get_records", A] == 1
    kinesis.put(A, b"1")
    assert [query.plan() for _ in range(3)] == [None] * 3
    assert kinesis.calls["get_records", A] == 1
