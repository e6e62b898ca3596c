"""Chooses what a run does next: a plan, a step that must come before it, or how long to wait. Pure.

The rules stand in one order, and the first one that applies answers. A round asks each rule once, and ends with a plan
or a wait: so looks that were left out, because others have found enough, come after what these found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan, mark_of
from kinesis_trident.checkpoint.model.standing import Looks, Standing
from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import count_enough_tasks
from kinesis_trident.spout.planner.exhausted import refuse_exhausted
from kinesis_trident.spout.planner.plan import add_all_due, make_plan
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.alignment import AlignedRead, Alignment, Behind, find_behind, step
from kinesis_trident.spout.planner.tip.looks import Question, kept_bytes
from kinesis_trident.spout.positions import AtTimestamp, Position, TrimHorizon
from kinesis_trident.spout.shard_rules import LISTED_WITHIN_MS
from kinesis_trident.spout.turn_size import count_fitting, predict

_TOGETHER_MS = 10
"""Milliseconds of a wait, at least: looks that are due one shortly after the other are made together."""

_MOVES_MS = 60_000
"""Milliseconds after a polled turn in which another one of the shard may be read where its subscription is not."""

AGAIN = 1.0
"""Seconds until a required listing is tried again."""

_EVERY = {Looks.UNTIL_KNOWN: 2.0, Looks.SELDOM: 3_600.0}
"""Seconds between two looks at a shard that is not read, and in which nothing new was seen yet.

