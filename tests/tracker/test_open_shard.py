"""Acks and fails by name after the batch, against a model that holds every record by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from driven_shard import DrivenShard
from hypothesis import given, settings, strategies as st
from naive_shard import due, shard_positions
from thorough import examples

from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.given_turns import GivenTurn
from kinesis_trident.tracker.open_shard import AckCounts
from kinesis_trident.tracker.position_keys import Keys, keys_of, pack_in_parts, unpack
from kinesis_trident.tracker.records import NotDone, Noted, PendingRun, RecordPosition, Run
from kinesis_trident.tracker.requests import cancel
from kinesis_trident.tracker.retry import Backoff, RetryPolicy
from kinesis_trident.tracker.runs import Runs

NOW = 1_700_000_000_000
AT_ONCE = Backoff(0, 0, 1)
NEVER = 10**15


def made(positions: Sequence[RecordPosition]) -> Keys:
    return keys_of([position.sequence for position in positions], [position.sub for position in positions])


@dataclass
class Held:
    """One record that was delivered."""

    position: RecordPosition
    state: str = "pending"
    attempt: int = 1
    due: int = 0
    reasons: list[str] = field(default_factory=list)
    beside: bool = False
    gone: bool = False

    @property
    def has_expired(self) -> bool:
        return self.state == "dead" and self.reasons[-1] == "EXPIRED"


class Life:
    """A shard's tracker, stored and restored at will, beside the model."""

    def __init__(self, r: random.Random, policy: RetryPolicy) -> None:
        self.r, self.policy = r, policy
        self.tracker = DrivenShard(policy)
        self.records: list[Held] = []
        self.numbers: Iterator[RecordPosition] = shard_positions(r)
        self.now, self.txid = NOW, 0
        self.replays = r.random() < 0.4
        self.trims = r.random() < 0.5
        self.serves_all = False

    def step(self) -> None:
        self.now += self.r.choice([0, 1, 900, 4_000])
        told = [self.ack, self.ack, self.fail, self.reset]
        steps = [self.batch, self.batch, *told, self.time_out, self.restart]
        steps += [self.replay] * self.replays + [self.trim, self.fail] * self.trims
        self.r.choice(steps)()
        self.check()

    def some(self, *states: str) -> list[Held]:
        """Records in a state; those that have left the stream are not named one by one."""
        share = self.r.choice([0.1, 0.5, 1])
        found = [each for each in self.records if each.state in states and self.r.random() < share]
        return [each for each in found if not each.has_expired]

    def of(self, run: Run) -> list[Held]:
        first = RecordPosition.parse(run.first) if run.first else None
        prev = RecordPosition.parse(run.prev) if run.prev else None
        reasons = [failure.reason for failure in run.failures]
        if "EXPIRED" in reasons[-1:]:
            # It does not know its last record.
            held = [each for each in self.records if each.has_expired and each.reasons == reasons]
        else:
            held = [each for each in self.records if each.position <= run.last_position]
            held = [each for each in held if not each.has_expired]
        held = [
            each
            for each in held
            if (first is None or each.position >= first)
            and (first is not None or prev is None or each.position > prev)
        ]
        assert len(held) == run.count or ("EXPIRED" in reasons[-1:] and len(held) > run.count)
        return held[: run.count]

    def trim(self) -> None:
        """The oldest records leave the stream."""
        for each in self.records[: self.r.randint(0, len(self.records))]:
            each.gone = True

    def batch(self) -> None:
        """Dead runs are dead-lettered, due ones come again, new ones besides; some fail in the batch."""
        self.txid += 1
        deadline = self.now + self.r.choice([0, 5_000, 30_000])
        taken = due(self.tracker.waiting, self.now)[: None if self.serves_all else 5]
        dead = [(run, True) for run in self.tracker.dead]
        runs = sorted([*((run, False) for run in taken), *dead], key=lambda one: one[0].last_position)
        served, missing, rows, expired, buried = (
            list[int](),
            list[int](),
            list[Held](),
            list[Held](),
            list[Held](),
        )
        for index, (run, is_dead) in enumerate(runs):
            held = self.of(run)
            here = [each for each in held if not each.gone]
            most = (
                run.count
                if self.serves_all
                else self.r.choice([run.count, run.count, self.r.randint(0, run.count)])
            )
            served.append(
                run.count if is_dead else min(len(here), most) if len(here) == run.count else len(here)
            )
            if is_dead:
                buried += held
                continue
            rows += here[: served[-1]]
            if len(here) < run.count:
                missing.append(index)
                expired += [each for each in held if each.gone]
            elif served[-1] < run.count:
                # The stream was read up to here.
                break
        fresh = [Held(next(self.numbers), attempt=0) for _ in range(self.r.choice([0, 1, 9]))]
        keys = made([each.position for each in (*rows, *fresh)])
        failed = [each for each in (*rows, *fresh) if self.r.random() < 0.2]
        pieces = [NotDone(str(each.position), str(each.position), 1, "bad") for each in failed]
        self.tracker.settle(
            runs,
            served,
            pieces,
            self.now,
            self.r,
            through=str(rows[-1].position) if rows else None,
            missing=missing,
            given=GivenTurn(self.txid, keys, deadline),
        )
        self.records += fresh
        for each in buried:
            each.state = "done"
        for each in expired:
            each.state, each.due = "dead", 0
            each.reasons.append("EXPIRED")
        for each in (*rows, *fresh):
            each.state, each.attempt, each.due = "pending", each.attempt + 1, deadline
        self.failed(failed, "bad")

    def failed(self, records: Sequence[Held], reason: str) -> None:
        for each in records:
            each.reasons.append(reason)
            exhausted = self.policy.exhausted(each.attempt)
            each.state, each.due = ("dead", 0) if exhausted else ("waiting", -(-self.now // 1000) * 1000)

    def told(self) -> tuple[list[Held], list[RecordPosition]]:
        """Records that somebody names, and positions that are none: beyond all, or between two records."""
        named = self.some("pending", "waiting", "dead", "done")
        last = self.records[-1].position if self.records else RecordPosition(0)
        beyond = [RecordPosition(last.number + 10**6 + i) for i in range(self.r.choice([0, 0, 3]))]
        return named, beyond

    def attempt(self) -> int | None:
        return self.r.choice([None, None, 1, 2])

    def ack(self) -> None:
        named, beyond = self.told()
        attempt = self.attempt()
        told = self.tracker.ack(made(self.shuffled(named, beyond)), attempt)
        if attempt is not None:
            done = [each for each in named if (each.state, each.attempt) == ("pending", attempt)]
            assert told == AckCounts(len(done), 0, len(named) - len(done), len(beyond))
            for each in done:
                each.state = "done"
            return
        states = [each.state for each in named]
        late = sum(state in ("waiting", "dead") for state in states)
        assert told == AckCounts(states.count("pending"), late, states.count("done"), len(beyond))
        for each in named:
            each.state = "done"

    def fail(self) -> None:
        named, beyond = self.told()
        attempt = self.attempt()
        keys = made(self.shuffled(named, beyond))
        told = self.tracker.fail(keys, self.now, "refused", self.r, attempt)
        pending = [each for each in named if each.state == "pending" and attempt in (None, each.attempt)]
        assert told == AckCounts(len(pending), 0, len(named) - len(pending), len(beyond))
        self.failed(pending, "refused")

    def reset(self) -> None:
        """Somebody needs longer."""
        named, beyond = self.told()
        deadline = self.now + self.r.choice([1, 5_000, 60_000])
        attempt = self.attempt()
        told = self.tracker.reset(made(self.shuffled(named, beyond)), deadline, attempt)
        pending = [each for each in named if each.state == "pending" and attempt in (None, each.attempt)]
        assert told == AckCounts(len(pending), 0, len(named) - len(pending), len(beyond))
        for each in pending:
            each.due = deadline

    def shuffled(self, named: Sequence[Held], beyond: Sequence[RecordPosition]) -> list[RecordPosition]:
        """In any order, some twice."""
        positions = [each.position for each in named] + list(beyond)
        positions += self.r.sample(positions, len(positions) // 3)
        self.r.shuffle(positions)
        return positions

    def time_out(self) -> None:
        late = [each for each in self.records if each.state == "pending" and each.due <= self.now]
        assert self.tracker.time_out(self.now, self.r) == len(late)
        self.failed(late, "TIMEOUT")

    def replay(self) -> None:
        """Somebody asks for records again that are done."""
        asked = [each for each in self.some("done") if not each.gone and self.r.random() < 0.3]
        assert not self.tracker.replay([each.position for each in asked], self.now)
        for each in asked:
            each.beside = self.tracker.checkpoint is not None and each.position <= self.tracker.checkpoint
            each.state, each.attempt, each.due, each.reasons = "waiting", 0, self.now // 1000 * 1000, []

    def restart(self) -> None:
        """Everything through ZooKeeper's texts."""
        shard = self.tracker.shard
        stored = shard.held.in_use(shard.waiting, shard.dead).records
        node = InflightNode(
            txid=self.txid,
            waiting=self.tracker.waiting,
            dead=self.tracker.dead,
            pending=self.tracker.pending,
            turns=tuple(stored),
        )
        read = decode("/inflight", encode(node), InflightNode)
        turns = {txid: unpack(*pack_in_parts(keys)) for txid, keys in stored.items()}
        self.tracker = DrivenShard.restore(
            self.tracker.checkpoint,
            read.waiting,
            read.dead,
            self.policy,
            pending=read.pending,
            turns=turns,
            through=self.records[-1].position if self.records else None,
        )

    def check(self) -> None:
        pending = {each.position: each for each in self.records if each.state == "pending"}
        shard = self.tracker.shard
        turns = shard.held.in_use(shard.waiting, shard.dead).records
        found = {}
        for run in self.tracker.pending:
            positions = [
                position
                for start, until in zip(run.open[::2], run.open[1::2], strict=True)
                for position in keys_positions(turns[run.txid][start:until])
            ]
            assert run.count == len(positions)
            found |= dict.fromkeys(
                positions, (run.attempt, run.due, [failure.reason for failure in run.failures])
            )
        assert found == {at: (each.attempt, each.due, each.reasons) for at, each in pending.items()}
        for state, runs in (("waiting", self.tracker.waiting), ("dead", self.tracker.dead)):
            said = {
                each.position: (run.attempt, run.due, [failure.reason for failure in run.failures])
                for run in runs
                for each in self.of(run)
            }
            assert said == {
                each.position: (each.attempt, each.due, each.reasons)
                for each in self.records
                if each.state == state
            }
        others = [each for each in self.records if each.state in ("waiting", "dead")]
        assert self.tracker.shard.count == len(pending) + len(others)
        runs = self.tracker.pending
        assert sum(run.count for run in runs) == len(pending)
        assert min((run.due for run in runs), default=None) == min(
            (each.due for each in pending.values()), default=None
        )
        self.check_checkpoint()

    def check_checkpoint(self) -> None:
        safe = None
        for each in self.records:
            if each.state != "done" and not each.beside:
                break
            safe = each.position
        for each in self.records:
            each.beside &= each.state != "done"
        here = self.tracker.checkpoint
        assert here is None or (safe is not None and here <= safe)
        # The last record of a run that has left the stream is not known.
        if not (self.replays or self.trims):
            assert here == safe

    def finish(self) -> None:
        """Whatever happened, in the end each record is done by an ack, or dead-lettered."""
        self.serves_all = True
        for _ in range(self.policy.limit + 2):
            self.now += 60_000
            self.batch()
            self.tracker.time_out(NEVER, self.r)
            self.failed([each for each in self.records if each.state == "pending"], "TIMEOUT")
        self.restart()
        left = [each.position for each in self.records if each.state != "done"]
        self.tracker.ack(made(left))
        for each in self.records:
            each.state = "done"
        self.check()
        assert self.tracker.shard.count == 0
        assert self.tracker.checkpoint == (self.records[-1].position if self.records else None)


def keys_positions(keys: Keys) -> list[RecordPosition]:
    return [RecordPosition(int(key[:-10]), int(key[-10:]) - 1) for key in keys.array]


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(0, 3))
def test_nothing_acked_comes_again_and_nothing_unacked_is_lost(*, seed: int, limit: int) -> None:
    life = Life(random.Random(seed), RetryPolicy(limit, AT_ONCE))
    for _ in range(25):
        life.step()
    life.finish()


def numbered(count: int, first: int = 10**55) -> list[RecordPosition]:
    return [RecordPosition(first + 7 * i) for i in range(count)]


def test_many_records_are_acked_in_bulk_and_stored_in_little() -> None:
    count = 200_000
    keys = keys_of(np.arange(10**12, 10**12 + count).astype("S13"))
    tracker = DrivenShard()
    tracker.give(1, keys, NOW)
    odd = np.random.default_rng(7).permutation(np.arange(count // 2) * 2 + 1)
    assert tracker.ack(keys[odd]).changed == count // 2
    assert tracker.ack(keys[: count // 2]).changed == count // 4
    assert str(tracker.checkpoint) == str(10**12 + count // 2 - 1)
    assert tracker.ack(keys).changed == count // 4
    assert not tracker.shard.count


def test_pending_records_of_a_turn_that_is_gone_are_an_error() -> None:
    run = PendingRun(txid=3, open=(0, 2), due=NOW)
    with pytest.raises(OrderError, match=r"txid 3, whose turn has unknown rows"):
        DrivenShard.restore(None, (), (), pending=(run,))
    with pytest.raises(OrderError, match="whose turn has 1 rows"):
        DrivenShard.restore(None, (), (), pending=(run,), turns={3: made(numbered(1))})


def test_rows_that_are_not_the_runs_are_an_error() -> None:
    a, b, c = numbered(3)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made([a, b, c]), NOW)
    tracker.fail(made([b]), NOW, "no", random.Random(7))
    (run,) = tracker.waiting
    with pytest.raises(OrderError, match="which has 0 of them"):
        tracker.give(2, made([c]), NOW, run, 1)
    with pytest.raises(OrderError, match="expected them after"):
        tracker.give(3, made([c]), NOW)


@pytest.mark.parametrize("text", ["HELD", "HELD_ANEW (bolt a)", "said: HELD"])
def test_what_an_earlier_release_was_told_from_outside_has_failed(text: str) -> None:
    """It has stored the words as they were said."""
    positions = numbered(1)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made(positions), NOW)
    tracker.fail(made(positions), NOW, text, random.Random(7))
    (run,) = tracker.waiting
    assert (run.is_held, run.attempt, run.failures[0].reason) == (False, 1, text.removeprefix("said: "))


def test_a_run_that_comes_again_in_part_waits_on_with_its_rest() -> None:
    """As a run that is read from ZooKeeper, of whose records only the ends are known."""
    a, b, c = numbered(3)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made([a, b, c]), NOW)
    assert tracker.time_out(NOW, random.Random(7)) == 3
    tracker = DrivenShard.restore(None, tracker.waiting, (), policy=RetryPolicy(3, AT_ONCE))
    tracker.give(2, made([a, b]), NOW + 9, tracker.waiting[0], 2, b)
    assert [(run.first, run.last, run.count, run.prev) for run in tracker.waiting] == [
        ("", str(c), 1, str(b))
    ]
    assert tracker.ack(made([a, b])) == AckCounts(changed=2)
    assert tracker.checkpoint == b


def test_records_that_are_gone_and_others_of_their_run_that_wait_for_acks_are_in_one_place() -> None:
    """The first record of the run is there, and some behind it are gone."""
    a, b, c = numbered(3)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made([a, b, c]), NOW)
    tracker.time_out(NOW, random.Random(7))
    given = GivenTurn(2, made([a, c]), NOW + 9)
    tracker.settle([(tracker.waiting[0], False)], [2], (), NOW, random.Random(7), missing=[0], given=given)
    assert [(run.first, run.last, run.count) for run in tracker.dead] == [(str(a), str(c), 3)]
    assert (tracker.waiting, tracker.pending, tracker.checkpoint) == ((), (), None)
    DrivenShard.restore(None, (), tracker.dead)


@pytest.mark.parametrize("gone", [0, 1])
def test_what_failed_of_a_turn_is_its_place_also_where_a_record_of_it_is_gone(gone: int) -> None:
    """The bolts judged three records; a replay of the turn no longer found one of them."""
    a, b, c, d = numbered(4)
    left = [each for at, each in enumerate((a, b, c, d)) if at != gone]
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    failed = [NotDone(str(a), str(c), 3, "bad")]
    given = GivenTurn(1, made(left), NOW + 9)
    tracker.settle([], [], failed, NOW, random.Random(7), given=given)
    assert sum(run.count for run in tracker.waiting) == 2
    assert [run.open for run in tracker.pending] == [(2, 3)]


def test_what_is_no_record_takes_no_run_along_whose_records_a_turn_has() -> None:
    a, b, c, d = numbered(4)
    run = Run("", str(d), 2, str(a), 2, NEVER)
    turns = {1: made([c, d])}
    tracker = DrivenShard.restore(a, (run,), (), RetryPolicy(3, AT_ONCE), turns=turns)
    assert tracker.replay([b], NOW) == (b,)
    assert tracker.waiting == (run,)
    assert cancel(tracker.shard, [b, d]).waiting[0] == run
    assert tracker.replay([c], NOW) == ()
    assert [(run.attempt, run.due) for run in tracker.waiting] == [(0, NOW)]


def test_between_neighbours_that_wait_for_their_acks_nothing_is_known_to_be_none() -> None:
    a, b, c, d = numbered(4)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made([a, c, d]), NOW)
    assert tracker.replay([b], NOW) == ()
    assert (tracker.waiting, tracker.shard.count) == ((), 3)
    tracker.ack(made([c]))
    assert tracker.replay([b], NOW) == ()
    assert [run.last for run in tracker.waiting] == [str(b)]


def test_a_run_that_is_gone_in_part_is_not_the_rows_of_a_turn_that_has_its_last_one() -> None:
    a, b, _ = numbered(3)
    gone = Run(str(b), str(b), 2, str(a), 2)
    tracker = DrivenShard.restore(None, (), (gone,), turns={1: made([a, b])})
    assert tracker.ack(made([b])) == AckCounts(known=1)
    assert tracker.dead == (gone,)


def test_neighbours_with_the_same_failures_are_one_run_whoever_has_made_these() -> None:
    a, b = numbered(2)
    some = [
        Run(str(one), str(one), 1, prev, failures=(Noted(NOW, "A"),))
        for one, prev in ((a, None), (b, str(a)))
    ]
    joined = Runs[Run]().add(some, joins=True)
    assert [(run.first, run.last, run.count) for run in joined] == [(str(a), str(b), 2)]


def test_what_no_turn_is_kept_of_is_acked_one_by_one_and_all_else_is_counted() -> None:
    """As a shard that is read from ZooKeeper, with runs of a person's replay only."""
    a, b, c = numbered(3)
    run = Run(str(b), str(b), 1, str(a), 0, NOW)
    tracker = DrivenShard.restore(a, (run,), (), RetryPolicy(3, AT_ONCE), through=b)
    assert tracker.reset(made([a, b, c]), NOW + 9) == AckCounts(known=2, unknown=1)
    assert tracker.fail(made([b]), NOW, "no", random.Random(7)) == AckCounts(known=1)
    assert tracker.time_out(NEVER, random.Random(7)) == 0
    assert tracker.ack(made([a, b, c])) == AckCounts(late=1, known=1, unknown=1)
    assert (tracker.checkpoint, tracker.waiting) == (b, ())


def test_an_ack_of_what_waits_holds_until_it_is_delivered_again() -> None:
    a, b = numbered(2)
    tracker = DrivenShard(RetryPolicy(3, AT_ONCE))
    tracker.give(1, made([a, b]), NOW)
    assert tracker.time_out(NOW, random.Random(7)) == 2
    assert tracker.ack(made([b])) == AckCounts(late=1)
    assert [(run.first, run.last) for run in tracker.waiting] == [(str(a), str(a))]
    tracker.give(2, made([a]), NOW + 9, tracker.waiting[0], 1)
    assert tracker.checkpoint is None
    assert tracker.ack(made([a])) == AckCounts(changed=1)
    assert tracker.checkpoint == b
