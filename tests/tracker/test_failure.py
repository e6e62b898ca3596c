"""Why a record is not done: one rule for several failures, texts that mean what they say, and few of them."""

from __future__ import annotations

import unicodedata
from functools import reduce
from itertools import permutations

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from kinesis_trident.common.visible_text import REASON_LENGTH, make_reason, make_visible
from kinesis_trident.tracker.failure import Failure, Kind, error_class, is_held, join, parse, shown, text_of
from kinesis_trident.tracker.few_failures import MAX_REASONS, Few
from kinesis_trident.tracker.records import Noted, Run

BOLTS = st.sampled_from(["a", "b", "split (stream odd)"])
FUNCTIONS = st.sampled_from(["in map(parse)", "in words: each(<lambda>)"])
REASONS = st.sampled_from(["", "x", "ValueError: no number", "HELD", "said: HELD"])


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    kind = draw(st.sampled_from(Kind))
    is_held = kind <= Kind.HELD
    where = draw(
        st.lists(BOLTS, max_size=3, unique=True) if is_held else st.lists(BOLTS | FUNCTIONS, max_size=1)
    )
    return Failure(
        kind,
        "" if is_held else draw(REASONS),
        tuple(sorted(where)),
        draw(st.sampled_from([0, 0, 5, 9])),
        kind is Kind.HELD and draw(st.booleans()),
    )


@given(st.lists(failures(), min_size=1, max_size=4))
def test_several_failures_of_a_record_join_in_whatever_order_and_however_often(some: list[Failure]) -> None:
    joined = {reduce(join, order) for order in permutations(some)}
    assert len(joined) == 1
    (one,) = joined
    assert reduce(join, [*some, *some], one) == one
    left, right = some[: len(some) // 2], some[len(some) // 2 :]
    assert reduce(join, [reduce(join, part) for part in (left, right) if part]) == one
    assert one.kind == max(each.kind for each in some)
    if one.kind > Kind.HELD:
        assert msgspec.structs.replace(one, after_s=0) in [
            msgspec.structs.replace(each, after_s=0) for each in some
        ]


def test_all_bolts_that_hold_a_record_are_named_unless_some_are_not_known() -> None:
    one, other = Failure(Kind.HELD, where=("b",)), Failure(Kind.HELD, where=("a",), anew=True)
    assert text_of(join(one, other)) == "HELD_ANEW (bolt a) (bolt b)"
    assert text_of(join(one, Failure(Kind.HELD))) == "HELD"
    assert join(one, Failure.said("no", "c")) == Failure.said("no", "c")


SAID = st.builds(
    "".join,
    st.lists(
        st.sampled_from(
            [
                "HELD",
                "HELD_ANEW",
                "TIMEOUT",
                "EXPIRED",
                "PERMANENT",
                "AFTER",
                "LOST",
                "WORKER_DIED",
                "BEHIND",
                "AGED",
                "UNREADABLE",
                "said: ",
                " (bolt x)",
                " (bolt ",
                " (in map(x))",
                " (in ",
                ")",
                ": ",
                " 12",
                " 12s",
                "x",
                " ",
            ]
        ),
        max_size=5,
    ),
) | st.text(max_size=300)


@given(SAID, st.lists(BOLTS, max_size=1))
@example("HELD", ["a"])
@example("HELD (bolt a) (bolt b)", [])
@example("said: HELD", [])
@example("AFTER 12s: x", [])
@example("x" * 250 + "HELD", ["a"])
def test_what_somebody_says_never_decides(text: str, where: list[str]) -> None:
    stored = text_of(Failure.said(text, *where))
    assert len(stored) <= REASON_LENGTH
    assert not is_held(stored)
    back = parse(stored)
    assert (back.kind, back.after_s) == (Kind.RETRY, 0)
    assert text_of(back) == stored
    suffix = f" (bolt {where[0]})" if where else ""
    said = make_reason(text)
    expected = said[: REASON_LENGTH - len(suffix)] + suffix
    # Only where it is escaped and too long, it loses the last characters.
    at = len(shown(stored)) - len(suffix)
    assert shown(stored) == said[:at] + suffix
    assert shown(stored) == expected or (stored.startswith("said: ") and len(stored) == REASON_LENGTH)


@given(failures())
def test_a_failure_is_read_as_it_was_stored(failure: Failure) -> None:
    assert parse(text_of(failure)) == failure


# As releases have stored them: byte for byte.
TEXTS = {
    "ValueError: no number": Failure(reason="ValueError: no number"),
    "ValueError: no number (bolt parse)": Failure(reason="ValueError: no number", where=("parse",)),
    "NOT_ACKED (bolt split (stream odd))": Failure(reason="NOT_ACKED", where=("split (stream odd)",)),
    "HELD": Failure(Kind.HELD),
    "HELD (bolt a)": Failure(Kind.HELD, where=("a",)),
    "HELD_ANEW (bolt a) (bolt b)": Failure(Kind.HELD, where=("a", "b"), anew=True),
    "TIMEOUT": Failure(Kind.TIMEOUT),
    "TIMEOUT (bolt a) (bolt b)": Failure(Kind.TIMEOUT, where=("a", "b")),
    "EXPIRED": Failure(Kind.EXPIRED),
    "LOST: its tuples did not all come to b, or came twice": Failure(
        Kind.LOST, "its tuples did not all come to b, or came twice"
    ),
    "WORKER_DIED: the Python worker ended by SIGKILL in a": Failure(
        Kind.DIED, "the Python worker ended by SIGKILL in a"
    ),
    "UNREADABLE: no JSON": Failure(Kind.UNREADABLE, "no JSON"),
    # Later ones may write these.
    "BEHIND": Failure(Kind.BEHIND),
    "AGED": Failure(Kind.AGED),
    "PERMANENT (bolt a): no such account": Failure(Kind.PERMANENT, "no such account", ("a",)),
    "AFTER 600s (bolt a): busy": Failure(Kind.RETRY, "busy", ("a",), 600),
    "AFTER 600 (bolt a): busy": Failure(reason="AFTER 600 (bolt a): busy"),
    "said: HELD": Failure(reason="HELD"),
    "said: HELD (bolt a)": Failure(reason="HELD", where=("a",)),
    "HELDER": Failure(reason="HELDER"),
    "HELD up": Failure(reason="HELD up"),
    "AFTER: all": Failure(reason="AFTER: all"),
    "HELD (bolt a": Failure(reason="HELD (bolt a"),
    "": Failure(),
}


@pytest.mark.parametrize("text", TEXTS)
def test_each_word_is_stored_as_releases_have_stored_it(text: str) -> None:
    assert parse(text) == TEXTS[text]
    assert text_of(TEXTS[text]) == text
    assert str(TEXTS[text]) == text.removeprefix("said: ")


def test_bolts_are_named_all_or_not_at_all() -> None:
    """A name that is cut off would be that of another bolt."""
    long = Failure(Kind.HELD, where=("a" * 120, "b"))
    assert parse(text_of(long)) == long
    assert text_of(Failure(Kind.HELD, where=("a" * 200, "b" * 200))) == "HELD"
    assert text_of(Failure.said("x" * 300, "b" * 200)) == "x" * 148 + f" (bolt {'b' * 100})"


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("ValueError: x", "ValueError"),
        ("NOT_ACKED (bolt split)", "NOT_ACKED"),
        ("no class at all", "other"),
        ("", "other"),
    ],
)
def test_failures_are_counted_by_the_class_of_the_error(reason: str, name: str) -> None:
    assert error_class(reason) == name


