"""Failures by ordinal: overlaps are cut and joined, never widened, and the ends that are known stay known."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import numpy as np
import pytest
from heard import told_by
from hypothesis import given, strategies as st

from kinesis_trident.bolt.tracking.failed import NONE, Failed, failures_in, unite
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.tracker import retry
from kinesis_trident.tracker.failure import Failure, Kind, join, parse, text_of
from kinesis_trident.tracker.few_failures import Few
from kinesis_trident.tracker.ids import roots
from kinesis_trident.tracker.records import Noted
from kinesis_trident.tracker.retry import Backoff, RetryPolicy, State, decide

FAILURES = st.sampled_from(
    [
        Failure.said("KeyError: 'account'", "closed"),
        Failure.said("TimeoutError", "outage"),
        Failure.said("HELD"),
        Failure(Kind.HELD, where=("join",)),
        Failure(Kind.HELD, where=("other",), anew=True),
        Failure(Kind.LOST, "its tuples did not all come to b, or came twice"),
    ]
)
Span = tuple[int, int, Failure]
SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 7), FAILURES).map(lambda s: (s[0], s[0] + s[1], s[2])),
    max_size=7,
)


def failed(*spans: Span, placed: bool = True) -> Failed:
    """Return records whose positions are their ordinals; the record before each interval is known."""
    firsts, lasts, failures = zip(*spans, strict=True) if spans else ((), (), ())
    if not placed:
        return Failed.over(firsts, lasts, failures)
    befores = [str(first - 1) if first else None for first in firsts]
    return Failed.over(firsts, lasts, failures, list(map(str, firsts)), list(map(str, lasts)), befores)


def by_record(*spans: Span) -> dict[int, Failure]:
    """The same, record by record."""
    found: dict[int, Failure] = {}
    for first, last, failure in spans:
        for ordinal in range(first, last + 1):
            found[ordinal] = join(found[ordinal], failure) if ordinal in found else failure
    return found


def records(some: Failed) -> dict[int, Failure]:
    runs = zip(some.firsts.tolist(), some.lasts.tolist(), some.failures, strict=True)
    return {ordinal: failure for first, last, failure in runs for ordinal in range(first, last + 1)}


@given(SPANS, st.randoms(use_true_random=False), st.booleans())
def test_each_record_has_the_failures_that_somebody_gave_it(
    spans: list[Span], rng: random.Random, placed: bool
) -> None:
    some = failed(*spans, placed=placed)
    assert records(some) == by_record(*spans)
    assert some.count == len(by_record(*spans))
    assert all(left < right for left, right in zip(some.lasts, some.firsts[1:], strict=False))
    touching = (some.firsts[1:] == some.lasts[:-1] + 1).tolist()
    pairs = zip(touching, pairwise(some.failures), strict=True) if len(some) else ()
    assert all(one != other for touches, (one, other) in pairs if touches)
    # Told in whatever order, in whatever parts, and twice.
    shuffled = rng.sample(spans, len(spans))
    at = rng.randint(0, len(spans))
    parts = failed(*shuffled[:at], placed=placed), failed(*shuffled[at:], placed=placed)
    for other in (parts[0].union(parts[1]), parts[1].union(parts[0]), parts[0].union(parts[1], parts[0])):
        assert records(other) == records(some)
        assert len(other) == len(some)


@given(SPANS)
def test_an_end_is_the_position_of_its_record_or_not_known(spans: list[Span]) -> None:
    some = failed(*spans)
    for first, last, start, end, before in zip(
        some.firsts.tolist(), some.lasts.tolist(), some.starts, some.ends, some.befores, strict=True
    ):
        assert start in ("", str(first))
        assert end in ("", str(last))
        assert before in (None, str(first - 1))
        if start and before is None:
            # It begins what was read: nothing that failed is before it.
            assert first == 0 or first - 1 not in by_record(*spans)


def test_a_cut_knows_its_position_where_another_run_ends() -> None:
    one, other = Failure.said("KeyError", "closed"), Failure.said("TimeoutError", "outage")
    some = failed((0, 9, other), (3, 5, one))
    assert some.is_placed is False
    assert list(zip(some.firsts, some.lasts, some.starts, some.ends, some.befores, strict=True)) == [
        (0, 2, "0", "2", None),
        (3, 5, "3", "5", "2"),
        (6, 9, "", "9", "5"),
    ]
    assert failed((0, 9, other), (0, 9, one)).is_placed
    assert failed((0, 9, other), (3, 5, one), (6, 6, one)).ends == ["2", "6", "9"]


@given(SPANS, st.booleans())
def test_they_travel_as_they_are(spans: list[Span], placed: bool) -> None:
    some = failed(*spans, placed=placed)
    for there in (
        pickle.loads(pickle.dumps(some)),
        Failed.of_columns(*zip(*zip(*some.columns(), strict=True), strict=True)),
    ):
        assert there == some
        assert records(there) == records(some)


def test_what_failed_is_found_among_the_rows() -> None:
    no = Failure.said("no")
    some = unite({1: failed((2, 3, no))}, {1: failed((5, 5, no)), 4: failed((0, 0, no))})
    rows = np.concatenate([roots(7, 1, np.arange(7)), roots(7, 2, np.arange(7)), roots(7, 4, np.arange(2))])
    assert failures_in(some, rows) == dict.fromkeys([2, 3, 5, 14], no)
    assert failures_in({1: NONE}, rows) == {}


TEXTS = st.sampled_from(
    [
        "KeyError: 'a' (bolt closed)",
        "TimeoutError (bolt outage)",
        "NOT_ACKED (bolt a)",
        "ValueError: 7",
        "HELD (bolt join)",
        "HELD_ANEW (bolt join)",
        "LOST: its tuples",
        "WORKER_DIED: by SIGKILL",
        "EXPIRED",
    ]
)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), TEXTS), max_size=9), st.randoms())
def test_where_runs_do_not_overlap_each_is_published_as_it_was_told(
    gaps: list[tuple[int, int, str]], rng: random.Random
) -> None:
    told, pieces, at = list[tuple[int, int, str, str, str, str]](), list[NotDone](), 1
    for gap, count, text in gaps:
        first = at + gap
        at = first + count
        told.append((first, at - 1, str(first), str(at - 1), str(first - 1), text))
        before = pieces[-1] if pieces else None
        if before is not None and before.text == text and before.last == str(first - 1):
            # Neighbours that failed alike are one run, also from two reports.
            pieces[-1] = NotDone(before.first, str(at - 1), before.count + count, text, before.prev)
        else:
            pieces.append(NotDone(str(first), str(at - 1), count, text, str(first - 1)))
    rng.shuffle(told)
    keep = Few("batch").keep
    found = list(Failed.of_columns(*(list(zip(*told, strict=True)) or [()] * 6)).not_done())
    assert found == pieces
    assert [keep(one.text) for one in found] == [one.text for one in pieces]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 7), TEXTS), max_size=7))
def test_where_they_overlap_no_record_gets_what_nobody_has_said_of_it(
    spans: list[tuple[int, int, str]],
) -> None:
    said: dict[int, set[str]] = {}
    for first, more, text in spans:
        for ordinal in range(first, first + more + 1):
            said.setdefault(ordinal, set()).add(text)
    some = failed(*((first, first + more, parse(text)) for first, more, text in spans))
    found = told_by(some)
    assert found.keys() == said.keys()
    for ordinal, text in found.items():
        is_held = {parse(one).kind is Kind.HELD for one in said[ordinal]}
        assert text in said[ordinal] or is_held == {True}


POLICIES = st.builds(
    RetryPolicy,
    limit=st.integers(0, 3),
    backoff=st.just(Backoff(1_000, 60_000, 2)),
    dead_letter=st.booleans(),
    hold_ms=st.sampled_from([0, 5_000, 30_000]),
)


@given(
    POLICIES,
    st.lists(st.tuples(st.integers(0, 9_000), st.lists(TEXTS, max_size=4)), max_size=8),
    st.integers(),
)
def test_each_record_waits_until_its_failures_and_its_holds_are_over(
    policy: RetryPolicy, lives: list[tuple[int, list[str]]], seed: int
) -> None:
    dice, drawn = random.Random(seed), random.Random(seed)
    states: dict[int, tuple[int, tuple[Noted, ...]]] = {}
    since = dict[int, int]()
    now = 1_700_000_000_000
    for more, texts in lives:
        now += more + 1
        fates, dues = retry.Fates(policy, now, dice), dict[int, int | None]()
        for record, text in enumerate(text for text in texts if text != "EXPIRED"):
            attempt, failures = states.get(record, (0, ()))
            failure = parse(text)
            fate = fates.decide(failure, attempt + 1, failures)
            if attempt + 1 not in dues:
                # One draw an attempt, for whichever failure of it comes first.
                is_last = policy.exhausted(attempt + 1)
                dues[attempt + 1] = None if is_last else policy.due(attempt + 1, now, drawn)
            due, was_held = dues[attempt + 1], record in since
            failed = failures[:-1] if was_held else failures
            is_held = failure.kind is Kind.HELD
            began = since.pop(record, now) if is_held and not failure.anew else now
            since.pop(record, None)
            until = policy.held_until(began, now) if is_held else None
            if until is not None:
                # It has not failed: the next delivery has the same number, and the hold is its last word.
                since[record] = began
                assert tuple(fate)[:3] == (State.WAITING, attempt, until)
                assert fate.failures == (*failed, Noted(began, text))[-retry.KEPT_FAILURES :]
            else:
                words = text_of(Failure(Kind.TIMEOUT, where=failure.where)) if is_held else text
                assert fate.failures == (*failed, Noted(now, words))[-retry.KEPT_FAILURES :]
                exhausted = State.DEAD if policy.dead_letter else State.ACKED
                state = exhausted if due is None else State.WAITING
                assert tuple(fate)[:3] == (state, attempt + 1, due or 0)
            states[record] = fate.attempt, fate.failures


@pytest.mark.parametrize("kind", [Kind.EXPIRED, Kind.AGED, Kind.PERMANENT])
def test_what_no_retry_can_help_is_dead_at_once(kind: Kind) -> None:
    policy = RetryPolicy(limit=9)
    fate = decide(Failure(kind, "x"), 1, (), policy, 5, lambda _: pytest.fail("it is not retried"))
    assert (fate.state.name, fate.attempt, fate.due) == ("DEAD", 1, 0)
    assert fate.failures == (Noted(5, text_of(Failure(kind, "x"))),)


def test_who_waits_for_another_record_uses_up_no_attempt_and_a_delay_is_kept() -> None:
    policy = RetryPolicy(limit=0)
    behind = decide(Failure(Kind.BEHIND), 1, (), policy, 5, lambda _: None)
    assert (behind.state.name, behind.attempt, behind.due) == ("WAITING", 0, 0)
    later = decide(Failure.said("x"), 1, (), policy, 5, lambda _: 7_000)
    assert later.due == 7_000
    asked = Failure.said("busy", after="99s")
    assert decide(asked, 1, (), policy, 5, lambda _: 7_000).due == 100_000
    assert decide(asked, 1, (), policy, 5, lambda _: 300_000).due == 300_000
    assert list(failed((0, 0, asked)).not_done()) == [NotDone("0", "0", 1, "AFTER 99s: busy", None)]
