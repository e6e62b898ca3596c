"""One record at a time: the tests of kinesis-storm-spout 1.1.1, its defects, and a plain model."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from thorough import examples
from traced import traced

from kinesis_trident.tracker.acker import Acker, TreeOutcome
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import Backoff, RetryPolicy, State

AT_ONCE = Backoff(0, 0, 1)
SKIP = RetryPolicy(3, AT_ONCE, dead_letter=False)
"""As the original: three retries without a delay, then the record counts as done."""


def invariants(tracker: InflightRecordTracker) -> None:
    """What is open is in order and above the checkpoint, which stands right before it where that is known."""
    entries = list(tracker.entries())
    assert all(entry.state is not State.ACKED for entry in entries)
    lasts = [entry.last for entry in entries]
    assert lasts == sorted(set(lasts))
    assert all(tracker.checkpoint is None or last > tracker.checkpoint for last in lasts)
    if not entries:
        assert tracker.checkpoint == tracker.high
    elif entries[0].prev is not None:
        assert tracker.checkpoint == entries[0].prev


class Shard:
    """The original's fixture: a tracker at checkpoint 000, told by sequence number, at time 0."""

    def __init__(self, policy: RetryPolicy = SKIP, emitted: int = 0) -> None:
        self.tracker = InflightRecordTracker(policy, RecordPosition(0))
        self.rng = random.Random(1)
        for sequence in range(1, emitted + 1):
            self.emit(sequence)

    def emit(self, sequence: int, *, retry: bool = False) -> bool:
        return self.tracker.emit(RecordPosition(sequence), retry=retry)

    def ack(self, *sequences: int) -> None:
        for sequence in sequences:
            self.tracker.ack(RecordPosition(sequence))
            invariants(self.tracker)

    def fail(self, sequence: int) -> bool:
        result = self.tracker.fail(RecordPosition(sequence), 0, "boom", self.rng)
        invariants(self.tracker)
        return result

    @property
    def checkpoint(self) -> int:
        assert self.tracker.checkpoint is not None
        return self.tracker.checkpoint.number

    @property
    def kept(self) -> list[int]:
        return [entry.last.number for entry in self.tracker.entries()]

    @property
    def retry(self) -> int | None:
        position = self.tracker.next_retry(0)
        assert self.tracker.should_retry(0) == (position is not None)
        return position.number if position else None

    def attempts(self, sequence: int) -> int:
        return next(e.attempt for e in self.tracker.entries() if e.last.number == sequence)


def test_tracker_1_checkpoint() -> None:
    shard = Shard(emitted=4)
    assert shard.checkpoint == 0
    shard.fail(1)
    assert shard.checkpoint == 0
    shard.ack(1)
    assert shard.checkpoint == 1
    shard.ack(3)
    assert shard.checkpoint == 1
    for _ in range(3):
        assert shard.fail(2)
        assert shard.emit(2, retry=True)
        assert shard.checkpoint == 1
    assert not shard.fail(2)
    assert shard.checkpoint == 3
    shard.ack(4)
    assert shard.checkpoint == 4


def test_tracker_2_emit() -> None:
    shard = Shard(emitted=1)
    assert (shard.kept, shard.attempts(1), shard.retry) == ([1], 1, None)


def test_tracker_3_single_ack() -> None:
    shard = Shard(emitted=1)
    shard.ack(1)
    assert (shard.kept, shard.retry) == ([], None)


def test_tracker_4_single_fail() -> None:
    shard = Shard(emitted=1)
    assert shard.fail(1)
    assert (shard.kept, shard.retry, shard.attempts(1)) == ([1], 1, 1)


def test_tracker_5_poison_pill() -> None:
    shard = Shard(emitted=1)
    for retries in (1, 2, 3):
        assert shard.fail(1)
        assert shard.emit(1, retry=True)
        assert shard.attempts(1) == retries + 1
        assert shard.retry is None
    assert not shard.fail(1)
    assert (shard.kept, shard.checkpoint) == ([], 1)
    assert not shard.emit(1, retry=True)
    assert shard.kept == []


def test_tracker_6_should_retry() -> None:
    shard = Shard(emitted=2)
    shard.fail(2)
    assert shard.tracker.should_retry(0)
    assert shard.tracker.next_retry(0) == RecordPosition(2)


