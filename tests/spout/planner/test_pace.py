"""Test when a shard is looked at next: soon while records come, seldom while it is idle, and within its calls."""

from __future__ import annotations

import heapq
import math
import random
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given, strategies as st
from msgspec.structs import replace
from settled import make_pin

from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.kinesis.rate_limit import Budget, Used
from kinesis_trident.spout.planner.pace import (
    BUSY_MS,
    IDLE_MS,
    REFUSED_MS,
    WARM_GAP_MS,
    WARM_MS,
    LookTimes,
)
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.testing.quotas import Quotas, ShardQuota

NOW = 1_700_000_000_000
LIMITED = 0.2
"""Seconds between two calls, as Kinesis allows them on the average."""


class Calls(NamedTuple):
    """The calls of a turn, for how long the shard is busy, and when it was pinned."""

    reads: int
    busy_ms: int = 0
    ago_ms: int = 0


class Shard:
    """One shard, and what is known of it."""

    def __init__(self, idle: float = IDLE_MS / 1000, period: float = 0.0, rate: float = math.inf) -> None:
        self.sight = Sights(LookTimes.of(idle, period, rate)).of("a")

    def call(self, now: int, size: int = 0) -> None:
        """Call once, with an answer of so many bytes."""
        budget = self.sight.budget.begin_call().end_call(now / 1000).count_bytes(size, now / 1000)
        self.sight = replace(self.sight, budget=budget)

    def used(self, now: int) -> Used:
        return self.sight.budget.report_usage(now / 1000)

    def note_look(self, now: int, *, found: bool | None) -> int:
        """Learn of a look; return the time of the next one."""
        self.sight = self.sight.note_look(now, found=found)
        return self.sight.next_look(now)

    def look(self, now: int, *, found: bool) -> int:
        """Look once; return the time of the next look."""
        self.call(now)
        return self.note_look(now, found=found)

    def turn(self, now: int, calls: Calls, txid: int = 1, *, moved: bool = True) -> int:
        """Settle a turn; return the time of the next look."""
        self.sight = self.sight.note_calls(
            make_pin(reads=calls.reads, busy_ms=calls.busy_ms), now, txid, calls.ago_ms
        )
        self.sight = replace(self.sight, pace=self.sight.pace.note_turn(now, moved=moved))
        return self.sight.next_look(now)


def test_a_shard_that_was_never_looked_at_is_looked_at_now() -> None:
    assert Shard().sight.next_look(NOW) == NOW


def test_an_idle_shard_is_looked_at_with_half_of_its_calls() -> None:
    shard, now = Shard(period=LIMITED), NOW
    assert 2 * 1000 / IDLE_MS == 5
    for _ in range(5):
        assert shard.look(now, found=False) == now + IDLE_MS
        now += IDLE_MS


def test_refused_looks_are_ever_farther_apart_and_that_passes() -> None:
    shard, now = Shard(period=LIMITED), NOW
    gaps = []
    for refused in (*[True] * 12, *[False] * 100):
        shard.note_look(now, found=None if refused else False)
        due = shard.sight.next_look(now)
        gaps.append(due - now)
        now = due
    assert gaps[0] == IDLE_MS < gaps[1]
    assert gaps[:12] == sorted(gaps[:12])
    assert gaps[11] == REFUSED_MS
    assert gaps[12:] == sorted(gaps[12:], reverse=True)
    assert gaps[-1] == IDLE_MS


@pytest.mark.parametrize("moved", [True, False])
def test_a_turn_brings_looks_that_were_refused_no_closer(moved: bool) -> None:
    shard, looked, turned = Shard(period=LIMITED), NOW, 100
    for _ in range(12):
        looked = shard.sight.next_look(looked)
        shard.note_look(looked, found=None)
    shard.turn(looked + turned, Calls(1), 1, moved=moved)
    # A turn that was refused counts as a look.
    assert shard.sight.next_look(looked + turned) == looked + REFUSED_MS + (0 if moved else turned)


@pytest.mark.parametrize(("readers", "seldom"), [(2, 0.05), (3, 0.07), (5, 0.12)])
@pytest.mark.parametrize("record_ms", [500, 10_000, 10**9])
def test_several_readers_of_a_shard_come_to_share_its_calls(
    readers: int, seldom: float, record_ms: int
) -> None:
    """Ten minutes of applications that know nothing of each other; without the least gap a third is refused."""
    rng, quota, quotas = random.Random(1), ShardQuota("a"), Quotas()
    shards = [Shard(period=LIMITED) for _ in range(readers)]
    seen = [0] * readers
    made = [0] * readers
    refused = 0
    due = [(NOW + rng.randrange(1000), reader) for reader in range(readers)]
    while due[0][0] < NOW + 600_000:
        now, reader = heapq.heappop(due)
        shard, newest, found = shards[reader], (now - NOW) // record_ms, None
        try:
            quota.read(quotas, now)
        except ThrottledError:
            refused += 1
        else:
            found = newest > seen[reader]
            seen[reader] = newest
        made[reader] += 1
        answered = now + rng.randrange(5, 25)
        shard.call(answered)
        shard.note_look(answered, found=found)
        heapq.heappush(due, (shard.sight.next_look(answered) + rng.randrange(15), reader))
    assert refused / sum(made) < seldom
    # They use most of what there is, and none of them starves.
    assert (sum(made) - refused) / 600 > 3.5
    assert max(made) < 3 * min(made)


