"""Tracking by turns, against a model that holds every record by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from driven_shard import DrivenShard
from hypothesis import given, settings, strategies as st
from naive_shard import NaiveShard, Record, due, shard_positions
from thorough import examples

from kinesis_trident.tracker.errors import OrderError, UnknownRunError
from kinesis_trident.tracker.records import NotDone, Noted, RecordPosition, Run
from kinesis_trident.tracker.requests import cancel
from kinesis_trident.tracker.retry import Backoff, RetryPolicy
from kinesis_trident.tracker.runs import Runs

POLICIES = st.builds(
    RetryPolicy,
    limit=st.integers(0, 3),
    backoff=st.sampled_from([Backoff(0, 0, 1), Backoff(1, 5_000, 3), Backoff(1_000, 60_000, 2)]),
    dead_letter=st.booleans(),
)


def at(*sequences: int) -> list[RecordPosition]:
    return [RecordPosition(sequence) for sequence in sequences]


def rng() -> random.Random:
    return random.Random(7)


def invariants(tracker: DrivenShard) -> None:
    """What is open is in order and above the checkpoint, which stands right before it where that is known."""
    runs = sorted([*tracker.waiting, *tracker.dead], key=lambda run: run.last_position)
    lasts = [run.last_position for run in runs]
    assert lasts == sorted(set(lasts))
    above = [run for run in runs if tracker.checkpoint is None or run.last_position > tracker.checkpoint]
    if not above:
        assert tracker.checkpoint == tracker.high
    elif above[0].prev is not None:
        assert str(tracker.checkpoint) == above[0].prev


class Life:
    """A tracker and the model through random turns."""

    def __init__(self, policy: RetryPolicy, r: random.Random, *, tell_prev: bool) -> None:
        self.r, self.policy, self.tell_prev = r, policy, tell_prev
        self.exact = tell_prev
        # Replays above the checkpoint and partly expired runs leave the record before a run unknown.
        self.calm = r.random() < 0.5
        self.tracker = DrivenShard(policy)
        self.model = NaiveShard(policy)
        self.positions = shard_positions(r)
        self.now = 1_700_000_000_000
        self.seed = 0

    def step(self) -> None:
        before = self.tracker.checkpoint
        passed = self.r.choice([0, 1, 999, 70_000])
        self.now += passed
        # What fails at one time for the same time waits equally long.
        self.seed += passed > 0
        steps = [self.deliver, self.deliver, self.retry, self.retry, self.bury, self.restore]
        self.r.choice(steps if self.calm else [*steps, self.replay])()
        self.check(before)

    def reasons(self, count: int) -> dict[int, str]:
        share = self.r.choice([0, 0.2, 0.7, 1])
        return {i: self.r.choice(["A", "B"]) for i in range(count) if self.r.random() < share}

    def deliver(self) -> None:
        records = self.model.deliver([next(self.positions) for _ in range(self.r.randint(1, 9))])
        reasons = self.reasons(len(records))
        failed = self.model.pieces(records, reasons, rng=self.r, tell_prev=self.tell_prev)
        self.tracker.deliver(records[-1].position, len(records), failed, self.now, random.Random(self.seed))
        self.model.settle(records, reasons, self.now, self.seed)

    def retry(self) -> None:
        waiting = self.tracker.waiting
        assert list(waiting) == sorted(waiting, key=lambda run: run.last_position)
        for run in due(self.tracker.waiting, self.now)[:3]:
            records = self.model.of(run)
            fate = self.r.choice(["all", "all", "part", "none", "expired", "partly expired"])
            if fate == "expired" or (fate == "partly expired" and (run.count == 1 or self.calm)):
                self.tracker.expire(run, 0, self.now)
                self.model.expire(records, self.now)
            elif fate == "partly expired":
                left = records[-self.r.randint(1, run.count - 1) :]
                self.model.expire(records[: -len(left)], self.now)
                self.exact = False
                reasons = self.reasons(len(left))
                failed = self.model.pieces(left, reasons, rng=self.r, tell_prev=self.tell_prev)
                self.tracker.expire(run, len(left), self.now, failed, random.Random(self.seed))
                self.model.settle(left, reasons, self.now, self.seed)
            else:
                served = {"all": run.count, "none": 0}.get(fate, self.r.randint(0, run.count))
                self.redeliver(run, records, served)

    def redeliver(self, run: Run, records: Sequence[Record], served: int) -> None:
        shown = records[:served]
        reasons = self.reasons(served)
        failed = self.model.pieces(shown, reasons, rng=self.r, tell_prev=self.tell_prev)
        through = shown[-1].position if shown else None
        self.tracker.redeliver(run, served, through, failed, self.now, random.Random(self.seed))
        if shown:
            self.model.settle(shown, reasons, self.now, self.seed)

    def bury(self) -> None:
        for run in self.tracker.dead:
            records = self.model.of(run)
            whole = run.failures[-1].reason == "EXPIRED" or self.r.random() < 0.5
            served = run.count if whole else self.r.randint(0, run.count)
            self.tracker.dead_letter(run, served, records[served - 1].position if served else None)
            for record in records[:served]:
                record.done()

    def replay(self) -> None:
        known = [
            record for record in self.model.records if "EXPIRED" not in [f.reason for f in record.failures]
        ]
        asked = self.r.sample(known, min(len(known), self.r.randint(0, 3)))
        runs = {
            record.position: self.model.of(run)
            for run in self.tracker.waiting + self.tracker.dead
            for record in self.model.of(run)
        }
        checkpoint = self.tracker.checkpoint
        beyond = (
            RecordPosition(self.model.records[-1].position.number + 1_000)
            if self.model.records
            else RecordPosition(9)
        )
        refused = self.tracker.replay([record.position for record in asked] + [beyond], self.now)
        assert refused == (beyond,)
        for record in asked:
            if record.state == "done" and (checkpoint is None or record.position > checkpoint):
                self.exact = False
            self.model.replay(record, runs.get(record.position, []), checkpoint, self.now)

    def restore(self) -> None:
        old = self.tracker
        self.tracker = DrivenShard.restore(
            old.checkpoint, old.waiting, old.dead, self.policy, through=old.high
        )
        assert (self.tracker.checkpoint, self.tracker.waiting, self.tracker.dead) == (
            old.checkpoint,
            old.waiting,
            old.dead,
        )
        assert self.tracker.high == old.high

    def check(self, before: RecordPosition | None) -> None:
        invariants(self.tracker)
        checkpoint, naive = self.tracker.checkpoint, self.model.checkpoint
        assert before is None or (checkpoint is not None and checkpoint >= before), "moved back"
        if self.exact:
            assert checkpoint == naive
        elif checkpoint is not None:
            assert naive is not None
            assert checkpoint <= naive
        seen: list[RecordPosition] = []
        for state, runs in (("waiting", self.tracker.waiting), ("dead", self.tracker.dead)):
            for run in runs:
                records = self.model.of(run)
                assert len(records) == run.count
                fates = {record.fate() for record in records}
                assert fates == {(state, run.attempt, run.due, run.failures)}
                if state == "waiting" or run.failures[-1].reason != "EXPIRED":
                    assert records[-1].position == run.last_position
                if self.tell_prev and self.exact and not records[0].beside:
                    index = self.model.index(records[0].position)
                    assert run.prev == (str(self.model.records[index - 1].position) if index else None)
                seen += [record.position for record in records]
        lost = [record.position for record in self.model.records if record.state != "done"]
        assert sorted(seen) == lost
        assert self.tracker.shard.count == len(seen)


@settings(max_examples=examples(300), deadline=None)
@given(
    policy=POLICIES, r=st.randoms(use_true_random=False), tell_prev=st.booleans(), steps=st.integers(1, 25)
)
def test_random_turns_agree_with_every_record_held_by_itself(
    policy: RetryPolicy, r: random.Random, tell_prev: bool, steps: int
) -> None:
    life = Life(policy, r, tell_prev=tell_prev)
    for _ in range(steps):
        life.step()


def delivered(policy: RetryPolicy, count: int, *failed: NotDone) -> DrivenShard:
    """A tracker after one turn, at time 0, of the records 1 to `count`."""
    tracker = DrivenShard(policy)
    tracker.deliver(RecordPosition(count), count, failed, 0, rng())
    return tracker


AT_ONCE = RetryPolicy(3, Backoff(0, 0, 1))


def test_all_done_moves_the_checkpoint_to_the_end_and_keeps_nothing() -> None:
    tracker = delivered(AT_ONCE, 1_000_000)
    assert (tracker.checkpoint, tracker.shard.count, tracker.waiting) == (RecordPosition(1_000_000), 0, ())


@pytest.mark.parametrize(("prev", "checkpoint"), [("4", RecordPosition(4)), (None, None)])
def test_the_checkpoint_is_exact_where_the_record_before_is_known(
    prev: str | None, checkpoint: RecordPosition | None
) -> None:
    tracker = delivered(AT_ONCE, 9, NotDone("5", "6", 2, "boom", prev))
    assert tracker.checkpoint == checkpoint
    assert tracker.waiting == (Run("5", "6", 2, prev, 1, 0, (Noted(0, "boom"),)),)
    tracker.redeliver(tracker.waiting[0], 2, None, (), 0, rng())
    assert tracker.checkpoint == RecordPosition(9)


def test_when_all_failed_each_stands_right_after_the_one_before() -> None:
    tracker = delivered(AT_ONCE, 3)
    tracker.deliver(RecordPosition(9), 3, [NotDone("8", "9", 2, "B"), NotDone("5", "5", 1, "A")], 0, rng())
    assert tracker.checkpoint == RecordPosition(3)
    assert [(run.first, run.prev) for run in tracker.waiting] == [("5", "3"), ("8", "5")]


def test_neighbours_with_one_fate_become_one_run() -> None:
    failed = [NotDone(str(i), str(i), 1, "boom", str(i - 1)) for i in (2, 3, 4, 6)]
    tracker = delivered(AT_ONCE, 9, *failed)
    assert [(run.first, run.last, run.count, run.prev) for run in tracker.waiting] == [
        ("2", "4", 3, "1"),
        ("6", "6", 1, "5"),
    ]
    assert len((*tracker.waiting, *tracker.dead)) == 2


def test_what_was_not_reached_waits_on_unchanged() -> None:
    tracker = delivered(RetryPolicy(3, Backoff.parse("1s..9s x2")), 9, NotDone("2", "8", 7, "boom", "1"))
    (run,) = tracker.waiting
    tracker.redeliver(run, 3, RecordPosition(4), [NotDone("3", "3", 1, "again", "2")], 50_000, rng())
    again, rest = tracker.waiting
    assert (again.first, again.last, again.attempt, again.prev) == ("3", "3", 2, "2")
    assert [failure.reason for failure in again.failures] == ["boom", "again"]
    assert rest == Run("", "8", 4, "4", 1, run.due, run.failures)
    assert tracker.checkpoint == RecordPosition(2)
    tracker.redeliver(rest, 0, None, (), 60_000, rng())
    assert tracker.waiting == (again, rest)


def test_a_piece_without_a_first_record_begins_behind_the_one_before_it() -> None:
    """As the rest of a run that came again in part, which somebody gives up with its batch."""
    tracker = delivered(RetryPolicy(1, Backoff.parse("0s..0s x1")), 9, NotDone("2", "8", 7, "boom", "1"))
    (run,) = tracker.waiting
    tracker.redeliver(run, 3, RecordPosition(4), (), 0, rng())
    (rest,) = tracker.waiting
    tracker.redeliver(rest, 2, RecordPosition(6), [NotDone("", "6", 2, "given up", "4")], 0, rng())
    assert [(one.first, one.last, one.count, one.prev) for one in tracker.dead] == [("", "6", 2, "4")]
    assert [(one.first, one.last, one.count, one.prev) for one in tracker.waiting] == [("", "8", 2, "6")]


HELD = "HELD (bolt join)"


def held_again(tracker: DrivenShard, reason: str, now_ms: int) -> Run:
    """The one run that waits, after another delivery in which it was not done."""
    (before,) = tracker.waiting
    tracker.redeliver(before, 1, None, [NotDone("2", "2", 1, reason, "1")], now_ms, rng())
    (after,) = tracker.waiting
    return after


def test_what_is_held_comes_with_the_next_second_and_uses_up_no_attempt() -> None:
    tracker = delivered(RetryPolicy(0, Backoff(0, 0, 1), hold_ms=30_000), 3, NotDone("2", "2", 1, HELD, "1"))
    (run,) = tracker.waiting
    assert (run.attempt, run.due, run.failures) == (0, 1_000, (Noted(0, HELD),))
    assert tracker.checkpoint == RecordPosition(1)
    again = held_again(tracker, HELD, 29_999)
    assert (again.attempt, again.due, again.failures) == (0, 30_000, (Noted(0, HELD),))
    tracker.redeliver(again, 1, None, (), 29_999, rng())
    assert tracker.checkpoint == RecordPosition(3)


def test_what_is_held_for_too_long_fails_as_anything_else() -> None:
    tracker = delivered(RetryPolicy(1, Backoff(0, 0, 1), hold_ms=5_000), 3, NotDone("2", "2", 1, HELD, "1"))
    failed = held_again(tracker, HELD, 5_000)
    assert (failed.attempt, failed.failures) == (1, (Noted(5_000, "TIMEOUT (bolt join)"),))
    # The next delivery may be held as long again.
    held = held_again(tracker, HELD, 6_000)
    assert (held.attempt, held.failures) == (1, (*failed.failures, Noted(6_000, HELD)))
    tracker.redeliver(held, 1, None, [NotDone("2", "2", 1, HELD, "1")], 11_000, rng())
    (dead,) = tracker.dead
    assert [failure.reason for failure in dead.failures] == ["TIMEOUT (bolt join)"] * 2


def test_the_time_of_what_is_held_anew_begins_again() -> None:
    tracker = delivered(RetryPolicy(0, Backoff(0, 0, 1), hold_ms=5_000), 3, NotDone("2", "2", 1, HELD, "1"))
    anew = held_again(tracker, "HELD_ANEW (bolt join)", 4_000)
    assert anew.failures == (Noted(4_000, "HELD_ANEW (bolt join)"),)
    assert held_again(tracker, HELD, 8_999).failures == (Noted(4_000, HELD),)


def test_a_failure_takes_the_place_of_a_hold() -> None:
    tracker = delivered(RetryPolicy(3, Backoff(0, 0, 1)), 3, NotDone("2", "2", 1, HELD, "1"))
    failed = held_again(tracker, "boom", 1_000)
    assert (failed.attempt, failed.failures) == (1, (Noted(1_000, "boom"),))


def test_four_deliveries_then_dead_then_done() -> None:
    tracker = delivered(AT_ONCE, 3, NotDone("2", "2", 1, "boom", "1"))
    for attempt in (1, 2, 3):
        (run,) = due(tracker.waiting, 0)
        assert run.attempt == attempt
        tracker.redeliver(run, 1, None, [NotDone("2", "2", 1, "boom")], 0, rng())
    assert tracker.waiting == ()
    (dead,) = tracker.dead
    assert (dead.attempt, len(dead.failures), len((*tracker.waiting, *tracker.dead))) == (4, 4, 1)
    assert tracker.checkpoint == RecordPosition(1)
    tracker.dead_letter(dead, 1, None)
    assert (tracker.checkpoint, tracker.dead, tracker.shard.count) == (RecordPosition(3), (), 0)


def test_a_limit_of_zero_is_dead_at_once() -> None:
    tracker = delivered(RetryPolicy(0), 3, NotDone("2", "2", 1, "boom", "1"))
    assert (tracker.waiting, [run.last for run in tracker.dead]) == ((), ["2"])
    tracker = delivered(RetryPolicy(0, dead_letter=False), 3, NotDone("2", "2", 1, "boom", "1"))
    assert (tracker.checkpoint, tracker.shard.count) == (RecordPosition(3), 0)


def test_expired_records_are_dead_and_the_served_ones_go_on() -> None:
    tracker = delivered(AT_ONCE, 9, NotDone("2", "8", 7, "boom", "1"))
    tracker.expire(tracker.waiting[0], 3, 5_000, [NotDone("7", "7", 1, "again", "6")])
    (dead,), (again,) = tracker.dead, tracker.waiting
    assert (dead.first, dead.last, dead.count, dead.failures[-1]) == ("2", "2", 4, Noted(5_000, "EXPIRED"))
    assert (again.first, again.count, again.prev, again.attempt) == ("7", 1, "6", 2)
    assert tracker.checkpoint == RecordPosition(1)
    tracker.dead_letter(dead, 4, None)
    assert tracker.checkpoint == RecordPosition(6)
    tracker.redeliver(again, 1, None, (), 5_000, rng())
    assert tracker.checkpoint == RecordPosition(9)


def test_records_that_are_gone_again_after_a_replay_are_in_one_place() -> None:
    tracker = delivered(AT_ONCE, 9, NotDone("2", "8", 7, "boom", "1"))
    tracker.expire(tracker.waiting[0], 3, 5_000, [NotDone("7", "7", 1, "again", "6")])
    assert tracker.replay(at(2), 5_000) == ()
    tracker.expire(tracker.waiting[0], 1, 6_000, [NotDone("2", "2", 1, "once more", "1")])
    (dead,), (waiting,) = tracker.dead, tracker.waiting
    assert (dead.first, dead.last, dead.count, dead.failures) == ("2", "2", 4, (Noted(6_000, "EXPIRED"),))
    assert waiting.first == "7"
    DrivenShard.restore(tracker.checkpoint, tracker.waiting, tracker.dead)


def test_what_is_left_of_records_that_are_gone_goes_on_where_nothing_is_dead_lettered() -> None:
    policy = RetryPolicy(3, Backoff(0, 0, 1), dead_letter=False)
    tracker = delivered(policy, 9, NotDone("2", "8", 7, "boom", "1"))
    tracker.expire(tracker.waiting[0], 2, 5_000, [NotDone("2", "2", 1, "again", "1")])
    (again,) = tracker.waiting
    assert (again.first, again.last, again.count, again.attempt) == ("2", "2", 1, 2)
    assert tracker.checkpoint == RecordPosition(1)


def test_a_replay_below_the_checkpoint_leaves_it_alone() -> None:
    tracker = delivered(AT_ONCE, 9)
    assert tracker.replay(at(3, 4, 12), 5_999) == (RecordPosition(12),)
    first, second = due(tracker.waiting, 5_999)
    assert first == Run("3", "3", 1, None, 0, 5_000)
    tracker.redeliver(first, 1, None, [NotDone("3", "3", 1, "boom", "2")], 6_000, rng())
    tracker.redeliver(second, 1, None, (), 6_000, rng())
    assert [(run.last, run.attempt) for run in tracker.waiting] == [("3", 1)]
    assert tracker.checkpoint == RecordPosition(9)


def test_very_many_replays_are_asked_for_and_taken_back_in_few_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []
    change = Runs.change

    def count(runs: Runs, *given: Any, **others: Any) -> Runs:
        passes.append(len(runs))
        return change(runs, *given, **others)

    monkeypatch.setattr(Runs, "change", count)
    tracker = delivered(AT_ONCE, 2_000)
    asked = at(*range(1, 2_001, 2))
    assert tracker.replay(asked, 0) == ()
    assert [run.last_position for run in tracker.waiting] == asked
    assert len(passes) < 10
    passes.clear()
    tracker.shard = cancel(tracker.shard, asked)
    assert tracker.waiting == ()
    assert len(passes) < 10


def test_a_replay_of_an_exhausted_record_takes_its_run_along() -> None:
    tracker = delivered(RetryPolicy(0), 9, NotDone("4", "6", 3, "boom", "3"))
    assert tracker.replay(at(5), 0) == ()
    assert tracker.dead == ()
    assert tracker.waiting == (Run("4", "6", 3, "3", 0, 0),)


def test_a_replay_above_the_checkpoint_holds_it_until_done() -> None:
    tracker = delivered(AT_ONCE, 9, NotDone("2", "2", 1, "boom", "1"))
    assert tracker.replay(at(5, 9), 0) == ()
    tracker.redeliver(tracker.waiting[0], 1, None, (), 0, rng())
    assert tracker.checkpoint == RecordPosition(2)
    for run in tracker.waiting:
        tracker.redeliver(run, 1, None, (), 0, rng())
    assert tracker.checkpoint == RecordPosition(9)


def test_a_replay_of_what_is_no_record_is_refused() -> None:
    tracker = delivered(AT_ONCE, 9, NotDone("4", "4", 1, "boom", "2"))
    assert tracker.replay(at(3), 0) == tuple(at(3))
    assert len((*tracker.waiting, *tracker.dead)) == 1


def test_restored_without_the_last_record_the_next_turn_catches_up() -> None:
    old = delivered(AT_ONCE, 9, NotDone("2", "2", 1, "boom", "1"))
    tracker = DrivenShard.restore(old.checkpoint, old.waiting, old.dead, AT_ONCE)
    tracker.redeliver(tracker.waiting[0], 1, None, (), 0, rng())
    assert tracker.checkpoint == RecordPosition(2)
    tracker.deliver(RecordPosition(12), 3, (), 0, rng())
    assert tracker.checkpoint == RecordPosition(12)


RUN = Run("4", "6", 3, "3", 1, 0, (Noted(0, "boom"),))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda t: t.deliver(RecordPosition(9), 1, (), 0, rng()),
            OrderError,
            "up to 9: expected some, after 9",
        ),
        (lambda t: t.deliver(RecordPosition(12), 0, (), 0, rng()), OrderError, "0 new records"),
        (
            lambda t: t.deliver(RecordPosition(12), 1, [NotDone("11", "12", 2, "x")], 0, rng()),
            OrderError,
            "2 records",
        ),
        (
            lambda t: t.deliver(RecordPosition(12), 3, [NotDone("9", "11", 2, "x")], 0, rng()),
            OrderError,
            "9 to 11",
        ),
        (
            lambda t: t.deliver(RecordPosition(12), 3, [NotDone("11", "13", 2, "x")], 0, rng()),
            OrderError,
            "11 to 13",
        ),
        (
            lambda t: t.redeliver(
                RUN, 3, None, [NotDone("4", "5", 2, "x"), NotDone("5", "5", 1, "x")], 0, rng()
            ),
            OrderError,
            "5 to 5",
        ),
        (lambda t: t.redeliver(RUN, 2, None, (), 0, rng()), OrderError, "the last one is None"),
        (
            lambda t: t.redeliver(RUN, 2, RecordPosition(6), (), 0, rng()),
            OrderError,
            "the last one is 6",
        ),
        (
            lambda t: t.redeliver(RUN, 2, RecordPosition(3), (), 0, rng()),
            OrderError,
            "the last one is 3",
        ),
        (lambda t: t.redeliver(RUN, 4, None, (), 0, rng()), OrderError, "4 records served"),
        (
            lambda t: t.redeliver(RUN, 0, None, [NotDone("4", "4", 1, "x")], 0, rng()),
            OrderError,
            "0 records served",
        ),
        (lambda t: t.redeliver(Run("7", "7"), 1, None, (), 0, rng()), UnknownRunError, "up to 7"),
        (
            lambda t: t.redeliver(Run("4", "6", 3, "3", 2), 3, None, (), 0, rng()),
            UnknownRunError,
            "delivery 2",
        ),
        (lambda t: t.dead_letter(RUN, 3, None), UnknownRunError, "no dead run"),
        (lambda t: t.expire(RUN, 3, 0), OrderError, "none are gone"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(call, error, says) -> None:  # type: ignore[no-untyped-def]
    tracker = delivered(AT_ONCE, 9, NotDone("4", "6", 3, "boom", "3"))
    assert tracker.waiting == (RUN,)
    with pytest.raises(error, match=says):
        call(tracker)
    assert (tracker.checkpoint, tracker.waiting, tracker.high) == (
        RecordPosition(3),
        (RUN,),
        RecordPosition(9),
    )


@pytest.mark.parametrize(
    "runs",
    [
        (Run("4", "6", 3), Run("6", "8", 2)),
        (Run("2", "4", 3),),
        (Run("", "6", 3),),
    ],
)
def test_stored_runs_that_overlap_or_have_no_beginning_are_refused(runs: tuple[Run, ...]) -> None:
    with pytest.raises(OrderError, match="stored run"):
        DrivenShard.restore(RecordPosition(3), runs, ())


def test_reasons_and_failures_are_bounded() -> None:
    tracker = delivered(RetryPolicy(100, Backoff(0, 0, 1)), 1, NotDone("1", "1", 1, "x" * 1_000))
    for _ in range(50):
        tracker.redeliver(tracker.waiting[0], 1, None, [NotDone("1", "1", 1, "y" * 1_000)], 0, rng())
    (run,) = tracker.waiting
    assert run.attempt == 51
    assert (len(run.failures), {len(failure.reason) for failure in run.failures}) == (16, {256})


def test_what_fails_together_again_comes_again_together() -> None:
    """Single records that wait, of which each drew its own time, would take one read of the shard each."""
    tracker = DrivenShard(RetryPolicy(limit=9, backoff=Backoff(60_000, 3_600_000, 2.0)))
    failed = [NotDone(str(n), str(n), 1, "boom") for n in range(2, 200, 2)]
    tracker.deliver(RecordPosition(200), 200, failed, 0, rng())
    (first_due,) = {run.due for run in tracker.waiting}
    randomness = rng()
    runs = tracker.waiting[:50]
    pieces = [NotDone(run.first, run.last, 1, "boom") for run in runs]
    tracker.settle([(run, False) for run in runs], [1] * 50, pieces, first_due, randomness)
    again = [run for run in tracker.waiting if run.attempt == 2]
    assert len(again) == 50
    assert len({run.due for run in again}) == 1
    assert len({run.failures for run in again}) == 1
    # In a later batch they draw anew.
    run = tracker.waiting[50]
    piece = NotDone(run.first, run.last, 1, "boom")
    tracker.redeliver(run, 1, None, [piece], first_due + 1, randomness)
    assert next(one.due for one in tracker.waiting if one.last == run.last) != again[0].due
