"""Shards of unequal rates stay in step: no row is late for a watermark of the bound and a minute."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from thorough import cases

from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.alignment import (
    BOUND_MS,
    HOLD_MS,
    AlignedRead,
    Alignment,
    Behind,
    align,
    find_oldest_unread,
    step,
)
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp
from kinesis_trident.tracker.records import RecordPosition

MINUTE = 60_000
HOUR = 60 * MINUTE
BEGUN = 1_700_000_000_000


class Steps:
    """The steps of a run one after the other: each goes on from the one before, as a run's do by its sights."""

    def __init__(self, bound: int | None = None) -> None:
        self.alignment = Alignment(bound)
        self.last = AlignedRead([])

    def take(self, behind: Behind, now: int, steady: int) -> AlignedRead:
        """Return what the next batch reads."""
        self.last = step(behind, now, steady, self.alignment.bound, self.last)
        self.alignment = self.alignment.note_read(self.last)
        return self.last


@dataclass
class Shard:
    """A shard in memory: when its records arrived, how many were read, and what is known of the others."""

    arrivals: list[int]
    parents: tuple[str, ...] = ()
    at: int = 0
    ahead: tuple[int, int] | None = None

    @property
    def is_drained(self) -> bool:
        return self.at == len(self.arrivals)

    @property
    def oldest(self) -> int:
        """What is known of the oldest unread record: it is no older than the last one that was read."""
        return self.ahead[0] if self.ahead else self.arrivals[self.at - 1]

    def read(self, upto: int | None, most: int) -> list[int]:
        """Read a turn of one page."""
        page = self.arrivals[self.at : self.at + most]
        taken = len(page) if upto is None else bisect_right(page, upto)
        self.at += taken
        rest = page[taken:]
        self.ahead = (rest[0], rest[-1]) if rest else None
        return page[:taken]

    def look(self, most: int = 1) -> None:
        if not self.is_drained:
            self.ahead = self.arrivals[self.at], self.arrivals[self.at : self.at + most][-1]


@dataclass
class Stream:
    """A stream that is read in batches, and the rows that came late."""

    shards: dict[str, Shard]
    margin: int
    listed: set[str] = field(default_factory=set)
    newest: int = 0
    batches: int = 0
    late: int = 0

    def list_shards(self) -> None:
        """List the children of shards that are read to their end, and look at them."""
        for name, shard in self.shards.items():
            if name not in self.listed and all(self.shards[one].is_drained for one in shard.parents):
                self.listed.add(name)
                shard.look()

    def batch(self, step: AlignedRead, most: int) -> None:
        watermark = self.newest - self.margin
        for name in step.read:
            if rows := self.shards[name].read(step.upto, most):
                self.late += bisect_left(rows, watermark)
                self.newest = max(self.newest, rows[-1])
        self.batches += 1

    @property
    def readable(self) -> dict[str, Shard]:
        return {name: self.shards[name] for name in self.listed if not self.shards[name].is_drained}

    @property
    def childless(self) -> dict[str, Shard]:
        parents = {one for name in self.listed for one in self.shards[name].parents}
        return {name: self.shards[name] for name in self.listed - parents if self.shards[name].is_drained}


def backlog(rng: Random, shards: int, most: int, hours: int, reshards: int) -> dict[str, Shard]:
    """A backlog with rates of 1:100; some shards are split in between, and one child is as fat as its parent."""
    found: dict[str, Shard] = {}
    for n in range(shards):
        count = int(most * 100 ** -rng.random()) or 1
        arrivals = sorted(BEGUN + int(rng.random() * hours * HOUR) for _ in range(count))
        if n < reshards:
            cut = bisect_right(arrivals, BEGUN + rng.randrange(hours * HOUR))
            found[f"{n}"] = Shard(arrivals[:cut] or [BEGUN])
            rest = arrivals[cut:] or [BEGUN + hours * HOUR]
            found[f"{n}-0"] = Shard(rest[::10] or rest, (f"{n}",))
            found[f"{n}-1"] = Shard(rest, (f"{n}",))
        else:
            found[f"{n}"] = Shard(arrivals)
    return found