def test_tracker_7_record_to_retry_stays_until_emitted() -> None:
    shard = Shard(emitted=2)
    shard.fail(1)
    shard.fail(2)
    assert [shard.retry, shard.retry] == [1, 1]
    shard.emit(1, retry=True)
    assert shard.retry == 2


@pytest.mark.parametrize(
    ("emitted", "acked", "kept", "checkpoint"),
    [
        pytest.param(3, [2, 1], [3], 2, id="8 none/acked"),
        pytest.param(2, [1], [2], 1, id="9 none/pending"),
        pytest.param(1, [1], [], 1, id="10 none/none"),
        pytest.param(3, [3, 2], [1], 0, id="11 pending/acked"),
        pytest.param(3, [2], [1, 3], 0, id="12 pending/pending"),
        pytest.param(2, [2], [1], 0, id="13 pending/none"),
        pytest.param(4, [2, 4, 3], [1], 0, id="14 acked/acked"),
        pytest.param(4, [2, 3], [1, 4], 0, id="15 acked/pending"),
        pytest.param(3, [2, 3], [1], 0, id="16 acked/none"),
    ],
)
def test_tracker_cells(emitted: int, acked: list[int], kept: list[int], checkpoint: int) -> None:
    shard = Shard(emitted=emitted)
    shard.ack(*acked)
    assert (shard.kept, shard.checkpoint) == (kept, checkpoint)


def test_state_1_ack_gives_no_retry() -> None:
    shard = Shard(emitted=1)
    shard.ack(1)
    assert shard.retry is None


def test_state_2_ack_of_an_unknown_record_changes_nothing() -> None:
    shard = Shard(emitted=2)
    assert not shard.tracker.ack(RecordPosition(7))
    assert (shard.kept, shard.checkpoint) == ([1, 2], 0)


def test_state_3_second_before_first() -> None:
    shard = Shard(emitted=3)
    shard.ack(2, 1)
    assert shard.checkpoint == 2


def test_state_4_dirty_after_an_ack() -> None:
    shard = Shard(emitted=1)
    committed = shard.tracker.checkpoint
    shard.ack(1)
    assert shard.tracker.checkpoint != committed


def test_state_5_gap() -> None:
    shard = Shard(emitted=4)
    shard.ack(1)
    shard.ack(3, 4)
    assert shard.checkpoint == 1
    shard.ack(2)
    assert shard.checkpoint == 4


def test_state_6_fail_then_emit_again_clears_the_retry() -> None:
    shard = Shard(emitted=1)
    shard.fail(1)
    assert shard.retry == 1
    shard.emit(1, retry=True)
    assert shard.retry is None


def test_state_7_fail_of_an_unknown_record_changes_nothing() -> None:
    shard = Shard(emitted=1)
    assert not shard.fail(9)
    assert (shard.kept, shard.retry) == ([1], None)


@pytest.mark.parametrize("dead_letter", [True, False])
def test_defect_1_a_limit_of_zero_still_moves_the_checkpoint(dead_letter: bool) -> None:
    shard = Shard(RetryPolicy(0, AT_ONCE, dead_letter), emitted=3)
    shard.ack(1)
    assert shard.checkpoint == 1
    assert not shard.fail(2)
    assert shard.retry is None
    if dead_letter:
        assert [run.last for run in shard.tracker.dead] == ["2"]
        shard.ack(2)
    assert shard.checkpoint == 2
    shard.ack(3)
    assert shard.checkpoint == 3


def test_defect_2_an_ack_before_the_retry_does_not_wedge_the_shard() -> None:
    shard = Shard(emitted=3)
    shard.fail(1)
    shard.fail(2)
    shard.ack(1)
    assert (shard.checkpoint, shard.retry) == (1, 2)
    assert not shard.emit(1, retry=True)
    assert shard.retry == 2
    shard.ack(2)
    assert (shard.checkpoint, shard.retry) == (2, None)


def test_defect_2_a_handler_that_forgets_acks_does_not_wedge_the_shard() -> None:
    class Forgetful:
        def __init__(self) -> None:
            self.queue: list[RecordPosition] = []

        def failed(
            self, position: RecordPosition, attempt: int, now_ms: int, rng: random.Random
        ) -> int | None:
            self.queue.append(position)
            return now_ms

        def acked(self, position: RecordPosition) -> None: ...

        def next(self, now_ms: int) -> RecordPosition | None:
            return self.queue[0] if self.queue else None

        def emitted(self, position: RecordPosition) -> None:
            self.queue.remove(position)

    tracker = InflightRecordTracker(handler=Forgetful())
    tracker.emit(RecordPosition(1))
    assert tracker.fail(RecordPosition(1), 0, "boom", random.Random(1))
    assert tracker.next_retry(0) == RecordPosition(1)
    tracker.ack(RecordPosition(1))
    assert tracker.next_retry(0) is None


