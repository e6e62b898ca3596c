"""Test when a shard is looked at next: soon while records come, seldom while it is idle, and within its calls."""

from __future__ import annotations

import heapq
import math
import random
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.kinesis.rate_limit import ShardBudget, Used
from kinesis_trident.spout.planner.tip.look_pace import (
    BUSY_MS,
    IDLE_MS,
    REFUSED_MS,
    WARM_GAP_MS,
    WARM_MS,
    LookPace,
    TurnCalls,
)
from kinesis_trident.spout.testing.quotas import Quotas, ShardQuota

NOW = 1_700_000_000_000
LIMITED = 0.2
"""Seconds between two calls, as Kinesis allows them on the average."""


def call(pace: LookPace, now: int, size: int = 0) -> None:
    """Call once, with an answer of so many bytes."""
    budget = pace.budget("a")
    budget.note_call()
    budget.note_end(now / 1000)
    budget.note_answer(size, now / 1000)


def used(pace: LookPace, now: int) -> Used:
    return pace.budget("a").report_usage(now / 1000)


def look(pace: LookPace, now: int, *, found: bool) -> int:
    """Look once; return the time of the next look."""
    call(pace, now)
    pace.note_look("a", now, found=found)
    return pace.next_look("a", now)


def turn(pace: LookPace, now: int, calls: int = 1, txid: int = 1) -> int:
    """Settle a turn that came to the tip; return the time of the next look."""
    pace.note_calls("a", now, TurnCalls(calls), txid)
    pace.note_turn("a", now, moved=True)
    return pace.next_look("a", now)


def test_a_shard_that_was_never_looked_at_is_looked_at_now() -> None:
    assert LookPace().next_look("a", NOW) == NOW


def test_an_idle_shard_is_looked_at_with_half_of_its_calls() -> None:
    pace, now = LookPace(period=LIMITED), NOW
    assert 2 * 1000 / IDLE_MS == 5
    for _ in range(5):
        assert look(pace, now, found=False) == now + IDLE_MS
        now += IDLE_MS


def test_refused_looks_are_ever_farther_apart_and_that_passes() -> None:
    pace, now = LookPace(period=LIMITED), NOW
    gaps = []
    for refused in (*[True] * 12, *[False] * 100):
        pace.note_look("a", now, found=None if refused else False)
        due = pace.next_look("a", now)
        gaps.append(due - now)
        now = due
    assert gaps[0] == IDLE_MS < gaps[1]
    assert gaps[:12] == sorted(gaps[:12])
    assert gaps[11] == REFUSED_MS
    assert gaps[12:] == sorted(gaps[12:], reverse=True)
    assert gaps[-1] == IDLE_MS


@pytest.mark.parametrize("moved", [True, False])
def test_a_turn_brings_looks_that_were_refused_no_closer(moved: bool) -> None:
    pace, looked, turned = LookPace(period=LIMITED), NOW, 100
    for _ in range(12):
        looked = pace.next_look("a", looked)
        pace.note_look("a", looked, found=None)
    pace.note_calls("a", looked + turned, TurnCalls(1), 1)
    pace.note_turn("a", looked + turned, moved=moved)
    # A turn that was refused counts as a look.
    assert pace.next_look("a", looked + turned) == looked + REFUSED_MS + (0 if moved else turned)


@pytest.mark.parametrize(("readers", "seldom"), [(2, 0.05), (3, 0.07), (5, 0.12)])
@pytest.mark.parametrize("record_ms", [500, 10_000, 10**9])
def test_several_readers_of_a_shard_come_to_share_its_calls(
    readers: int, seldom: float, record_ms: int
) -> None:
    """Ten minutes of applications that know nothing of each other; without the least gap a third is refused."""
    rng, quota, quotas = random.Random(1), ShardQuota("a"), Quotas()
    paces = [LookPace(period=LIMITED) for _ in range(readers)]
    seen = [0] * readers
    made = [0] * readers
    refused = 0
    due = [(NOW + rng.randrange(1000), reader) for reader in range(readers)]
    while due[0][0] < NOW + 600_000:
        now, reader = heapq.heappop(due)
        pace, newest, found = paces[reader], (now - NOW) // record_ms, None
        try:
            quota.read(quotas, now)
        except ThrottledError:
            refused += 1
        else:
            found = newest > seen[reader]
            seen[reader] = newest
        made[reader] += 1
        answered = now + rng.randrange(5, 25)
        call(pace, answered)
        pace.note_look("a", answered, found=found)
        heapq.heappush(due, (pace.next_look("a", answered) + rng.randrange(15), reader))
    assert refused / sum(made) < seldom
    # They use most of what there is, and none of them starves.
    assert (sum(made) - refused) / 600 > 3.5
    assert max(made) < 3 * min(made)


def test_the_next_look_after_a_finding_comes_soon_and_ever_later_when_nothing_follows() -> None:
    pace = LookPace(period=LIMITED)
    now = look(pace, NOW, found=True)
    assert now == NOW + BUSY_MS
    turn(pace, NOW + 100, 0)
    warm, late = [], []
    for _ in range(14):
        due = look(pace, now, found=False)
        (warm if now < NOW + WARM_MS else late).append(due - now)
        now = due
    # In the first second the earlier call for the finding counts too.
    assert set(warm[3:]) == {WARM_GAP_MS}
    assert set(late) == {IDLE_MS}


@given(gaps=st.lists(st.integers(1, WARM_MS - IDLE_MS), min_size=2, max_size=40))
def test_a_record_of_a_trickle_is_found_soon(gaps: list[int]) -> None:
    """However irregular the trickle is; a look waits for the fourth one before it to be a second old."""
    pace, now, put = LookPace(period=LIMITED), NOW, NOW
    look(pace, now, found=True)
    turn(pace, now, 0)
    looks = [now]
    for gap in gaps:
        put += gap
        while now < put:
            now = pace.next_look("a", now)
            looks.append(now)
            look(pace, now, found=now >= put)
        turn(pace, now, 0)
        assert now - put <= 1000 - 3 * BUSY_MS
    assert all(looks[n + 4] - looks[n] >= 1000 for n in range(len(looks) - 4))