def test_the_next_look_after_a_finding_comes_soon_and_ever_later_when_nothing_follows() -> None:
    shard = Shard(period=LIMITED)
    now = shard.look(NOW, found=True)
    assert now == NOW + BUSY_MS
    shard.turn(NOW + 100, Calls(0))
    warm, late = [], []
    for _ in range(14):
        due = shard.look(now, found=False)
        (warm if now < NOW + WARM_MS else late).append(due - now)
        now = due
    # In the first second the earlier call for the finding counts too.
    assert set(warm[3:]) == {WARM_GAP_MS}
    assert set(late) == {IDLE_MS}


@given(gaps=st.lists(st.integers(1, WARM_MS - IDLE_MS), min_size=2, max_size=40))
def test_a_record_of_a_trickle_is_found_soon(gaps: list[int]) -> None:
    """However irregular the trickle is; a look waits for the fourth one before it to be a second old."""
    shard, now, put = Shard(period=LIMITED), NOW, NOW
    shard.look(now, found=True)
    shard.turn(now, Calls(0))
    looks = [now]
    for gap in gaps:
        put += gap
        while now < put:
            now = shard.sight.next_look(now)
            looks.append(now)
            shard.look(now, found=now >= put)
        shard.turn(now, Calls(0))
        assert now - put <= 1000 - 3 * BUSY_MS
    assert all(looks[n + 4] - looks[n] >= 1000 for n in range(len(looks) - 4))


@pytest.mark.parametrize(("calls", "gap"), [(0, 250), (1, 500), (2, 1000)])
def test_looks_that_find_something_each_time_come_evenly_and_leave_a_call(calls: int, gap: int) -> None:
    """A look for each turn: with one read a turn two of each a second, four of five calls."""
    shard, now = Shard(period=LIMITED), NOW
    dues = []
    for _ in range(12):
        shard.look(now, found=True)
        now = shard.turn(now + 90, Calls(calls))
        dues.append(now)
    assert {later - first for first, later in pairwise(dues[4:])} == {gap}


def test_a_shorter_interval_of_idle_shards_leaves_a_call_for_the_turn() -> None:
    shard, now = Shard(idle=0.05, period=LIMITED), NOW
    looks = [now]
    for _ in range(20):
        now = shard.look(now, found=False)
        looks.append(now)
    assert all(looks[n + 4] - looks[n] >= 1000 for n in range(len(looks) - 4))
    assert len(shard.used(now - 1).calls) == 4


def test_without_a_limit_only_the_time_counts() -> None:
    shard = Shard(idle=0.001)
    assert shard.look(NOW, found=True) == NOW + 1
    assert shard.turn(NOW, Calls(100)) == NOW + 1


def test_a_refused_turn_leaves_the_shard_alone() -> None:
    shard = Shard(period=LIMITED)
    shard.look(NOW, found=True)
    shard.turn(NOW + 50, Calls(1), 1, moved=False)
    assert shard.sight.next_look(NOW + 50) == NOW + 50 + IDLE_MS


def test_a_task_counts_what_was_called_in_the_last_second() -> None:
    shard = Shard(period=LIMITED)
    shard.turn(NOW, Calls(3), 7)
    shard.look(NOW + 10, found=True)
    assert shard.used(NOW + 20).calls == ((20, 7), (20, 7), (20, 7), (10, 0))
    assert shard.used(NOW + 1005) == Used(((995, 0),))
    assert Shard(period=LIMITED).used(NOW) == Used()


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
    shard = Shard(idle, period)
    budgets = [Budget.of(period, 1e15) for _ in range(workers)]
    calls: list[int] = []
    now = NOW
    for number, (begins, more, found, settles) in enumerate(steps):
        now = max(now, shard.sight.next_look(now))
        shard.look(now, found=found)
        calls.append(now)
        if not found:
            continue
        known, told = shard.used(now), now
        now += begins
        budget = budgets[number % workers]
        budget = budget.begin_turn(number + 1, known, told / 1000)
        for _ in range(1 + more):
            now += -int(-budget.wait(now / 1000) * 1000 // 1)
            budget = budget.begin_call().end_call(now / 1000)
            calls.append(now)
        budgets[number % workers] = budget
        busy = math.ceil(budget.wait_of_all(now / 1000) * 1000)
        now += settles
        shard.turn(now, Calls(1 + more, busy, settles), number + 1)
    most = 10 if period == 0.1 else 5
    for first, later in zip(calls, calls[most:], strict=False):
        assert later - first >= 999


def test_what_is_read_ahead_leaves_a_call_to_the_turn() -> None:
    shard = Shard(period=LIMITED)
    shard.turn(NOW, Calls(1))
    for _ in range(3):
        assert shard.sight.may_read(NOW + 10) == NOW + 10
        shard.call(NOW + 10)
    assert shard.sight.may_read(NOW + 20) == NOW + 1000
    assert len(shard.used(NOW + 20).calls) == 4


def test_looks_and_what_is_read_ahead_wait_for_the_bytes_before_them() -> None:
    shard = Shard(period=LIMITED, rate=2**20)
    # A turn of 3 MiB that was pinned a second ago, and 1 MiB more.
    shard.turn(NOW, Calls(1, 3000, 1000))
    assert shard.sight.may_read(NOW) == shard.sight.next_look(NOW) == NOW + 2000
    shard.call(NOW, 2**20)
    assert max(shard.used(NOW).blocks) == (3000, 0)
    assert shard.used(NOW + 5000) == Used()


def test_a_longer_period_of_reads_holds_for_what_is_read_ahead() -> None:
    shard = Shard(period=3.0)
    shard.call(NOW)
    assert shard.sight.may_read(NOW + 5) == NOW + 3000