def test_defect_3_a_second_fail_costs_no_retry() -> None:
    shard = Shard(emitted=3)
    for retries in (1, 2, 3):
        assert shard.fail(2)
        assert not shard.fail(2)
        assert shard.emit(2, retry=True)
        assert shard.retry is None
        assert shard.attempts(2) == retries + 1


def test_defect_3_a_middle_record_acked_while_queued_does_not_come_again() -> None:
    shard = Shard(emitted=3)
    shard.fail(2)
    shard.ack(2)
    assert shard.retry is None
    assert not shard.emit(2, retry=True)


def test_defect_4_retries_wait_for_their_time() -> None:
    tracker, rng = InflightRecordTracker(RetryPolicy(3, Backoff(10_000, 10_000, 1))), random.Random(1)
    tracker.emit(RecordPosition(1))
    tracker.fail(RecordPosition(1), 5_000, "boom", rng)
    (run,) = tracker.waiting
    assert run.due > 5_000
    assert not tracker.should_retry(run.due - 1)
    assert tracker.should_retry(run.due)


def test_the_earliest_due_comes_first_then_the_first_in_the_shard() -> None:
    runs = [
        Run(str(sequence), str(sequence), due=due) for sequence, due in ((1, 3_000), (2, 1_000), (3, 1_000))
    ]
    tracker, order = InflightRecordTracker.restore(None, runs, ()), []
    assert tracker.next_retry(999) is None
    while (position := tracker.next_retry(5_000)) is not None:
        assert tracker.next_retry(5_000) == position, "only emitting or acking takes it away"
        assert tracker.emit(position, retry=True)
        order.append(position.number)
    assert order == [2, 3, 1]


def test_what_no_longer_waits_is_not_queued_for_ever() -> None:
    tracker, rng = InflightRecordTracker(RetryPolicy(10**6, AT_ONCE)), random.Random(1)
    stuck, most = RecordPosition(0), 0
    tracker.emit(stuck)
    tracker.fail(stuck, 0, "boom", rng)
    for i in range(1, 10_000):
        assert tracker.next_retry(10**9) == stuck
        tracker.emit(RecordPosition(i))
        tracker.fail(RecordPosition(i), i, "boom", rng)
        tracker.ack(RecordPosition(i))
        most = max(most, len(tracker._queue or ()))
    assert most < 200
    assert tracker.next_retry(10**9) == stuck


def test_a_record_of_an_array_comes_again_by_itself() -> None:
    """Also one that has failed together with its neighbours."""
    tracker, rng = InflightRecordTracker(RetryPolicy(3, AT_ONCE)), random.Random(1)
    places = [RecordPosition(i) for i in range(5)]
    tracker.emit_many(5, places)
    tracker.fail_many(np.array([1, 2, 3]), 0, "boom", rng)
    tracker.ack_many(np.array([4]))
    assert not tracker.emit(places[4]), "it is done"
    assert not tracker.emit(places[0], retry=True)
    assert tracker.next_retry(0) is None, "several at once are taken by `retry_many`"
    assert tracker.emit(places[2], retry=True)
    assert tracker.next_retry(0) == places[1], "it is alone now"
    assert [(run.first, run.count) for run in tracker.waiting] == [("1", 1), ("3", 1)]
    assert tracker.retry_many(0).tolist() == [1, 3]


@pytest.mark.parametrize("as_array", [True, False])
def test_what_fails_with_its_array_has_no_value_of_its_own_any_more(as_array: bool) -> None:
    """The ids of a delivery before are of trees that nobody acks."""
    tracker, rng = InflightRecordTracker(RetryPolicy(3, AT_ONCE)), random.Random(1)
    places = [RecordPosition(i) for i in range(3)]
    tracker.emit_many(3, places)
    tracker.fail(places[1], 0, "boom", rng)
    assert tracker.emit(places[1], 7, retry=True)
    tracker.fail_many(np.array([1]), 0, "boom", rng)
    if as_array:
        assert tracker.retry_many(0).tolist() == [1]
    else:
        assert tracker.emit(places[1], retry=True)
    assert [tracker.ack(place) for place in places] == [True, True, True]
    assert tracker.checkpoint == places[-1]


