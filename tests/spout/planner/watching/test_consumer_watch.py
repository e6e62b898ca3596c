"""Who else subscribes with a query's consumer, by the rules of Kinesis: one subscription, and 5 s until another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st
from settled import make_pin, settled as settled_batch

from kinesis_trident.checkpoint.model.nodes import Plan, Subscribing
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.watching.consumer_watch import ConsumerWatch
from kinesis_trident.spout.positions import TRIM_HORIZON

HELD, SHARD = 5_000, "shardId-000000000000"
PLAN = Plan(txid=1, plan="p", streams={}, positions={})
SHARDS = Shards("parentFirst", {SHARD: ShardState(TRIM_HORIZON)})


@dataclass
class Consumer:
    """A consumer's subscription to one shard: who has begun the last one, and when."""

    begun: float = -math.inf
    by: object = None
    watch: ConsumerWatch = field(default_factory=ConsumerWatch)
    sights: Sights = field(default_factory=lambda: Sights(LookTimes.of()))

    def begin(self, who: object, now: float) -> bool:
        if now - self.begun < HELD:
            return False
        self.begun, self.by = now, who
        return True

    def batch(self, process: object, read: int, settled: int) -> None:
        """A batch of the query, whose turn is in a process, that was read and settled at these times."""
        turn = Subscribing.NOT
        if self.by != process:
            may_begin = not self.sights.of(SHARD).is_held(read)
            turn = Subscribing.BEGUN if may_begin and self.begin(process, read) else Subscribing.REFUSED
        self.settle({SHARD: turn}, settled)

    def settle(self, turns: Mapping[str, int], now: int) -> None:
        """Settle a batch whose turns subscribed so."""
        event = settled_batch(PLAN, {shard: make_pin(subscribing=turn) for shard, turn in turns.items()}, now)
        self.watch.watch(event, self.sights)
        self.sights = self.sights.observe(event, SHARDS, now)


batches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12_000), st.integers(0, 12_000)), max_size=60)


@given(batches)
def test_a_query_alone_is_never_warned_of_its_own_processes(each: list[tuple[int, int, int]]) -> None:
    consumer, now = Consumer(), 0
    for process, wait, work in each:
        consumer.batch(process, now + wait, now + wait + work)
        now += wait + work
    assert consumer.watch.taken is None


@given(st.integers(0, HELD), st.integers(1, 2_000))
def test_a_query_is_warned_of_another_reader_within_a_minute(begun: int, pace: int) -> None:
    consumer = Consumer()
    for now in range(0, 60_000, pace):
        consumer.batch("ours", now, now + pace)
        if now >= begun:
            consumer.begin("theirs", now + pace / 2)
    assert consumer.watch.taken is not None


def test_a_run_before_and_a_task_that_died_are_no_other_readers() -> None:
    """The run before began its subscription right before the first batch of this one."""
    consumer = Consumer()
    consumer.begin("before", 0)
    for now in range(0, 10_000, 500):
        consumer.batch("ours", now, now + 500)
    for _ in range(2):
        now += 20_000
        consumer.begin("a task that dies", now)
        consumer.batch("its next attempt", now + 100, now + 200)
    assert consumer.watch.taken is None


def test_three_subscriptions_that_are_taken_in_ten_minutes_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer, minute = Consumer(), 60_000
    taken = {SHARD: Subscribing.TAKEN}
    consumer.settle({}, 0)
    for now in (minute, 6 * minute, 12 * minute):
        consumer.settle(taken, now)
    assert consumer.watch.taken is None
    for now in (13 * minute, 14 * minute):
        consumer.settle(taken, now)
        assert consumer.watch.taken == now
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert "a consumer of its own" in caplog.text
