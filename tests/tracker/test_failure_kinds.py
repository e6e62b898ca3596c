"""A failure says what kind it is: for good, not before a while, or one more that has failed."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from kinesis_trident import KinesisTridentError, PermanentFailure, RetryLater
from kinesis_trident.tracker.errors import DelayError, seconds_of
from kinesis_trident.tracker.failure import Failure, Kind, error_class, failure_of, parse, text_of
from kinesis_trident.tracker.retry import RetryPolicy, State, decide

NOW = 1_700_000_000_123


class BadOrder(PermanentFailure):
    """A subclass of a job's own."""


class Busy(RetryLater):
    """One with a delay of its own."""

    def __init__(self) -> None:
        super().__init__("1h", "come back later")


SAID = [
    (PermanentFailure("no such customer"), "PERMANENT (bolt b): PermanentFailure: no such customer"),
    (PermanentFailure(), "PERMANENT (bolt b): PermanentFailure"),
    (BadOrder("no lines"), "PERMANENT (bolt b): BadOrder: no lines"),
    (RetryLater("10m", "busy"), "AFTER 600s (bolt b): RetryLater: busy"),
    (RetryLater(timedelta(milliseconds=1)), "AFTER 1s (bolt b): RetryLater"),
    (RetryLater("0s", "busy"), "RetryLater: busy (bolt b)"),
    (Busy(), "AFTER 3600s (bolt b): Busy: come back later"),
    (KeyError("a"), "KeyError: 'a' (bolt b)"),
    ("PERMANENT: no", "PERMANENT: no (bolt b)"),
]


@pytest.mark.parametrize(("error", "text"), SAID)
def test_an_error_says_by_its_class_whether_and_when_its_record_comes_again(error: object, text: str) -> None:
    failure = failure_of(error, "b")
    assert str(failure) == text
    again = parse(text_of(failure))
    assert (again.kind, again.after_s) == (failure.kind, failure.after_s)


def test_both_errors_have_the_one_root_and_travel_between_processes() -> None:
    for error in (RetryLater("10m", "busy"), BadOrder("no"), Busy()):
        assert isinstance(error, KinesisTridentError)
    later = pickle.loads(pickle.dumps(RetryLater("10m", "busy")))
    assert (later.after, str(later)) == ("10m", "busy")


def decided(
    failure: Failure, policy: RetryPolicy, attempt: int = 1, due: int = NOW + 2_000
) -> tuple[State, int]:
    fate = decide(failure, attempt, (), policy, NOW, lambda n: None if policy.exhausted(n) else due)
    assert (fate.attempt, [one.text for one in fate.failures]) == (attempt, [text_of(failure)])
    return fate.state, fate.due


def test_a_record_that_has_failed_for_good_is_dead_after_one_delivery() -> None:
    failure = failure_of(BadOrder("no"))
    assert decided(failure, RetryPolicy(9)) == (State.DEAD, 0)
    assert decided(failure, RetryPolicy(9, dead_letter=False)) == (State.ACKED, 0)


@given(st.integers(1, 4), st.integers(0, 100), st.integers(0, 5_000))
def test_a_record_comes_again_at_the_later_of_both_times_and_its_retries_are_counted(
    attempt: int, after: int, due_in: int
) -> None:
    policy, failure = RetryPolicy(3), failure_of(RetryLater(f"{after}s", "busy"))
    state, due = decided(failure, policy, attempt, NOW + due_in)
    assert state is (State.DEAD if attempt > 3 else State.WAITING)
    if state is State.WAITING:
        assert due >= max(NOW + due_in, NOW + 1_000 * after)
        assert due == NOW + due_in or (due % 1_000 == 0 and due < NOW + 1_000 * after + 1_000)