def test_many_fates_of_one_array_find_room() -> None:
    """A byte a record for up to 256 of them, then two."""
    tracker, rng = InflightRecordTracker(RetryPolicy(3, AT_ONCE)), random.Random(1)
    places = [RecordPosition(i) for i in range(1_000)]
    tracker.emit_many(1_000, places)
    for at in range(0, 1_000, 2):
        tracker.fail_many(np.array([at]), at, f"boom {at}", rng)
    assert [run.failures[-1].reason for run in tracker.waiting] == [f"boom {at}" for at in range(0, 1_000, 2)]
    for _ in range(300):
        tracker.ack_many(np.array([0]))
        tracker.fail_many(tracker.retry_many(10**6), 10**6, "again", rng)
    assert (tracker.held, len(tracker.dead)) == (999, 499)
    tracker.ack_many(np.arange(1_000))
    assert (tracker.held, tracker.checkpoint) == (0, places[-1])


def test_defect_6_memory_follows_what_is_not_done() -> None:
    """A stuck head with everything after it acked keeps as little as a few records, in any order of acks."""
    with traced() as held:
        shard = Shard(emitted=20_000)
        full = held()
        sequences = list(range(2, 20_001))
        random.Random(5).shuffle(sequences)
        for sequence in sequences:
            shard.tracker.ack(RecordPosition(sequence))
        assert (shard.kept, shard.checkpoint) == ([1], 0)
        assert held() < full / 50
    shard.ack(1)
    assert (shard.kept, shard.checkpoint) == ([], 20_000)


def test_defect_6_acked_entries_are_let_go() -> None:
    with traced() as held:
        shard = Shard(emitted=1)
        for sequence in range(2, 5_000):
            shard.emit(sequence)
            shard.tracker.ack(RecordPosition(sequence))
        assert 0 < held() < 20_000


def test_defect_13_the_checkpoint_does_not_move_back_for_an_older_record() -> None:
    shard = Shard(emitted=5)
    shard.ack(1, 2, 3, 4, 5)
    assert not shard.emit(3)
    shard.ack(3)
    assert (shard.checkpoint, shard.kept) == (5, [])


def test_defect_15_user_records_of_one_sequence_number_are_told_apart() -> None:
    tracker = InflightRecordTracker()
    first, second = RecordPosition(7, 0), RecordPosition(7, 1)
    assert tracker.emit(first)
    assert tracker.emit(second)
    tracker.ack(second)
    assert tracker.checkpoint is None
    tracker.ack(first)
    assert tracker.checkpoint == second


def test_emitting_out_of_order_is_refused_and_a_repeat_ignored() -> None:
    shard = Shard(emitted=3)
    assert not shard.emit(2)
    shard.emit(9)
    with pytest.raises(OrderError, match="5 was emitted after 9"):
        shard.emit(5)


def test_acks_are_xored_and_fail_wins_over_zero() -> None:
    tracker, position, rng = (
        InflightRecordTracker(RetryPolicy(3, AT_ONCE)),
        RecordPosition(1),
        random.Random(1),
    )
    tracker.emit(position, 0b0111)
    assert not tracker.ack(position, 0b0010)
    assert tracker.fail(position, 0, "boom", rng)
    assert not tracker.ack(position, 0b0101), "the tree has failed"
    assert tracker.emit(position, -5, retry=True)
    assert not tracker.ack(position, 3)
    assert tracker.ack(position, -5 ^ 3)
    assert tracker.checkpoint == position


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4), min_size=1, max_size=5),
    st.data(),
)
def test_values_come_to_zero_where_the_acker_says_that_the_tree_is_done(
    trees: list[list[int]], data: st.DataObject
) -> None:
    """Trees of tuples with these ids: each is made and acked; some messages are lost, some come twice."""
    tracker, acker = InflightRecordTracker(RetryPolicy(3, AT_ONCE)), Acker()
    messages: list[tuple[int, int]] = []
    for root, ids in enumerate(trees):
        tree = [one or 1 for one in ids]
        assert tracker.emit(RecordPosition(root + 1), tree[0])
        assert acker.init(root, tree[0]) is None
        # Each tuple makes the next one.
        messages += [(root, made ^ child) for made, child in zip(tree, [*tree[1:], 0], strict=True)]
    lost = data.draw(st.sets(st.integers(0, len(messages) - 1)))
    twice = data.draw(st.lists(st.integers(0, len(messages) - 1), max_size=3))
    failing = data.draw(st.sets(st.integers(0, len(trees) - 1)))
    for root in failing:
        assert tracker.fail(RecordPosition(root + 1), 0, "boom", random.Random(1))
        assert acker.fail(root) is TreeOutcome.FAILED
    come = data.draw(st.permutations([at for at in range(len(messages)) if at not in lost] + twice))
    for root, value in (messages[at] for at in come if messages[at][1]):
        done = acker.ack(root, value) is TreeOutcome.ACKED
        assert tracker.ack(RecordPosition(root + 1), value) == done
    assert tracker.held == acker.pending + len(failing)


