"""Test when a failed record comes again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.tracker.errors import BackoffError, TrackerError
from kinesis_trident.tracker.failure import BEHIND, Failure
from kinesis_trident.tracker.retry import Backoff, Fates, RetryPolicy, State


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("1s..60s x2", Backoff(1_000, 60_000, 2)),
        ("100ms..5m x2", Backoff(100, 300_000, 2)),
        (" 1.5s .. 1h  x 1.5 ", Backoff(1_500, 3_600_000, 1.5)),
        ("0s..0s x1", Backoff(0, 0, 1)),
    ],
)
def test_parse(text: str, backoff: Backoff) -> None:
    assert Backoff.parse(text) == backoff
    assert Backoff.parse(str(backoff)) == backoff


@pytest.mark.parametrize(
    "text", ["", "1s", "1s..60s", "60s..1s x2", "1s..60s x0.5", "1..60 x2", "1s..60s x2 y", "-1s..2s x2"]
)
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(BackoffError) as caught:
        Backoff.parse(text)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, TrackerError)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(BackoffError, match="-1"):
        RetryPolicy(limit=-1)


def test_three_retries_are_four_deliveries() -> None:
    policy = RetryPolicy(limit=3)
    assert [policy.exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, False, True]
    assert RetryPolicy(limit=0).exhausted(1)


@given(
    base=st.integers(0, 10**6),
    extra=st.integers(0, 10**9),
    factor=st.floats(1, 1e6),
    attempt=st.integers(1, 10**12),
    now=st.integers(0, 2**45),
    seed=st.integers(0, 9),
)
def test_due_is_a_whole_second_within_the_bound(
    base: int, extra: int, factor: float, attempt: int, now: int, seed: int
) -> None:
    backoff = Backoff(base, base + extra, factor)
    bound = backoff.bound(attempt)
    assert base <= bound <= base + extra
    assert backoff.bound(attempt + 1) >= bound
    due = RetryPolicy(3, backoff).due(attempt, now, random.Random(seed))
    assert due % 1_000 == 0
    assert now <= due < now + bound + 1_000


def test_the_bound_doubles_up_to_the_cap() -> None:
    backoff = Backoff.parse("1s..10s x2")
    assert [backoff.bound(attempt) for attempt in (1, 2, 3, 4, 5)] == [1_000, 2_000, 4_000, 8_000, 10_000]


def test_jitter_uses_all_of_the_delay() -> None:
    policy, rng = RetryPolicy(3, Backoff(60_000, 60_000, 1)), random.Random(3)
    dues = {policy.due(1, 0, rng) for _ in range(2_000)}
    assert dues >= set(range(1_000, 61_000, 1_000))


def test_what_waits_for_another_record_uses_up_no_delivery_and_is_due_at_once() -> None:
    fates = Fates(RetryPolicy(limit=1), 7_000, random.Random(1))
    first = fates.decide(BEHIND, 1, ())
    assert (first.state, first.attempt, first.due) == (State.WAITING, 0, 0)
    again = Fates(RetryPolicy(limit=1), 8_000, random.Random(1)).decide(BEHIND, 1, first.failures)
    assert [one.time for one in again.failures] == [8_000]
    failed = fates.decide(Failure.said("no"), 1, again.failures)
    assert (failed.attempt, [one.text for one in failed.failures]) == (1, ["no"])
    behind = fates.decide(BEHIND, 2, failed.failures)
    assert (behind.attempt, behind.due, [one.text for one in behind.failures]) == (1, 0, ["no", "BEHIND"])
    dead = fates.decide(Failure.said("no"), 2, behind.failures)
    assert (dead.state, dead.attempt, [one.text for one in dead.failures]) == (State.DEAD, 2, ["no", "no"])
