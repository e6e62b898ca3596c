"""Searches all interleavings of the protocol, breadth first: what is found has the shortest story."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from spec.bounds import Bounds
from spec.protocol import Protocol
from spec.values import Shard, State, only, show, unfinished
from spec.wide import Wide


class Found(NamedTuple):
    """The end of a search: what is broken, by which steps; how many states were reached, and whether those are all."""

    broken: str
    story: list[str]
    states: int
    is_complete: bool

    def __str__(self) -> str:
        steps = [f"{number:2}. {name}" for number, name in enumerate(self.story, 1)]
        return "\n".join([*steps, f"=> {self.broken}"])


def search(bounds: Bounds, kinds: Collection[str] = (), most: int = 1_000_000) -> Found:
    """Search until something is broken, or all states are reached, or so many.

    Args:
        bounds: of the world.
        kinds: of what may be broken (`LOST`, `TWICE`, `EARLY`, `CHANGED`, `REUSED`, `BACK`, `FENCED`, `ORDER`, `ALONE`,
            `DIFFERS`); all if empty.
        most: states.
    """
    protocol = Wide(bounds)
    start = protocol.start()
    # Only hashes are kept: a story is played again.
    parents, frontier = {hash(start): 0}, [start]
    while frontier and len(parents) < most:
        following = []
        for s in frontier:
            for name, after in protocol.steps(s):
                key = hash(after)
                is_new = key not in parents
                if not is_new and after.sink is s.sink and after.zk is s.zk:
                    continue
                found = [broken_step(protocol, s, name, after)]
                if is_new:
                    found.append(broken_state(protocol, after))
                    parents[key] = hash(s)
                    following.append(after)
                asked = [one for one in found if one and (not kinds or one.partition(":")[0] in kinds)]
                if asked:
                    story = [*steps_to(protocol, parents, hash(s)), name]
                    return Found(asked[0], story, len(parents), is_complete=False)
        frontier = following
    return Found("", [], len(parents), is_complete=not frontier)


def take(bounds: Bounds, story: Sequence[str], kind: str) -> Found:
    """Take the steps of a story; say what of a kind the last one breaks: nothing, if there is no such step."""
    protocol, broken = Wide(bounds), list[str]()
    states = {protocol.start()}
    for name in story:
        taken = [(s, after) for s in states for other, after in protocol.steps(s) if other == name]
        broken = [broken_step(protocol, s, name, after) for s, after in taken]
        broken += [broken_state(protocol, after) for _, after in taken]
        states = {after for _, after in taken}
    return Found(next((one for one in broken if one.startswith(kind)), ""), [*story], len(story), False)


def steps_to(protocol: Protocol, parents: dict[int, int], last: int) -> list[str]:
    """Return the steps that lead to a state."""
    path = [last]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    s, names = protocol.start(), []
    for key in reversed(path[:-1]):
        name, s = next((name, after) for name, after in protocol.steps(s) if hash(after) == key)
        names.append(name)
    return names


def broken_state(protocol: Protocol, s: State) -> str:
    """Return what is wrong with a state: records that are lost, count twice, or were given up too early."""
    counts = Counter(record for one in s.sink if one is not None for record in one[1])
    bounds = protocol.bounds
    for k, shard in enumerate(s.zk.shards):
        waiting = {record for record, _ in shard.waiting}
        for record in range(protocol.first[k], protocol.first[k] + shard.at):
            if not (record in counts or record in waiting or record in s.letters or record in s.expired):
                return f"LOST: {show(frozenset({record}))} is behind the position of shard {k + 1}, and nowhere else"
    twice = frozenset(record for record, count in counts.items() if count > 1)
    if twice:
        return f"TWICE: {show(twice)} counts under two txids"
    both = s.letters & counts.keys()
    if both:
        return f"TWICE: {show(both)} is in the sink and in the dead letter"
    for record in s.letters - s.expired if bounds.tries > 1 else ():
        if sum(one == record for one, _ in s.failures) < bounds.tries:
            return f"EARLY: {show(frozenset({record}))} is in the dead letter, and was delivered too seldom"
    for k, above in bounds.parents.items():
        children = counts.keys() & {r for r, shard in enumerate(protocol.shard_of) if shard == k}
        if children and any(s.zk.shards[one].at < bounds.shards[one] for one in above):
            return f"ORDER: {show(children)} counts, and its shard's parents are not read to their ends"
    if bounds.transactional and unfinished(s.zk):
        return f"ALONE: {show(only(unfinished(s.zk)))} waits, and its batch is done"
    return ""


def broken_step(protocol: Protocol, before: State, name: str, after: State) -> str:
    """Return what is wrong with a step: a settled txid changes, a checkpoint moves back, a replaced run writes."""
    if before.sink is not after.sink:
        settled = min(before.zk.settled, after.zk.settled)
        for txid, (one, other) in enumerate(zip(before.sink, after.sink, strict=True)):
            if one is not None and other is not None and one[1] != other[1]:
                if txid <= settled:
                    return f"CHANGED: txid {txid} is settled, and its rows become {show(other[1])}"
                if protocol.bounds.transactional:
                    return f"DIFFERS: txid {txid} is written again, with {show(other[1])}"
        return used_again(before, name, after)
    if before.zk is after.zk or name.startswith("ZooKeeper"):
        return ""
    for k, (shard, now) in enumerate(zip(before.zk.shards, after.zk.shards, strict=True)):
        if shard is not now and checkpoint(protocol, k, now) < checkpoint(protocol, k, shard):
            return f"BACK: the checkpoint of shard {k + 1} moves back"
    return fenced_write(before, name, after)


def used_again(before: State, name: str, after: State) -> str:
    """Return which txid a run has used for a plan of its own although Spark has committed it for an earlier one."""
    who = re.match(r"run (\d+): writes .* under txid (\d+)", name)
    plan = before.runs[int(who[1]) - 1].plan if who is not None else None
    if who is None or plan is None:
        return ""
    txid = int(who[2])
    done = [log.done for log in after.logs if log.done is not None and log.done.txid >= txid]
    if any(one.mark[0] < plan.mark[0] for one in done):
        return f"REUSED: txid {txid} is used for other records, and Spark has committed it"
    return ""


def fenced_write(before: State, name: str, after: State) -> str:
    """Return who has written to ZooKeeper although it is replaced; a note of who judges is taken back."""
    who = name.removeprefix("run ").partition(":")[0]
    if not who.isdigit() or before.zk.past != after.zk.past:
        return ""
    is_note = before.zk._replace(judging=(), said=0) == after.zk._replace(judging=(), said=0)
    if not is_note and 0 < before.runs[int(who) - 1].epoch < before.zk.epoch:
        return f"FENCED: run {who} is replaced, and has written to ZooKeeper"
    return ""


def checkpoint(protocol: Protocol, k: int, shard: Shard) -> int:
    """Return how many records of a shard are done from its beginning on."""
    return min((record - protocol.first[k] for record, _ in shard.waiting), default=shard.at)
