"""Random looks, turns, drains and listings, told to the sights and to their twin: both know the same of each shard."""

from __future__ import annotations

import random

import pytest
from looking import answers
from settled import make_pin, settled
from thorough import examples
from twins.old_sight.look_pace import LookPace, TurnCalls
from twins.old_sight.tips import TipWatch
from twins.old_sight.turn_sizes import TurnSizes

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Pin, Plan, ShardLineage
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.shard_events import Listed
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.turn_size import count_fitting, predict

START = 1_700_000_000_000


class World:
    """Some shards, and what both know of them."""

    def __init__(self, r: random.Random) -> None:
        limits = r.choice([0.05, 0.4]), r.choice([0.0, 0.2, 1.0]), r.choice([1e15, 2**20])
        self.r = r
        self.now, self.txid, self.settled_at = START, 0, START
        self.pace = LookPace(*limits)
        self.tip, self.sizes = TipWatch(self.pace), TurnSizes()
        self.ahead: dict[str, tuple[int, int]] = {}
        self.sights = Sights(LookTimes.of(*limits))
        names = [f"s{number}" for number in range(r.randrange(1, 7))]
        self.shards = Shards(
            "parentFirst",
            {name: ShardState(TRIM_HORIZON) for name in names},
            {name: ShardLineage(state=r.choice(["open", "closed"])) for name in names},
        )
        self.tip.closed = self.shards.closed

    def look(self) -> None:
        """Look at those that are due, or at some of them, with calls that are answered, refused, or fail."""
        positions, r = self.shards.positions, self.r
        due = self.tip.due_looks(positions, self.now)
        found, self.sights = self.sights.find_due(positions, self.now)
        assert list(found.items()) == list(due.items())
        asked = list(due)[: r.randrange(1, 9)]
        budgets, results = {}, {}
        for shard in asked:
            budget, old = self.sights.of(shard).budget, self.pace.budget(shard)
            results[shard] = r.choice([None, False, True])
            for _ in range(r.randrange(4)):
                size, at = r.choice([0, 10, 2**21]), (self.now + r.randrange(30)) / 1000
                old.note_call()
                once = budget
                budget = budget.begin_call()
                assert budget.wait_of_all(at, 2) == old.wait_of_all(at, 2)
                old.note_end(at)
                budget = budget.end_call(at)
                if results[shard] is not None:
                    old.note_answer(size, at)
                    budget = budget.count_bytes(size, at)
                assert budget == once.spend(size if results[shard] is not None else 0, at)
            budgets[shard] = budget
        # A call may have failed for good.
        known, ahead = r.random() < 0.9, r.random() < 0.2
        if known:
            told = {shard: more for shard, more in results.items() if not ahead or more is not None}
            self.tip.note_looks(told, self.now, ahead=ahead)
        looks = answers({shard: more for shard, more in results.items() if r.random() < 0.9 or known})
        self.sights = self.sights.take(looks, budgets, self.now if known else None, ahead=ahead)
        assert all(self.sights.look_of(shard) is look for shard, look in looks.items())

    def settle(self) -> None:
        """Settle a batch in which some turns were refused, and some shards have ended."""
        r, shards = self.r, self.shards
        read = tuple(shard for shard in sorted(shards.positions) if r.random() < 0.6)
        self.txid += 1
        plan = Plan(
            txid=self.txid,
            plan=str(self.txid),
            streams={"s": 1},
            positions={shard: str(shards.states[shard].position) for shard in read},
            read=read,
            limit=r.choice([None, 10]),
        )
        states, pins = dict(shards.states), dict[str, Pin]()
        for shard in read:
            moved, at_tip = r.random() < 0.7, r.random() < 0.5
            seen = self.now - r.choice([0, 50, 5_000]) if at_tip else None
            arrival = self.now - r.choice([-10, 0, 5_000])
            position = f"AFTER_SEQUENCE_NUMBER {self.txid}" if moved else plan.positions[shard]
            node = CheckpointNode(
                checkpoint=None, txid=self.txid, position=position, seen=seen, arrival=arrival
            )
            states[shard] = ShardState(TRIM_HORIZON, node)
            if r.random() < 0.9:
                pins[shard] = make_pin(
                    r.choice([0, 3, 500]),
                    at_tip=at_tip,
                    closed=r.random() < 0.1,
                    reads=r.randrange(7),
                    busy_ms=r.choice([0, 200, 3_000]),
                    ahead=r.choice([None, (1, 2)]),
                )
        since = {shard: r.randrange(100) for shard in pins if r.random() < 0.9}
        passed, replayed = self.now - self.settled_at, r.random() < 0.1
        self.shards = Shards(shards.ordering, states, shards.lineage)
        self.sizes.learn(plan, pins, self.now)
        for shard in read:
            self.ahead.pop(shard, None)
            if shard in pins and (told := pins[shard].ahead):
                self.ahead[shard] = told
        calls = {
            shard: TurnCalls(pin.reads, pin.busy_ms, max(0, passed - since.get(shard, passed)))
            for shard, pin in pins.items()
        }
        self.tip.note_batch(plan, states, self.now, replayed=replayed, calls=calls)
        event = settled(plan, pins, self.now, since)
        self.sights = self.sights.observe(event, self.shards, self.now, passed=passed, replayed=replayed)
        self.settled_at = self.now
        assert predict(plan, self.sights.sizes, self.now + 300) == self.sizes.predict(plan, self.now + 300)

    def forget(self) -> None:
        """Drop a shard, and list a new one."""
        gone = self.r.choice(sorted(self.shards.states))
        new = f"n{self.now}"
        states = {shard: one for shard, one in self.shards.states.items() if shard != gone}
        lineage = {shard: one for shard, one in self.shards.lineage.items() if shard != gone}
        self.shards = Shards(
            "parentFirst", states | {new: ShardState(TRIM_HORIZON)}, lineage | {new: ShardLineage()}
        )
        self.pace.forget([gone])
        self.tip.forget([gone])
        self.tip.closed = self.shards.closed
        self.ahead.pop(gone, None)
        self.sizes._turns.pop(gone, None)
        self.sights = self.sights.observe(Listed(), self.shards, self.now)
        assert gone not in self.sights.by_shard

    def drain(self) -> None:
        until = self.now - self.r.choice([0, 100])
        self.tip.stop_at_tip(until)
        self.sights = self.sights.stop_at_tip(until)

    def go_on(self) -> None:
        self.tip.go_on()
        self.sights = self.sights.go_on()

    def check(self) -> None:
        positions, now = self.shards.positions, self.now
        assert self.sights.next_look(positions, now) == self.tip.next_look(positions, now)
        assert self.sights.find_drained(self.shards) == self.tip.drained
        for shard in positions:
            sight, old = self.sights.of(shard), self.pace.budget(shard)
            assert self.sights.has_more(shard) is self.tip.has_more(shard)
            assert sight.may_read(now) == self.pace.may_read(shard, now)
            assert sight.budget.report_usage(now / 1000) == old.report_usage(now / 1000)
            assert sight.ahead == self.ahead.get(shard)
            assert count_fitting(sight.size, 4_096) == self.sizes.count_fitting(shard, 4_096)


@pytest.mark.parametrize("seed", range(examples(300)))
def test_the_sights_know_what_their_twin_knew(seed: int) -> None:
    r = random.Random(seed)
    world = World(r)
    for _ in range(60):
        world.now += r.choice([0, 10, 200, 400, 3_000, 40_000])
        act = r.choices([world.look, world.settle, world.forget, world.drain, world.go_on], [8, 5, 1, 1, 1])[
            0
        ]
        act()
        world.check()
