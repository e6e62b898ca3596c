"""Pauses as values: what they are about, how long they last, and which shards stand for them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.checkpoint.model.pauses import NOTHING_PAUSED, Pause, correct_ends, find_paused

NOW, MINUTE = 1_700_000_000_000, 60_000


def pause(shards: str, until: int | None = None, since: int = NOW, *, everything: bool = False) -> Pause:
    return Pause(shards, since, "r", "u@h", until, everything)


@pytest.mark.parametrize(
    ("shards", "covered"),
    [
        ("", ["1", "12", "a@1/1", "a@1/12"]),
        ("1", ["1"]),
        ("a@1/", ["a@1/1", "a@1/12"]),
        ("a@1/1", ["a@1/1"]),
        ("a@2/", []),
    ],
)
def test_a_pause_is_about_all_about_a_stream_or_about_a_shard(shards: str, covered: list[str]) -> None:
    every = ["1", "12", "a@1/1", "a@1/12"]
    assert [one for one in every if pause(shards).covers(one)] == covered
    assert sorted(find_paused([pause(shards)], dict.fromkeys(every, ShardLineage()), ())) == covered


def test_of_the_same_shards_there_is_one_pause_and_what_is_over_goes() -> None:
    first, over = pause("1"), pause("2", NOW + 1)
    node = NOTHING_PAUSED.add(first).add(over)
    again = pause("1", NOW + 9, since=NOW + 1)
    assert node.add(again).pauses == (again,)
    assert node.leave_out(["1"]).pauses == (over,)


@given(st.integers(-10, 10), st.integers(1, 100), st.lists(st.integers(1, 60), max_size=5))
def test_a_pause_ends_when_it_says_or_after_so_long(ahead: int, length: int, later: list[int]) -> None:
    """Who asked had a clock that was `ahead`; from when it was seen first, it lasts no longer than was asked for."""
    since = NOW + ahead * MINUTE
    asked = pause("", since + length * MINUTE, since=since)
    known: dict[Pause, Pause] = {}
    now = NOW
    for minutes in (0, *later):
        now += minutes * MINUTE
        known = correct_ends([asked], now, known)
        assert known[asked].lasts(now) is (now < min(asked.until or 0, NOW + length * MINUTE))


def test_another_pause_of_the_same_shards_and_millisecond_has_its_own_end() -> None:
    first, second = pause("", NOW + 50), pause("", NOW + 500)
    known = correct_ends([second], NOW + 1, correct_ends([first], NOW))
    assert known == {second: second}


def test_one_without_an_end_lasts() -> None:
    assert correct_ends([pause("")], NOW) == {pause(""): pause("")}
    assert pause("").lasts(2 * NOW)


def test_who_waits_for_what_is_paused_stands_as_it_does() -> None:
    lineage = {
        "done": ShardLineage(state="drained"),
        "a": ShardLineage(("done",), state="closed"),
        "b": ShardLineage(("gone",), state="closed"),
        "child": ShardLineage(("a", "b")),
        "grandchild": ShardLineage(("child",)),
        "other": ShardLineage(("b",)),
    }
    waiting = {"child", "grandchild", "other", "elsewhere"}
    one = pause("a")
    assert find_paused([one], lineage, waiting) == {"a": one, "child": one, "grandchild": one}
    # Children are read beside their parents where nothing keeps an order.
    assert find_paused([one], lineage, ()) == {"a": one}
    # What was read to its end keeps nobody waiting.
    assert find_paused([pause("done")], lineage, waiting) == {}


def test_of_several_pauses_the_one_that_lasts_longest_counts() -> None:
    short, longer, endless, whole = (
        pause("a@1/", NOW + 1),
        pause("a@1/1", NOW + 2),
        pause(""),
        pause("", NOW + 1, everything=True),
    )
    lineage = {"a@1/1": ShardLineage()}
    for some, found in (([short, longer], longer), ([endless, longer], endless), ([endless, whole], whole)):
        assert find_paused(some, lineage, ()) == {"a@1/1": found}
        assert find_paused(some[::-1], lineage, ()) == {"a@1/1": found}