@pytest.mark.parametrize(
    ("text", "is_final"),
    [
        ("JSONDecodeError: Expecting value (in map(parse))", True),
        ("JSONDecodeErrors: Expecting value", False),
        ("TIMEOUT (bolt join)", True),
        ("TIMED_OUT: parse in map did not end", False),
        ("NOT_ACKED (bolt split)", True),
        ("said: HELD", True),
        ("REFUSED", True),
        ("REFUSED by the table", False),
        ("WORKER_DIED: the Python worker ended by SIGKILL in a", True),
        ("AFTER 5s: REFUSED", False),
        ("a text that names no class", False),
    ],
)
def test_an_option_names_classes_and_words(text: str, is_final: bool) -> None:
    names = frozenset({"JSONDecodeError", "TIMEOUT", "NOT_ACKED", "REFUSED", "WORKER_DIED", "HELD"})
    assert decided(parse(text), RetryPolicy(3, no_retry=names))[0] is (
        State.DEAD if is_final else State.WAITING
    )
    assert decided(parse(text), RetryPolicy(3))[0] is State.WAITING


def test_a_record_that_bolts_hold_has_not_failed_and_a_timeout_that_ends_it_may_be_for_good() -> None:
    policy = RetryPolicy(3, hold_ms=10, no_retry=frozenset({"HELD", "TIMEOUT"}))
    held = decide(Failure(Kind.HELD, where=("join",)), 1, (), policy, NOW, lambda _: NOW)
    assert (held.state, held.attempt) == (State.WAITING, 0)
    late = decide(Failure(Kind.HELD, where=("join",)), 1, held.failures, policy, NOW + 20, lambda _: NOW)
    assert (late.state, late.attempt, late.failures[-1].text) == (State.DEAD, 1, "TIMEOUT (bolt join)")


def test_a_subclass_counts_as_the_class_that_the_option_names() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("no JSON")
    failure = failure_of(caught.value, "in map(parse)")
    assert text_of(failure.without_retry({"KeyError"})) == text_of(failure)
    final = failure.without_retry({"ValueError"})
    assert text_of(final).startswith("PERMANENT: JSONDecodeError: Expecting value")
    assert final.where == failure.where
    # What says itself when it comes again is not a matter of the option.
    later = failure_of(RetryLater("5s", "busy"))
    assert later.without_retry({"RetryLater", "Exception"}) == later


@pytest.mark.parametrize(
    ("after", "seconds"),
    [("30s", 30), ("1.5s", 2), ("10m", 600), (" 2 h ", 7_200), (timedelta(days=366), 366 * 86_400)],
)
def test_a_delay_is_a_duration_with_its_unit(after: str | timedelta, seconds: int) -> None:
    assert seconds_of(after) == seconds


@pytest.mark.parametrize(
    "after",
    ["", "10", "soon", "-1s", "1d", "9" * 400 + "h", "367h9", 600, None, timedelta(-1), timedelta(days=367)],
)
def test_what_is_no_delay_is_named_with_what_to_give(after: object) -> None:
    with pytest.raises(DelayError, match=r"^after=.* is no delay\. Give a duration with its unit"):
        seconds_of(after)
    if after is not None:
        with pytest.raises(DelayError, match="is no delay"):
            RetryLater(after, "busy")  # type: ignore[arg-type]
        with pytest.raises(DelayError, match="is no delay"):
            Failure.said("busy", after=after)  # type: ignore[arg-type]


def test_a_delay_of_what_does_not_come_again_is_refused() -> None:
    msg = r"after='10m' is given for a record that does not come again\. Leave it out"
    for call in (
        lambda: Failure.said("no", retry=False, after="10m"),
        lambda: failure_of(PermanentFailure("no"), after="10m"),
        lambda: failure_of(RetryLater("5m", "no"), retry=False, after="10m"),
    ):
        with pytest.raises(DelayError, match=msg):
            call()


def test_what_is_given_beside_an_error_counts() -> None:
    assert failure_of(RetryLater("5m", "no"), after="10m").after_s == 600
    assert failure_of(RetryLater("5m", "no"), retry=False).kind is Kind.PERMANENT


@pytest.mark.parametrize(("error", "text"), SAID)
def test_failures_are_counted_by_kind_or_by_class(error: object, text: str) -> None:
    name = error_class(text)
    assert name == ("PERMANENT" if "PERMANENT" in text else "AFTER" if "AFTER" in text else name)
    assert error_class("AFTER: all") == "AFTER"
    assert error_class("AGED") == "AGED"
