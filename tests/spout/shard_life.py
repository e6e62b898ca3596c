"""One shard through random batches: a task that reads as the real one does, and every record held by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, NotDone, Pin, Plan
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.plan import ShardState, make_plan
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import TRIM_HORIZON, After, ShardEnd
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy

STREAM, SHARD = "orders", "shardId-000000000007"


@dataclass
class Kept:
    """One record of the stream, and what has become of it."""

    position: RecordPosition
    state: str = "unread"
    deliveries: int = 0
    expired: bool = False


@dataclass
class Turn:
    """The work of one task: the pin, the rows by segment, and what it found of the runs."""

    pin: Pin
    segments: list[list[Kept]]
    gone: list[Kept]
    buried: list[Kept]


def positions(r: random.Random, count: int, begin: int, aggregate: int) -> Iterator[RecordPosition]:
    """Sequence numbers with gaps, and some aggregates of several user records."""
    sequence = begin
    made = 0
    while made < count:
        sequence += r.randint(1, 9)
        size = r.choice([0, 0, 0, aggregate])
        for sub in range(size) if size else (-1,):
            yield RecordPosition(sequence, sub)
            made += 1


def span(run: Run) -> tuple[RecordPosition, RecordPosition]:
    """The positions of a run, both ends included."""
    if run.first:
        return RecordPosition.parse(run.first), run.last_position
    assert run.prev is not None
    before = RecordPosition.parse(run.prev)
    return RecordPosition(before.sequence, before.sub + 1), run.last_position


class ShardLife:
    """A shard's nodes, moved on by planning and settling only, beside the model."""

    def __init__(
        self,
        r: random.Random,
        policy: RetryPolicy,
        *,
        records: int = 40,
        expires: bool = False,
        keep_payload: bool = True,
        max_retrying: int = 1000,
        begin: int = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898,
        aggregate: int = 3,
    ) -> None:
        self.r, self.policy = r, policy
        self.expires, self.keep_payload, self.max_retrying = expires, keep_payload, max_retrying
        self.records = [Kept(position) for position in positions(r, records, begin, aggregate)]
        self.state = ShardState(TRIM_HORIZON)
        self.now = 1_700_000_000_000
        self.txid = 0
        self.read = 0
        self.horizon = 0
        self.drained = False
        self.lettered = self.buried = 0
        self.fail_share = 0.3

    def batch(self) -> Plan | None:
        """One micro-batch, from plan to settled; None when there was nothing to do."""
        self.now += self.r.choice([0, 900, 5_000, 70_000])
        if self.expires and self.r.random() < 0.3:
            self.horizon = self.r.randint(self.horizon, self.read)
        wanted = [] if self.drained or self.state.blocked or self.r.random() < 0.1 else [SHARD]
        plan = self.plan(wanted)
        if plan is None:
            return None
        self.txid = plan.txid
        turn = None if self.r.random() < 0.1 else self.take(plan)
        self.settle(plan, turn)
        return plan

    def plan(self, read: Sequence[str]) -> Plan | None:
        """The next plan: the same one on another machine, from what stands in ZooKeeper."""
        plans = []
        before = encoded(self.state)
        for state in (self.state, rebuilt(self.state)):
            plans.append(
                make_plan(
                    txid=self.txid + 1,
                    plan="mark",
                    streams={STREAM: 1},
                    states={SHARD: state},
                    read=read,
                    now=self.now,
                    max_records=None,
                )
            )
        assert plans[0] == plans[1]
        assert encoded(self.state) == before
        plan = plans[0]
        if plan is None:
            return None
        assert plan_from_offset(json.loads(json.dumps(offset_from_plan(plan)))) == plan
        if self.state.blocked:
            assert not plan.read
        everything = {run.last: _as_named(run) for run in (*self.state.waiting, *self.state.dead)}
        named = (*plan.retries.get(SHARD, ()), *plan.dead.get(SHARD, ()), *plan.notDone.get(SHARD, ()))
        assert {run.last: _as_named(run) for run in named} == everything
        assert not any(run.failures for run in named)
        assert len(named) == len(everything)
        return plan

    def members(self, run: Run, dead: bool) -> list[Kept]:
        """The records that a run stands for."""
        first, last = span(run)
        if dead:
            found = [kept for kept in self.records if kept.state == "dead" and kept.position >= first]
            found = found[: run.count]
        else:
            found = [kept for kept in self.records if kept.state == "waiting" and kept.position <= last]
            found = found[-run.count :]
            assert found[-1].position == last
        assert len(found) == run.count
        if run.first:
            assert found[0].position == first
        start = self.records.index(found[0])
        assert self.records[start : start + run.count] == found
        return found

    def take(self, plan: Plan) -> Turn:
        """Return what a task reads of the stream for this plan."""
        due = plan.due(SHARD)
        wanted = [i for i, (_, dead) in enumerate(due) if self.keep_payload or not dead]
        served = [run.count if dead and not self.keep_payload else -1 for run, dead in due]
        missing, segments, gone, buried = [], [], [], []
        limit = due[wanted[-1]][0].last_position if wanted else None
        in_stream = self.records[self.horizon : self.read]
        if wanted and in_stream and self.r.random() < 0.4:
            limit = min(limit, self.r.choice(in_stream).position) if limit else None
        stopped = False
        for i, (run, dead) in enumerate(due):
            members = self.members(run, dead)
            if dead and not self.keep_payload:
                buried += members
                continue
            if stopped:
                continue
            assert limit is not None
            first, last = span(run)
            if limit < last and members[0] not in in_stream:
                # A run that is cut short with its head gone keeps the right count, but of which records none can say.
                limit = last
            found = [kept for kept in in_stream if first <= kept.position <= min(last, limit)]
            if last > limit and not found:
                stopped = True
                continue
            served[i] = len(found)
            whole = last <= limit
            if whole and len(found) < run.count:
                missing.append(i)
            if dead:
                assert all(kept in members for kept in found)
                buried += members if whole else found
                continue
            assert found == [kept for kept in members if kept in found]
            for kept in found:
                assert run.attempt == kept.deliveries
            if whole:
                gone += [kept for kept in members if kept not in found]
            if found:
                segments.append(found)
        while served and served[-1] < 0:
            served.pop()
        return self.pinned(plan, segments, served, missing, limit, gone, buried)

    def pinned(
        self,
        plan: Plan,
        segments: list[list[Kept]],
        served: list[int],
        missing: list[int],
        limit: RecordPosition | None,
        gone: list[Kept],
        buried: list[Kept],
    ) -> Turn:
        fresh: list[Kept] = []
        closed = False
        if SHARD in plan.read:
            fresh = self.records[self.read : self.read + self.r.randint(0, 8)]
            closed = self.read + len(fresh) == len(self.records) and self.r.random() < 0.5
            segments = [*segments, fresh] if fresh else segments
        end = str(After(fresh[-1].position)) if fresh else plan.positions[SHARD]
        pin = Pin(
            txid=plan.txid,
            plan=plan.plan,
            epoch=1,
            start=plan.positions[SHARD],
            end=str(ShardEnd()) if closed else end,
            last=str(fresh[-1].position) if fresh else None,
            count=sum(map(len, segments)),
            fresh=len(fresh),
            digest="",
            xor=0,
            closed=closed,
            served=tuple(served),
            missing=tuple(missing),
            through=str(limit) if limit is not None else None,
        )
        return Turn(pin, segments, gone, buried)

    def settle(self, plan: Plan, turn: Turn | None) -> None:
        """The outcome of a turn, for the code and for the model."""
        before = self.state.safe
        pieces: list[NotDone] = []
        failed: list[Kept] = []
        for segment in turn.segments if turn else ():
            bad = {i for i in range(len(segment)) if self.r.random() < self.fail_share}
            failed += [segment[i] for i in sorted(bad)]
            pieces += self.pieces(segment, bad, plan.retries.get(SHARD, ()))
        self.r.shuffle(pieces)
        pin = turn.pin if turn else None
        finished = CommittedTurn(plan, SHARD, f"{STREAM}/{SHARD}", pin, pieces, self.now)
        rules = InflightRules(self.policy, self.r, self.max_retrying)
        settled, buried = settle_shard(self.state, finished, rules)
        self.state = ShardState(TRIM_HORIZON, settled.checkpoint, settled.inflight)
        if turn:
            self.learn(turn, failed)
            self.lettered += sum(letter.count for letter in buried)
            assert sum(letter.count for letter in buried) == len(turn.buried)
            self.drained = self.drained or turn.pin.closed
        else:
            assert not buried
            assert settled.checkpoint is not None
            assert settled.checkpoint.position == plan.positions[SHARD]
        self.check(settled, before)

    def before(self, kept: Kept, due: Sequence[Run]) -> str | None:
        """Return what a batch's outcome says of the record before the first one of a segment: of new ones, of a run."""
        if kept.state == "unread":
            return str(self.records[self.read - 1].position) if self.read else None
        return next(run.prev for run in due if kept.position <= run.last_position)

    def pieces(self, segment: list[Kept], bad: set[int], due: Sequence[Run]) -> list[NotDone]:
        """Return the reports of operators: neighbours that failed alike, and the record before them if it is known."""
        found = []
        left = sorted(bad)
        while left:
            group = [left.pop(0)]
            while left and left[0] == group[-1] + 1 and self.r.random() < 0.7:
                group.append(left.pop(0))
            start = group[0]
            prev = str(segment[start - 1].position) if start else self.before(segment[0], due)
            first, last = segment[start].position, segment[group[-1]].position
            found.append(NotDone(str(first), str(last), len(group), self.r.choice(["A", "B"]), prev))
        return found

    def learn(self, turn: Turn, failed: list[Kept]) -> None:
        for kept in turn.buried:
            assert kept.state == "dead"
            assert kept.expired or kept.deliveries == self.policy.limit + 1
            kept.state = "done"
            self.buried += 1
        for kept in turn.gone:
            assert kept.state == "waiting"
            kept.state, kept.expired = "dead", True
        for kept in (kept for segment in turn.segments for kept in segment):
            assert kept.state in ("unread", "waiting"), f"{kept} was delivered again"
            kept.deliveries += 1
            kept.state = "done"
        for kept in failed:
            kept.state = "dead" if kept.deliveries > self.policy.limit else "waiting"
        self.read += turn.pin.fresh

    def safe(self) -> RecordPosition | None:
        """The last record of those that are all done."""
        last = None
        for kept in self.records:
            if kept.state != "done":
                break
            last = kept.position
        return last

    def check(self, settled: ShardState, before: RecordPosition | None) -> None:
        state, safe = self.state, self.safe()
        for name, runs in (("waiting", state.waiting), ("dead", state.dead)):
            named = [kept for run in runs for kept in self.members(run, name == "dead")]
            assert sorted(map(id, named)) == sorted(id(kept) for kept in self.records if kept.state == name)
        for run in state.waiting:
            assert run.due % 1000 == 0
            assert all(
                kept.deliveries == run.attempt <= self.policy.limit for kept in self.members(run, False)
            )
        for run in state.dead:
            expired = [kept.expired for kept in self.members(run, True)]
            assert expired == [run.failures[-1].reason == "EXPIRED"] * run.count
        assert before is None or (state.safe is not None and state.safe >= before)
        if state.safe is not None:
            assert safe is not None
            assert state.safe <= safe
        if not self.expires:
            assert state.safe == safe
        bound = len(state.waiting) + len(state.dead) >= self.max_retrying
        assert bool(state.blocked) is bound
        assert settled.checkpoint is not None
        assert settled.inflight is not None
        assert settled.checkpoint.txid == settled.inflight.txid == self.txid
        assert settled.checkpoint.read == self.read
        last = self.records[self.read - 1].position if self.read else None
        if self.drained:
            assert state.position == ShardEnd(last)
        else:
            assert state.position == (After(last) if last else TRIM_HORIZON)

    def finish(self) -> None:
        """From here on all succeeds: nothing may be left, and the checkpoint stands at the end."""
        self.fail_share = 0.0
        for _ in range(500):
            if self.drained and not (self.state.waiting or self.state.dead):
                break
            self.batch()
        assert all(kept.state == "done" for kept in self.records)
        assert self.state.safe == self.records[-1].position
        assert self.state.position == ShardEnd(self.records[-1].position)
        assert self.lettered == self.buried


def encoded(state: ShardState) -> tuple[bytes | None, bytes | None]:
    """A shard's two nodes as they stand in ZooKeeper."""
    checkpoint = encode(state.checkpoint) if state.checkpoint else None
    return checkpoint, encode(state.inflight) if state.inflight else None


def rebuilt(state: ShardState) -> ShardState:
    """The state that another machine finds."""
    checkpoint, inflight = encoded(state)
    return ShardState(
        state.start,
        decode("checkpoints/s", checkpoint, CheckpointNode) if checkpoint else None,
        decode("inflight/s", inflight, InflightNode) if inflight else None,
    )


def _as_named(run: Run) -> Run:
    """A run as far as any plan names it."""
    return msgspec.structs.replace(run, failures=(), prev=None if run.first else run.prev)
