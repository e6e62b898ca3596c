"""A start, and what it plans: what Spark's offset says against what ZooKeeper holds."""

from __future__ import annotations

from collections.abc import Iterator

from spec.settling import Settling
from spec.values import GONE, Log, Past, Plan, Run, Shard, State, Step, Zk, join, only, show, swap, unfinished


class Planning(Settling):
    """The planning process, up to the plan that Spark logs: spout/planner/reconciliation.py."""

    def begin(self, s: State) -> Iterator[Step]:
        """Start a run over one of Spark's checkpoints: it raises the epoch."""
        logs, bounds, i = s.logs, self.bounds, len(s.runs)
        choices = [(f"checkpoint {n + 1}", n, logs) for n in range(len(logs))]
        if len(logs) <= bounds.checkpoints and (not bounds.heeded or (s.restored and i > s.since)):
            choices.append(("a new checkpoint", len(logs), (*logs, Log())))
        if s.older is not None and s.older not in logs:
            choices.append(("the older checkpoint", len(logs), (*logs, s.older)))
        for what, n, known in choices:
            epoch, past = self.raise_epoch(s.zk, known[n], i)
            raised = self.put(s, s.zk._replace(epoch=epoch, past=past))
            for plain in bounds.kinds:
                run = Run("decide", epoch, n, plain)
                after = raised._replace(logs=known, runs=(*s.runs, run))
                kind = f"run {i + 1} starts with {what}{', plain' if plain else ''}, epoch {epoch}"
                yield from ((f"{kind}; {name}", found) for name, found in self.decide(after, i, run))

    def raise_epoch(self, zk: Zk, log: Log, i: int) -> tuple[int, Past]:
        """Return the epoch of a start, and what is remembered of those that a restore took."""
        named, past, above = [plan for plan in log if plan is not None], zk.past, 0
        if named and self.keeps("memory"):
            last, epoch = max(named), max(plan.epoch for plan in named)
            if epoch > max(zk.epoch, past.epoch):
                past = join(past, Past(epoch, last.txid, last.mark, epoch))
            if self.keeps("starts"):
                held = zk.batch.plan if zk.batch and zk.batch.plan.txid > named[0].txid else None
                begun = [plan for plan in (log.hand, held) if plan]
                above = max((plan.epoch + self.count_starts(plan, i) for plan in begun), default=0)
        return max(zk.epoch, past.epoch, above) + 1, past

    def decide(self, s: State, i: int, run: Run) -> list[Step]:
        """Decide by the state that was loaded in the step before."""
        if self.bounds.merged:
            return self.do_decide(s, i, run)
        return [("", self.go(s, i, run._replace(loaded=(s.zk, s.logs[run.log]))))]

    def do_decide(self, s: State, i: int, run: Run) -> list[Step]:
        """Settle, replay, adopt or plan, or stop."""
        zk, log = run.loaded or (s.zk, s.logs[run.log])
        run, done, past = run._replace(loaded=None), log.done, zk.past
        stored = zk.batch.plan if zk.batch and zk.batch.plan.txid == zk.settled + 1 else None
        if log.hand is not None:
            return self.replay(s, i, run, log, zk, stored)
        if done is not None and done.mark != zk.mark and (done.txid, None) != (zk.settled, zk.mark):
            if done.txid > zk.settled:
                if stored is not None and stored.mark == done.mark:
                    return self.weigh(s, i, run, stored, None)
                return self.adopt_or_stop(s, i, run, done, done.txid, "ZooKeeper is behind")
            if not self.bounds.go_on:
                return self.stop(s, i, "CheckpointMismatchError: Spark's checkpoint is behind")
        first = stored if self.keeps("begun") else None
        if self.keeps("past") and past.txid > zk.settled and not (first and past.mark in (None, first.mark)):
            after = self.go(s, i, run._replace(step="leave", upto=past.txid))
            return [("txids were used that it does not know", after)]
        if first is not None:
            first = first._replace(rest=unfinished(zk) - first.due - first.dead, adopter=run.epoch)
            after = self.go(s, i, run._replace(step="log", plan=first))
            return [(f"ZooKeeper's txid {first.txid} comes first", after)]
        found, txid, at = [], zk.settled + 1, tuple(shard.at for shard in zk.shards)
        for read, taken in self.choose_taken(zk) if txid <= self.bounds.txids else ():
            dead, rest = self.choose_dead(taken), unfinished(zk) - taken
            plan = Plan(txid, (i, txid), at, read, taken - dead, dead, rest, run.epoch)
            what = f", again {show(only(plan.due))}" * bool(plan.due)
            what += f", to the dead letter {show(only(dead))}" * bool(dead)
            found.append((f"plans txid {txid}{what}", self.go(s, i, run._replace(step="log", plan=plan))))
        return found or [("nothing to do", self.go(s, i, GONE))]

    def replay(self, s: State, i: int, run: Run, log: Log, zk: Zk, stored: Plan | None) -> list[Step]:
        """Take up the batch that Spark has logged and not committed."""
        begin, end, behind = log.done, log.hand, "ZooKeeper is behind"
        known = end.txid <= zk.settled or (stored is not None and stored.mark == end.mark)
        if not known and 0 < end.epoch <= zk.past.lost and not self.bounds.go_on:
            return self.note_and_stop(s, i, end, f"CheckpointMismatchError: {behind}")
        if end.txid == zk.settled + 1:
            if known and stored is not None:
                plan = stored._replace(adopter=end.adopter)
            else:
                other = begin and (begin.txid < zk.settled or zk.mark not in (None, begin.mark))
                if other and begin.mark != zk.mark:
                    return self.stop(
                        s, i, "CheckpointMismatchError: another checkpoint has settled the batch before"
                    )
                at, still = tuple(map(min, end.at, (shard.at for shard in zk.shards))), unfinished(zk)
                plan = end._replace(at=at, due=end.due & still, dead=end.dead & still)
            return [(f"txid {end.txid} comes again", self.go(s, i, run._replace(step="store", plan=plan)))]
        if end.txid == zk.settled + 2 and stored and begin and stored.mark == begin.mark:
            return self.weigh(s, i, run, stored, end)
        if end.txid > zk.settled:
            beyond = any(shard.at > at for shard, at in zip(zk.shards, end.at, strict=True))
            return self.adopt_or_stop(s, i, run, end, end.txid - (not beyond), behind)
        if not self.bounds.go_on:
            return self.stop(s, i, "SettledBatchError")
        after = self.go(s, i, run._replace(step="commit", plan=end))
        return [(f"skips txid {end.txid}, which is settled", after)]

    def adopt_or_stop(self, s: State, i: int, run: Run, plan: Plan, settled: int, why: str) -> list[Step]:
        """Go on from Spark's offset alone, or stop."""
        if not self.bounds.go_on:
            return self.note_and_stop(s, i, plan, f"CheckpointMismatchError: {why}")
        after = self.go(s, i, run._replace(step="adopt", plan=plan, upto=settled))
        return [(f"{why}, it goes on from Spark's offset", after)]

    def note_and_stop(self, s: State, i: int, plan: Plan, why: str) -> list[Step]:
        """Note the txid and the epoch that Spark names, and stop."""
        past = join(s.zk.past, Past(plan.epoch, plan.txid, plan.mark, plan.epoch))
        return self.stop(self.put(s, s.zk._replace(past=past)) if self.keeps("past") else s, i, why)

    def do_adopt(self, s: State, i: int, run: Run) -> list[Step]:
        """Make ZooKeeper what Spark's offset says."""
        plan, shards, upto = run.plan, list[Shard](), run.upto
        if upto - 1 > s.zk.settled:
            # Interrupted, it leaves no stamps that are further above what is settled than a crash explains.
            zk = s.zk._replace(settled=upto - 1, mark=(i, 0), batch=None)
            return [(f"counts txid {upto - 1} as settled", self.put(s, zk))]
        for k, shard in enumerate(s.zk.shards):
            mine = Shard(plan.at[k], self.of_shard(k, plan.due | plan.dead | plan.rest))
            shards.append((mine if shard.at <= plan.at[k] else shard)._replace(stamp=upto))
        mark = plan.mark if upto == plan.txid else None
        zk = s.zk._replace(shards=tuple(shards), settled=upto, mark=mark, batch=None)
        return [("adopts it", self.go(self.put(s, zk), i, run._replace(step="decide", plan=None, upto=0)))]

    def do_leave(self, s: State, i: int, run: Run) -> list[Step]:
        """Leave txids out that were used."""
        zk = s.zk._replace(settled=run.upto, mark=s.zk.mark or (i, 0), batch=None)
        after = self.go(self.put(s, zk), i, run._replace(step="decide", upto=0))
        return [(f"counts txid {run.upto} as settled", after)]

    def do_log(self, s: State, i: int, run: Run) -> list[Step]:
        """Spark logs the plan as its offset."""
        log, plan = s.logs[run.log], run.plan
        if log.hand is not None or (log.done is not None and log.done.txid >= plan.txid):
            return self.stop(s, i, "Spark: another query has logged")
        logs = swap(s.logs, run.log, log._replace(hand=plan))
        after = self.go(s._replace(logs=logs), i, run._replace(step="store"))
        return [(f"Spark logs txid {plan.txid}", after)]