def play(
    stream: Stream, rng: Random, bound: int | None, most: int, restarts: float, looks: float = 1.0
) -> Stream:
    """Read a backlog to its end; without a bound the shards are not kept in step.

    `looks`: the share of looks that the limits of their shards allow.
    """
    stream.list_shards()
    steps = Steps(bound)
    now, steady = BEGUN + 100 * HOUR, 0
    unlisted = 0
    while any(not shard.is_drained for shard in stream.shards.values()):
        steady += 100
        readable = stream.readable
        if bound is None:
            found = AlignedRead(list(readable))
        else:
            if rng.random() < restarts:
                steps = Steps(bound)
                for shard in readable.values():
                    shard.look()
            childless = stream.childless if unlisted else {}
            oldest = {name: shard.oldest for name, shard in (readable | childless).items()}
            behind = Behind(oldest, sorted(readable), childless)
            behind = steps.alignment.find_unsure(behind, ahead_of(readable))
            kept = {}
            for name in behind.unsure:
                if rng.random() < looks:
                    readable[name].look(most)
                    kept[name] = readable[name].ahead or (0, 0)
            found = steps.take(behind.know(kept), now, steady)
            assert found.read or childless
        if found.read:
            stream.batch(found, most)
        # The listing after the batch may fail.
        unlisted = unlisted + 1 if unlisted < 2 and rng.random() < 0.3 else 0
        if not unlisted:
            stream.list_shards()
    return stream


def ahead_of(shards: Mapping[str, Shard]) -> Sights:
    """Return what turns have said of what comes next; of what one record says nothing is sure."""
    sights = Sights(LookTimes.of())
    sure = {name: one.ahead for name, one in shards.items() if one.ahead and one.ahead[0] < one.ahead[1]}
    return sights.put({name: replace(sights.of(name), ahead=ahead) for name, ahead in sure.items()})


@given(
    st.integers(),
    st.integers(1, 12),
    st.integers(1, 2000),
    st.integers(0, 6),
    st.sampled_from([MINUTE, 5 * MINUTE, HOUR]),
    st.integers(1, 500),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.7, 1.0]),
)
def test_no_row_is_late(
    seed: int, shards: int, most: int, reshards: int, bound: int, turn: int, restarts: float, looks: float
) -> None:
    rng = Random(seed)
    stream = Stream(backlog(rng, shards, most, 10, reshards), bound + MINUTE)
    play(stream, rng, bound, turn, restarts, looks)
    assert stream.late == 0
    assert all(shard.is_drained for shard in stream.shards.values())


