"""Settling: what of a batch that Spark has committed is done, and the shards' positions after it."""

from __future__ import annotations

from typing import NamedTuple

from spec.values import NONE, Batch, Pin, Plan, Records, Run, Shard, State, Step, Turn, Zk, only, show, swap
from spec.working import Working


class Verdict(NamedTuple):
    """What of a batch is not done: records that failed, and shards that count as unread."""

    failed: Records
    again: frozenset[int] = NONE
    is_plain_now: bool = False


class Settling(Working):
    """spout/planner/settling."""

    def weigh(self, s: State, i: int, run: Run, plan: Plan, later: Plan | None) -> list[Step]:
        """Read what became of a batch, and pin what nobody has read."""
        offset, found, batch = s.logs[run.log].done, list[Step](), s.zk.batch
        if self.is_fenced(s, run.epoch):
            return self.stop(s, i, "FencedError")
        for zk in dict.fromkeys((s.zk, s.zk if self.keeps("sync") else s.before or s.zk)):
            verdict = self.verdict(zk, batch.epoch, run, plan, offset, later)
            if verdict is None:
                why = "OutcomeMissingError"
                if self.bounds.go_on:
                    found += self.adopt_or_stop(s, i, run, offset, offset.txid, why)
                else:
                    found += self.note_and_stop(s, i, later, why) if later else self.stop(s, i, why)
                continue
            seen, there = pins_of(zk.batch, plan), pins_of(batch, plan)
            pins = [there.get(k) for k in range(len(self.bounds.shards))]
            empty = {k: Pin(plan.mark, plan.at[k], NONE, run.epoch, run.epoch) for k in self.touched(plan)}
            for k, none in empty.items():
                if k not in seen and (pins[k] is None or not self.keeps("exists")):
                    pins[k] = none
            after = self.put(s, s.zk._replace(batch=batch._replace(pins=tuple(pins))))
            final = [empty[k] if k in verdict.again else pin for k, pin in enumerate(pins)]
            turns = tuple(pin and (pin.to, pin.served) for pin in final)
            settles = run._replace(step="empty" if verdict.again else "settle", plan=plan, turns=turns)
            settles = settles._replace(failed=verdict.failed, is_plain_now=verdict.is_plain_now)
            name = f"settles txid {plan.txid}, {show(verdict.failed)} failed"
            found.append((name, self.go(after, i, settles)))
        return found

    def verdict(
        self, zk: Zk, newest: int, run: Run, plan: Plan, offset: Plan, later: Plan | None
    ) -> Verdict | None:
        """Return what is not done; None where nobody knows: spout/planner/settling/finished_batch.py."""
        there, judging = pins_of(zk.batch, plan), zk.judging
        outcome = zk.batch.outcome if zk.batch is not None else None
        outcome = outcome if outcome is not None and outcome.mark == plan.mark else None
        ours, published = run.own == plan.mark, outcome.failed if outcome else NONE
        newest = run.epoch if ours else newest
        if not self.keeps("absent"):
            return Verdict(published)
        for k in self.touched(plan) if later is not None else ():
            waited = self.of_shard(k, plan.due | plan.dead)
            if k not in there and (waited or later.at[k] != plan.at[k]):
                return None
        if newest in judging or (outcome and outcome.epoch == newest):
            return Verdict(published) if outcome else None
        if not (ours or offset.adopter == plan.adopter):
            if not outcome and judging and plan.epoch <= judging[0]:
                return None
            if outcome or there:
                return Verdict(published)
        unread = frozenset(k for k, pin in there.items() if pin.epoch in judging)
        is_plain = ours or any(pin.epoch == newest for pin in there.values())
        if outcome and not is_plain:
            return Verdict(published)
        if not is_plain and len(unread) == len(there):
            return None if there or judging else Verdict(NONE)
        if ours:
            return Verdict(NONE, unread, is_plain and bool(judging))
        again = unread | self.doubtful(plan, judging, there, later, outcome is not None)
        left = frozenset(r for r in published if self.keeps("left") and self.shard_of[r] not in again)
        return Verdict(left, again, is_plain and bool(judging))

    def doubtful(
        self, plan: Plan, judging: tuple[int, ...], there: dict[int, Pin], later: Plan | None, published: bool
    ) -> frozenset[int]:
        """Return the shards that the run that has begun the batch need not have read, and may have committed."""
        first = plan.adopter or plan.epoch
        is_judged = bool(judging) and first <= judging[0]
        if not self.keeps("doubt") or (is_judged and published):
            return NONE
        return frozenset(
            k
            for k, pin in there.items()
            if (pin.to > plan.at[k] or pin.served)
            and (is_judged or first < pin.maker)
            and (later is None or later.at[k] == plan.at[k])
        )

    def do_empty(self, s: State, i: int, run: Run) -> list[Step]:
        """Pin a turn as empty that counts as unread; in any order."""
        plan, batch, found = run.plan, s.zk.batch, list[Step]()
        if batch is None:
            return self.stop(s, i, "FencedError")
        for k in self.touched(plan):
            pin, turn = batch.pins[k], run.turns[k]
            if pin is not None and turn is not None and (pin.to, pin.served) != turn:
                mine = Pin(plan.mark, *turn, run.epoch, run.epoch)
                zk = s.zk._replace(batch=batch._replace(pins=swap(batch.pins, k, mine)))
                found.append((f"pins shard {k + 1} as empty", self.put(s, zk)))
        return found or self.do_settle(s, i, run._replace(step="settle"))

    def do_settle(self, s: State, i: int, run: Run) -> list[Step]:
        """Move a shard on, and queue its failed records, in one transaction."""
        zk, plan = s.zk, run.plan
        left = [k for k in self.touched(plan) if run.turns[k] is not None]
        left = [k for k in left if zk.shards[k].stamp < plan.txid or not self.keeps("stamp")]
        for k in left[:1]:
            turn, failed = run.turns[k], NONE
            if self.keeps("queue"):
                failed = frozenset(r for r in run.failed if self.shard_of[r] == k)
            zk = zk._replace(shards=swap(zk.shards, k, settled(zk.shards[k], plan, turn, failed)))
            run, s = run._replace(turns=swap(run.turns, k, None)), self.put(s, zk)
            if self.bounds.tries > 1:
                s = s._replace(failures=s.failures | {(r, plan.txid) for r in failed})
            if left[1:] or not self.bounds.merged:
                return [(f"moves shard {k + 1} on to {turn[0]}", self.go(s, i, run))]
        zk, name = zk._replace(settled=plan.txid, mark=plan.mark, batch=None), f"txid {plan.txid} is settled"
        if run.is_plain_now:
            return [(name, self.go(self.put(s, zk), i, run.rest()._replace(step="forget")))]
        return self.move_on(s, i, run, name, zk)

    def do_forget(self, s: State, i: int, run: Run) -> list[Step]:
        """Remove the note of who judges: a plain query has taken over."""
        return self.move_on(s, i, run, "forgets that somebody has judged", s.zk._replace(judging=(), said=0))


def settled(shard: Shard, plan: Plan, turn: Turn, failed: Records) -> Shard:
    """Return a shard after its turn."""
    (to, served), due, counts = turn, only(plan.due | plan.dead), dict(shard.waiting)
    waiting = {one for one in shard.waiting if one[0] not in served & due}
    return Shard(to, frozenset(waiting | {(r, counts.get(r, 0) + 1) for r in failed}), plan.txid)


def pins_of(batch: Batch | None, plan: Plan) -> dict[int, Pin]:
    """Return the pins of a plan, by shard."""
    held = batch.pins if batch is not None else ()
    return {k: pin for k, pin in enumerate(held) if pin is not None and pin.mark == plan.mark}
