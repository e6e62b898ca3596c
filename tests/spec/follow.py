"""Holds the real code to the specification: follows what a schedule of the model has done, step by step.

What a process does between two writes (to read, judge, compare, plan) is not seen: the specification may take any such
steps of the process that has written. Chance is taken from what has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from model.families import FAMILIES
from model.story import Told
from model.world import World

from spec.abstraction import UNKNOWN, Abstraction
from spec.bounds import Bounds
from spec.seen import Event, SeenLog
from spec.values import GONE, NONE, Log, Plan, Records, Run, Shard, State, Step, Turn, Waiting, Zk
from spec.wide import Wide

__all__ = ["NOT_FOLLOWED", "RefusedError", "bounds_of", "follow", "follow_events"]

NOT_FOLLOWED = {
    "explicit": "others ack, fail and reset: a shard's checkpoint follows from that, beside the batches",
    "mixed": "as explicit",
    "padded-explicit": "as explicit",
    "joined": "streams are put together: the specification has one home",
    "requests": "as explicit",
    "operators": "as requests",
    "aged": "what is too old has no row: the specification writes all that a turn has, but what cannot be decoded",
    "paused-unordered": "children are read beside their parents: the specification reads these first",
}
"""Families with what is not specified."""

_MANY = 1000
_DEPTH = 30

_OF_NO_PARTS = (0, 0, ())
"""What a plain query writes of a batch that somebody else has settled: it has no parts, and so no txid."""


class RefusedError(Exception):
    """The specification has no such step."""


class Followed(Wide):
    """The specification, whose chance is what has happened.

    Attributes:
        plan: that Spark has logged.
        zk: after the write.
        good: the records that were written.
        unreadable: records that have no row, and fail.
        lives: of each start.
        starting: the life that starts.
        views: the logs that the life can have read.
    """

    plan_seen: Plan | None = None
    zk_seen: Zk | None = None
    good: frozenset[int] | None = None
    unreadable: frozenset[int] = NONE
    starting = ""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.lives: list[str] = []
        self.views: list[Log] = []

    def choose_taken(self, zk: Zk) -> list[tuple[frozenset[int], Waiting]]:
        plan, bounds = self.plan_seen, self.bounds
        if plan is None or not all(
            zk.shards[above].at >= bounds.shards[above]
            for k in plan.read
            for above in bounds.parents.get(k, ())
        ):
            return []
        return [(plan.read, plan.due | plan.dead)]

    def choose_dead(self, taken: Waiting) -> Waiting:
        return self.plan_seen.dead & taken if self.plan_seen else frozenset()

    def choose_turn(self, s: State, plan: Plan, left: Sequence[int]) -> list[tuple[int, Turn]]:
        found = []
        for zk in (s.zk, self.zk_seen):
            if zk is not None and zk.batch is not None:
                pins = ((k, zk.batch.pins[k]) for k in left)
                found += [(k, (pin.to, pin.served)) for k, pin in pins if pin is not None]
        return found

    def choose_failed(self, rows: frozenset[int]) -> list[frozenset[int]]:
        if self.good is not None:
            return [rows - self.good]
        outcome = self.zk_seen.batch.outcome if self.zk_seen and self.zk_seen.batch else None
        return [outcome.failed & rows] if outcome else []

    def rows(self, run: Run) -> frozenset[int]:
        return super().rows(run) - self.unreadable

    def do_settle(self, s: State, i: int, run: Run) -> list[Step]:
        failed = super().rows(run) & self.unreadable
        return super().do_settle(s, i, run._replace(failed=run.failed | failed) if failed else run)

    def count_starts(self, plan: Plan, i: int) -> int:
        if plan.mark[0] < 0:
            return 0
        return len(set(self.lives[plan.mark[0] + 1 : i]) - {self.lives[plan.mark[0]], self.starting})


def bounds_of(family: str) -> Bounds:
    """Return the world of a family."""
    of = FAMILIES[family]
    kinds = {"plain": (True,), "unread": (True,), "changing": (False, True)}.get(of.driver, (False,))
    # A start is assumed to take half a minute: where the model's take no time, epochs may be used twice.
    without = frozenset() if of.start_ms or not of.restores else frozenset({"starts"})
    leaves_out = _MANY if of.driver == "unread" else 0
    return Bounds(
        starts=_MANY, txids=_MANY, kinds=kinds, leaves_out=leaves_out, without=without, merged=False,
        sink="state",
    )  # fmt: skip


def follow(told: Told, events: Sequence[Event], bounds: Bounds) -> int:
    """Follow a schedule; return the number of steps that were matched.

    Raises:
        RefusedError: the specification has no such step.
    """
    assert isinstance(told.world, World)
    tries = told.world.retry_limit + 1
    return follow_events(Abstraction.of_model(told.world), events, replace(bounds, tries=tries))


def follow_events(alpha: Abstraction, events: Sequence[Event], bounds: Bounds) -> int:
    """Follow what was seen of a model or of a job, as `follow` does."""
    return _Follower(alpha, bounds).follow(events)


class _Follower:
    def __init__(self, alpha: Abstraction, bounds: Bounds) -> None:
        self._alpha = alpha
        self._spec = Followed(replace(bounds, shards=alpha.sizes, parents=alpha.parents))
        self._spec.unreadable = alpha.unreadable
        self._sees_writes = False
        self._states = {self._spec.start()}
        self._zk: Zk | None = None
        self._runs: dict[str, int] = {}
        self._logs: dict[int, int] = {}
        self._current: dict[int, SeenLog] = {}
        self._history: dict[int, list[tuple[int, SeenLog]]] = {}
        self._lives: dict[str, tuple[int, int, bool]] = {}
        self._starts = 0

    def follow(self, events: Sequence[Event]) -> int:
        matched, self._sees_writes = 0, any(event.what == "write" for event in events)
        for number, event in enumerate(events):
            who = event.who.partition("-")[0]
            if event.log is not None and event.what == "life":
                self._lives[who] = (event.log.key, number, event.goes_on)
                self._note(number, event.log)
            elif event.what == "trim":
                assert event.written is not None
                gone = frozenset(self._alpha.number[n] for n in event.written[2])
                self._states = {s._replace(expired=s.expired | gone) for s in self._states}
            elif event.what == "restore":
                assert event.nodes is not None
                self._zk = self._alpha.zk(event.nodes) or self._spec.start().zk
                self._states = {s._replace(zk=self._zk) for s in self._states}
            elif self._takes(number, who, event):
                matched += 1
        return matched

    def _note(self, number: int, log: SeenLog) -> None:
        self._current[log.key] = log
        self._history.setdefault(log.key, []).append((number, log))

    def _takes(self, number: int, who: str, event: Event) -> bool:
        """Take what a life does; return whether the specification knows of it."""
        target, old = None, self._zk
        if event.log is not None:
            if not who or not event.log.offsets:
                return False
            self._note(number, event.log)
            i = self._run_of(number, who, event)
            plan = self._alpha.plan_of(event.log.offsets[-1])
            if plan.plan and plan.plan not in self._alpha.marks:
                self._alpha.marks[plan.plan] = (i, plan.txid)
            target = self._alpha.log(event.log)
            is_known = event.what == "commit" and all(
                target == s.logs[s.runs[i].log] for s in self._states if s.runs[i] != GONE
            )
            if target == Log() or is_known:
                return False
        elif event.nodes is not None:
            zk = self._alpha.zk(event.nodes)
            if zk is None or zk in (old, None) or not zk.epoch:
                return False
            self._zk = zk
            if old is None or zk.epoch != old.epoch:
                self._start(number, who, zk)
                return True
            if zk.batch is None and zk == old._replace(batch=None):
                # What is settled is removed, in a multi of its own.
                return False
        elif event.written == _OF_NO_PARTS:
            return False
        self._run_of(number, who, event)
        self._step(number, who, event, target)
        return True

    def _run_of(self, number: int, who: str, event: Event) -> int:
        if who not in self._runs:
            msg = f"event {number}: {who} does {event.what}, and has not started"
            raise RefusedError(msg)
        return self._runs[who]

    def _start(self, number: int, who: str, zk: Zk) -> None:
        """Follow a start: with the log that it has, however it came to that."""
        spec, n, after = self._spec, self._starts, set[State]()
        seen = self._current[self._lives[who][0]]
        at, log = self._logs.setdefault(seen.key, len(self._logs)), self._alpha.log(seen)
        spec.starting = who
        for s in self._states:
            kept = (*s.logs, *[Log()] * (at + 1 - len(s.logs)))
            if not all(map(_is_alike, repeat(spec), kept[at], log)):
                # Somebody has copied a checkpoint, or a part of one.
                kept = (*kept[:at], log, *kept[at + 1 :])
            for known in (kept[at], Log()):
                epoch, past = spec.raise_epoch(s.zk, known, n)
                now = s.zk._replace(epoch=zk.epoch, past=past)
                if not _is_same(spec, now, zk) or zk.epoch < epoch:
                    continue
                # A call that names no offset: before it does anything else, the run has to start once more.
                is_early = known != kept[at]
                after |= {
                    s._replace(
                        zk=now,
                        logs=kept,
                        runs=(
                            *s.runs,
                            GONE if is_early else Run("decide", zk.epoch, at, plain, loaded=(now, known)),
                        ),
                    )
                    for plain in spec.bounds.kinds
                }
                break
        if not after:
            msg = f"event {number}: {who} starts with epoch {zk.epoch}, past {zk.past}"
            raise RefusedError(msg)
        spec.lives.append(who)
        self._states, self._runs[who], self._starts = after, n, n + 1

    def _step(self, number: int, who: str, event: Event, target: Log | None) -> None:
        spec, i = self._spec, self._runs[who]
        key, born, goes_on = self._lives[who]
        spec.bounds = replace(spec.bounds, go_on=goes_on)
        spec.views = [self._alpha.log(seen) for at, seen in self._history[key] if at >= born]
        spec.zk_seen = self._zk if event.what == "zk" else None
        spec.plan_seen = target.hand if target else None
        spec.good = None
        if event.written is not None:
            spec.good = frozenset(self._alpha.number[n] for n in event.written[2])
        after = set[State]()
        for s in self._states:
            after |= self._reach(s, i, event, target)
        if not after:
            steps = {s.runs[i].step for s in self._states}
            what = self._differences() if event.what == "zk" else event.written or target
            msg = f"event {number}: {who} (run {i + 1}, before {steps}) does {event.what}: {what}"
            raise RefusedError(msg)
        self._states = after

    def _differences(self) -> str:
        s, zk = next(iter(self._states)), self._zk
        assert zk is not None
        return "; ".join(
            f"{name}: {one} -> {other}"
            for name, one, other in zip(Zk._fields, s.zk, zk, strict=True)
            if one != other
        )

    def _reach(self, s: State, i: int, event: Event, target: Log | None, depth: int = _DEPTH) -> set[State]:
        """Return the states after some steps of a run that nobody sees, and one that is what was seen."""
        found, run, zk = set[State](), s.runs[i], self._zk
        if not depth or run == GONE:
            return found
        for _, after in self._steps(s, i, run):
            if after.runs[i] == GONE and after.zk == s.zk:
                continue
            if after.zk != s.zk:
                if event.what == "zk" and zk is not None and _is_same(self._spec, after.zk, zk, s.expired):
                    kept = after.zk._replace(mark=zk.mark, shards=zk.shards, judging=zk.judging)
                    found.add(after._replace(zk=kept))
                elif event.what == "zk" and "settle" in (run.step, after.runs[i].step):
                    # The product settles as many shards in one multi as fit.
                    found |= self._reach(after, i, event, target, depth - 1)
            elif after.logs != s.logs:
                if target is not None and all(
                    map(_is_alike, repeat(self._spec), after.logs[run.log], target)
                ):
                    found.add(after)
            elif kind := self._kind_at_sink(run, after.runs[i]):
                if (
                    event.what == kind
                    and event.written is not None
                    and self._has_done(run, kind, event.written)
                ):
                    found.add(after)
            else:
                found |= self._reach(after, i, event, target, depth - 1)
        return found

    def _kind_at_sink(self, run: Run, after: Run) -> str:
        """Return the kind of event that a step at the sink is."""
        if after.step == "fetch" != run.step:
            return "call"
        return "write" if run.step == "write" and self._sees_writes else ""

    def _has_done(self, run: Run, kind: str, written: tuple[int, int, tuple[int, ...]]) -> bool:
        if kind == "write" and self._spec.rows(run) - (run.failed or NONE) != self._spec.good:
            return False
        return run.driver == written[:2]

    def _steps(self, s: State, i: int, run: Run) -> list[Step]:
        steps = list(self._spec.steps_of(s, i))
        if run.step == "decide" and run.loaded is not None:
            # Spark may have read its log before the epoch was raised, or after.
            zk, log = run.loaded
            for other in {s.logs[run.log], *self._spec.views} - {log}:
                steps += self._spec.do_decide(s, i, run._replace(loaded=(zk, other)))
        return steps


def _is_left_alike(one: Shard, other: Shard, expired: Records) -> bool:
    """Return whether two shards are the same but for what of their records has expired."""
    left = [frozenset(w for w in shard.waiting if w[0] not in expired) for shard in (one, other)]
    return bool(expired) and left[0] == left[1] and one._replace(waiting=other.waiting) == other


def _is_alike(spec: Followed, one: Plan | None, other: Plan | None) -> bool:
    """Return whether two plans are the same: an offset leaves out where shards are that are read to their ends."""
    if one is None or other is None or one.mark != other.mark:
        return one is other
    is_near = all(one.at[k] == other.at[k] for k in spec.touched(other))
    return is_near and one._replace(at=other.at) == other


def _is_same(spec: Followed, one: Zk, other: Zk, expired: Records = NONE) -> bool:
    """Return whether ZooKeeper holds the same; of expired records nobody knows how many wait, and who has read them."""
    if expired and one.judging[:1] == other.judging[:1] and {*one.judging} >= {*other.judging}:
        one = one._replace(judging=other.judging)
    if other.mark == UNKNOWN:
        one = one._replace(mark=UNKNOWN)
    if (
        one.batch is not None
        and other.batch is not None
        and _is_alike(spec, one.batch.plan, other.batch.plan)
    ):
        one = one._replace(batch=one.batch._replace(plan=other.batch.plan))
    # A shard that nobody has read yet is not in the product's offsets, so an adoption does not stamp it.
    shards = tuple(
        b if a._replace(stamp=b.stamp) == b == Shard(stamp=b.stamp) or _is_left_alike(a, b, expired) else a
        for a, b in zip(one.shards, other.shards, strict=True)
    )
    return one._replace(shards=shards) == other
