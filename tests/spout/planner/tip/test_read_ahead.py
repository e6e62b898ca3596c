"""Test what is kept of a shard that is read ahead: never more than its room, and which answer is waited for."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.planner.tip.looks import Look, join_answers
from kinesis_trident.spout.planner.tip.read_ahead import (
    MOST_BYTES,
    MOST_BYTES_OF_A_SHARD,
    Room,
    ShardAhead,
)
from kinesis_trident.spout.positions import TRIM_HORIZON

ROOM = Room(10_000, 50)


def answer(sizes: list[int], behind: int | None) -> Page:
    """An answer with records of these sizes."""
    columns = [
        pa.array(["key"] * len(sizes), pa.string()),
        pa.array([bytes(size) for size in sizes], pa.binary()),
        pa.array(["7" * 56] * len(sizes), pa.string()),
        pa.array([-1] * len(sizes), pa.int64()),
        pa.array([0] * len(sizes), pa.int64()).view(pa.timestamp("us", tz="UTC")),
    ]
    return Page(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), "next", behind, sum(sizes))


def look(page: Page | None, **more: object) -> Look:
    return replace(Look(ShardCursor(TRIM_HORIZON, "here", page), more=True), **more)


@given(st.integers(1, 512), st.integers(1, 2**30), st.integers(1, 10**6))
def test_the_rooms_of_all_shards_are_within_the_bound(shards: int, payload: int, records: int) -> None:
    room = Room.of(shards, payload, records)
    assert 0 < room.bytes <= min(MOST_BYTES_OF_A_SHARD, payload)
    assert shards * room.bytes <= MOST_BYTES


@given(
    st.lists(
        st.one_of(
            st.just("refused"),
            st.just("the same"),
            st.tuples(st.integers(0, 6_000), st.sampled_from([0, 5, None])),
        ),
        max_size=30,
    )
)
def test_no_more_is_kept_than_there_is_room_for(answers: list[str | tuple[int, int | None]]) -> None:
    ahead = ShardAhead(TRIM_HORIZON, 300.0)
    for now, one in enumerate(answers):
        if ahead.is_full(ROOM):
            break
        limit = ahead.limit(ROOM)
        before = ahead.held
        assert 1 <= limit <= ROOM.records - before[0]
        if one == "refused":
            ahead.take(look(None, refused=now), now, ROOM)
            assert ahead.ended
        elif one == "the same" and ahead.look is not None:
            ahead.take(ahead.look, now, ROOM)
            assert ahead.ended
        elif isinstance(one, tuple):
            page = answer([one[0]] * limit, one[1])
            held = ahead.look.cursor.page if ahead.look is not None else None
            ahead.take(look(page if held is None else join_answers(held, page)), now, ROOM)
            # What does not fit is not kept, and what was kept stays.
            assert ahead.held in (before, (before[0] + limit, ahead.held[1]))
        assert ahead.held[0] <= ROOM.records
        assert ahead.held[1] <= ROOM.bytes


@pytest.mark.parametrize(
    ("called", "took", "since", "worth"),
    [(False, 30, 200, True), (False, 1000, 200, False), (True, 1000, 200, False), (True, 1000, 600, True)],
)
def test_who_waits_spares_more_time_than_it_takes(called: bool, took: int, since: int, worth: bool) -> None:
    ahead = ShardAhead(TRIM_HORIZON, 300.0, asked=1_000)
    assert ahead.is_worth_waiting(1_000, called=True)
    assert not ahead.is_worth_waiting(1_000, called=False)
    assert ahead.take(look(answer([1], 0)), 1_000 + took, ROOM)
    # The next one was asked for at once.
    ahead.asked = 1_000 + took
    assert ahead.is_worth_waiting(1_000 + took + since, called=called) is worth


def test_what_is_behind_the_tip_is_not_waited_for() -> None:
    ahead = ShardAhead(TRIM_HORIZON, 300.0)
    assert ahead.take(look(answer([1], 5)), 1, ROOM)
    assert not ahead.is_worth_waiting(10_000, called=True)