@pytest.mark.parametrize(("calls", "gap"), [(0, 250), (1, 500), (2, 1000)])
def test_looks_that_find_something_each_time_come_evenly_and_leave_a_call(calls: int, gap: int) -> None:
    """A look for each turn: with one read a turn two of each a second, four of five calls."""
    pace, now = LookPace(period=LIMITED), NOW
    dues = []
    for _ in range(12):
        look(pace, now, found=True)
        now = turn(pace, now + 90, calls)
        dues.append(now)
    assert {later - first for first, later in pairwise(dues[4:])} == {gap}


def test_a_shorter_interval_of_idle_shards_leaves_a_call_for_the_turn() -> None:
    pace, now = LookPace(idle=0.05, period=LIMITED), NOW
    looks = [now]
    for _ in range(20):
        now = look(pace, now, found=False)
        looks.append(now)
    assert all(looks[n + 4] - looks[n] >= 1000 for n in range(len(looks) - 4))
    assert len(used(pace, now - 1).calls) == 4


def test_without_a_limit_only_the_time_counts() -> None:
    pace = LookPace(idle=0.001)
    assert look(pace, NOW, found=True) == NOW + 1
    assert turn(pace, NOW, 100) == NOW + 1


def test_a_refused_turn_leaves_the_shard_alone() -> None:
    pace = LookPace(period=LIMITED)
    look(pace, NOW, found=True)
    pace.note_calls("a", NOW + 50, TurnCalls(1), 1)
    pace.note_turn("a", NOW + 50, moved=False)
    assert pace.next_look("a", NOW + 50) == NOW + 50 + IDLE_MS


def test_a_task_counts_what_was_called_in_the_last_second() -> None:
    pace = LookPace(period=LIMITED)
    turn(pace, NOW, 3, 7)
    look(pace, NOW + 10, found=True)
    assert used(pace, NOW + 20).calls == ((20, 7), (20, 7), (20, 7), (10, 0))
    assert used(pace, NOW + 1005) == Used(((995, 0),))
    assert pace.budget("b").report_usage(NOW / 1000) == Used()


@example(
    steps=[
        (1, 0, False, 1),
        (1, 0, True, 1),
        (1, 0, False, 1),
        (1, 0, False, 1),
        (1, 2, True, 1),
        (1, 3, True, 1),
    ],
    workers=1,
    idle=0.01,
    period=0.1,
)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 3), st.booleans(), st.integers(1, 600)), max_size=60
    ),
    workers=st.integers(1, 3),
    idle=st.sampled_from([0.01, 0.25, 1]),
    period=st.sampled_from([0.1, 0.2, 0.4, 1.0, 5.0]),
)
def test_looks_and_reads_together_never_exceed_the_calls_of_a_shard(
    steps: list[tuple[int, int, bool, int]], workers: int, idle: float, period: float
) -> None:
    """A shard at its tip: a look, the turn that follows in any of the worker processes, the next look.

    A step: how long the turn takes to begin, how often it reads beyond its first call, whether the look found something
    at all, and the time until the turn is settled.
    """
    pace = LookPace(idle, period)
    budgets = [ShardBudget(period, 1e15) for _ in range(workers)]
    calls: list[int] = []
    now = NOW
    for number, (begins, more, found, settles) in enumerate(steps):
        now = max(now, pace.next_look("a", now))
        look(pace, now, found=found)
        calls.append(now)
        if not found:
            continue
        known, told = used(pace, now), now
        now += begins
        budget = budgets[number % workers]
        budget.begin_turn(number + 1, known, told / 1000)
        for _ in range(1 + more):
            now += -int(-budget.wait(now / 1000) * 1000 // 1)
            budget.note_call()
            budget.note_end(now / 1000)
            calls.append(now)
        busy = math.ceil(budget.wait_of_all(now / 1000) * 1000)
        now += settles
        pace.note_calls("a", now, TurnCalls(1 + more, busy, settles), number + 1)
        pace.note_turn("a", now, moved=True)
    most = 10 if period == 0.1 else 5
    for first, later in zip(calls, calls[most:], strict=False):
        assert later - first >= 999


def test_what_is_read_ahead_leaves_a_call_to_the_turn() -> None:
    pace = LookPace(period=LIMITED)
    pace.note_calls("a", NOW, TurnCalls(1), 1)
    for _ in range(3):
        assert pace.may_read("a", NOW + 10) == NOW + 10
        call(pace, NOW + 10)
    assert pace.may_read("a", NOW + 20) == NOW + 1000
    assert len(used(pace, NOW + 20).calls) == 4


def test_looks_and_what_is_read_ahead_wait_for_the_bytes_before_them() -> None:
    pace = LookPace(period=LIMITED, rate=2**20)
    # A turn of 3 MiB that was pinned a second ago, and 1 MiB more.
    pace.note_calls("a", NOW, TurnCalls(1, 3000, 1000), 1)
    assert pace.may_read("a", NOW) == pace.next_look("a", NOW) == NOW + 2000
    call(pace, NOW, 2**20)
    assert max(used(pace, NOW).blocks) == (3000, 0)
    assert used(pace, NOW + 5000) == Used()


def test_a_longer_period_of_reads_holds_for_what_is_read_ahead() -> None:
    pace = LookPace(period=3.0)
    call(pace, NOW)
    assert pace.may_read("a", NOW + 5) == NOW + 3000
