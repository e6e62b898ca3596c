"""The table of standings: each cause against each question, and what follows where several causes hold."""

from __future__ import annotations

from itertools import combinations

import pytest

from kinesis_trident.checkpoint.model.nodes import InflightNode, ShardLineage
from kinesis_trident.checkpoint.model.standing import (
    AHEAD,
    BLOCKED,
    DRAINED,
    ENDED,
    IDLE,
    NOT_READ,
    PAUSED,
    REFUSED,
    TABLE,
    WAITS_FOR_PARENTS,
    InStep,
    Looks,
    Share,
    Standing,
    StandingCause,
    cause_of,
    find_standing,
    standing_of,
)

ROWS = """
not-read          | -     | NEVER       | NO      | -     | LEFT_OUT | -
ended             | -     | NEVER       | NO      | -     | ZERO     | -
childless         | -     | NEVER       | A_WHILE | -     | ZERO     | -
paused            | -     | SELDOM      | NO      | -     | APART    | expiry
waits-for-parents | -     | SELDOM      | NO      | -     | COUNTED  | expiry
blocked           | -     | UNTIL_KNOWN | A_WHILE | drain | COUNTED  | expiry
retries-first     | -     | UNTIL_KNOWN | A_WHILE | drain | COUNTED  | expiry
refused           | reads | PACE        | A_WHILE | drain | COUNTED  | expiry
ahead             | -     | PACE        | YES     | drain | COUNTED  | expiry
drain             | -     | SELDOM      | NO      | -     | COUNTED  | expiry
unknown           | reads | PACE        | A_WHILE | drain | COUNTED  | expiry
idle              | reads | PACE        | AT_TIP  | drain | COUNTED  | expiry
reading           | reads | PACE        | YES     | drain | COUNTED  | expiry
"""


def of(*causes: StandingCause) -> Standing:
    return standing_of(frozenset(causes))


def test_each_cause_answers_each_question() -> None:
    said = [
        (
            cause.word,
            "reads" if cause.reads else "-",
            cause.looks.name,
            cause.step.name,
            "drain" if cause.drain else "-",
            cause.share.name,
            "expiry" if cause.expiry else "-",
        )
        for cause in TABLE
    ]
    assert said == [tuple(cell.strip() for cell in row.split("|")) for row in ROWS.strip().splitlines()]
    assert [cause_of(word) for word, *_ in said] == list(TABLE)
    assert cause_of("of-another-release") is None


def test_what_may_expire_is_looked_at() -> None:
    """Else an empty shard is taken for a loss: nobody has seen that it was empty."""
    for many in range(4):
        for causes in combinations(TABLE, many):
            standing = of(*causes)
            assert standing.looks is not Looks.NEVER or not standing.expiry


def test_of_several_causes_each_question_has_the_answer_that_does_least() -> None:
    for causes in combinations(TABLE, 2):
        both, (one, other) = of(*causes), causes
        assert both.reads is (one.reads and other.reads)
        assert both.drain is (one.drain and other.drain)
        assert both.expiry is (one.expiry and other.expiry)
        assert both.looks == min(one.looks, other.looks)
        assert both.step == min(one.step, other.step)
        assert both.share == min(one.share, other.share)
        assert both is of(other, one) is of(one).also(other) is both.also(one)


@pytest.mark.parametrize(
    ("causes", "word"),
    [
        ((), ""),
        ((IDLE,), ""),
        ((REFUSED,), ""),
        ((REFUSED, BLOCKED), "blocked"),
        ((DRAINED, AHEAD), "ahead"),
        ((WAITS_FOR_PARENTS, BLOCKED), "waits-for-parents"),
        ((WAITS_FOR_PARENTS, PAUSED), "paused"),
        ((PAUSED, REFUSED), "paused"),
        ((PAUSED, NOT_READ), "not-read"),
        ((NOT_READ, BLOCKED), "not-read"),
        ((ENDED, BLOCKED), ""),
        ((ENDED, NOT_READ), ""),
    ],
)
def test_the_first_cause_says_what_keeps_a_shard_from_being_read(
    causes: tuple[StandingCause, ...], word: str
) -> None:
    assert of(*causes).held_by == word


def test_without_a_cause_a_shard_is_read() -> None:
    plain = of()
    assert (plain.reads, plain.looks, plain.step, plain.drain, plain.share, plain.expiry) == (
        True,
        Looks.PACE,
        InStep.YES,
        True,
        Share.COUNTED,
        True,
    )


def test_the_nodes_of_a_shard_say_how_it_stands() -> None:
    full = InflightNode(txid=1, waiting=(), blocked="too many")

    def stands(state: str | None, inflight: InflightNode | None = None, **said: bool) -> tuple[str, ...]:
        listed = None if state is None else ShardLineage(state=state)  # type: ignore[arg-type]
        facts = {"is_read": True, "waits": False} | said
        return tuple(cause.word for cause in find_standing(listed, inflight, **facts).causes)

    assert stands("open") == stands("closed") == ()
    assert stands("open", InflightNode(txid=1, waiting=())) == ()
    assert stands("open", full) == ("blocked",)
    assert stands("open", waits=True) == ("waits-for-parents",)
    assert stands("open", is_paused=True) == ("paused",)
    assert stands("open", full, is_paused=True, waits=True) == ("paused", "waits-for-parents", "blocked")
    assert stands("drained", is_paused=True) == ("ended",)
    assert stands("drained", waits=True) == stands(None, waits=True) == ("ended",)
    assert stands("drained", is_childless=True) == ("childless",)
    assert stands("drained", full, is_read=False) == ("not-read", "ended", "blocked")
