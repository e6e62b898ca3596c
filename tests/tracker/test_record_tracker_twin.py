"""The tracker of single records and arrays against the entries of a list that it was before: `tests/twins/old_face`."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from naive_shard import shard_positions
from thorough import examples
from twins.old_face import bulk as old_bulk
from twins.old_face.record_tracker import InflightRecordTracker as OldTracker

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight import open_rows, record_tracker
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.records import Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

NOW = 1_700_000_000_000


class Handler:
    """Decides by itself, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.due: dict[RecordPosition, int] = {}

    def failed(self, position: RecordPosition, attempt: int, now_ms: int, rng: random.Random) -> int | None:
        self.told.append(("failed", position, attempt))
        if attempt > 2:
            return None
        self.due[position] = now_ms + rng.randrange(2_000)
        return self.due[position]

    def acked(self, position: RecordPosition) -> None:
        self.told.append(("acked", position))
        self.due.pop(position, None)

    def emitted(self, position: RecordPosition) -> None:
        self.told.append(("emitted", position))
        self.due.pop(position, None)

    def next(self, now_ms: int) -> RecordPosition | None:
        return min((one for one, due in self.due.items() if due <= now_ms), default=None)


class Lives:
    """Both trackers of one shard, and what is known of its records."""

    def __init__(self, r: random.Random) -> None:
        self.r, self.now = r, NOW
        self.policy = RetryPolicy(
            r.randint(0, 3), r.choice([Backoff(0, 0, 1), Backoff(1, 5_000, 3)]), r.random() < 0.7
        )
        self.source = shard_positions(r)
        self.single: list[RecordPosition] = []
        self.arrays: list[RecordPosition] = []
        self.trees: set[int] = set()
        # Records of arrays that failed or came again by themselves: the old one gave them a value, which acks with
        # ids of their array could bring to zero, though they had failed.
        self.alone: set[RecordPosition] = set()
        self.seen = Counter[str]()
        seed = r.random()
        self.dice = random.Random(seed), random.Random(seed)
        self.handlers = (Handler(), Handler()) if r.random() < 0.2 else (None, None)
        if self.handlers[0] is None and r.random() < 0.5:
            self.restore()
        else:
            first = next(self.source) if r.random() < 0.5 else None
            self.old: Any = OldTracker(self.policy, first, self.handlers[0])
            self.new = InflightRecordTracker(self.policy, first, self.handlers[1])

    def restore(self) -> None:
        """Runs of one or several records, with or without a first one and the one before."""
        r = self.r
        records = [next(self.source) for _ in range(r.randint(2, 30))]
        safe, at, runs = r.randint(0, len(records) - 1), 1, [list[Run](), list[Run]()]
        while at < len(records):
            until = min(at + r.choice([1, 1, 3]), len(records))
            knows = r.choice(["both", "first", "prev"])
            if r.random() < 0.5 and not at <= safe < until - 1:
                first = "" if knows == "prev" else str(records[at])
                prev = None if knows == "first" else str(records[at - 1])
                failures = (Noted(NOW, "boom"),)
                attempt, due = r.randint(0, 3), NOW + 1_000 * r.randint(0, 3)
                run = Run(first, str(records[until - 1]), until - at, prev, attempt, due, failures)
                r.choice(runs).append(run)
                self.single.append(records[until - 1])
            at = until
        through = records[-1] if r.random() < 0.5 else None
        self.old = OldTracker.restore(records[safe], *runs, self.policy, through=through)
        self.new = InflightRecordTracker.restore(records[safe], *runs, self.policy, through=through)

    def both(self, what: str, *given: object, dice: bool = False) -> object:
        """Call both, which answer the same."""
        answers = list[object]()
        for tracker, rng in zip((self.old, self.new), self.dice, strict=True):
            try:
                answer = getattr(tracker, what)(*given, *([rng] if dice else []))
            except OrderError as error:
                answer = str(error)
            answers.append(answer.tolist() if isinstance(answer, np.ndarray) else answer)
        assert answers[0] == answers[1], (what, given)
        self.seen[what] += 1
        return answers[1]

    def emit(self) -> None:
        for _ in range(self.r.randint(1, 5)):
            position = next(self.source)
            self.both("emit", position, self.r.choice([0, 0, 5, -7]))
            self.single.append(position)

    def emit_again(self) -> None:
        """What is in flight, done up to the checkpoint, or was never there."""
        position = self.r.choice(self.single)
        self.both("emit", position, 0, self.r.random() < 0.5)

    def emit_many(self) -> None:
        new = [next(self.source) for _ in range(self.r.choice([0, 1, 5, 20]))]
        ids = None
        if len(new) > 1 and self.r.random() < 0.4:
            ids = np.array([self.r.getrandbits(63) for _ in new], np.int64)
            self.trees.update(range(len(self.arrays), len(self.arrays) + len(new)))
        form: Callable[[list[RecordPosition]], object] = self.r.choice(
            [list, lambda some: list(map(str, some))]
        )
        self.both("emit_many", len(new), form(new), ids)
        self.arrays += new
        if ids is not None and self.r.random() < 0.5:
            ordinals = np.arange(len(self.arrays) - len(new), len(self.arrays))
            self.r.shuffle(few := list(range(len(new))))
            cut = self.r.randint(0, len(few))
            for some in (few[:cut], few[cut:]):
                self.both("ack_many", ordinals[some], ids[some])

    def ack(self) -> None:
        position = self.r.choice(self.single)
        self.both("ack", position, self.r.choice([0, 0, 0, 5, -7, 3]))

    def fail(self) -> None:
        self.both("fail", self.r.choice(self.single), self.now, "boom", dice=True)

    def one_of_array(self) -> None:
        at = self.r.randrange(len(self.arrays))
        if self.r.random() < 0.5:
            self.both("fail", self.arrays[at], self.now, "one", dice=True)
            self.alone.add(self.arrays[at])
        elif at not in self.trees:
            self.both("ack", self.arrays[at])

    def some(self) -> np.ndarray:
        """Ordinals in random order: some twice, some never emitted."""
        size = len(self.arrays)
        start = self.r.randint(0, size)
        window = range(start, min(size, start + self.r.choice([1, 4, 30])))
        found = [at for at in window if self.r.random() < self.r.choice([0.3, 1])]
        found += [*found[:2], size + 5, -1]
        self.r.shuffle(found)
        return np.array(found, np.int64)

    def ack_many(self) -> None:
        ordinals = self.some()
        ids = None
        if self.r.random() < 0.2:
            known = range(len(self.arrays))
            mixed = [at for at in ordinals.tolist() if at in known and self.arrays[at] in self.alone]
            ordinals = ordinals[~np.isin(ordinals, mixed)]
            ids = np.array([self.r.choice([0, 1, 2]) for _ in ordinals], np.int64)
        self.both("ack_many", ordinals, ids)

    def fail_many(self) -> None:
        self.both("fail_many", self.some(), self.now, "many", dice=True)

    def retry(self) -> None:
        for _ in range(self.r.randint(1, 4)):
            position = self.both("next_retry", self.now)
            if position is not None:
                assert isinstance(position, RecordPosition)
                self.both("emit", position, self.r.choice([0, 0, 4]), True)
                self.alone.add(position)

    def retry_many(self) -> None:
        self.both("retry_many", self.now)
        # What an array delivered again stayed in the queue, and kept that time when it failed once more by itself.
        self.old._runs.queue = None

    def step(self) -> None:
        steps = [self.emit]
        if self.handlers[0] is None:
            steps += [self.emit_many, self.retry_many]
        if self.single:
            steps += [self.ack, self.ack, self.fail, self.fail, self.emit_again, self.retry]
        if self.arrays:
            steps += [self.ack_many, self.fail_many, self.one_of_array, self.ack_many, self.retry]
        self.now += self.r.choice([0, 1, 700, 3_000])
        self.r.choice(steps)()
        self.check()

    def check(self) -> None:
        old, new = self.old, self.new
        for name in ("checkpoint", "high", "retrying", "held"):
            assert getattr(old, name) == getattr(new, name), name
        assert bool(len(old)) == bool(len(new))
        nodes = [encode(InflightNode(txid=1, waiting=each.waiting, dead=each.dead)) for each in (old, new)]
        assert nodes[0] == nodes[1]
        assert self.old_records() == self.new_records()
        if self.handlers[0] is not None and self.handlers[1] is not None:
            assert self.handlers[0].told == self.handlers[1].told

    def old_records(self) -> dict[RecordPosition, object]:
        """Each open record of the entries, of a stored run the last one."""
        found = dict[RecordPosition, object]()
        for entry in self.old.entries():
            fate = entry.state, entry.attempt, entry.due, entry.failures
            for row in range(entry.count) if entry.rows is not None else ():
                if entry.bits is None or not entry.bits[row]:
                    found[entry.position(row)] = fate
            if entry.rows is None:
                found[entry.last] = fate
        return found

    def new_records(self) -> dict[RecordPosition, object]:
        index = {position: at for at, position in enumerate(self.arrays)}
        found = dict[RecordPosition, object]()
        for run in self.new.entries():
            fate = run.state, run.attempt, run.due, run.failures
            at = index.get(run.last)
            records = [run.last] if at is None else self.arrays[at - run.count + 1 : at + 1]
            found.update(dict.fromkeys(records, fate))
        return found


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@pytest.mark.parametrize(("chunk", "sparse"), [(3, 2), (8, 2_048), (65_536, 2)])
def test_random_lives_of_both_are_the_same(chunk: int, sparse: int, seed: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (old_bulk, "CHUNK", chunk),
            (record_tracker, "CHUNK", chunk),
            (old_bulk, "_SPARSE", sparse),
            (open_rows, "_SPARSE", sparse),
            (open_rows, "_LINGERING", 2 if sparse == 2 else 64),
        ):
            patch.setattr(module, name, value)
        lives = Lives(random.Random(seed))
        lives.check()
        for _ in range(steps):
            lives.step()


