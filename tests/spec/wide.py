"""The protocol in wider worlds: late tasks, a shard that is split, retention, batches that fail as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spec.protocol import Protocol
from spec.values import GONE, Pin, Plan, Records, Run, State, Step, Turn, Waiting, Zk, only, show, swap

__all__ = ["Wide"]


class Wide(Protocol):
    """Each of these happens where the bounds allow it."""

    def steps(self, s: State) -> Iterator[Step]:
        """Return also what tasks do that are late, and what retention does."""
        for i, run in enumerate(s.runs if self.bounds.sink == "overwritten" else ()):
            if run.step in ("fetch", "write"):
                yield from ((f"run {i + 1}: {name}", after) for name, after in self.steps_of(s, i))
                return
        yield from super().steps(s)
        if s.late is not None:
            yield from self.end_late(s, *s.late)
        elif s.begun < self.bounds.late_tasks:
            for i, run in enumerate(s.runs):
                for k in self.touched(run.plan) if run.step == "read" else ():
                    late = s._replace(late=(i, run.epoch, run.plan, k), begun=s.begun + 1)
                    yield f"run {i + 1}: one more task of shard {k + 1} begins", late
        if len(s.expired) < self.bounds.expire:
            for k, size in enumerate(self.bounds.shards):
                left = [r for r in range(self.first[k], self.first[k] + size) if r not in s.expired]
                if left:
                    yield f"retention takes r{left[0] + 1}", s._replace(expired=s.expired | {left[0]})

    def end_late(self, s: State, i: int, epoch: int, plan: Plan, k: int) -> Iterator[Step]:
        """A task comes to its turn after its run has gone on, or ended; nobody takes its rows."""
        who, batch, after = f"run {i + 1}: the late task", s.zk.batch, s._replace(late=None)
        if batch is None or batch.plan.txid != plan.txid or self.is_fenced(s, epoch):
            yield f"{who} stops", after
            return
        pin, dead = batch.pins[k], only(self.of_shard(k, plan.dead))
        there = pin is not None and pin.mark == plan.mark
        if not there and not dead <= s.letters:
            yield f"{who} writes dead letter {show(dead)}", s._replace(letters=s.letters | dead)
            return
        for _, turn in self.choose_turn(s, plan, [k]):
            mine = Pin(plan.mark, *turn, epoch, epoch)
            mine = pin._replace(epoch=max(pin.epoch, epoch)) if there else mine
            pinned = batch._replace(pins=swap(batch.pins, k, mine))
            yield f"{who} pins shard {k + 1} up to {mine.to}", self.put(after, s.zk._replace(batch=pinned))

    def choose_taken(self, zk: Zk) -> list[tuple[frozenset[int], Waiting]]:
        """Return it without the children of shards that are not read to their ends."""
        sizes, found = self.bounds.shards, []
        for read, taken in super().choose_taken(zk):
            ready = frozenset(
                k
                for k in read
                if all(zk.shards[above].at == sizes[above] for above in self.bounds.parents.get(k, ()))
            )
            found += [(ready if self.keeps("lineage") else read, taken)] if ready or taken else []
        return found

    def do_say(self, s: State, i: int, run: Run) -> list[Step]:
        """Note that its driver judges; once an epoch it looks at its first row before it calls `write`."""
        found = super().do_say(s, i, run)
        is_first = self.bounds.sink == "overwritten" and not run.told
        return self.go_on_to("look", i, found) if is_first else found

    def go_on_to(self, step: str, i: int, found: list[Step]) -> list[Step]:
        """Return steps of which those that lead to `read` lead to another one."""
        return [
            (
                name,
                self.go(after, i, after.runs[i]._replace(step=step))
                if after.runs[i].step == "read"
                else after,
            )
            for name, after in found
        ]

    def do_look(self, s: State, i: int, run: Run) -> list[Step]:
        """Run a task for a row to look at: it reads its turn, and the batch function reads that again."""
        return [
            (name, self.go(after, i, run._replace(step="read")) if any(after.runs[i].turns) else after)
            for name, after in super().do_read(s, i, run)
        ]

    def do_read(self, s: State, i: int, run: Run) -> list[Step]:
        """Leave out what retention has taken."""
        found = super().do_read(s, i, run)
        if self.bounds.sink == "overwritten" and run.step == "read":
            return self.call(s, i, run, found)
        if not s.expired or run.plan is None:
            return found
        return [(name, self.leave_out(after, i, run)) for name, after in found]

    def call(self, s: State, i: int, run: Run, found: list[Step]) -> list[Step]:
        """Let the driver call `write`, which deletes what there is of the txid, unless the run stops before."""
        (stop, _), txid = found[0], run.driver[0]
        if stop.startswith("it stops") and (self.keeps("check") or "StaleBatchError" in stop):
            return found
        after = s._replace(sink=swap(s.sink, txid, None))
        return [(f"calls `write`, which deletes txid {txid}", self.go(after, i, run._replace(step="fetch")))]

    def do_fetch(self, s: State, i: int, run: Run) -> list[Step]:
        """Read in `write`."""
        return self.go_on_to("fetch", i, self.do_read(s, i, run))

    def leave_out(self, s: State, i: int, run: Run) -> State:
        """Return the state in which a turn that was just read lacks what has expired."""
        now = s.runs[i]
        new = [k for k, turn in enumerate(now.turns) if turn is not None and run.turns[k] is None]
        if not new or now == GONE:
            return s
        mine = now._replace(turns=tuple(turn if k in new else None for k, turn in enumerate(now.turns)))
        missing = super().rows(mine) & s.expired
        return self.go(s, i, now._replace(missing=now.missing | missing))

    def choose_turn(self, s: State, plan: Plan, left: Sequence[int]) -> list[tuple[int, Turn]]:
        """Leave out what is due again and has expired: it waits on, for its dead letter."""
        gone = s.expired & only(plan.due)
        return [(k, (to, served - gone)) for k, (to, served) in super().choose_turn(s, plan, left)]

    def do_decide(self, s: State, i: int, run: Run) -> list[Step]:
        """Give up also what has expired: it needs no further delivery."""
        found = super().do_decide(s, i, run)
        made = [after for name, after in found if s.expired and name.startswith("plans")]
        for after in made:
            plan = after.runs[i].plan
            gone = frozenset(one for one in plan.due if one[0] in s.expired)
            if gone:
                mine = plan._replace(due=plan.due - gone, dead=plan.dead | gone)
                name = f"plans txid {plan.txid}, gives up {show(only(gone))}"
                found.append((name, self.go(after, i, after.runs[i]._replace(plan=mine))))
        return found

    def rows(self, run: Run) -> Records:
        """Return the rows that were there."""
        return super().rows(run) - run.missing

    def judge(self, s: State, i: int, run: Run) -> list[Step]:
        """With a transactional spout a row that fails fails its batch, which the next start begins anew."""
        found = super().judge(s, i, run)
        if not self.bounds.transactional:
            return found
        return [
            (f"{name}, and with it the batch", self.go(s, i, GONE)) if after.runs[i].failed else (name, after)
            for name, after in found
        ]