def runs_of(reasons: list[str]) -> list[Run]:
    return [Run(str(n), str(n), failures=(Noted(n, reason),)) for n, reason in enumerate(reasons)]


def test_of_more_reasons_than_are_kept_the_class_of_the_error_stays() -> None:
    few = Few("shard").limit(runs_of([f"ValueError: {n}" for n in range(MAX_REASONS + 2)]))
    assert [run.failures[0].reason for run in few[-3:]] == [
        f"ValueError: {MAX_REASONS - 1}",
        "ValueError: (more than 64 reasons in this shard)",
        "ValueError: (more than 64 reasons in this shard)",
    ]
    assert [run.failures[0].time for run in few] == list(range(MAX_REASONS + 2))


@given(st.lists(failures(), max_size=20))
def test_what_a_failure_means_stays_however_many_there_are(more: list[Failure]) -> None:
    few = Few("batch")
    for n in range(MAX_REASONS):
        few.keep(f"ValueError: {n}")
    for failure in more:
        kept = parse(few.keep(text_of(failure)))
        assert (kept.kind, kept.where, kept.anew) == (failure.kind, failure.where, failure.anew)
        assert kept.after_s == failure.after_s
    for n in range(3 * MAX_REASONS):
        few.keep(text_of(Failure(Kind.HELD, where=(f"bolt-{n}",))))
    assert parse(few.keep(text_of(Failure(Kind.HELD, where=("another",))))) == Failure(Kind.HELD)
    assert parse(few.keep(text_of(Failure(Kind.LOST, "another", ("x",))))).kind is Kind.LOST
    # A delay becomes longer, never shorter.
    kept = parse(few.keep(text_of(Failure.said("busy", "another", after="10m"))))
    assert (kept.kind, kept.after_s) == (Kind.RETRY, 1_024)


@given(st.lists(st.text("ab:", max_size=3) | st.integers(0, 200).map(str), max_size=300))
def test_what_is_kept_is_bounded_and_kept_the_same_again(reasons: list[str]) -> None:
    few = Few("shard").limit(runs_of(reasons))
    assert len({run.failures[0].reason for run in few}) <= 2 * MAX_REASONS + 1
    again = Few("shard").limit(few)
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
    assert Few("shard").keep("\x1b]0;owned\x07") == r"\x1b]0;owned\x07"
    assert text_of(Failure.said("\x1b[2J" + "x" * 300)) == r"\x1b[2J" + "x" * 249


def test_runs_with_known_reasons_are_the_same_objects() -> None:
    runs = runs_of(["a", "b", "a"])
    assert all(one is other for one, other in zip(Few("shard").limit(runs), runs, strict=True))