def count_calls(work: Callable[[], object]) -> int:
    """Return the calls of some work: its times are those of the machine."""
    calls, before = 0, sys.getprofile()

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(("under_way", "most"), [(1, 32.5), (50, 37), (3_000, 37)])
def test_one_more_ack_and_the_checkpoint_after_it_take_few_calls(under_way: int, most: float) -> None:
    """Of records that come and are acked one at a time, so many of them under way.

    With so many it takes 0.9 to 1.0 times what it did in the tracker that held a list of entries.
    """
    tracker, places = InflightRecordTracker(), [RecordPosition(at) for at in range(3_000 + under_way)]
    for place in places[:under_way]:
        tracker.emit(place)

    def work() -> None:
        for place, done in zip(places[under_way:], places, strict=False):
            tracker.ack(done)
            assert tracker.checkpoint == done
            tracker.emit(place)

    assert count_calls(work) <= most * 3_000


@pytest.mark.parametrize("by_array", [True, False])
def test_a_retry_of_a_record_of_an_array_costs_the_same_however_many_wait(by_array: bool) -> None:
    def retry(count: int) -> int:
        tracker, rng = InflightRecordTracker(RetryPolicy(3, Backoff(0, 0, 1))), random.Random(1)
        places = [RecordPosition(at) for at in range(2 * count)]
        tracker.emit_many(2 * count, places)
        if by_array:
            tracker.fail_many(np.arange(0, 2 * count, 2), NOW, "boom", rng)
        else:
            for place in places[::2]:
                tracker.fail(place, NOW, "boom", rng)

        def work() -> None:
            for place in places[::2]:
                assert tracker.next_retry(NOW) == place
                tracker.emit(place, retry=True)
                tracker.ack(place)
                tracker.ack_many(np.array([place.number + 1]))

        return count_calls(work)

    assert retry(400) <= 4.4 * retry(100)
