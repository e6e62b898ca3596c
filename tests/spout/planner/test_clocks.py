"""A wall clock that steps back: reading goes on, and what is due is due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import count

import pytest
from by_hand import Lives, SparkCheckpoint, numbers
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.spout.planner.clocks import IdleWait, SteadyClock, correct_due_times
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.failure import Failure, text_of
from kinesis_trident.tracker.records import Noted, PendingRun, Run
from kinesis_trident.tracker.retry import DUE_GRAIN_MS, Backoff, RetryPolicy

HOUR = 3600
SHARD = "shardId-000000000000"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-5000, 5000)), max_size=20))
def test_time_goes_on_at_least_as_fast_as_the_steady_clock(steps: list[tuple[float, float]]) -> None:
    steady, offset = 0.0, 1e9
    clock = SteadyClock(lambda: steady + offset, lambda: steady)
    for passed, stepped in steps:
        before = clock()
        steady, offset = steady + passed, offset + stepped
        now = clock()
        assert now >= before + int(passed * 1000) - 1
        assert now >= int((steady + offset) * 1000)


@pytest.mark.parametrize("paused", range(6))
def test_a_pause_between_two_glances_does_not_make_the_clock_fast(paused: int) -> None:
    now, glances = 1000.0, count()

    def glance() -> float:
        nonlocal now
        seen = now
        now += HOUR if next(glances) == paused else 0
        return seen

    clock = SteadyClock(glance, glance)
    for _ in range(3):
        clock()
    assert clock() == now * 1000


def triggers(interval: int, count: int, *, slow: Callable[[int], int] = lambda _: 0) -> list[float]:
    """Return how long each call of an idle query takes that waits as it is told; `slow` adds to the time in between.

    Spark's `ProcessingTimeExecutor` sleeps 10 ms after a trigger with nothing to do, then until the interval is over.
    Times are in milliseconds, as its clock is.
    """
    wait, now, took = IdleWait(1.0), 0, []
    for number in range(count):
        took.append(wait.begin(now / 1000))
        ended = now + round(took[-1] * 1000)
        wait.end(ended / 1000, idle=True)
        ready = ended + 11 + slow(number)
        now = max(ready, (now // interval + 1) * interval) if interval else ready
    return took


@pytest.mark.parametrize("interval", [200, 500, 1000, 1001, 60_000])
def test_with_a_trigger_interval_no_call_waits(interval: int) -> None:
    took = triggers(interval, 300)
    assert max(took) == 0
    # A trigger that is late by itself does not change that for long.
    late = triggers(interval, 300, slow=lambda number: interval - 50 if number == 100 else 0)
    assert late.count(1.0) <= 1


def test_without_an_interval_a_call_waits_nearly_always() -> None:
    took = triggers(0, 300)
    assert took.count(1.0) > 290
    # Where Spark is slow for a while it is called more often, and no longer than that.
    busy = triggers(0, 300, slow=lambda number: 200 if 100 <= number < 200 else 0)
    assert busy[202:].count(1.0) > 90


@given(
    st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["1s..60s x2", "0ms..0ms x1", "100ms..5m x3"])
)
def test_what_this_clock_has_made_due_keeps_its_time(attempt: int, seed: int, backoff: str) -> None:
    now, policy = 1_700_000_000_123, RetryPolicy(9, Backoff.parse(backoff))
    due = policy.due(attempt, now, random.Random(seed))
    node = InflightNode(
        txid=1,
        waiting=(Run(first="1", last="1", due=due),),
        pending=(PendingRun(txid=1, open=(0, 1), due=now + 30_000),),
    )
    assert correct_due_times(node, now, policy.backoff.cap_ms + DUE_GRAIN_MS, 30_000) is node


def test_what_was_made_due_by_a_clock_that_was_ahead_is_due() -> None:
    now, ahead = 1_700_000_000_000, HOUR * 1000
    node = InflightNode(
        txid=1,
        waiting=(
            Run(first="1", last="1", due=now + ahead),
            Run(first="2", last="2", due=now + 500),
        ),
        pending=(PendingRun(txid=1, open=(0, 1), due=now + ahead),),
    )
    found = correct_due_times(node, now, 61_000, 30_000)
    assert [run.due for run in found.waiting] == [now, now + 500]
    assert [run.due for run in found.pending] == [now + 30_000]


def test_what_has_asked_for_a_longer_delay_keeps_its_time() -> None:
    now = 1_700_000_000_000
    later = (Noted(now, text_of(Failure.said("busy", after="2h"))),)
    node = InflightNode(
        txid=1,
        waiting=(
            Run(first="1", last="1", due=now + 2 * HOUR * 1000 + 500, failures=later),
            Run(first="2", last="2", due=now + 3 * HOUR * 1000, failures=later),
        ),
    )
    found = correct_due_times(node, now, 61_000, 30_000)
    assert [run.due for run in found.waiting] == [now + 2 * HOUR * 1000 + 500, now]


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(retryLimit="3", retryBackoff="1s..1s x1")


def test_reading_goes_on_where_the_wall_clock_steps_back(lives: Lives) -> None:
    stepped = 0
    lives.clock = lambda: time.time() + stepped
    kinesis, checkpoint = MemoryKinesis(), SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint)
    for number in range(3):
        kinesis.put(SHARD, b"%d" % number)
    assert numbers(query.batch(failing=[1])) == [0, 1, 2]
    # What failed is in ZooKeeper now, due within two seconds.
    query.run.settle_finished(query.committed)
    stepped = -HOUR
    kinesis.put(SHARD, b"3")
    assert query.run.report()["retrying"] == 1
    found: set[int] = set()
    while not found >= {1, 3}:
        found |= set(numbers(query.batch(failing=[3])))
    query.run.settle_finished(query.committed)
    query.end()

    # The next process has only the clock that is another hour behind.
    stepped = -2 * HOUR
    query = lives.begin(kinesis, checkpoint)
    while 3 not in numbers(query.batch()):
        pass
