"""The batch in hand: the plan is stored, tasks read and pin, the driver judges, writes and publishes, Spark commits."""

from __future__ import annotations

from spec.bounds import World
from spec.values import GONE, NONE, Batch, Log, Outcome, Pin, Run, State, Step, Zk, only, show, swap


class Working(World):
    """The tasks and the driver of a run: spout/reader/task.py, bolt/foreach_batch.py, checkpoint/store.

    What a run decides between two batches is in `planning`.
    """

    def do_store(self, s: State, i: int, run: Run) -> list[Step]:
        """Store the plan, or take its batch over."""
        plan, held, nothing = run.plan, s.zk.batch, (None,) * len(self.bounds.shards)
        if held is None or held.plan.mark != plan.mark:
            if held is not None and held.plan.txid == plan.txid and self.keeps("conflict"):
                return self.stop(s, i, "CheckpointMismatchError: another plan is stored")
            held = Batch(plan._replace(rest=frozenset()), run.epoch, nothing)
        elif held.epoch != run.epoch:
            held = held._replace(epoch=run.epoch, plan=held.plan._replace(adopter=plan.adopter))
        step, driver = "read" if run.plain else "say", (plan.txid, run.epoch)
        run = run._replace(step=step, plan=held.plan, own=plan.mark, turns=nothing, driver=driver)
        return [("stores the plan", self.go(self.put(s, s.zk._replace(batch=held)), i, run))]

    def do_say(self, s: State, i: int, run: Run) -> list[Step]:
        """Note that its driver judges: before its first job, and before it sees whose batch it has found."""
        zk, batch = s.zk, s.zk.batch
        if batch is None or run.epoch > zk.epoch:
            return self.stop(s, i, "StaleBatchError")
        outcome, epoch = batch.outcome, batch.epoch
        follows = outcome is not None and outcome.mark == batch.plan.mark and self.keeps("follow")
        told = run.told and epoch == run.epoch
        stands = zk.judging[:1] == (epoch,) and not self.keeps("note")
        if self.keeps("judging") and zk.epoch == epoch and not told and not stands:
            due = only(batch.plan.due)
            pins = [(k, pin) for k, pin in enumerate(batch.pins) if pin is not None]
            readers = {pin.epoch for k, pin in pins if pin.to > batch.plan.at[k] or pin.served & due}
            earlier = readers & set(zk.judging) - {epoch}
            s = self.put(s, zk._replace(judging=(epoch, *sorted(earlier)), said=zk.said + 1))
        run = run._replace(step="read", driver=(batch.plan.txid, epoch), noted=(zk.judging, zk.said))
        run = run._replace(failed=outcome.failed if follows else None, told=epoch == run.epoch)
        return [("says that it judges", self.go(s, i, run))]

    def do_read(self, s: State, i: int, run: Run) -> list[Step]:
        """Run a task: it reads a shard and pins that, or adopts the pin that it finds."""
        plan, batch, found = run.plan, s.zk.batch, list[Step]()
        if not run.plain and self.keeps("rows") and run.driver != (plan.txid, run.epoch):
            return self.stop(self.take_back(s, run), i, "StaleBatchError")
        if self.keeps("check") and not run.plain and not any(run.turns) and s.zk.epoch != run.driver[1]:
            return self.stop(s, i, "FencedError")
        left = [k for k in self.touched(plan) if run.turns[k] is None]
        if not left:
            return self.judge(s, i, run)
        if run.plain and i < self.bounds.leaves_out:
            found.append(("reads no more", self.go(s, i, run._replace(step="write", failed=NONE))))
        if batch is None or batch.plan.txid != plan.txid:
            return self.stop(s, i, "SettledBatchError")
        for k, new in self.choose_turn(s, plan, left):
            pin, fenced = batch.pins[k], self.is_fenced(s, run.epoch)
            there = pin is not None and pin.mark == plan.mark
            if fenced and (not there or self.keeps("task")):
                return self.stop(s, i, "FencedError")
            dead, after, is_late = new[1] & only(plan.dead), s, False
            if not there and dead:
                is_late = not self.keeps("letter")
                if not is_late and not dead <= s.letters:
                    return [(f"dead letter {show(dead)}", s._replace(letters=s.letters | dead))]
            name, turn, mine = "pins", new, Pin(plan.mark, *new, run.epoch, run.epoch)
            if there:
                name, mine = "reads anew", pin._replace(epoch=max(pin.epoch, run.epoch))
                if self.keeps("pin"):
                    name, turn = "adopts the pin of", (pin.to, pin.served)
            if not fenced:
                after = self.put(s, s.zk._replace(batch=batch._replace(pins=swap(batch.pins, k, mine))))
            now = run._replace(turns=swap(run.turns, k, turn), step="letter" if is_late else "read")
            found.append((f"{name} shard {k + 1} up to {turn[0]}", self.go(after, i, now)))
        return found

    def take_back(self, s: State, run: Run) -> State:
        """Make the note what it was, unless somebody has written it since."""
        (judging, said), zk = run.noted, s.zk
        is_mine = zk.said == said + 1 if self.keeps("note") else zk.judging[:1] == run.driver[1:]
        if zk.epoch != run.driver[1] or not is_mine:
            return s
        return self.put(s, zk._replace(judging=judging, said=said and said + 2))

    def do_letter(self, s: State, i: int, run: Run) -> list[Step]:
        """Write the dead letters too late, where that is tried."""
        dead = only(run.plan.dead)
        after = self.go(s._replace(letters=s.letters | dead), i, run._replace(step="read"))
        return [(f"dead letter {show(dead)}", after)]

    def judge(self, s: State, i: int, run: Run) -> list[Step]:
        """Decide which rows fail; a replay follows the outcome."""
        rows = self.rows(run)
        if run.plain:
            return [("has all rows, judges nothing", self.go(s, i, run._replace(step="write", failed=NONE)))]
        run = run._replace(step="publish" if self.publishes_first else "write", noted=((), 0))
        if run.failed is not None:
            run = run._replace(step="write", failed=run.failed & rows, follows=True)
            return [("has all rows, follows the outcome", self.go(s, i, run))]
        return [
            (f"has all rows, {show(failed)} fails", self.go(s, i, run._replace(failed=failed)))
            for failed in self.choose_failed(rows)
        ]

    def do_write(self, s: State, i: int, run: Run) -> list[Step]:
        """Write the batch to the sink."""
        (txid, epoch), kind = run.driver, self.bounds.sink
        good, there, fence = self.rows(run) - run.failed, s.sink[txid], s.fence
        count = (0, good)
        if kind == "folder" and self.keeps("folder"):
            count = (epoch, good) if there is None or epoch >= there[0] else there
        elif kind == "fenced":
            if epoch < fence and self.keeps("folder"):
                return self.stop(s, i, "FencedError of the database")
            fence = max(fence, epoch)
        elif kind == "state":
            # A key a record: with the same txid it is computed from the value before.
            if any(good & one[1] for one in s.sink[txid + 1 :] if one is not None):
                return self.stop(s, i, "StaleBatchError of the state")
            count = (0, good | (there[1] if there else NONE))
        is_last = run.plain or self.publishes_first or run.follows or not self.keeps("before")
        after = s._replace(sink=swap(s.sink, txid, count), fence=fence)
        # Who has lost ZooKeeper to a restore cannot publish.
        run = GONE if run.epoch < 0 and not is_last else run._replace(step="commit" if is_last else "publish")
        return [(f"writes {show(good)} under txid {txid}, epoch {abs(epoch)}", self.go(after, i, run))]

    def do_publish(self, s: State, i: int, run: Run) -> list[Step]:
        """Publish the outcome, or adopt the one that is there."""
        batch, (txid, epoch), failed = s.zk.batch, run.driver, run.failed
        if self.is_fenced(s, epoch) or batch is None or batch.plan.txid != txid:
            return self.stop(s, i, "FencedError")
        if self.keeps("once") and batch.outcome is not None and batch.outcome.mark == batch.plan.mark:
            failed = batch.outcome.failed
        else:
            outcome = Outcome(batch.plan.mark, failed, epoch)
            s = self.put(s, s.zk._replace(batch=batch._replace(outcome=outcome)))
        after = run.rest()
        if self.publishes_first or self.keeps("before"):
            after = run._replace(step="write" if self.publishes_first else "commit", failed=failed)
        return [(f"publishes that {show(failed)} failed", self.go(s, i, after))]

    def do_commit(self, s: State, i: int, run: Run) -> list[Step]:
        """Spark commits: that needs no ZooKeeper, so a run that was replaced can."""
        log = s.logs[run.log]
        if log.hand is None or log.hand.mark != run.plan.mark:
            return self.stop(s, i, "Spark: another query has committed")
        after = s._replace(logs=swap(s.logs, run.log, Log(log.hand)))
        is_late = not self.keeps("before") and not run.plain and run.turns and not run.follows
        run = GONE if run.epoch < 0 else run._replace(step="publish") if is_late else run.rest()
        return [(f"Spark commits txid {log.hand.txid}", self.go(after, i, run))]

    def move_on(self, s: State, i: int, run: Run, said: str, zk: Zk) -> list[Step]:
        """Change ZooKeeper, and decide what comes next."""
        after = self.go(self.put(s, zk), i, run.rest())
        return [(f"{said}; {name}", end) for name, end in self.decide(after, i, run.rest())]
