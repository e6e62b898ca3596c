"""Carries out what `choose` says, and hands a plan to Spark's tasks with what looks have found."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from msgspec.structs import replace

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.checkpoint.model.standing import Standing
from kinesis_trident.spout.kinesis import Kinesis, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import ShardTurn
from kinesis_trident.spout.planner.choose import (
    AGAIN,
    ALL_EVERY,
    Course,
    LookAt,
    Moment,
    Next,
    Round,
    choose,
)
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.tip.alignment import HOLD_MS, AlignedRead, Alignment
from kinesis_trident.spout.planner.tip.prefetch import FRESH_MS, PinsOf, Prefetcher
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe

log = logging.getLogger(__name__)

_DESCRIBED_FOR = 10.0
"""Seconds for which a description of a stream is used: an account has few DescribeStreamSummary calls a second."""


class PlanningSteps:
    """The hands of `choose`, for one state.

    What other processes ask for is taken into `state` before a plan is made. `close` ends the executor of `around`.

    Attributes:
        course: what is known for the choices beside the shards.
    """

    def __init__(
        self,
        options: SourceOptions,
        kinesis: Kinesis,
        layout: Layout,
        state: SourceState,
        around: Surroundings,
        pins_of: PinsOf,
    ) -> None:
        self._options = options
        self._layout = layout
        self._state = state
        self._around = around
        self._requested = self._paused = False
        skew = options.max_shard_skew
        alignment = Alignment(None if skew is None else round(1000 * skew)) if skew != math.inf else None
        # The streams have just been described.
        self.course = Course(around.steady(), alignment)
        self._probe = TipProbe(
            kinesis,
            layout,
            deaggregate=options.deaggregate,
            readable_within=options.read_timeout,
            wall=around.now,
            clock=around.steady,
            executor=around.executor,
        )
        self._patience = 0.0
        self._prefetcher = Prefetcher(self._probe, options, pins_of, around)

    @property
    def is_draining(self) -> bool:
        """Return whether only what was in the stream when the drain began is read."""
        return self._state.sights.until is not None

    def standings(self, names: Iterable[str] | None = None) -> dict[str, Standing]:
        """Return how these shards, or all of the streams that are read now, stand, with what this run sees of them."""
        return self._see().standings(self._state.shards.active if names is None else names)

    def begin_round(self, patience: float = 0.0) -> None:
        """Ask the rules from the first one on, though an error may have ended the last round; `patience`: of looks."""
        self._patience, self.course = patience, replace(self.course, round=Round())

    def choose(self, stop: bool, drain: int, max_records: int | None) -> Next:
        """Return what comes next: see `choose`, and `Moment` for the arguments.

        Raises:
            ExhaustedError, KinesisError: as `choose`.
        """
        found, self._state.sights, self.course = choose(self._see(max_records, stop=stop, drain=drain))
        return found

    def _see(self, max_records: int | None = None, *, stop: bool = False, drain: int = 0) -> Moment:
        state, around = self._state, self._around
        steady = around.steady()
        return Moment(
            shards=state.shards,
            sights=state.sights,
            course=self.course,
            requests=self._requested,
            pauses=self._paused,
            stop=stop,
            drain=drain,
            options=self._options,
            layout=self._layout,
            epoch=state.epoch,
            created=state.streams.created,
            bound=state.streams.bound_now(steady),
            ended_open=self._probe.ended_open,
            max_records=max_records,
            now=around.now(),
            steady=steady,
            dice=around.rng,
        )

    def carry_out(self, step: Next) -> None:
        """Do what comes before a plan.

        Raises:
            DataLossError: with `failOnDataLoss`, records have expired unread.
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: a shard cannot be looked at.
        """
        state, round_ = self._state, self.course.round
        match step:
            case LookAt():
                self._look(step)
            case "drain":
                self.drain()
            case "go on":
                state.sights = state.sights.go_on()
            case "take looks":
                state.sights = self._prefetcher.take(state.shards.positions, state.sights)
            case "list new" | "list all":
                self._list(everything=step == "list all")
            case "take pauses":
                self._paused = False
                state.take_pauses(round_.now)
            case "take requests":
                self._requested = False
                state.take_in_requests(round_.now)
            case "time out":
                state.time_out(round_.now)
            case "check retention":
                self._check_retention()
            case "explain":
                self.course = self.course.note(changed=self._check_changed_shards())
            case "say":
                self._say(self.course.read)
            case "describe":
                self._describe()

    def drain(self, asked: int = 0) -> None:
        """Read only what is in the stream by now, and retry what of it fails; `asked`: the request that is followed.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
        """
        state, around, course = self._state, self._around, self.course
        # What was read ahead to the tip was so before now.
        state.sights = self._prefetcher.take({}, self._prefetcher.end(state.sights))
        self.course = replace(course, made="", drain=asked or course.drain)
        # A run that drains from its start has just described them.
        self._describe(AGAIN)
        state.sights = state.sights.stop_at_tip(state.streams.bound_now(around.steady()))
        # Children of a shard that was split before the drain began hold records from before it.
        self.course = replace(self.course, listing=-math.inf, is_current=False)

    def note_request(self) -> None:
        """Take in, before the next plan, what another process has just asked for."""
        self._requested = True

    def note_pauses(self) -> None:
        """Take over, before the next plan, what somebody has just paused or resumed."""
        self._paused = True

    def has_made(self, plan: Plan) -> bool:
        """Return whether a plan is the last one that was made here; any other is one that starts over."""
        return plan.plan == self.course.made

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Learn of the shards' ends, tips and sizes."""
        state, replayed = self._state, False
        if isinstance(event, BatchSettled):
            replayed = not self.has_made(event.finished.plan)
            # What comes after a shard that was read to its end is to be listed.
            if not after.childless.isdisjoint(event.ended):
                self.course = replace(self.course, listing=-math.inf)
        passed = self._around.now() - state.settled_at
        now = self._around.steady_ms()
        state.sights = state.sights.observe(event, after, now, passed=passed, replayed=replayed)

    def prefetch(self, plan: Plan) -> None:
        """Read beside the tasks of a plan, which Spark is about to run, what the next one will need."""
        options = self._options
        if not (options.prefetch and options.consumer_mode == "polling" and self.has_made(plan)):
            return
        # A task that reads retries of a shard calls it too.
        shards = self._state.shards
        left = self.standings(shards.positions.keys() - plan.shards)
        idle = {shard: shards.positions[shard] for shard, one in sorted(left.items()) if one.reads}
        self._prefetcher.begin(plan, idle, shards.closed, self._state.sights)

    def end_prefetch(self) -> None:
        """Stop reading beside a batch, because it has ended."""
        self._state.sights = self._prefetcher.end(self._state.sights)

    def turns(self, plan: Plan) -> list[ShardTurn]:
        """Return the work of a plan in each shard of a stream that is still there, with what looks have left, once."""
        self.end_prefetch()
        state, now, shards = self._state, self._around.steady(), self._state.shards
        cursors = self._cursors(plan) if self.has_made(plan) else {}
        return [
            ShardTurn(
                shard=shard,
                index=index,
                start=plan.positions[shard],
                read=plan.reads(shard),
                due=shards.due_of(plan, shard),
                limit=plan.most_new(shard),
                closed=shard in shards.closed,
                used=state.sights.of(shard).budget.report_usage(now),
                cursor=cursors.get(shard),
                known_until=state.lister.find_known_until(shard, shards, state.sights),
                is_held=state.sights.of(shard).is_held(self._around.now()),
                ahead=shards.ahead_of(plan, shard),
            )
            for index, shard in enumerate(plan.shards)
            if not state.streams.is_recreated(shard)
        ]

    def close(self) -> None:
        """End the threads; a look under way is not waited for."""
        self._prefetcher.close()
        self._probe.close()

    def _look(self, asked: LookAt) -> None:
        """Look at shards, as `TipProbe.look`; a permanent error is explained first, and raised if it comes again."""
        state, answers = self._state, self._probe.look(asked.questions, self._patience)
        error = answers.error
        due = asked.at if error is None and asked.why == "due" else None
        state.sights = state.sights.take(answers.looks, answers.budgets, due)
        # What is wrong with a shard at which it looks ahead its reader says.
        if error is not None and asked.why != "ahead":
            if isinstance(error, ThrottledError | Unavailable) or self.course.round.error is not None:
                raise error
            self.course = self.course.note(error=error)

    def _say(self, read: AlignedRead) -> None:
        life, alignment = self._state.life, self.course.alignment
        if read.passed:
            life.log_passed(read.passed, HOLD_MS / 1000)
        if alignment is not None and read.is_too_short(alignment.pace):
            life.log_too_seldom(read.span / 1000, alignment.pace / 1000)

    def _describe(self, longest: float = _DESCRIBED_FOR) -> bool:
        """Describe the streams, unless that was tried less than `longest` seconds ago; return whether they could be.

        A stream that was deleted and created again shows only here where reading starts at a time, or at the oldest
        record: in any stream that is a position. To delete and create one takes longer than such a description is used.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
        """
        now = self._around.steady()
        if now - self.course.described < longest:
            return True
        self.course = replace(self.course, described=now)
        try:
            self._state.streams.describe_again(self._state.shards.active, now)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot describe the streams now, continuing with what is known of them: %s", error)
            return False
        return True

    def _list(self, *, everything: bool) -> None:
        """List the shards; calls that Kinesis cannot answer now are made another time."""
        state, around, course = self._state, self._around, self.course
        self._describe()
        try:
            state.list_shards(everything=everything)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot list the shards now, continuing with the known ones: %s", error)
            return
        listing_all = course.listing_all
        if everything:
            listing_all = around.steady() + ALL_EVERY * around.rng.uniform(1.0, 1.2)
        self.course = replace(self.course, is_current=True, listing_all=listing_all)
        state.note_at_tip(state.sights)
        state.sights = state.lister.check_retention(state.shards, state.sights)

    def _check_retention(self) -> bool:
        """Check what has expired, by what was known before the looks of this round; return whether that could be done.

        Else they are forgotten: a tip that they have found would say later that nothing was lost before.
        """
        state, before = self._state, self.course.round.before or self._state.sights
        state.note_at_tip(before)
        known, sights = self._describe(0), state.sights
        state.sights = (
            state.lister.check_retention(state.shards, sights) if known else sights.forget_looks(before)
        )
        return known

    def _check_changed_shards(self) -> bool | None:
        """Return whether another listing explains that a shard cannot be looked at; None if that is not known now."""
        state = self._state
        before = state.shards.lineage
        try:
            # The stream may be another one by now: describing it shows that, and what to do.
            if not self._check_retention():
                return None
            # Retention removes shards between two listings: the next listing shows whether that is a loss.
            state.list_shards(everything=True)
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot find out now why a shard cannot be read, trying again: %s", error)
            return None
        return state.shards.lineage != before

    def _cursors(self, plan: Plan) -> dict[str, ShardCursor]:
        """Return what looks have left at the starts of a plan's turns, once: readers need not ask again."""
        state = self._state
        looks = ((shard, state.sights.look_of(shard)) for shard in plan.read)
        left = {
            shard: look
            for shard, look in looks
            if look is not None
            and look.cursor.iterator is not None
            and look.more
            and str(look.position) == plan.positions[shard]
            and self._around.now() - look.answered_at < FRESH_MS
        }
        state.sights = state.sights.take({shard: look.hand_on() for shard, look in left.items()}, {})
        return {shard: look.cursor for shard, look in left.items()}