@pytest.mark.parametrize(
    ("bound", "turn", "speed"),
    cases((HOUR, 12 * MINUTE, 0.9), (5 * MINUTE, 4 * MINUTE, 0.86), long=((5 * MINUTE, 2 * MINUTE, 0.86),)),
)
def test_a_thousand_shards_stay_in_step_at_the_speed_of_the_fullest(
    bound: int, turn: int, speed: float
) -> None:
    """A turn of the fullest shard reads `turn` of the stream."""
    hourly = 100 if bound == HOUR else 150

    def read(bound: int | None) -> Stream:
        stream = Stream(backlog(Random(1), 1000, 10 * hourly, 10, 50), (bound or HOUR) + MINUTE)
        return play(stream, Random(2), bound, hourly * turn // HOUR, 0.02)

    aligned, free = read(bound), read(None)
    assert (aligned.late, free.late > 10_000) == (0, True)
    assert free.batches >= speed * aligned.batches


def shard(at: int | None = None, *, arrival: int | None = None, seen: int | None = None) -> ShardState:
    position = TRIM_HORIZON if at is None else After(RecordPosition(at))
    node = CheckpointNode(checkpoint=None, txid=1, position=str(position), arrival=arrival, seen=seen)
    return ShardState(TRIM_HORIZON, None if at is None else node)


def look(behind: int | None = None, **found: int | bool | None) -> Look:
    position = TRIM_HORIZON if behind is None else After(RecordPosition(behind))
    return Look(ShardCursor(position), **found)  # type: ignore[arg-type]


def test_what_is_known_of_the_oldest_unread_record() -> None:
    assert find_oldest_unread(shard(), None, None, ()) is None
    assert find_oldest_unread(shard(), look(more=True, arrival=7), None, ()) == 7
    # Nothing is unread until then.
    assert find_oldest_unread(shard(), look(more=False, at=9), None, ()) == 9
    # It does not know yet, or looked elsewhere.
    assert find_oldest_unread(shard(), look(at=9), None, ()) is None
    assert find_oldest_unread(shard(3, arrival=5), look(2, more=True, arrival=4), None, ()) == 5
    # It came after the last one that was read, or after the tip was seen, or it was seen behind a turn.
    assert find_oldest_unread(shard(3, arrival=5), None, None, ()) == 5
    assert find_oldest_unread(shard(3, arrival=5, seen=6), None, None, ()) == 6
    assert find_oldest_unread(shard(3, arrival=5), None, (8, 9), ()) == 8
    # A child begins where its parents end.
    ends = [shard(1, arrival=3).checkpoint, shard(2, arrival=4).checkpoint, None]
    assert find_oldest_unread(shard(), None, None, ends) == 4
    assert find_oldest_unread(ShardState(AtTimestamp(2)), None, None, ()) == 2


def test_the_shards_behind_are_read_up_to_the_bound_and_the_others_wait() -> None:
    oldest = {"a": 100, "b": 200, "c": 201, "d": 900}
    assert align(oldest, {}, "abcd", 100) == (["a", "b"], 200)
    # What a turn reads for sure need not be waited for.
    assert align(oldest, {"a": 400, "b": 300}, "abcd", 100) == (["a", "b", "c"], 301)
    # Those that catch up in one turn do so once that is worth it.
    sure = dict.fromkeys("bcd", 999)
    assert align({"a": 100, "b": 175, "c": 176, "d": 900}, sure, "abcd", 100) == (["a", "b"], 200)
    # One that nothing is known of holds nobody.
    assert align({"a": 100}, {}, "az", 100) == (["a", "z"], 200)


LATE = BEGUN + 10 * HOUR


def step_of(
    steps: Steps,
    oldest: dict[str, int | None],
    wanted: str,
    *,
    steady: int = 0,
    standing: Collection[str] = "",
) -> AlignedRead:
    return steps.take(Behind(oldest, wanted, standing), LATE, steady)


def test_nothing_is_bounded_while_no_shard_is_behind() -> None:
    steps = Steps()
    near = LATE - BOUND_MS // 2
    assert step_of(steps, {"a": near, "b": LATE}, "ab") == AlignedRead(["a", "b"])
    assert step_of(steps, {"a": near - 1, "b": LATE}, "ab") == AlignedRead(["a", "b"], near - 1 + BOUND_MS)
    assert step_of(steps, {}, "") == AlignedRead([])


def test_the_others_wait_for_a_shard_of_which_nothing_is_known() -> None:
    assert step_of(Steps(), {"a": BEGUN, "b": None}, "a") == AlignedRead([])
    # A server that does not say when records arrive: there is nothing to wait for.
    assert step_of(Steps(), {"a": BEGUN, "b": None}, "ab") == AlignedRead(["a", "b"], BEGUN + BOUND_MS)


@pytest.mark.parametrize("why", ["blocked", "refused", "unknown"])
def test_a_shard_that_cannot_be_read_holds_the_others_for_a_time(why: str) -> None:
    steps = Steps()
    oldest: dict[str, int | None] = {"a": None if why == "unknown" else BEGUN, "b": BEGUN + HOUR}
    # Its turns were refused, so it is known to have more.
    standing, wanted = "" if why == "unknown" else "a", "ab" if why == "refused" else "b"

    def take(steady: int) -> AlignedRead:
        return step_of(steps, oldest, wanted, steady=steady, standing=standing)

    for steady in (1000, 1000 + HOLD_MS - 1):
        held = take(steady)
        assert ("b" not in held.read, held.passed) == (True, [])
    passed = take(1000 + HOLD_MS)
    assert ("b" in passed.read, passed.upto, passed.passed) == (True, BEGUN + HOUR + BOUND_MS, ["a"])
    # That is said once.
    assert take(2000 + HOLD_MS).passed == []
    # It counts again once it is read.
    oldest["a"] = BEGUN + 1
    assert step_of(steps, oldest, "ab", steady=3000 + HOLD_MS) == AlignedRead(["a"], BEGUN + 1 + BOUND_MS)


def test_shards_that_can_all_not_be_read_do_not_go_apart() -> None:
    steps = Steps()
    oldest: dict[str, int | None] = {"a": BEGUN, "b": BEGUN + HOUR}
    for steady in (0, HOLD_MS):
        assert step_of(steps, oldest, "", standing="ab", steady=steady) == AlignedRead([], BEGUN + BOUND_MS)
    assert step_of(steps, oldest, "ab", steady=HOLD_MS + 1) == AlignedRead(["a"], BEGUN + BOUND_MS)


def test_auto_lets_a_query_catch_up_whose_batches_are_seldom() -> None:
    alignment, fixed = Alignment(), Alignment(2 * MINUTE)
    for n in range(6):
        # One long pause is no pace.
        at = n * 10 * MINUTE if n != 3 else 30 * MINUTE + 1
        alignment, fixed = alignment.note_plan(at), fixed.note_plan(at)
    assert alignment.bound == 3 * (10 * MINUTE - 1)
    assert fixed.bound == 2 * MINUTE
    for n in range(4):
        alignment = alignment.note_plan(n * 1000)
    assert alignment.bound == BOUND_MS
