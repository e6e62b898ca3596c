"""The bounds of an exploration, and what chance decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

from spec.rules import RULES
from spec.values import GONE, NO_WAITING, Plan, Run, State, Step, Turn, Waiting, Zk, only, unfinished

SinkKind = Literal["folder", "fenced", "state"]
"""A folder by txid and epoch, a database with a fenced transaction, an opaque state changed after the verdict."""


@dataclass(frozen=True)
class Bounds:
    """The smallness of a world, and what may happen in it.

    Attributes:
        shards: how many records each has.
        fickle: the records that may fail; None for all.
        starts: of the query.
        txids: how many batches there are at most.
        tries: after so many failures a record is a dead letter.
        sink: its kind.
        go_on: as `onCheckpointMismatch=continue`.
        restores: how often ZooKeeper comes back from a copy.
        late_copies: a copy is made only once a driver has noted that it judges.
        heeded: no driver lives through a restore, and a new checkpoint of Spark is taken only after that and a start
            with the one before.
        checkpoints: new ones of Spark, beside the first.
        olders: whether Spark's checkpoint comes back from a copy.
        lag: servers show what was before the last write.
        kinds: of queries: whether they are plain.
        leaves_out: so many of the first starts of a plain query may leave turns out, as `limit` does.
        without: the rules that are dropped.
        merged: deciding is one step with the one before, which has loaded what it decides by.
    """

    shards: tuple[int, ...] = (2,)
    fickle: tuple[int, ...] | None = None
    starts: int = 2
    txids: int = 2
    tries: int = 1
    sink: SinkKind = "folder"
    go_on: bool = False
    restores: int = 0
    late_copies: bool = False
    heeded: bool = False
    checkpoints: int = 0
    olders: bool = False
    lag: bool = False
    kinds: tuple[bool, ...] = (False,)
    leaves_out: int = 0
    without: frozenset[str] = frozenset()
    merged: bool = True

    def dropping(self, rules: frozenset[str]) -> Bounds:
        """Return the same without some rules."""
        return replace(self, without=rules)

    @cached_property
    def first(self) -> list[int]:
        """The first record of each shard."""
        return [sum(self.shards[:k]) for k in range(len(self.shards))]

    @cached_property
    def shard_of(self) -> list[int]:
        """The shard of each record."""
        return [k for k, count in enumerate(self.shards) for _ in range(count)]

    @cached_property
    def may_fail(self) -> frozenset[int]:
        """The records that may fail."""
        return frozenset(range(sum(self.shards)) if self.fickle is None else self.fickle)

    @property
    def verdict_first(self) -> bool:
        """Whether the outcome is published before the sink is written, as Trident does."""
        return self.sink == "state"


class World:
    """What all parts of the protocol share: the rules, what belongs to a batch, and chance."""

    def __init__(self, bounds: Bounds) -> None:
        assert bounds.without <= RULES.keys(), bounds.without
        self.bounds = bounds

    def keeps(self, rule: str) -> bool:
        """Return whether a rule holds."""
        return rule not in self.bounds.without

    def choose_taken(self, zk: Zk) -> list[tuple[frozenset[int], Waiting]]:
        """Return what a batch may take: the shards that it reads, and those that wait and are due."""
        sizes = self.bounds.shards
        read = frozenset(k for k, one in enumerate(zk.shards) if one.at < sizes[k])
        waiting = unfinished(zk)
        return [(read, taken) for taken in dict.fromkeys((waiting, NO_WAITING)) if read or taken]

    def choose_dead(self, taken: Waiting) -> Waiting:
        """Return those that have failed often enough."""
        return frozenset(one for one in taken if one[1] >= self.bounds.tries)

    def choose_turn(self, s: State, plan: Plan, left: Sequence[int]) -> list[tuple[int, Turn]]:
        """Return what a task may read next: of a shard, up to where, and which that waited."""
        k, at = left[0], plan.at[left[0]]
        served = only(self.of_shard(k, plan.due | plan.dead))
        ends = range(at + 1, self.bounds.shards[k] + 1) if k in plan.read else (at,)
        return [(k, (to, served)) for to in ends]

    def choose_failed(self, rows: frozenset[int]) -> list[frozenset[int]]:
        """Return which rows may fail."""
        may = sorted(rows & self.bounds.may_fail)
        return [frozenset(some) for count in range(len(may) + 1) for some in combinations(may, count)]

    def count_starts(self, plan: Plan, i: int) -> int:
        """Return how many starts there were since a plan was made, as the product estimates by the time since."""
        return i - 1 - plan.mark[0]

    def of_shard(self, k: int, some: Waiting) -> Waiting:
        """Return those of a shard."""
        return frozenset(one for one in some if self.bounds.shard_of[one[0]] == k)

    def touched(self, plan: Plan) -> list[int]:
        """Return the shards of which a batch has turns."""
        return sorted(plan.read | {self.bounds.shard_of[r] for r in only(plan.due | plan.dead)})

    def rows(self, plan: Plan, turns: Sequence[Turn | None]) -> frozenset[int]:
        """Return the rows of a batch, of which these turns were read."""
        found, due, first = set[int](), only(plan.due), self.bounds.first
        for k, turn in enumerate(turns):
            if turn is not None:
                found.update(range(first[k] + plan.at[k], first[k] + turn[0]), turn[1] & due)
        return frozenset(found)

    def put(self, s: State, zk: Zk) -> State:
        """Change ZooKeeper."""
        return s._replace(zk=zk, before=s.zk if self.bounds.lag else None) if zk != s.zk else s

    def go(self, s: State, i: int, run: Run) -> State:
        """Change a run."""
        return s._replace(runs=(*s.runs[:i], run, *s.runs[i + 1 :]))

    def stop(self, s: State, i: int, why: str) -> list[Step]:
        """End a run with an error."""
        return [(f"it stops: {why}", self.go(s, i, GONE))]

    def is_fenced(self, s: State, epoch: int) -> bool:
        """Return whether a write of a run is refused; a run that lost ZooKeeper to a restore has a negative epoch."""
        return s.zk.epoch != epoch and (epoch < 0 or self.keeps("fence"))
