from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.reader.letter_box import LetterBox


@given(
    groups=st.lists(st.lists(st.sampled_from(["posts", "has none", "leaves"]), max_size=5), max_size=3),
    rng=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=50)
def test_each_group_is_written_at_once_before_any_of_its_turns_goes_on(
    groups: list[list[str]], rng: Any
) -> None:
    named = [{f"s{at}-{n}": kind for n, kind in enumerate(group)} for at, group in enumerate(groups)]
    written: list[dict[str, Sequence[Any]]] = []
    box = LetterBox(named, written.append)
    turns = [(shard, kind) for group in named for shard, kind in group.items()]
    rng.shuffle(turns)

    def run(shard: str, kind: str) -> None:
        if kind == "leaves":
            box.leave(shard)
            return
        box.post(shard, ["letter"] if kind == "posts" else [])  # type: ignore[list-item]
        assert kind != "posts" or any(shard in one for one in written)

    with ThreadPoolExecutor(max(1, len(turns))) as pool:
        list(pool.map(lambda turn: run(*turn), turns))
    expected = [[shard for shard, kind in group.items() if kind == "posts"] for group in named]
    assert sorted(map(sorted, written)) == sorted(filter(None, expected))


def test_all_turns_of_a_group_fail_if_their_letters_cannot_be_written() -> None:
    def write(_: object) -> None:
        raise DeadLetterError("the disk is full")

    box = LetterBox([["a", "b", "c"]], write)
    with ThreadPoolExecutor(3) as pool:
        posted = [pool.submit(box.post, shard, ["letter"]) for shard in "abc"]  # type: ignore[list-item]
    for one in posted:
        with pytest.raises(DeadLetterError, match="the disk is full"):
            one.result()


def test_nobody_waits_for_a_turn_of_a_task_that_has_ended() -> None:
    written: list[object] = []
    box = LetterBox([["a", "b"]], written.append)
    with ThreadPoolExecutor(1) as pool:
        posted = pool.submit(box.post, "a", ["letter"])  # type: ignore[list-item]
        box.close()
        with pytest.raises(DeadLetterError, match="the task has ended"):
            posted.result()
    assert written == []
