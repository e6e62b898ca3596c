"""An order of retries by key, specified: the records of a key become done in the order of the stream.

A failed record holds its key: what follows of the key waits with it and does not count as failed, also in the shards
that come of its shard. A step is a batch from its plan to its settling, a record that falls due, somebody who asks that
one be given up, or a listing of the shards that no longer has one. In the code it is
`spout/planner/shards/retry_order.py`, the marks of `spout/reader/key_marks.py` and `bolt/steps/key_order.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import NamedTuple

from spec.breadth import Searched, search_states

__all__ = ["MUTANTS", "KeyOrder", "KeyWorld", "search_keys"]

MUTANTS = {
    "none": "nothing waits for another record of its key",
    "in-batch": "what follows a failed record in its own batch is judged",
    "unreached": "what a task did not come to does not hold its keys",
    "taken-up": "what the parent takes up in a batch does not hold its keys for the child in that batch",
    "lineage": "a shard that is read to its end is forgotten although records of it wait",
    "grandparent": "a shard of which nothing waits is forgotten although records of its parents wait",
    "closure": "a plan takes up what follows a record that is not due",
}
"""What is done wrongly, and breaks the order; the last one delivers in vain."""


class Open(NamedTuple):
    """A record that waits, and how often it has failed; `dead`: its dead letter is to be written."""

    record: int
    failures: int = 0
    due: bool = True
    dead: bool = False


class KeyShard(NamedTuple):
    """How many of its records were read, and those that wait, in their order; `listed`: it is not forgotten."""

    at: int = 0
    waiting: tuple[Open, ...] = ()
    listed: bool = True


class KeyState(NamedTuple):
    """`last`: the newest record that is done of each key."""

    shards: tuple[KeyShard, ...]
    last: tuple[int, ...]


class Turn(NamedTuple):
    """What a plan says of a shard: the records that it takes up, and the keys that earlier shards hold."""

    taken: tuple[Open, ...]
    reads: bool
    ahead: frozenset[int]


Result = tuple[KeyShard, tuple[int, ...], bool]
"""The shard after a turn, what became done in it, and whether something was delivered in vain."""


@dataclass(frozen=True)
class KeyWorld:
    """The key of each record, by shard: parents come before their children, and so do their records."""

    keys: tuple[tuple[int, ...], ...]
    parents: dict[int, tuple[int, ...]] = field(default_factory=dict)
    limit: int = 1
    mutant: str = ""


class KeyOrder:
    """All steps within a world."""

    def __init__(self, world: KeyWorld) -> None:
        assert world.mutant in ("", *MUTANTS)
        self.world = world
        self.first = [sum(map(len, world.keys[:k])) for k in range(len(world.keys))]
        self.key_of = [key for keys in world.keys for key in keys]

    def start(self) -> KeyState:
        """Return the state before the first batch."""
        return KeyState((KeyShard(),) * len(self.world.keys), (-1,) * (max(self.key_of) + 1))

    def steps(self, s: KeyState) -> Iterator[tuple[str, KeyState, str]]:
        """Return each step: what happens, the state after it, and what is broken by it."""
        for k, shard in enumerate(s.shards):
            for n, one in enumerate(shard.waiting):
                for what, now in (
                    ("falls due", one._replace(due=True)),
                    ("is given up", one._replace(dead=True)),
                ):
                    if now != one and not one.dead:
                        yield f"r{one.record + 1} {what}", self._with(s, k, shard, n, now), ""
            if shard.listed and self._may_forget(s, k):
                yield f"shard {k + 1} is listed no more", self._put(s, k, shard._replace(listed=False)), ""
        yield from self.batches(s)

    def _with(self, s: KeyState, k: int, shard: KeyShard, n: int, now: Open) -> KeyState:
        waiting = (*shard.waiting[:n], now, *shard.waiting[n + 1 :])
        return self._put(s, k, shard._replace(waiting=waiting))

    def _put(self, s: KeyState, k: int, shard: KeyShard) -> KeyState:
        return s._replace(shards=(*s.shards[:k], shard, *s.shards[k + 1 :]))

    def _may_forget(self, s: KeyState, k: int) -> bool:
        """Tell whether a listing may forget a shard: nothing waits in it, nor in those that it comes of."""
        if not self._is_drained(s, k):
            return False
        needed = {"lineage": [], "grandparent": [k]}.get(self.world.mutant, [k, *self._ancestors(s, k)])
        return not any(s.shards[one].waiting for one in needed)

    def _is_drained(self, s: KeyState, k: int) -> bool:
        return s.shards[k].at == len(self.world.keys[k])

    def _ancestors(self, s: KeyState, k: int) -> list[int]:
        """Return the shards that a shard comes of: what is forgotten hides those above it."""
        above = [one for one in self.world.parents.get(k, ()) if s.shards[one].listed]
        return [*above, *(other for one in above for other in self._ancestors(s, one))]

    def plan(self, s: KeyState) -> dict[int, Turn]:
        """Return the turns of the next batch: of each key only what nothing before it holds."""
        turns = {}
        for k, shard in enumerate(s.shards):
            ahead = self._keys(one for up in self._ancestors(s, k) for one in s.shards[up].waiting)
            held, taken = set(ahead), []
            for one in shard.waiting:
                key = self.key_of[one.record]
                if one.dead:
                    taken.append(one)
                elif key in held and self.world.mutant not in ("closure", "none"):
                    continue
                elif one.due:
                    taken.append(one)
                else:
                    held.add(key)
            parents = self.world.parents.get(k, ())
            reads = not self._is_drained(s, k) and all(self._is_drained(s, one) for one in parents)
            if taken or reads:
                turns[k] = Turn(tuple(taken), reads, ahead)
        if self.world.mutant == "taken-up":
            for k, turn in turns.items():
                open_ones = [
                    one
                    for up in self._ancestors(s, k)
                    for one in s.shards[up].waiting
                    if up not in turns or one not in turns[up].taken
                ]
                turns[k] = turn._replace(ahead=self._keys(open_ones))
        return turns

    def _keys(self, some: Iterator[Open] | Sequence[Open]) -> frozenset[int]:
        return frozenset(self.key_of[one.record] for one in some if not one.dead)

    def batches(self, s: KeyState) -> Iterator[tuple[str, KeyState, str]]:
        """Return each batch: its tasks have no order, so a key must not become done in two shards of one batch."""
        turns = self.plan(s)
        for results in product(
            *(dict.fromkeys(self.take(s.shards[k], k, turn)) for k, turn in turns.items())
        ):
            shards, last, broken = list(s.shards), list(s.last), ""
            by_key: dict[int, int] = {}
            for k, (shard, done, is_vain) in zip(turns, results, strict=True):
                shards[k] = shard
                broken = broken or ("VAIN: a record is delivered that has to wait" if is_vain else "")
                for record in done:
                    key = self.key_of[record]
                    if record < last[key] or by_key.setdefault(key, k) != k:
                        broken = f"ORDER: r{record + 1} of key {key} is done besides, or after, a later one"
                    last[key] = max(last[key], record)
            what = ", ".join(f"r{one + 1}" for _, done, _ in results for one in done) or "nothing"
            yield f"a batch: {what} is done", KeyState(tuple(shards), tuple(last)), broken

    def take(self, shard: KeyShard, k: int, turn: Turn) -> Iterator[Result]:
        """Return what a task may make of a turn: how far it comes, and what fails."""
        rest = len(self.world.keys[k]) - shard.at if turn.reads else 0
        for served in range(len(turn.taken) + 1):
            for fresh in (
                range(rest + 1) if served == len(turn.taken) or not turn.taken else (0, min(1, rest))
            ):
                begin = self.first[k] + shard.at
                rows = [*turn.taken[:served], *map(Open, range(begin, begin + fresh))]
                for count in range(len(rows) + 1):
                    for failing in combinations([one.record for one in rows], count):
                        yield self.judge(shard, turn, rows, served, fresh, frozenset(failing))

    def judge(
        self, shard: KeyShard, turn: Turn, rows: list[Open], served: int, fresh: int, failing: frozenset[int]
    ) -> Result:
        """Return a turn after its rows were judged in their order."""
        reached, mutant = rows[:served], self.world.mutant
        not_reached = [one for one in shard.waiting if one not in reached]
        if mutant == "unreached":
            not_reached = [one for one in not_reached if one not in turn.taken]
        waiting = [one for one in shard.waiting if one not in reached]
        failed, done, is_vain = set[int](), list[int](), False
        for n, one in enumerate(rows):
            key = self.key_of[one.record]
            if one.dead:
                continue
            # Of those that come again only what is before one holds it; of new records all that waits is before.
            before = [other for other in not_reached if n >= served or other.record < one.record]
            holds = turn.ahead | self._keys(before)
            if mutant != "none" and (key in holds or key in failed):
                is_vain = is_vain or (n < served and key in holds)
                waiting.append(one._replace(due=True))
                failed.add(key)
            elif one.record in failing:
                count = one.failures + 1
                waiting.append(Open(one.record, count, due=False, dead=count > self.world.limit))
                if mutant not in ("in-batch", "none"):
                    failed.add(key)
            else:
                done.append(one.record)
        return KeyShard(shard.at + fresh, tuple(sorted(waiting)), shard.listed), tuple(done), is_vain


def search_keys(world: KeyWorld) -> Searched:
    """Search all states of a world."""
    order = KeyOrder(world)

    def is_over(s: KeyState) -> bool:
        return not any(one.waiting or one.at < len(world.keys[k]) for k, one in enumerate(s.shards))

    return search_states(order.start(), order.steps, is_over)
