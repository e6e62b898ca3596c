from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.spout.kinesis.rate_limit import (
    Budget,
    ShardLimiter,
    Used,
    full_jitter,
    shard_limiter,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import FakeTime

MIB = 2**20


def limiter(period: float = 0.2, rate: float = 2 * MIB) -> tuple[ShardLimiter, FakeTime]:
    time = FakeTime()
    return ShardLimiter(
        Budget.of(period, rate), clock=time, sleep=time.sleep, wall=time, rng=random.Random(7)
    ), time


def call(shard: ShardLimiter, patience: float = math.inf) -> bool:
    """A call that takes no time."""
    if not shard.acquire(patience):
        return False
    shard.note_end()
    return True


@given(
    calls=st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 0.7), st.floats(0, 0.7)), max_size=60),
    period=st.sampled_from([0.05, 0.1, 0.2, 0.4, 1.0, 3.0]),
)
def test_no_window_of_the_service_holds_more_calls_than_allowed(
    calls: list[tuple[float, float, float]], period: float
) -> None:
    """A pause, then the times that a call and its answer travel."""
    shard, time = limiter(period)
    arrived = []
    for pause, there, back in calls:
        time.sleep(pause)
        assert shard.acquire()
        time.sleep(there)
        arrived.append(time.now)
        time.sleep(back)
        shard.note_end()
    allowed = max(1, round(1 / period))
    for first, later in zip(arrived, arrived[allowed:], strict=False):
        assert later - first >= allowed * period - 1e-6


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 10 * MIB)), min_size=1, max_size=30))
def test_bytes_stay_below_the_rate(answers: list[tuple[float, int]]) -> None:
    shard, time = limiter(period=0)
    start, read = time.now, 0
    for pause, size in answers:
        time.sleep(pause)
        call(shard)
        assert read <= (time.now - start) * 2 * MIB + 1
        shard.note_answer(size)
        read += size


def test_bytes_that_others_have_read_are_waited_for() -> None:
    budget = Budget.of(0.2, MIB)
    budget = budget.begin_turn(1, Used(blocks=((1500, 0), (900, 6))), 10.0)
    assert budget.wait(10.0) == 1.5
    budget = budget.begin_turn(2, Used(blocks=((100, 0),)), 10.5)
    assert budget.wait(10.5) == pytest.approx(0.4)


def test_bytes_of_a_turn_that_was_read_here_are_not_waited_for_twice() -> None:
    shard, time = limiter()
    told = int(time.now * 1000)
    shard.begin_turn(1, Used(), told)
    assert call(shard)
    shard.note_answer(10 * MIB)
    time.sleep(3)
    # The planning process has seen the pin late, and its task has begun late.
    told = int(time.now * 1000)
    time.sleep(1)
    shard.begin_turn(2, Used(((500, 1),), ((4500, 1),)), told)
    assert shard.wait_of_all() == pytest.approx(1.0)
    shard.begin_turn(3, Used(((0, 0),) * 5, ((3000, 9),)), told)
    assert shard.wait_of_all() == pytest.approx(2.0, abs=0.01)
    # A clock behind that of the planning process.
    shard.begin_turn(4, Used(((0, 0),) * 5, ((3000, 10),)), told + 60_000)
    assert shard.wait_of_all() == pytest.approx(3.0, abs=0.01)


def test_two_applications_in_one_worker_do_not_take_each_other_s_turns_for_their_own() -> None:
    budget, told = Budget.of(0.2, MIB), Used(((10, 7),) * 5, ((900, 7),))
    budget = budget.begin_turn(7, Used(), 100.0, "/a")
    # The turn 7 of the other one was read elsewhere, five calls a moment ago.
    budget = budget.begin_turn(8, told, 100.0, "/b")
    assert budget.wait(100.0) == pytest.approx(0.99)
    # Nor does a turn of the first one replace what is known of the second one's calls.
    budget = budget.begin_turn(8, Used(), 100.1, "/a")
    assert budget.wait(100.1) == pytest.approx(0.89)
    budget = budget.begin_turn(9, Used(), 100.2, "/b")
    assert budget.wait_of_all(100.2, 5) == pytest.approx(0.7)
    assert budget.wait_of_all(101.0, 5) == 0


def test_a_call_counts_from_its_beginning_until_a_second_after_its_end() -> None:
    budget = Budget.of(0.2, MIB)
    for _ in range(5):
        assert budget.wait(10.0) == 0
        budget = budget.begin_call()
    # It is seen again soon whether one of them has ended.
    assert 0 < budget.wait(10.0) < 0.1
    assert budget.report_usage(10.5) == Used(((0, 0),) * 5)
    budget = budget.end_call(10.7)
    assert budget.wait(10.7) == pytest.approx(1.0)
    for at in (10.7, 10.8, 10.9, 11.0):
        budget = budget.end_call(at)
    assert budget.wait(11.0) == pytest.approx(0.7)
    assert budget.wait_of_all(11.0, 2) == pytest.approx(0.7)
    assert budget.wait_of_all(11.0, 3) == pytest.approx(0.8)
    assert [ago for ago, _ in budget.report_usage(11.75).calls] == [950, 850, 750]


