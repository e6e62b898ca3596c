"""The bounds of an exploration, and what chance decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from spec.rules import RULES
from spec.values import (
    GONE,
    NO_WAITING,
    Plan,
    Records,
    Run,
    State,
    Step,
    Turn,
    Waiting,
    Zk,
    only,
    swap,
    unfinished,
)


@dataclass(frozen=True)
class Bounds:
    """The smallness of a world, and what may happen in it."""

    shards: tuple[int, ...] = (2,)  # How many records each has.
    fickle: tuple[int, ...] | None = None  # The records that may fail; None for all.
    starts: int = 2  # Of the query.
    txids: int = 2  # At most so many batches.
    tries: int = 1  # After so many failures a record is a dead letter.
    # Files by txid and epoch; a database with a fenced transaction; an opaque state, changed after the verdict; files
    # by txid alone, which `write` deletes before it reads: no driver is paused there.
    sink: Literal["folder", "fenced", "state", "overwritten"] = "folder"
    go_on: bool = False  # As `onCheckpointMismatch=continue`.
    restores: int = 0  # So often ZooKeeper comes back from a copy.
    late_copies: bool = False  # A copy is made only once a driver has noted that it judges.
    # No driver lives through a restore; a new Spark checkpoint comes only after that and a start with the one before.
    heeded: bool = False
    checkpoints: int = 0  # New ones of Spark, beside the first.
    olders: bool = False  # Spark's checkpoint may come back from a copy.
    lag: bool = False  # Servers show what was before the last write.
    kinds: tuple[bool, ...] = (False,)  # Of queries: whether they are plain.
    leaves_out: int = 0  # So many of the first starts of a plain query may leave turns out, as `limit` does.
    without: frozenset[str] = frozenset()  # The rules that are dropped.
    parents: Mapping[int, tuple[int, ...]] = field(
        default_factory=dict, hash=False
    )  # Of shards that came of others.
    late_tasks: int = 0  # So many tasks run twice, and the second one ends at any time.
    expire: int = 0  # So many records are taken by retention.
    transactional: bool = False  # A row that fails fails its batch.
    merged: bool = True  # To decide is one step with the one before, which has loaded what it decides by.

    def dropping(self, rules: frozenset[str]) -> Bounds:
        """Return the same without some rules."""
        return replace(self, without=rules)


class World:
    """What all parts of the protocol share: the rules, what belongs to a batch, and chance.

    Attributes:
        first: the first record of each shard.
        shard_of: the shard of each record.
        publishes_first: whether the outcome is published before the sink is written, as Trident does.
    """

    def __init__(self, bounds: Bounds) -> None:
        assert bounds.without <= RULES.keys(), bounds.without
        self.bounds, sizes, self.publishes_first = bounds, bounds.shards, bounds.sink == "state"
        self.first = [sum(sizes[:k]) for k in range(len(sizes))]
        self.shard_of = [k for k, count in enumerate(sizes) for _ in range(count)]

    def keeps(self, rule: str) -> bool:
        """Return whether a rule holds."""
        return rule not in self.bounds.without

    def choose_taken(self, zk: Zk) -> list[tuple[frozenset[int], Waiting]]:
        """Return what a batch may take: the shards that it reads, and those that wait and are due."""
        read = frozenset(k for k, one in enumerate(zk.shards) if one.at < self.bounds.shards[k])
        some = dict.fromkeys((unfinished(zk), NO_WAITING))
        return [(read, taken) for taken in some if read or taken]

    def choose_dead(self, taken: Waiting) -> Waiting:
        """Return those that have failed often enough."""
        return frozenset(one for one in taken if one[1] >= self.bounds.tries)

    def choose_turn(self, s: State, plan: Plan, left: Sequence[int]) -> list[tuple[int, Turn]]:
        """Return what a task may read next: of a shard, up to where, and which that waited."""
        k, at = left[0], plan.at[left[0]]
        served = only(self.of_shard(k, plan.due | plan.dead))
        ends = range(at + 1, self.bounds.shards[k] + 1) if k in plan.read else (at,)
        return [(k, (to, served)) for to in ends]

    def choose_failed(self, rows: Records) -> list[Records]:
        """Return which rows may fail."""
        may = sorted(rows if self.bounds.fickle is None else rows & {*self.bounds.fickle})
        return [frozenset(some) for count in range(len(may) + 1) for some in combinations(may, count)]

    def count_starts(self, plan: Plan, i: int) -> int:
        """Return how many starts there were since a plan was made, as the product estimates by the time since."""
        return i - 1 - plan.mark[0]

    def of_shard(self, k: int, some: Waiting) -> Waiting:
        """Return those of a shard."""
        return frozenset(one for one in some if self.shard_of[one[0]] == k)

    def touched(self, plan: Plan) -> list[int]:
        """Return the shards of which a batch has turns."""
        return sorted(plan.read | {self.shard_of[r] for r in only(plan.due | plan.dead)})

    def rows(self, run: Run) -> Records:
        """Return the rows that a run has read of its batch."""
        found, due = set[int](), only(run.plan.due)
        for k, turn in enumerate(run.turns):
            if turn is not None:
                found.update(range(self.first[k] + run.plan.at[k], self.first[k] + turn[0]), turn[1] & due)
        return frozenset(found)

    def put(self, s: State, zk: Zk) -> State:
        """Change ZooKeeper."""
        return s._replace(zk=zk, before=s.zk if self.bounds.lag else None) if zk != s.zk else s

    def go(self, s: State, i: int, run: Run) -> State:
        """Change a run."""
        return s._replace(runs=swap(s.runs, i, run))

    def stop(self, s: State, i: int, why: str) -> list[Step]:
        """End a run with an error."""
        return [(f"it stops: {why}", self.go(s, i, GONE))]

    def is_fenced(self, s: State, epoch: int) -> bool:
        """Return whether a write of a run is refused; a run that lost ZooKeeper to a restore has a negative epoch."""
        return s.zk.epoch != epoch and (epoch < 0 or self.keeps("fence"))