One that is looked at seldom, or is at its end, has lost nothing if it was empty all the time: looks show that.
"""

ALL_EVERY = 60.0
"""Seconds between two listings of all shards; those in between list only new ones."""

_STOOD_STILL_MS = 3_600_000
"""Milliseconds of the server's clock beyond this process's steady one after which the machine has stood still: a clock
that never steps back does not count while a machine sleeps. Retention is 24 hours at least."""

_First = Literal["drain", "go on", "take looks", "list new", "list all", "take pauses", "take requests"]
Do = _First | Literal["time out", "check retention", "explain", "say", "describe"]
"""A step that must come before the plan; `PlanningSteps.carry_out` takes it."""


class LookAt(NamedTuple):
    """Look at shards that are not read, that are due, or of which a turn will read much.

    `at`: the steady milliseconds at which the looks count as made.
    """

    questions: Mapping[str, Question]
    why: Literal["unread", "due", "ahead"]
    at: int


class Planned(NamedTuple):
    """The next batch, as Spark logs it; and as it is stored, with runs that its offset does not name."""

    plan: Plan
    whole: Plan


class Wait(NamedTuple):
    """There is nothing to do for so many seconds; or at all, because all is drained, or the run is to stop.

    `unseen`: the shards at which the run has not looked yet, and may. `left`: those that a drain does not read because
    they are paused.
    """

    seconds: float
    end: Literal["", "drained", "stopped"] = ""
    unseen: int = 0
    left: tuple[str, ...] = ()


Next = Do | LookAt | Planned | Wait


class Round(msgspec.Struct, frozen=True):
    """What the rules of a round have found.

    Attributes:
        rule: the next one.
        now: when it began, in epoch milliseconds; `looked`: when its looks did, in steady ones.
        before: the sights before the looks.
        error: why a shard could not be looked at; `changed`: a listing explains that, None if that is not known now.
        behind: how far the shards are behind.
    """

    rule: int = 0
    now: int = 0
    looked: int = 0
    before: Sights | None = None
    error: KinesisError | None = None
    changed: bool | None = None
    behind: Behind | None = None


class Course(msgspec.Struct, frozen=True):
    """All that a run knows for its choices beside its shards. Times are seconds of a clock that never steps back.

    Attributes:
        described: when the streams were described, or that was tried.
        alignment: the last batches; None if shards are not kept in step.
        listing, listing_all: when new shards, or all, are listed next.
        is_current: they were listed since the last request for that.
        ended_open: how often the probe had seen an open shard end by the last listing.
        drain: the number of the request to drain that is followed; 0 if none asked for it.
        made: the mark of the last plan of this run; of none from before it drains.
        read: what a batch reads, of those that have more, by the last decision; it says who waits for whom.
        round: of the rules.
    """

    described: float
    alignment: Alignment | None
    listing: float = -math.inf
    listing_all: float = -math.inf
    is_current: bool = True
    ended_open: int = 0
    drain: int = 0
    made: str = ""
    read: AlignedRead = AlignedRead([])
    round: Round = Round()

    def note(self, **changes: Any) -> Course:
        """Return the course with other findings of the round."""
        return replace(self, round=replace(self.round, **changes))


class Moment(msgspec.Struct):
    """All that a choice is made of: what the run knows, what others ask for, the options, the time, and the dice.

    Attributes:
        requests: there are new ones; `stop`: one to stop; `drain`: the number of the one to drain, 0 for none.
        created: the creation time of each stream that is read, by name.
        bound: the time by the server's clock, at most, if the machine has not stood still.
        ended_open: how often the probe has seen an open shard end.
        max_records: the new records of a batch, at most; None for no limit.
        now: the time in epoch milliseconds; `steady`: in seconds of a clock that never steps back.
        pauses: somebody has paused or resumed something.
        dice: for jitter, with which an interval is longer: queries started together do not list together for ever.
    """

    shards: Shards
    sights: Sights
    course: Course
    requests: bool
    stop: bool
    drain: int
    options: SourceOptions
    layout: Layout
    epoch: int
    created: Mapping[str, int]
    bound: int
    ended_open: int
    max_records: int | None
    now: int
    steady: float
    dice: random.Random
    pauses: bool = False

    @property
    def steady_ms(self) -> int:
        """Return the steady time in milliseconds."""
        return int(self.steady * 1000)

    @property
    def most(self) -> int | None:
        """Return the maximum of the records of a shard that are read and not done, if they are counted."""
        return self.options.max_inflight_records if self.options.ack_mode == "explicit" else None

    def note(self, **changes: Any) -> None:
        """Note findings of the round."""
        self.course = self.course.note(**changes)

    def standings(self, names: Iterable[str]) -> dict[str, Standing]:
        """Return how shards stand, as `Sights.standings`."""
        return self.sights.standings(names, self.shards, most=self.most, ahead=self.course.read.waits)

    def is_due(self, due: int | None) -> bool:
        """Return whether something was due, if at all, when the round began."""
        return due is not None and due <= self.course.round.now

    def find_watched(self) -> Mapping[str, Position]:
        """Return the positions of the shards that are looked at at their pace."""
        positions = self.shards.positions
        rare = self.standings(self.sights.find_rare(self.shards)).items()
        left = positions.keys() & {shard for shard, one in rare if one.looks <= Looks.SELDOM}
        return {shard: at for shard, at in positions.items() if shard not in left} if left else positions

    def find_wanted(self) -> list[str]:
        """Return the shards that are known to have something new; none where looks have failed without a cause."""
        if self.course.round.error is not None and self.course.round.changed is None:
            return []
        return sorted(filter(self.sights.has_more, self.find_watched()))

    def find_kept(self, shard: str) -> tuple[int, int] | None:
        """Return when the first and the last record arrived of what the last look has left for a turn of a shard."""
        options, look, position = self.options, self.sights.look_of(shard), self.shards.positions[shard]
        most = options.max_fetch_records_per_shard
        size = min(options.max_fetch_bytes_per_shard, options.max_fetch_bytes_per_task) // 2
        return look.find_kept(position, most, size, deaggregate=options.deaggregate) if look else None

    def look(
        self, positions: Mapping[str, Position], why: Literal["unread", "due", "ahead"]
    ) -> LookAt | None:
        """Return a look at shards, if there are any."""
        closed, most, sights = self.shards.closed, kept_bytes(len(positions)), self.sights
        pushed, since = self.options.consumer_mode == "efo", self.steady_ms - _MOVES_MS
        questions = {}
        for shard, position in positions.items():
            sight = sights.of(shard)
            limit = min(self.options.max_records_per_fetch, count_fitting(sight.size, most))
            if pushed and (sight.polled is None or sight.polled <= since):
                # The reader has its records pushed.
                limit = 1
            questions[shard] = Question(position, shard in closed, limit, most, sight.budget, sight.look)
        return LookAt(questions, why, self.course.round.looked) if questions else None

    def look_at_due(self) -> LookAt | None:
        """Return a look at the shards of which it is not known whether they have more."""
        due, self.sights = self.sights.find_due(self.find_watched(), self.course.round.looked)
        return self.look(due, "due")

    def awaits_children(self) -> bool:
        """Return whether a shard that a drain has ended did so a short while ago: a listing may lack its children."""
        since, seen = max(0, self.steady_ms - LISTED_WITHIN_MS), self.sights.by_shard
        drains = self.sights.until is not None
        return drains and any(shard in seen and seen[shard].looked > since for shard in self.shards.childless)

    def is_drained(self) -> bool:
        """Return whether a draining source has read everything and nothing is in flight."""
        shards = self.shards
        comes = shards.next_retry is not None or shards.unacked
        if self.sights.until is None or not self.course.is_current or comes or self.awaits_children():
            return False
        # What now waits for retries waits for such as are paused.
        read = self.standings(shards.active.keys() - shards.chains.stand)
        return not any(one.drain for one in read.values())

    @property
    def left(self) -> tuple[str, ...]:
        """Return the shards that a drain leaves as they are because they, or what they wait for, are paused."""
        shards = self.shards
        failed = (shard for shard in shards.active.keys() - shards.coming.keys() if shards.states[shard].held)
        behind = shards.chains.stand & shards.positions.keys() if shards.next_retry is None else ()
        return () if self.sights.until is None else tuple(sorted({*shards.paused, *failed, *behind}))

    def find_seconds(self) -> float:
        """Return the seconds until something may be due: a look at a tip, a retry, a time-out, the end of a pause."""
        now, shards = self.steady_ms, self.shards
        due = shards.next_retry, shards.next_timeout, shards.next_resume
        looks = max(_TOGETHER_MS, self.sights.next_look(self.find_watched(), now) - now)
        return min(looks, *(at - self.now for at in due if at is not None), math.inf) / 1000


def _follow(at: Moment) -> Next | None:
    """Others ask to drain, or nobody does any longer, or the run is to stop."""
    followed = at.course.drain
    # One that drains by itself goes on to its end.
    if at.drain and at.drain != followed and (followed or at.sights.until is None):
        at.course = replace(at.course, drain=at.drain)
        return "drain"
    if followed and not (at.drain or at.stop):
        at.course = replace(at.course, drain=0)
        return "go on"
    return Wait(at.find_seconds(), "stopped", left=at.left) if at.stop and not at.drain else None


def _take(at: Moment) -> Next | None:
    """With `prefetch`, records were read ahead beside the batch."""
    at.note(now=at.now)
    return "take looks" if at.options.prefetch and at.options.consumer_mode == "polling" else None


def _list(at: Moment) -> Next | None:
    """`describeShardInterval` is over, or a shard has ended: its children are not known."""
    course, interval = at.course, at.options.describe_shard_interval
    # What comes after a shard that has ended is listed at once: from then on it is known what of it expires.
    if at.steady < course.listing and at.ended_open == course.ended_open:
        return None
    if not course.is_current or at.awaits_children():
        interval = min(interval, AGAIN)
    listing = at.steady + interval * at.dice.uniform(1.0, 1.2)
    at.course = replace(course, listing=listing, ended_open=at.ended_open)
    # A listing of new shards is cheap; shards that retention removed are not urgent.
    return "list all" if at.steady >= course.listing_all else "list new"


def _pause(at: Moment) -> Next | None:
    """Somebody has paused or resumed something, or the time of a pause is over."""
    return "take pauses" if at.pauses or at.is_due(at.shards.next_resume) else None


def _take_in(at: Moment) -> Next | None:
    """Others ask for something, or, with `ackMode=explicit`, a retry or a time-out is due."""
    # An ack may be stored although its watch has not fired yet: it is read before time-outs are judged.
    retries = at.options.ack_mode == "explicit" and at.is_due(at.shards.next_retry)
    return "take requests" if at.requests or retries or at.is_due(at.shards.next_timeout) else None


def _time_out(at: Moment) -> Next | None:
    """A record was not acked in time."""
    return "time out" if at.is_due(at.shards.next_timeout) else None


def _refuse(at: Moment) -> Next | None:
    """With `onExhausted=fail` a record has failed too often."""
    refuse_exhausted(at.shards.dead, at.layout, at.options)
    return None


def _look_at_unread(at: Moment) -> Next | None:
    """A shard is not read, and the age of its next record, which is its lag, was not seen yet."""
    now, shards, sights, due = at.steady, at.shards, at.sights, {}
    # One that was read meanwhile waits anew.
    again: dict[str, float | None] = {s: None for s, one in sights.by_shard.items() if one.look_again}
    for shard, standing in at.standings(sights.find_rare(shards)).items():
        looks, state, sight = standing.looks, shards.states[shard], sights.of(shard)
        if looks in _EVERY:
            look = sight.look
            here = look if look is not None and look.position == state.position else None
            at_end = here is not None and here.is_end
            every = _EVERY[Looks.SELDOM if at_end else looks]
            when = sight.look_again or now + (0 if looks is Looks.UNTIL_KNOWN else every)
            known = here is not None and here.more and not at_end
            if not known and now >= when:
                when, due[shard] = now + every, state.position
            again[shard] = when
    at.sights = sights.put({s: replace(sights.of(s), look_again=when) for s, when in again.items()})
    at.note(looked=at.steady_ms, before=at.sights)
    return at.look(due, "unread")


def _look(at: Moment) -> Next | None:
    """It is not known whether a shard has more, and its pace allows a look."""
    return at.look_at_due() if at.course.round.error is None else None


def _check_looks(at: Moment) -> Next | None:
    """A look has failed; or they show that the machine has stood still: a tip that they find says nothing of before."""
    if at.course.round.error is not None:
        return "explain"
    return "check retention" if at.sights.newest > at.bound + _STOOD_STILL_MS else None


def _look_again(at: Moment) -> Next | None:
    """A look has failed, and a listing explains it; else its error ends the query."""
    error, changed = at.course.round.error, at.course.round.changed
    if error is not None and changed is False:
        raise error
    return at.look_at_due() if changed else None


def _look_ahead(at: Moment) -> Next | None:
    """With `maxShardSkew` it is not sure how far the turns read that others wait for, and their limits allow a look."""
    alignment, options, positions = at.course.alignment, at.options, at.shards.positions
    if alignment is None or not (wanted := at.find_wanted()):
        return None
    # It is decided anew who waits for the others.
    standings = at.sights.standings([*positions, *at.shards.childless], at.shards, most=at.most)
    # With a bound that other shards share a turn may end anywhere.
    bounded = at.max_records or options.max_bytes_per_trigger or at.most or options.prefetch
    behind = find_behind(at.shards, at.sights, standings, wanted)
    behind = behind if bounded else alignment.find_unsure(behind, at.sights)
    at.note(behind=behind)
    if options.consumer_mode != "polling":
        return None
    unkept = (shard for shard in behind.unsure if not at.find_kept(shard))
    now = at.steady_ms
    return at.look({s: positions[s] for s in unkept if at.sights.of(s).may_read(now) <= now}, "ahead")


def _align(at: Moment) -> Next | None:
    """Others wait no longer for a shard that cannot be read, or batches begin too seldom to keep in step."""
    behind, alignment, last = at.course.round.behind, at.course.alignment, at.course.read
    if alignment is None:
        standings = at.standings(at.find_wanted())
        read = AlignedRead([shard for shard, one in standings.items() if one.reads])
    elif behind is None:
        # Nothing is read, so nobody waits for anybody.
        read = AlignedRead([], told=last.told)
    else:
        # The turns begin with what the looks have left.
        behind = behind.know({shard: ends for shard in behind.unsure if (ends := at.find_kept(shard))})
        read = step(behind, max(at.now, at.sights.newest), at.steady_ms, alignment.bound, last)
        alignment = alignment.note_read(read)
    at.course = replace(at.course, alignment=alignment, read=read)
    says = alignment is not None and (read.passed or read.is_too_short(alignment.pace))
    return "say" if says else None


def _describe(at: Moment) -> Next | None:
    """A shard is read from a time, or from its oldest record: in any stream that is a position."""
    positions = at.shards.positions
    starts = any(isinstance(positions[s], TrimHorizon | AtTimestamp) for s in at.course.read.read)
    return "describe" if starts else None


def _plan(at: Moment) -> Next | None:
    """There is something to read, to deliver again, or to write to the dead letter."""
    shards, options, now, read = at.shards, at.options, at.course.round.now, at.course.read
    states, alignment = shards.named, at.course.alignment
    coming = shards.coming
    plan = make_plan(
        txid=shards.settled + 1,
        plan=mark_of(at.epoch, now, at.layout.digest, at.dice.getrandbits(96)),
        streams=at.created,
        states=states,
        coming=coming,
        read=read.read,
        now=now,
        max_records=at.max_records,
        max_bytes=options.max_bytes_per_trigger,
        max_inflight=at.most,
        max_turn=options.max_fetch_records_per_shard,
        deaggregate=options.deaggregate,
        upto=read.upto,
        chains=shards.chains,
    )
    if plan is None:
        return None
    at.course = replace(at.course, made=plan.plan, alignment=alignment and alignment.note_plan(at.steady_ms))
    whole = add_all_due(plan, coming, now, shards.chains)
    enough = count_enough_tasks(len(whole.shards), predict(whole, at.sights.sizes, now), options)
    return Planned(replace(plan, tasks=enough), replace(whole, tasks=enough))


def _wait(at: Moment) -> Next:
    """Nothing of that."""
    if at.is_drained():
        return Wait(0.0, "drained", left=at.left)
    seconds = at.find_seconds()
    # A shard that may be looked at ends the wait at once: without one no pass over all shards is needed.
    due = at.sights.find_due(at.find_watched(), at.steady_ms)[0] if seconds <= _TOGETHER_MS / 1000 else ()
    return Wait(seconds, unseen=sum(at.sights.of(shard).pace.looked is None for shard in due))


RULES = (
    *(_follow, _take, _list, _pause, _take_in, _time_out, _refuse, _look_at_unread, _look, _check_looks),
    *(_look_again, _look_ahead, _align, _describe, _plan, _wait),
)
"""The rules in their order: the function of each says when it applies."""


def choose(at: Moment) -> tuple[Next, Sights, Course]:
    """Return what comes next, and what is known from then on; `at` is used up.

    Raises:
        ExhaustedError: with `onExhausted=fail`, a record has failed too often.
        KinesisError: a shard cannot be looked at, and no listing explains that.
    """
    number = at.course.round.rule
    # The last one always answers.
    while (found := RULES[number](at)) is None:
        number += 1
    ends = isinstance(found, Planned | Wait)
    return found, at.sights, replace(at.course, round=Round()) if ends else at.course.note(rule=number + 1)
