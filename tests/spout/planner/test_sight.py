"""Test which shards are read: known from the last turn, else looked up, at the pace of the shard."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from looking import answers
from settled import settled

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Plan
from kinesis_trident.spout.planner.pace import BUSY_MS, IDLE_MS as LOOK_PERIOD_MS, SCARCE_MS, LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import TRIM_HORIZON, Position

NOW = 1_700_000_000_000
A = {"a": TRIM_HORIZON}


class Stream:
    """Answers as told, and keeps who was asked."""

    def __init__(self, **more: bool | None) -> None:
        self.more: dict[str, bool | None] = more
        self.asked: list[str] = []
        self.reached = 9

    def look(self, positions: Mapping[str, Position]) -> Mapping[str, bool | None]:
        asked = list(positions)[: self.reached]
        self.asked += asked
        return {shard: self.more[shard] for shard in asked}


class Watch:
    """Has a stream looked at where that is due."""

    def __init__(self, stream: Stream) -> None:
        self.sights = Sights(LookTimes.of())
        self.stream = stream

    @property
    def drained(self) -> set[str]:
        return self.sights.find_drained(Shards("parentFirst"))

    def stop_at_tip(self, until: int) -> None:
        self.sights = self.sights.stop_at_tip(until)

    def next_look(self, positions: Mapping[str, Position], now: int) -> int:
        return self.sights.next_look(positions, now)

    def find(self, positions: Mapping[str, Position], now: int) -> list[str]:
        watched = {shard: at for shard, at in positions.items() if shard not in self.drained}
        due, self.sights = self.sights.find_due(watched, now)
        self.sights = self.sights.take(answers(self.stream.look(due)), {}, now)
        return [
            shard for shard in sorted(watched) if self.sights.has_more(shard) and shard not in self.drained
        ]

    def are_drained(self, positions: Mapping[str, Position]) -> bool:
        return self.drained >= positions.keys()


def after_a_turn(
    watch: Watch, *, moved: bool, seen: int | None, now: int, arrival: int | None = None
) -> None:
    plan = Plan(txid=1, plan="p", streams={}, positions={"a": "TRIM_HORIZON"}, read=("a",))
    position = "AFTER_SEQUENCE_NUMBER 7" if moved else "TRIM_HORIZON"
    node = CheckpointNode(checkpoint=None, txid=1, position=position, seen=seen, arrival=arrival)
    states = {shard: ShardState(TRIM_HORIZON, node if shard == "a" else None) for shard in "abc"}
    watch.sights = watch.sights.observe(settled(plan), Shards("parentFirst", states), now)


def test_a_shard_is_looked_at_once_a_second_until_it_has_more() -> None:
    stream = Stream(a=False)
    watch = Watch(stream)
    for now in range(NOW, NOW + 3 * LOOK_PERIOD_MS, 100):
        assert watch.find(A, now) == []
    assert stream.asked == ["a"] * 3
    stream.more["a"] = True
    assert watch.find(A, NOW + 3 * LOOK_PERIOD_MS) == ["a"]
    assert watch.find(A, NOW + 9 * LOOK_PERIOD_MS) == ["a"]
    assert stream.asked == ["a"] * 4


def test_what_a_turn_left_unread_needs_no_look() -> None:
    stream = Stream(a=True)
    watch = Watch(stream)
    watch.find(A, NOW)
    after_a_turn(watch, moved=True, seen=None, now=NOW + 10)
    assert watch.find(A, NOW + 20) == ["a"]
    assert stream.asked == ["a"]


def test_after_a_turn_that_came_to_the_tip_the_next_look_comes_soon() -> None:
    stream = Stream(a=True)
    watch = Watch(stream)
    watch.find(A, NOW)
    after_a_turn(watch, moved=True, seen=NOW, now=NOW + 10)
    assert watch.find(A, NOW + BUSY_MS - 1) == []
    assert watch.next_look(A, NOW + 10) == NOW + BUSY_MS
    assert watch.find(A, NOW + BUSY_MS) == ["a"]
    assert stream.asked == ["a", "a"]


@pytest.mark.parametrize("seen", [None, NOW - 5_000])
def test_a_turn_that_read_nothing_leaves_the_tip_unknown(seen: int | None) -> None:
    # It was throttled, or never ran: `seen` is then that of an earlier turn, and the shard must not count as ended.
    stream = Stream(a=True)
    watch = Watch(stream)
    watch.stop_at_tip(NOW)
    watch.find(A, NOW)
    after_a_turn(watch, moved=False, seen=seen, now=NOW + 10)
    assert not watch.are_drained(A)
    assert watch.find(A, NOW + 20) == []
    assert watch.find(A, NOW + 10 + LOOK_PERIOD_MS) == ["a"]


def test_until_the_tip_a_shard_found_there_is_read_no_more() -> None:
    stream = Stream(a=True, b=False)
    both = A | {"b": TRIM_HORIZON}
    watch = Watch(stream)
    watch.stop_at_tip(NOW)
    assert watch.find(both, NOW) == ["a"]
    assert not watch.are_drained(both)
    after_a_turn(watch, moved=True, seen=NOW, now=NOW + 10)
    assert watch.are_drained(both)
    stream.more["b"] = True
    assert watch.find(both, NOW + 5 * LOOK_PERIOD_MS) == []
    assert not watch.are_drained(both | {"child": TRIM_HORIZON})


def test_a_shard_that_never_comes_to_its_tip_has_ended_once_it_is_read_beyond_the_start() -> None:
    watch = Watch(Stream(a=True))
    watch.stop_at_tip(NOW)
    for arrival, ended in ((NOW - 1, False), (NOW, False), (NOW + 1, True)):
        assert watch.find(A, NOW) == ["a"]
        after_a_turn(watch, moved=True, seen=None, now=NOW, arrival=arrival)
        assert watch.are_drained(A) is ended
    assert watch.find(A, NOW + LOOK_PERIOD_MS) == []


def test_a_shard_whose_tip_is_not_known_has_not_ended() -> None:
    stream = Stream(a=None)
    watch = Watch(stream)
    watch.stop_at_tip(NOW)
    assert watch.find(A, NOW) == []
    assert not watch.are_drained(A)
    stream.more["a"] = True
    assert watch.find(A, NOW + SCARCE_MS) == ["a"]


def test_the_next_look_at_an_idle_shard_waits_its_interval() -> None:
    watch = Watch(Stream(a=False, b=False))
    assert watch.next_look(A, NOW) == NOW
    watch.find(A, NOW)
    assert watch.next_look(A, NOW + 300) == NOW + LOOK_PERIOD_MS
    assert watch.next_look(A | {"b": TRIM_HORIZON}, NOW + 300) == NOW + 300
    assert watch.next_look({}, NOW) == NOW + LOOK_PERIOD_MS


def test_a_shard_with_more_that_may_not_be_read_is_no_reason_to_wake() -> None:
    # Blocked by maxRetryingRecords, it has more for as long as it waits; a look long past due would never let rest.
    watch = Watch(Stream(a=True))
    watch.find(A, NOW)
    later = NOW + 10 * LOOK_PERIOD_MS
    assert watch.next_look(A, later) == later + LOOK_PERIOD_MS


def test_a_turn_that_was_refused_after_a_look_is_planned_again_without_another_look() -> None:
    """A look at a large record uses up what the shard allows: the turn after each look would be refused."""
    stream = Stream(a=True)
    watch = Watch(stream)
    for now in range(NOW, NOW + 10_000, LOOK_PERIOD_MS):
        assert watch.find(A, now) == ["a"]
        after_a_turn(watch, moved=False, seen=None, now=now)
    assert stream.asked == ["a"]
    watch.find(A, NOW + 10_000)
    assert stream.asked == ["a"] * 2


def test_shards_that_were_left_out_of_a_look_come_first_in_the_next() -> None:
    stream = Stream(a=True, b=False, c=False)
    watch = Watch(stream)
    every: dict[str, Position] = dict.fromkeys("abc", TRIM_HORIZON)
    stream.reached = 2
    assert watch.find(every, NOW) == ["a"]
    assert watch.next_look(every, NOW) <= NOW
    stream.asked.clear()
    stream.reached = 9
    watch.find(every, NOW + LOOK_PERIOD_MS)
    assert stream.asked == ["c", "b"]
