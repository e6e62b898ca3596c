from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.spout.kinesis.rate_limit import ShardBudget, ShardLimiter, full_jitter, shard_limiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import FakeTime

MIB = 2**20


def limiter(period: float = 0.2, rate: float = 2 * MIB) -> tuple[ShardLimiter, FakeTime]:
    time = FakeTime()
    return ShardLimiter(ShardBudget(period, rate), clock=time, sleep=time.sleep, rng=random.Random(7)), time


@given(st.lists(st.floats(0, 0.5), max_size=60), st.sampled_from([0.05, 0.1, 0.2, 0.4, 1.0, 3.0]))
def test_no_window_holds_more_calls_than_allowed(pauses: list[float], period: float) -> None:
    shard, time = limiter(period)
    calls = []
    for pause in pauses:
        time.sleep(pause)
        assert shard.acquire()
        calls.append(time.now)
    allowed = max(1, round(1 / period))
    for first, later in zip(calls, calls[allowed:], strict=False):
        assert later - first >= allowed * period - 1e-6


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 10 * MIB)), min_size=1, max_size=30))
def test_bytes_stay_below_the_rate(answers: list[tuple[float, int]]) -> None:
    shard, time = limiter(period=0)
    start, read = time.now, 0
    for pause, size in answers:
        time.sleep(pause)
        shard.acquire()
        assert read <= (time.now - start) * 2 * MIB + 1
        shard.answered(size)
        read += size


def test_bytes_that_others_have_read_are_waited_for() -> None:
    budget = ShardBudget(0.2, MIB)
    budget.shared(0, 10.0, 1.5)
    assert budget.wait(10.0) == 1.5
    budget.shared(0, 10.5, 0.1)
    assert budget.wait(10.5) == 1.0


def test_calls_of_others_count_once_beside_its_own() -> None:
    budget = ShardBudget(0.2, MIB)
    budget.called(10.0)
    budget.called(10.1)
    # Three in all, its own two among them.
    budget.shared(3, 10.5)
    budget.shared(3, 10.6)
    for _ in range(2):
        assert budget.wait(10.6) == 0
        budget.called(10.6)
    assert budget.wait(10.6) == pytest.approx(0.4)
    # Two of its own are left, and three of others, of which none may be the one that was told before.
    budget.shared(5, 11.2)
    assert budget.wait(11.2) == pytest.approx(0.4)
    budget.shared(0, 11.3)
    assert budget.wait(11.3) == pytest.approx(0.3)
    budget.called(11.6)
    budget.called(11.6)
    assert budget.wait(11.6) == pytest.approx(0.6)
    unlimited = ShardBudget(0, MIB)
    unlimited.shared(9, 11.2)
    assert unlimited.wait(11.2) == 0


def test_a_full_answer_blocks_the_shard_for_five_seconds() -> None:
    shard, time = limiter()
    shard.acquire()
    shard.answered(10 * MIB)
    before = time.now
    assert not shard.acquire(patience=4.9)
    assert time.now == before
    assert shard.acquire(patience=5.1)
    assert time.now - before == pytest.approx(5)


def test_answers_that_come_together_are_paid_for_one_after_the_other() -> None:
    budget = ShardBudget(0.0, MIB)
    budget.answered(2 * MIB, 0.0)
    budget.answered(3 * MIB, 0.5)
    assert budget.wait(0.5) == pytest.approx(4.5)


def test_five_calls_need_not_wait_for_each_other() -> None:
    shard, time = limiter()
    for _ in range(5):
        assert shard.acquire(patience=0)
    assert not shard.acquire(patience=0)
    assert time.sleeps == []


def test_no_period_is_no_limit() -> None:
    shard, _ = limiter(period=0)
    assert all(shard.acquire(patience=0) for _ in range(1000))


def test_refusals_in_a_row_are_waited_out_longer_and_an_answer_forgets_them() -> None:
    budget, rng = ShardBudget(0.0, MIB), random.Random(1)

    def longest(failures: int) -> float:
        waits = []
        for _ in range(200):
            budget.answered(0, 0.0)
            now = budget.wait(0.0)
            for _ in range(failures):
                now += budget.wait(now)
                budget.refused(now, rng)
            waits.append(budget.wait(now))
        return max(waits)

    assert 0.1 < longest(1) <= 0.2
    assert 0.8 < longest(4) <= 1.6
    assert longest(12) <= 10.0


def test_the_waits_are_those_of_the_options() -> None:
    options = SourceOptions.parse_batch(
        {"streamName": "a", "clientRetryIntervalMs": "3000", "clientMaxRetryIntervalMs": "5000"}
    )
    budget = ShardBudget(0.0, MIB, options.client_retry_interval, options.client_max_retry_interval)

    def longest(failures: int) -> float:
        rng, waits = random.Random(1), []
        for _ in range(200):
            budget.answered(0, 0.0)
            for _ in range(failures):
                budget.refused(0.0, rng)
            waits.append(budget.wait(0.0))
        return max(waits)

    assert 2.0 < longest(1) <= 3.0
    assert 4.0 < longest(8) <= 5.0
    other = replace(options, client_retry_interval=1.0)
    assert shard_limiter(options, "a", "s0") is not shard_limiter(other, "a", "s0")


@given(st.integers(1, 10_000), st.integers())
def test_jitter_is_bounded(failures: int, seed: int) -> None:
    assert 0 <= full_jitter(failures, random.Random(seed)) <= min(10.0, 0.2 * 2.0 ** min(failures - 1, 32))


def test_threads_share_the_calls_of_a_shard() -> None:
    shard, time = limiter()
    start = time.now
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: shard.acquire(), range(40)))
    # 40 calls at 5 a second: the first 5 are free, the last 5 begin 7 seconds later.
    assert time.now - start >= 7 - 1e-6


def test_a_process_has_one_limiter_for_a_shard() -> None:
    options = SourceOptions(stream_name="a", region="eu-west-1")
    assert shard_limiter(options, "a", "s0") is shard_limiter(options, "a", "s0")
    assert shard_limiter(options, "a", "s0") is not shard_limiter(options, "a", "s1")
    assert shard_limiter(options, "a", "s0") is not shard_limiter(options, "b", "s0")