def test_calls_of_others_count_once_beside_its_own() -> None:
    budget = Budget.of(0.2, MIB)
    budget = budget.begin_turn(7, Used(), 10.0)
    for at in (10.0, 10.1):
        budget = budget.begin_call()
        budget = budget.end_call(at)
    # Two looks, and the turn that was read here: the planning process knows less well when.
    told = Used(((100, 0), (200, 0), (50, 7), (50, 7)))
    budget = budget.begin_turn(8, told, 10.5)
    budget = budget.begin_turn(8, told, 10.5)
    assert budget.wait(10.5) == 0
    budget = budget.begin_call()
    budget = budget.end_call(10.5)
    assert budget.wait(10.5) == pytest.approx(0.5)
    # A turn that another process has read.
    budget = budget.begin_turn(9, Used(((300, 8), (200, 6), (200, 6))), 10.6)
    assert budget.wait(10.6) == pytest.approx(0.4)
    unlimited = Budget.of(0, MIB)
    unlimited.begin_turn(1, Used(((0, 0),) * 9), 11.2)
    assert unlimited.wait(11.2) == 0
    assert unlimited.report_usage(11.2) == Used()


def test_a_turn_of_another_process_ends_when_its_next_call_is_allowed() -> None:
    budget = Budget.of(0.2, MIB)
    # Five calls, the first of which had ended 0.7 seconds before the pin.
    budget = budget.count_turn(3, 9, 10.0, 0.3)
    assert budget.wait_of_all(10.1) == pytest.approx(0.2)
    assert budget.wait_of_all(10.1, 2) == pytest.approx(0.9)
    budget = budget.count_turn(4, 0, 11.0, 5.0)
    budget = budget.count_turn(5, 1, 11.0, 4.0)
    assert budget.report_usage(12.0).blocks == ((3000, 5),)
    # It is known better when the turn has ended.
    budget = budget.count_turn(5, 1, 10.5, 4.0)
    assert budget.report_usage(12.0).blocks == ((2500, 5),)
    assert budget.wait_of_all(12.0, 5) == pytest.approx(2.5)


def test_a_full_answer_blocks_the_shard_for_five_seconds() -> None:
    shard, time = limiter()
    call(shard)
    shard.note_answer(10 * MIB)
    before = time.now
    assert not call(shard, patience=4.9)
    assert time.now == before
    assert call(shard, patience=5.1)
    assert time.now - before == pytest.approx(5)


def test_answers_that_come_together_are_paid_for_one_after_the_other() -> None:
    budget = Budget.of(0.0, MIB)
    budget = budget.count_bytes(2 * MIB, 0.0)
    budget = budget.count_bytes(3 * MIB, 0.5)
    assert budget.wait(0.5) == pytest.approx(4.5)


def test_five_calls_need_not_wait_for_each_other() -> None:
    shard, time = limiter()
    for _ in range(5):
        assert call(shard, patience=0)
    assert not call(shard, patience=0)
    assert time.sleeps == []


def test_no_period_is_no_limit() -> None:
    shard, _ = limiter(period=0)
    assert all(call(shard, patience=0) for _ in range(1000))


def test_refusals_in_a_row_are_waited_out_longer_and_an_answer_forgets_them() -> None:
    rng = random.Random(1)

    def longest(failures: int) -> float:
        budget, waits = Budget.of(0.0, MIB), []
        for _ in range(200):
            budget = budget.count_bytes(0, 0.0)
            now = budget.wait(0.0)
            for _ in range(failures):
                now += budget.wait(now)
                budget = budget.count_refusal(now, rng)
            waits.append(budget.wait(now))
        return max(waits)

    assert 0.1 < longest(1) <= 0.2
    assert 0.8 < longest(4) <= 1.6
    assert longest(12) <= 10.0


def test_the_waits_are_those_of_the_options() -> None:
    options = SourceOptions.parse_batch(
        {"streamName": "a", "clientRetryIntervalMs": "3000", "clientMaxRetryIntervalMs": "5000"}
    )
    unused = Budget.of(0.0, MIB, options.client_retry_interval, options.client_max_retry_interval)

    def longest(failures: int) -> float:
        budget, rng, waits = unused, random.Random(1), []
        for _ in range(200):
            budget = budget.count_bytes(0, 0.0)
            for _ in range(failures):
                budget = budget.count_refusal(0.0, rng)
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
        assert all(pool.map(lambda _: call(shard), range(40)))
    # 40 calls at 5 a second: the first 5 are free, the last 5 begin 7 seconds later.
    assert time.now - start >= 7 - 1e-6


def test_a_process_has_one_limiter_for_a_shard() -> None:
    options = SourceOptions(stream_name="a", region="eu-west-1")
    assert shard_limiter(options, "a", "s0") is shard_limiter(options, "a", "s0")
    assert shard_limiter(options, "a", "s0") is not shard_limiter(options, "a", "s1")
    assert shard_limiter(options, "a", "s0") is not shard_limiter(options, "b", "s0")