def test_the_tracker_inherits_nothing() -> None:
    assert InflightRecordTracker.__mro__ == (InflightRecordTracker, object)


def test_a_stored_run_is_addressed_by_its_last_record() -> None:
    run = Run("3", "6", 4, "2", 1, 5_000)
    tracker = InflightRecordTracker.restore(RecordPosition(2), (run,), (), through=RecordPosition(9))
    last = RecordPosition(6)
    assert (tracker.next_retry(4_999), tracker.next_retry(5_000)) == (None, last)
    tracker.emit(last, retry=True)
    assert next(tracker.entries()).attempt == 2
    tracker.ack(last)
    assert tracker.checkpoint == RecordPosition(9)


STEP = st.tuples(st.sampled_from(["emit", "emit", "ack", "ack", "fail", "again", "late"]), st.integers(0, 30))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEP, max_size=120), st.integers(0, 2), st.booleans())
def test_random_orders_agree_with_a_dict_of_all_records(
    steps: list[tuple[str, int]], limit: int, dead_letter: bool
) -> None:
    shard = Shard(RetryPolicy(limit, AT_ONCE, dead_letter))
    state: dict[int, str] = {}
    attempts: dict[int, int] = {}
    for what, pick in steps:
        before = shard.checkpoint
        if what == "emit":
            new = len(state) + 1
            assert shard.emit(new)
            state[new], attempts[new] = "pending", 1
        elif what == "again":
            sequence = shard.retry
            waiting = [s for s, how in state.items() if how == "waiting"]
            assert sequence == (waiting[0] if waiting else None)
            if sequence is not None:
                assert shard.emit(sequence, retry=True)
                state[sequence], attempts[sequence] = "pending", attempts[sequence] + 1
        elif state:
            sequence = pick % len(state) + 1
            if what == "ack":
                assert shard.tracker.ack(RecordPosition(sequence)) == (state[sequence] != "done")
                state[sequence] = "done"
            elif what == "fail" and state[sequence] == "pending":
                again = attempts[sequence] <= limit
                assert shard.fail(sequence) == again
                state[sequence] = "waiting" if again else "dead" if dead_letter else "done"
            elif what == "late" and state[sequence] != "waiting":
                assert not shard.emit(sequence, retry=True)
        invariants(shard.tracker)
        done = next((s - 1 for s, how in state.items() if how != "done"), len(state))
        assert before <= shard.checkpoint == done
        kept = {e.last.number: e.state.name.lower() for e in shard.tracker.entries()}
        assert kept == {s: how for s, how in state.items() if how != "done"}


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
    """Of records that come and are acked one at a time, so many of them under way."""
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
        tracker, rng = InflightRecordTracker(RetryPolicy(3, AT_ONCE)), random.Random(1)
        places = [RecordPosition(at) for at in range(2 * count)]
        tracker.emit_many(2 * count, places)
        if by_array:
            tracker.fail_many(np.arange(0, 2 * count, 2), 0, "boom", rng)
        else:
            for place in places[::2]:
                tracker.fail(place, 0, "boom", rng)

        def work() -> None:
            for place in places[::2]:
                assert tracker.next_retry(0) == place
                tracker.emit(place, retry=True)
                tracker.ack(place)
                tracker.ack_many(np.array([place.number + 1]))

        return count_calls(work)

    assert retry(400) <= 4.4 * retry(100)
