"""However many different reasons there are, a place keeps few of them, and the same ones again the next time."""

from __future__ import annotations

import unicodedata

from hypothesis import given, strategies as st

from kinesis_trident.common.visible_text import REASON_LENGTH, make_reason, make_visible
from kinesis_trident.tracker.inflight.entries import add_failure
from kinesis_trident.tracker.reasons import MAX_REASONS, FewReasons
from kinesis_trident.tracker.records import Failure, Run


def runs_of(reasons: list[str]) -> list[Run]:
    return [Run(str(n), str(n), failures=(Failure(n, reason),)) for n, reason in enumerate(reasons)]


def test_of_more_reasons_than_are_kept_the_class_of_the_error_stays() -> None:
    few = FewReasons("shard").limit_reasons(runs_of([f"ValueError: {n}" for n in range(MAX_REASONS + 2)]))
    assert [run.failures[0].reason for run in few[-3:]] == [
        f"ValueError: {MAX_REASONS - 1}",
        "ValueError: (more than 64 reasons in this shard)",
        "ValueError: (more than 64 reasons in this shard)",
    ]
    assert [run.failures[0].time for run in few] == list(range(MAX_REASONS + 2))


@given(st.lists(st.text("ab:", max_size=3) | st.integers(0, 200).map(str), max_size=300))
def test_what_is_kept_is_bounded_and_kept_the_same_again(reasons: list[str]) -> None:
    few = FewReasons("shard").limit_reasons(runs_of(reasons))
    assert len({run.failures[0].reason for run in few}) <= 2 * MAX_REASONS + 1
    again = FewReasons("shard").limit_reasons(few)
    # What is shortened once is a reason like any other from there on.
    assert len({run.failures[0].reason for run in again}) <= 2 * MAX_REASONS + 1


@given(st.text() | st.text("\0\n\x1b\x7f\x9b\u202e\ud83d\\abc", max_size=600))
def test_a_reason_is_short_valid_and_has_no_control_characters(text: str) -> None:
    reason = make_reason(text)
    assert len(reason) <= REASON_LENGTH
    assert reason.encode().decode() == reason
    assert not any(unicodedata.category(one) in {"Cc", "Zl", "Zp"} for one in reason)
    assert make_reason(reason) == reason


def test_a_terminal_escape_is_shown_not_obeyed() -> None:
    assert make_visible("red \x1b[31m\r\nline\x9b2J \u202e日本") == r"red \x1b[31m\r\nline\x9b2J \u202e日本"
    assert FewReasons("shard").keep_reason("\x1b]0;owned\x07") == r"\x1b]0;owned\x07"
    [failure] = add_failure((), 1, "\x1b[2J" + "x" * 300)
    assert failure.reason == r"\x1b[2J" + "x" * 249


def test_runs_with_known_reasons_are_the_same_objects() -> None:
    runs = runs_of(["a", "b", "a"])
    assert all(one is other for one, other in zip(FewReasons("shard").limit_reasons(runs), runs, strict=True))
