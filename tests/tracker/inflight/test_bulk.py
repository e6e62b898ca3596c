"""Tracking by arrays, against a model that holds every record by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from naive_shard import shard_positions
from test_record_tracker import invariants
from thorough import examples
from traced import traced

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight import open_rows, record_tracker
from kinesis_trident.tracker.inflight.open_rows import Positions
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

FORMS = {
    "positions": lambda found: found,
    "texts": lambda found: [str(position) for position in found],
    "arrow": lambda found: pa.array([str(position) for position in found]),
    "numpy": lambda found: np.array([str(position).encode() for position in found]),
}


class Bulk:
    """A tracker and, for each record, its position, state and attempt; some records come alone, without an ordinal."""

    def __init__(self, policy: RetryPolicy, r: random.Random) -> None:
        self.r, self.policy = r, policy
        self.tracker = InflightRecordTracker(policy)
        self.source: Iterator[RecordPosition] = shard_positions(r)
        self.positions: list[RecordPosition] = []
        self.state: list[str] = []
        self.attempt: list[int] = []
        self.given: list[int] = []
        self.rng = random.Random(1)

    def step(self) -> None:
        before = self.tracker.checkpoint
        what = self.r.choice(
            [
                *(self.emit, self.emit_one, self.ack, self.ack, self.fail),
                *(self.retry, self.retry_one, self.ack_one, self.fail_one),
            ]
        )
        if self.given or what in (self.emit, self.emit_one):
            what()
        self.check(before)

    def some(self) -> np.ndarray:
        """Ordinals in random order: some twice, some never emitted."""
        count = len(self.given)
        window = self.r.randint(1, count)
        start = self.r.randint(0, count - window)
        share = self.r.choice([0.1, 0.5, 1])
        found = [i for i in range(start, start + window) if self.r.random() < share]
        found += [*found[:2], count + 5, -1]
        self.r.shuffle(found)
        return np.array(found, np.int64)

    def emit(self) -> None:
        new = [next(self.source) for _ in range(self.r.randint(0, 20))]
        form = self.r.choice(list(FORMS.values()))
        ordinals = self.tracker.emit_many(len(new), form(new))
        assert ordinals == range(len(self.given), len(self.given) + len(new))
        self.given += range(len(self.state), len(self.state) + len(new))
        self.note(new)

    def emit_one(self) -> None:
        for position in (new := [next(self.source) for _ in range(self.r.randint(1, 4))]):
            assert self.tracker.emit(position)
            assert not self.tracker.emit(position)
        self.note(new)

    def note(self, new: list[RecordPosition]) -> None:
        self.positions += new
        self.state += ["pending"] * len(new)
        self.attempt += [1] * len(new)

    def ack(self) -> None:
        ordinals = self.some()
        self.tracker.ack_many(ordinals)
        for i in ordinals.tolist():
            if 0 <= i < len(self.given):
                self.state[self.given[i]] = "done"

    def fail(self) -> None:
        ordinals = self.some()
        self.tracker.fail_many(ordinals, 0, "boom", self.rng)
        for i in set(ordinals.tolist()):
            if 0 <= i < len(self.given):
                self.failed(self.given[i])

    def failed(self, i: int) -> None:
        if self.state[i] == "pending":
            again = self.attempt[i] <= self.policy.limit
            self.state[i] = "waiting" if again else "dead" if self.policy.dead_letter else "done"

    def ack_one(self) -> None:
        i = self.r.randrange(len(self.state))
        assert self.tracker.ack(self.positions[i]) == (self.state[i] != "done")
        self.state[i] = "done"

    def fail_one(self) -> None:
        i = self.r.randrange(len(self.state))
        self.tracker.fail(self.positions[i], 0, "boom", self.rng)
        self.failed(i)

    def retry(self) -> None:
        waiting = [at for at, i in enumerate(self.given) if self.state[i] == "waiting"]
        assert self.tracker.retry_many(-1).tolist() == []
        assert self.tracker.retry_many(0).tolist() == waiting
        for at in waiting:
            self.again(self.given[at])

    def retry_one(self) -> None:
        """A record that failed alone comes again: of an array only one whose neighbours did not fail with it."""
        position = self.tracker.next_retry(0)
        waiting = [i for i, state in enumerate(self.state) if state == "waiting"]
        if position is None:
            assert {*waiting} <= {*self.given}
            return
        i = self.positions.index(position)
        assert self.state[i] == "waiting"
        assert all(other in self.given for other in waiting[: waiting.index(i)])
        assert self.tracker.emit(position, retry=True)
        self.again(i)

    def again(self, i: int) -> None:
        self.state[i], self.attempt[i] = "pending", self.attempt[i] + 1

    def check(self, before: RecordPosition | None) -> None:
        invariants(self.tracker)
        done = next((i for i, state in enumerate(self.state) if state != "done"), len(self.state))
        assert self.tracker.checkpoint == (self.positions[done - 1] if done else None)
        assert before is None or (self.tracker.checkpoint is not None and before <= self.tracker.checkpoint)
        index = {position: i for i, position in enumerate(self.positions)}
        kept: dict[int, tuple[str, int]] = {}
        for entry in self.tracker.entries():
            last = index[entry.last]
            assert entry.first == self.positions[last - entry.count + 1]
            assert entry.prev == (self.positions[last - entry.count] if last >= entry.count else None)
            for offset in range(entry.count):
                kept[last - entry.count + 1 + offset] = (entry.state.name.lower(), entry.attempt)
        assert kept == {i: (state, self.attempt[i]) for i, state in enumerate(self.state) if state != "done"}
        assert sum(run.count for run in self.tracker.waiting) == self.state.count("waiting")
        assert sum(run.count for run in self.tracker.dead) == self.state.count("dead")


@settings(max_examples=examples(150), deadline=None)
@given(
    r=st.randoms(use_true_random=False),
    limit=st.integers(0, 2),
    dead_letter=st.booleans(),
    steps=st.integers(1, 25),
)
@pytest.mark.parametrize("size", [3, 8, 65_536])
def test_random_orders_agree_with_every_record_held_by_itself(
    size: int, r: random.Random, limit: int, dead_letter: bool, steps: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_tracker, "CHUNK", size)
        # A bound of 2 splits stragglers off in small runs too.
        patch.setattr(open_rows, "_SPARSE", 2 if size == 8 else 2_048)
        bulk = Bulk(RetryPolicy(limit, Backoff(0, 0, 1), dead_letter), r)
        for _ in range(steps):
            bulk.step()


def positions(count: int) -> Positions:
    return [RecordPosition(10**55 + i) for i in range(count)]


def test_a_million_records_in_windows_leave_nothing_behind() -> None:
    count = 1_000_000
    places, generator = positions(count), np.random.default_rng(1)
    with traced() as held:
        bulk = InflightRecordTracker()
        bulk.emit_many(count, places)
        windows = [start + generator.permutation(10_000) for start in range(0, count, 10_000)]
        for window in windows:
            bulk.ack_many(window[window % 2 == 1])
        assert count // 2 < held() < 4 * count, "the worst case: every second record is done"
        assert bulk.checkpoint is None
        for window in windows:
            bulk.ack_many(window[window != 76])
        assert 0 < held() < 20_000, "one record is open: memory follows what is unusual"
        assert bulk.checkpoint == places[75]
        bulk.ack_many(np.array([76]))
    assert (bulk.checkpoint, len(bulk)) == (places[-1], 0)


def test_scattered_failures_cost_an_entry_each_and_nothing_else() -> None:
    count = 200_000
    bulk = InflightRecordTracker(RetryPolicy(3, Backoff(0, 0, 1)))
    everything = np.arange(bulk.emit_many(count, positions(count)).stop)
    bad = everything[everything % 1_000 == 500]
    bulk.ack_many(everything[everything % 2 == 1])
    bulk.fail_many(bad, 0, "boom", random.Random(1))
    bulk.ack_many(np.setdiff1d(everything, bad))
    assert bulk.retrying == len(bad)
    assert len(bulk) == len(bad)
    again = bulk.retry_many(0)
    assert again.tolist() == bad.tolist()
    bulk.ack_many(again)
    assert (len(bulk), bulk.checkpoint) == (0, positions(count)[-1])


@pytest.mark.parametrize("size", [4, 65_536])
def test_values_of_zero_say_that_a_whole_run_is_done(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tracker, "CHUNK", size)
    bulk, places = InflightRecordTracker(), positions(12)
    ids = np.random.default_rng(1).integers(-(2**63), 2**63, 12, np.int64)
    children = np.random.default_rng(2).integers(-(2**63), 2**63, 12, np.int64)
    ordinals = np.arange(12)
    bulk.emit_many(12, places, ids)
    bulk.ack_many(ordinals, ids ^ children)
    assert bulk.checkpoint is None
    late = np.random.default_rng(3).permutation(12)
    bulk.ack_many(late[:5], children[late[:5]])
    bulk.ack_many(late[5:], children[late[5:]])
    assert (bulk.checkpoint, len(bulk)) == (places[-1], 0)


def test_fail_wins_over_a_value_of_zero() -> None:
    bulk, ids = InflightRecordTracker(RetryPolicy(3, Backoff(0, 0, 1))), np.arange(1, 6, dtype=np.int64)
    bulk.emit_many(5, positions(5), ids)
    bulk.fail_many(np.array([2]), 0, "boom", random.Random(1))
    bulk.ack_many(np.arange(5), ids)
    assert bulk.checkpoint is None
    bulk.ack_many(np.array([0, 1, 3, 4]))
    assert bulk.checkpoint == positions(5)[1]
    assert [run.last for run in bulk.waiting] == [str(positions(5)[2])]


def test_records_behind_what_was_emitted_are_refused() -> None:
    bulk = InflightRecordTracker(checkpoint=RecordPosition(5))
    with pytest.raises(OrderError, match="from 5 on: expected them after 5"):
        bulk.emit_many(2, [RecordPosition(5), RecordPosition(6)])
    assert (len(bulk), bulk.emit_many(0, [])) == (0, range(0))
