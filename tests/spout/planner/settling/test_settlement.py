"""Settling batches, against a model that holds every record by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from shard_life import SHARD, STREAM, ShardLife
from thorough import examples

from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    InflightNode,
    NotDone,
    Pin,
    Plan,
    ShardLineage,
)
from kinesis_trident.checkpoint.model.standing import find_standing
from kinesis_trident.spout.planner.plan import ShardState, make_plan
from kinesis_trident.spout.planner.settling.finished_batch import empty_turn
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, ShardEnd
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

NOW = 1_700_000_000_000
AT_ONCE = Backoff(0, 0, 1)


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(0, 3),
    backoff=st.sampled_from([AT_ONCE, Backoff(1_000, 60_000, 2)]),
    expires=st.booleans(),
    keep_payload=st.booleans(),
    max_retrying=st.sampled_from([1, 3, 1000]),
    share=st.sampled_from([0.1, 0.4, 1.0]),
)
def test_no_record_is_lost_repeated_or_passed(
    *,
    seed: int,
    limit: int,
    backoff: Backoff,
    expires: bool,
    keep_payload: bool,
    max_retrying: int,
    share: float,
) -> None:
    life = ShardLife(
        random.Random(seed),
        RetryPolicy(limit, backoff),
        expires=expires,
        keep_payload=keep_payload,
        max_retrying=max_retrying,
    )
    life.fail_share = share
    for _ in range(12):
        life.batch()
    life.finish()


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(0, 3),
    backoff=st.sampled_from([AT_ONCE, Backoff(1_000, 60_000, 2)]),
    keep_payload=st.booleans(),
    begin=st.sampled_from([0, 95, 10**55]),
    aggregate=st.sampled_from([0, 3]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_random_batches_of_any_numbers_agree_with_every_record_held_by_itself(
    *, seed: int, limit: int, backoff: Backoff, keep_payload: bool, begin: int, aggregate: int, share: float
) -> None:
    life = ShardLife(
        random.Random(seed),
        RetryPolicy(limit, backoff),
        keep_payload=keep_payload,
        begin=begin,
        aggregate=aggregate,
    )
    life.fail_share = share
    for _ in range(12):
        life.batch()
    life.finish()


class Batches:
    """One shard by hand: what each turn read and what failed."""

    def __init__(self, policy: RetryPolicy, *, max_retrying: int = 1000) -> None:
        self.policy, self.max_retrying = policy, max_retrying
        self.state = ShardState(TRIM_HORIZON)
        self.txid = 0
        self.now = NOW
        self.buried: tuple[DeadLetterRecord, ...] = ()

    def plan(self, *, read: bool = True) -> Plan:
        standing = find_standing(ShardLineage(), self.state.inflight, is_read=True, waits=False)
        plan = make_plan(
            txid=self.txid + 1,
            plan="mark",
            streams={STREAM: 1},
            states={SHARD: self.state},
            read=[SHARD] if read and standing.reads else [],
            now=self.now,
            max_records=None,
        )
        assert plan is not None
        self.txid += 1
        return plan

    def settle(self, plan: Plan, pin: Pin | None, *failed: NotDone) -> ShardState:
        turn = CommittedTurn(plan, SHARD, f"{STREAM}/{SHARD}", pin, failed, self.now)
        rules = InflightRules(self.policy, random.Random(1), self.max_retrying)
        settled, self.buried = settle_shard(self.state, turn, rules)
        self.state = ShardState(TRIM_HORIZON, settled.checkpoint, settled.inflight)
        self.now += 1_000
        return settled


def pin_of(plan: Plan, *, last: int | None = None, fresh: int = 0, **more: object) -> Pin:
    start = plan.positions[SHARD]
    pin = Pin(
        txid=plan.txid,
        plan=plan.plan,
        epoch=1,
        start=start,
        end=start if last is None else str(After(RecordPosition(last))),
        last=None if last is None else str(last),
        count=fresh,
        fresh=fresh,
        digest="",
        xor=0,
    )
    return msgspec.structs.replace(pin, **more)


@pytest.mark.parametrize(("limit", "deliveries"), [(3, 4), (0, 1)])
def test_a_poison_record_at_the_head_holds_only_the_checkpoint(limit: int, deliveries: int) -> None:
    batches = Batches(RetryPolicy(limit, AT_ONCE))
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan, last=15, fresh=6), NotDone("10", "10", 1, "ValueError: bad"))
    made = 1
    while not settled.inflight.dead:
        assert [(run.first, run.count, run.attempt) for run in settled.inflight.waiting] == [("10", 1, made)]
        assert settled.checkpoint.checkpoint is None
        assert settled.checkpoint.position == str(After(RecordPosition(15)))
        plan = batches.plan(read=False)
        assert plan.retries[SHARD][0].attempt == made
        retried = pin_of(plan, served=(1,), through="10", count=1)
        settled = batches.settle(plan, retried, NotDone("10", "10", 1, "ValueError: bad"))
        made += 1
    assert made == deliveries
    assert settled.inflight.waiting == ()
    assert settled.checkpoint.checkpoint is None
    plan = batches.plan(read=False)
    assert [run.first for run in plan.dead[SHARD]] == ["10"]
    settled = batches.settle(plan, pin_of(plan, served=(1,), through="10"))
    assert settled.checkpoint.checkpoint == "15"
    assert settled.inflight.dead == ()
    (letter,) = batches.buried
    assert (letter.message_id, letter.attempts, letter.count) == (f"{STREAM}/{SHARD}:10", deliveries, 1)
    assert letter.reason == "ValueError: bad"


def test_at_the_bound_the_shard_reads_nothing_new_and_says_so_and_below_it_reads_again() -> None:
    batches = Batches(RetryPolicy(3, AT_ONCE), max_retrying=2)
    plan = batches.plan()
    failed = [NotDone("12", "12", 1, "A", "11"), NotDone("14", "14", 1, "A", "13")]
    settled = batches.settle(plan, pin_of(plan, last=15, fresh=5), *failed)
    assert "maxRetryingRecords is 2" in settled.inflight.blocked
    plan = batches.plan()
    assert plan.read == ()
    settled = batches.settle(plan, pin_of(plan, served=(1, 1), through="14", count=2), failed[0])
    assert settled.inflight.blocked == ""
    assert batches.plan().read == (SHARD,)


def test_a_turn_that_did_not_run_leaves_position_and_due_retries() -> None:
    batches = Batches(RetryPolicy(3, AT_ONCE))
    plan = batches.plan()
    seen = pin_of(plan, last=15, fresh=5, seen=NOW, arrival=NOW - 7, behind_ms=3)
    before = batches.settle(plan, seen, NotDone("12", "12", 1, "A", "11"))
    after = batches.settle(batches.plan(), None)
    assert msgspec.structs.replace(after.checkpoint, txid=1) == before.checkpoint
    assert after.inflight.waiting == before.inflight.waiting
    assert after.checkpoint.txid == after.inflight.txid == 2


def test_a_turn_that_was_throttled_at_once_keeps_when_the_tip_was_last_seen() -> None:
    # Else an idle shard would look as if nobody had read it since its last record: data loss that is none.
    batches = Batches(RetryPolicy())
    plan = batches.plan()
    batches.settle(plan, pin_of(plan, last=15, fresh=5, seen=NOW, arrival=NOW - 7, behind_ms=3))
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan))
    assert (settled.checkpoint.seen, settled.checkpoint.behind_ms) == (NOW, 3)
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan, last=20, fresh=1, behind_ms=500, arrival=NOW))
    assert (settled.checkpoint.seen, settled.checkpoint.behind_ms) == (None, 500)


@pytest.mark.parametrize("fresh", [0, 2])
def test_a_turn_settles_though_a_replay_lost_records_that_its_outcome_names(fresh: int) -> None:
    batches = Batches(RetryPolicy(3, AT_ONCE))
    plan = batches.plan()
    pin = pin_of(plan, last=15, fresh=fresh, lost=6 - fresh)
    settled = batches.settle(plan, pin, NotDone("10", "13", 4, "A"))
    assert [(run.first, run.last, run.count) for run in settled.inflight.waiting] == [("10", "13", 4)]
    assert settled.checkpoint.checkpoint is None
    plan = batches.plan(read=False)
    settled = batches.settle(plan, pin_of(plan, served=(0,), missing=(0,), through="13"))
    assert [run.failures[-1].reason for run in settled.inflight.dead] == ["EXPIRED"]
    plan = batches.plan(read=False)
    settled = batches.settle(plan, pin_of(plan, served=(0,), missing=(0,), through="13"))
    assert settled.checkpoint.checkpoint == "15"
    assert sum(letter.count for letter in batches.buried) == 4


def test_a_turn_whose_records_are_all_lost_settles() -> None:
    batches = Batches(RetryPolicy())
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan, last=15, fresh=0, lost=6))
    assert settled.checkpoint.checkpoint == "15"


def test_a_retry_served_in_part_leaves_the_rest_as_it_was() -> None:
    batches = Batches(RetryPolicy(3, AT_ONCE))
    plan = batches.plan()
    batches.settle(plan, pin_of(plan, last=20, fresh=11), NotDone("12", "17", 6, "A", "11"))
    plan = batches.plan(read=False)
    pin = pin_of(plan, served=(3,), through="14", count=3)
    settled = batches.settle(plan, pin, NotDone("13", "13", 1, "B", "12"))
    assert settled.checkpoint.checkpoint == "12"
    assert [(run.first, run.last, run.count, run.attempt, run.prev) for run in settled.inflight.waiting] == [
        ("13", "13", 1, 2, "12"),
        ("", "17", 3, 1, "14"),
    ]


def test_a_dead_run_served_in_part_names_what_was_written_and_one_not_found_yet_writes_nothing() -> None:
    batches = Batches(RetryPolicy(0, AT_ONCE))
    plan = batches.plan()
    batches.settle(plan, pin_of(plan, last=20, fresh=11), NotDone("12", "17", 6, "A", "11"))
    plan = batches.plan(read=False)
    settled = batches.settle(plan, pin_of(plan, served=(0,), through="11"))
    assert batches.buried == ()
    plan = batches.plan(read=False)
    settled = batches.settle(plan, pin_of(plan, served=(3,), through="14"))
    (letter,) = batches.buried
    assert (letter.message_id, letter.count) == (f"{STREAM}/{SHARD}:12..14", 3)
    assert settled.checkpoint.checkpoint == "14"
    assert [(run.count, run.prev, run.last) for run in settled.inflight.dead] == [(3, "14", "17")]


def test_outcomes_go_to_the_run_or_the_new_records_that_they_lie_in() -> None:
    batches = Batches(RetryPolicy(3, AT_ONCE))
    plan = batches.plan()
    first = [NotDone("12", "12", 1, "A", "11"), NotDone("15", "16", 2, "B", "14")]
    batches.settle(plan, pin_of(plan, last=20, fresh=11), *first)
    plan = batches.plan()
    pin = pin_of(plan, last=30, fresh=10, served=(1, 2), through="16", count=13)
    settled = batches.settle(plan, pin, NotDone("21", "21", 1, "D", "20"), NotDone("16", "16", 1, "C", "15"))
    assert [(run.first, run.attempt) for run in settled.inflight.waiting] == [("16", 2), ("21", 1)]
    assert [f.reason for f in settled.inflight.waiting[0].failures] == ["B", "C"]
    assert settled.checkpoint.checkpoint == "15"


def test_an_outcome_beyond_the_turn_is_an_error() -> None:
    batches = Batches(RetryPolicy())
    plan = batches.plan()
    with pytest.raises(ValueError, match="outside"):
        batches.settle(plan, pin_of(plan, last=20, fresh=11), NotDone("21", "21", 1, "A"))


@pytest.mark.parametrize(
    ("start", "last", "end"),
    [
        (TRIM_HORIZON, None, ShardEnd()),
        (TRIM_HORIZON, 15, ShardEnd(RecordPosition(15))),
        (After(RecordPosition(9)), None, ShardEnd(RecordPosition(9))),
        (At(RecordPosition(9)), None, ShardEnd()),
        (AtTimestamp(7), None, ShardEnd()),
    ],
)
def test_a_closed_shard_ends_after_its_last_record(start: object, last: int | None, end: ShardEnd) -> None:
    batches = Batches(RetryPolicy())
    batches.state = replace(batches.state, start=start)  # type: ignore[arg-type]
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan, last=last, fresh=1 if last else 0, closed=True))
    assert settled.checkpoint.position == str(end)
    assert settled.checkpoint.checkpoint == (end.record.sequence if end.record else None)


def test_a_run_asked_for_again_below_the_checkpoint_does_not_move_it() -> None:
    batches = Batches(RetryPolicy(0, AT_ONCE))
    plan = batches.plan()
    settled = batches.settle(plan, pin_of(plan, last=20, fresh=11))
    again = Run("12", "12", attempt=0, due=NOW)
    inflight = msgspec.structs.replace(settled.inflight, waiting=(again,))
    batches.state = ShardState(TRIM_HORIZON, settled.checkpoint, inflight)
    plan = batches.plan(read=False)
    settled = batches.settle(
        plan, pin_of(plan, served=(1,), through="12", count=1), NotDone("12", "12", 1, "A")
    )
    assert settled.checkpoint.checkpoint == "20"
    assert [(run.first, run.attempt) for run in settled.inflight.dead] == [("12", 1)]


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 2**32))
def test_a_turn_that_leaves_nothing_in_flight_is_settled_as_the_tracker_would(seed: int) -> None:
    """Most turns do, so they are settled without one."""
    r = random.Random(seed)
    start = r.choice([TRIM_HORIZON, AtTimestamp(5), After(RecordPosition(9)), At(RecordPosition(9))])
    node = None
    if r.random() < 0.6:
        read = RecordPosition(r.randint(10, 20), r.choice([-1, 2]))
        node = CheckpointNode(
            checkpoint=read.sequence, sub=read.sub, txid=0, position=str(After(read)), arrival=3, read=5
        )
    batches = Batches(RetryPolicy())
    batches.state = ShardState(start, node, r.choice([None, InflightNode(txid=0, waiting=())]))
    plan = batches.plan()
    pin = pin_of(plan, last=r.choice([None, r.randint(21, 30)]), fresh=3, closed=r.random() < 0.3)
    before = batches.state
    found = batches.settle(plan, pin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "kinesis_trident.spout.planner.settling.settlement._leaves_nothing_in_flight", lambda *_: False
        )
        batches.state = before
        assert batches.settle(plan, pin) == found


@given(
    failed=st.sets(st.integers(1, 20)), read=st.booleans(), explicit=st.booleans(), limit=st.integers(0, 2)
)
def test_an_empty_turn_leaves_a_shard_as_no_turn_at_all_does(
    *, failed: set[int], read: bool, explicit: bool, limit: int
) -> None:
    batches = Batches(RetryPolicy(limit, AT_ONCE))
    first = batches.plan()
    not_done = [NotDone(str(n), str(n), 1, "E", str(n - 1) if n > 1 else None) for n in sorted(failed)]
    batches.settle(first, pin_of(first, last=20, fresh=20), *not_done)
    if not (read or failed):
        return
    plan = batches.plan(read=read)
    none, empty = (
        settle_shard(
            batches.state,
            CommittedTurn(plan, SHARD, f"{STREAM}/{SHARD}", pin, (), batches.now),
            InflightRules(batches.policy, random.Random(1), 1000, *((1_000, 100) if explicit else ())),
        )
        for pin in (None, empty_turn(plan, SHARD, 1))
    )
    assert none == empty
