"""Random looks, turns, drains and listings: a wait ends when a look is due, and what is gone is forgotten."""

from __future__ import annotations

import random

import pytest
from looking import answers
from settled import make_pin, settled
from thorough import examples

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Pin, Plan, ShardLineage
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.shard_events import HomeUnit
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.positions import TRIM_HORIZON

START = 1_700_000_000_000


class World:
    """Some shards, and what a run knows of them."""

    def __init__(self, r: random.Random) -> None:
        limits = r.choice([0.05, 0.4]), r.choice([0.0, 0.2, 1.0]), r.choice([1e15, 2**20])
        self.r = r
        self.now, self.txid, self.settled_at = START, 0, START
        self.ahead: dict[str, tuple[int, int]] = {}
        self.sights = Sights(LookTimes.of(*limits))
        names = [f"s{number}" for number in range(r.randrange(1, 7))]
        self.shards = Shards(
            "parentFirst",
            {name: ShardState(TRIM_HORIZON) for name in names},
            {name: ShardLineage(state=r.choice(["open", "closed"])) for name in names},
        )
        self.drained: set[str] = set()

    def look(self) -> None:
        """Look at those that are due, or at some of them, with calls that are answered, refused, or fail."""
        positions, r = self.shards.positions, self.r
        is_time = self.sights.next_look(positions, self.now) <= self.now
        due, self.sights = self.sights.find_due(positions, self.now)
        assert due.keys() <= positions.keys()
        assert not any(self.sights.has_more(shard) for shard in due)
        assert is_time or not due
        # A wait until the next look does not come back at once where there is nothing to look at.
        assert bool(due) is (self.sights.next_look(positions, self.now) <= self.now)
        asked = list(due)[: r.randrange(1, 9)]
        budgets, results = {}, {}
        for shard in asked:
            budget = self.sights.of(shard).budget
            results[shard] = r.choice([None, False, True])
            for _ in range(r.randrange(4)):
                size, at = r.choice([0, 10, 2**21]), (self.now + r.randrange(30)) / 1000
                once = budget
                budget = budget.begin_call().end_call(at)
                if results[shard] is not None:
                    budget = budget.count_bytes(size, at)
                assert budget == once.spend(size if results[shard] is not None else 0, at)
            budgets[shard] = budget
        # A call may have failed for good.
        known, ahead = r.random() < 0.9, r.random() < 0.2
        looks = answers({shard: more for shard, more in results.items() if r.random() < 0.9 or known})
        self.sights = self.sights.take(looks, budgets, self.now if known else None, ahead=ahead)
        for shard, look in looks.items():
            assert self.sights.look_of(shard) is look
            if known and not (ahead and look.more is None):
                assert self.sights.has_more(shard) is bool(look.more)

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
        for shard in read:
            self.ahead.pop(shard, None)
            if shard in pins and (told := pins[shard].ahead):
                self.ahead[shard] = told
        event = settled(plan, pins, self.now, since)
        self.sights = self.sights.observe(event, self.shards, self.now, passed=passed, replayed=replayed)
        self.settled_at = self.now

    def forget(self) -> None:
        """Drop a shard, and list a new one."""
        gone = self.r.choice(sorted(self.shards.states))
        new = f"n{self.r.getrandbits(40)}"
        states = {shard: one for shard, one in self.shards.states.items() if shard != gone}
        lineage = {shard: one for shard, one in self.shards.lineage.items() if shard != gone}
        self.shards = Shards(
            "parentFirst", states | {new: ShardState(TRIM_HORIZON)}, lineage | {new: ShardLineage()}
        )
        self.ahead.pop(gone, None)
        self.sights = self.sights.observe(HomeUnit(self.shards), self.shards, self.now)
        assert gone not in self.sights.by_shard

    def drain(self) -> None:
        until = self.now - self.r.choice([0, 100])
        self.sights, self.drained = self.sights.stop_at_tip(until), set()

    def go_on(self) -> None:
        self.sights, self.drained = self.sights.go_on(), set()

    def check(self) -> None:
        assert self.sights.by_shard.keys() <= self.shards.states.keys()
        drained = self.sights.find_drained(self.shards)
        # What a drain has read to its tip stays so until it ends.
        assert self.drained & self.shards.states.keys() <= drained
        assert not drained or self.sights.until is not None
        self.drained = drained
        for shard in self.shards.positions:
            assert self.sights.of(shard).ahead == self.ahead.get(shard)


@pytest.mark.parametrize("seed", range(examples(300)))
def test_looks_end_waits_and_what_is_gone_is_forgotten(seed: int) -> None:
    r = random.Random(seed)
    world = World(r)
    for _ in range(60):
        world.now += r.choice([0, 10, 200, 400, 3_000, 40_000])
        act = r.choices([world.look, world.settle, world.forget, world.drain, world.go_on], [8, 5, 1, 1, 1])[
            0
        ]
        act()
        world.check()
