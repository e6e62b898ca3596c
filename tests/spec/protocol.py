"""The commit protocol of a micro-batch as an executable specification: every step that any process may take.

A process that takes no further step is paused, or dead: a crash needs no step of its own. The words are those of
docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from spec.planning import Planning
from spec.values import GONE, Log, Shard, State, Step, Zk

_FENCED = ("adopt", "leave", "store", "empty", "settle", "forget")


class Protocol(Planning):
    """The protocol within bounds."""

    def start(self) -> State:
        """Return the state before the first start."""
        return State(Zk((Shard(),) * len(self.bounds.shards)), (None,) * (self.bounds.txids + 1))

    def steps(self, s: State) -> Iterator[Step]:
        """Return all steps from a state, by whoever takes them."""
        more, bounds = len(s.runs) < self.bounds.starts, self.bounds
        if more:
            yield from self.begin(s)
        for i in range(len(s.runs)):
            yield from ((f"run {i + 1}: {name}", after) for name, after in self.steps_of(s, i))
        if more and s.restored < bounds.restores:
            if s.copy is None:
                if s.zk.judging or not bounds.late_copies:
                    yield "somebody copies ZooKeeper's data", s._replace(copy=s.zk)
            elif s.copy != s.zk:
                yield "ZooKeeper comes back from the copy", self.restore(s, s.copy)
        if more and bounds.olders and s.older is None and s.logs[0] != Log():
            yield "somebody copies Spark's checkpoint", s._replace(older=s.logs[0])

    def steps_of(self, s: State, i: int) -> list[Step]:
        """Return the steps of a run."""
        run = s.runs[i]
        if run == GONE:
            return []
        if run.step in _FENCED and self.is_fenced(s, run.epoch):
            return self.stop(s, i, "FencedError")
        found: list[Step] = getattr(self, f"do_{run.step}")(s, i, run)
        return found

    def restore(self, s: State, copy: Zk) -> State:
        """Return the state with ZooKeeper's data from a copy.

        No session survives: a server refuses a client that has seen more. What needs no ZooKeeper goes on.
        """
        heeded, alive = self.bounds.heeded, ("write", "commit")
        runs = tuple(
            one._replace(epoch=-one.epoch) if one.step in alive and not heeded else GONE for one in s.runs
        )
        since = len(s.runs) if heeded else 0
        return s._replace(zk=copy, copy=None, restored=s.restored + 1, since=since, runs=runs, before=None)
