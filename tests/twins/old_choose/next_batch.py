"""Plans the next batch from what waits, what other processes ask for, and what the shards hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from twins.old_choose.alignment import (
    HOLD_MS,
    AlignedRead,
    Alignment,
    find_known_upto,
    find_oldest_unread,
)
from twins.old_choose.discovery import Listings
from twins.old_choose.standings import find_rare, see_standings

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan, mark_of
from kinesis_trident.checkpoint.model.standing import InStep, Looks, Standing
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import ShardTurn, count_enough_tasks
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.exhausted import refuse_exhausted
from kinesis_trident.spout.planner.plan import add_all_due, make_plan
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.tip.looks import Question, kept_bytes
from kinesis_trident.spout.planner.tip.prefetch import FRESH_MS, PinsOf, Prefetcher
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import AtTimestamp, Position, TrimHorizon
from kinesis_trident.spout.turn_size import count_fitting, predict

_TOGETHER_MS = 10

_MOVES_MS = 60_000
"""Milliseconds after a polled turn in which another one of the shard may be read where its subscription is not."""


class BatchPlanner:
    """Knows what there is to do, and when there may be something again.

    What other processes ask for is taken into `state` before a plan is made. `close` ends the executor of `around`.

    Attributes:
        is_draining: only what is in the stream by now is read.
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
        self._now, self._steady_ms = around.now, around.steady_ms
        self._most = options.max_inflight_records if options.ack_mode == "explicit" else None
        self._requested = False
        self._waits: set[str] = set()
        self._made = ""
        self._whole: Plan | None = None
        self.is_draining = False
        self._probe = TipProbe(
            kinesis,
            layout,
            deaggregate=options.deaggregate,
            readable_within=options.read_timeout,
            wall=around.now,
            clock=around.steady,
            executor=around.executor,
        )
        self._listings = Listings(state, self._probe, options, around.steady, around.rng)
        skew = options.max_shard_skew
        self._alignment: Alignment | None = None
        if skew is None or math.isfinite(skew):
            self._alignment = Alignment(None if skew is None else round(1000 * skew))
        self._prefetcher: Prefetcher | None = None
        if options.prefetch and options.consumer_mode == "polling":
            self._prefetcher = Prefetcher(self._probe, options, pins_of, around)

    @property
    def is_drained(self) -> bool:
        """Return whether a draining source has read everything and nothing is in flight."""
        return (
            self.is_draining
            and self._listings.is_current
            and not (self._state.shards.next_retry is not None or self._state.shards.unacked)
            and not any(one.drain for one in self.standings().values())
        )

    def standings(self, names: Iterable[str] | None = None) -> dict[str, Standing]:
        """Return how these shards, or all of the streams that are read now, stand, with what this run sees of them."""
        shards = self._state.shards
        names = shards.active if names is None else names
        return see_standings(names, shards, self._state.sights, most=self._most, ahead=self._waits)

    def _find_watched(self) -> Mapping[str, Position]:
        """Return the positions of the shards that are looked at at their pace."""
        shards = self._state.shards
        rare = self.standings(find_rare(shards, self._state.sights)).items()
        left = shards.positions.keys() & {shard for shard, one in rare if one.looks <= Looks.SELDOM}
        if not left:
            return shards.positions
        return {shard: at for shard, at in shards.positions.items() if shard not in left}

    def drain(self) -> None:
        """Read only what is in the stream by now, and retry what of it fails."""
        if self._prefetcher is not None:
            # What was read to the tip was so before now.
            self._state.sights = self._prefetcher.take({}, self._prefetcher.end(self._state.sights))
        self.is_draining = True
        self._made = ""
        self._state.sights = self._state.sights.stop_at_tip(self._listings.find_arrival_bound())
        # Children of a shard that was split before the drain began hold records from before it.
        self._listings.list_at_once()

    def go_on(self) -> None:
        """Drain no longer: read what comes."""
        self.is_draining = False
        self._state.sights = self._state.sights.go_on()

    def note_request(self) -> None:
        """Take in, before the next plan, what another process has just asked for."""
        self._requested = True

    def has_made(self, plan: Plan) -> bool:
        """Return whether a plan is the last one that was made here; any other is one that starts over."""
        return plan.plan == self._made

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Learn of the shards' ends, tips and sizes."""
        self._listings.watch(before, event, after)
        self._state.sights = self._state.sights.observe(
            event,
            after,
            self._steady_ms(),
            passed=self._now() - self._state.settled_at,
            replayed=isinstance(event, BatchSettled) and not self.has_made(event.finished.plan),
        )
        if isinstance(event, BatchSettled) and self._alignment is not None:
            plan = event.finished.plan
            ahead = {s for s in plan.read if self._state.sights.of(s).ahead is not None}
            self._alignment.note_batch(plan, after.states, ahead)

    def prefetch(self, plan: Plan) -> None:
        """Read beside the tasks of a plan, which Spark is about to run, what the next one will need."""
        if self._prefetcher is None or not self.has_made(plan):
            return
        # A task that reads retries of a shard calls it too.
        shards = self._state.shards
        left = self.standings(shards.positions.keys() - plan.shards)
        idle = {shard: shards.positions[shard] for shard, one in sorted(left.items()) if one.reads}
        self._prefetcher.begin(plan, idle, shards.closed, self._state.sights)

    def end_prefetch(self) -> None:
        """Stop reading beside a batch, because it has ended."""
        if self._prefetcher is not None:
            self._state.sights = self._prefetcher.end(self._state.sights)

    def _take_prefetched(self) -> None:
        """Take what was read ahead for the looks that they are, where the shards stand there now."""
        if self._prefetcher is None:
            return
        state = self._state
        state.sights = self._prefetcher.take(state.shards.positions, state.sights)

    def _look(self, positions: Mapping[str, Position], due: int | None = None) -> None:
        """Look at shards, as `TipProbe.look`; a permanent error is raised. `due`: the time, if the looks were due."""
        closed, most = self._state.shards.closed, kept_bytes(len(positions))
        pushed = self._options.consumer_mode == "efo"
        since = self._steady_ms() - _MOVES_MS
        questions = {}
        for shard, position in positions.items():
            sight = self._state.sights.of(shard)
            limit = min(self._options.max_records_per_fetch, count_fitting(sight.size, most))
            if pushed and (sight.polled is None or sight.polled <= since):
                # The reader has its records pushed.
                limit = 1
            questions[shard] = Question(position, shard in closed, limit, most, sight.budget, sight.look)
        answers = self._probe.look(questions)
        known = due if answers.error is None else None
        self._state.sights = self._state.sights.take(answers.looks, answers.budgets, known)
        if answers.error is not None:
            raise answers.error

    def _find_shards_with_more(self, now: int) -> list[str]:
        """Return the shards with new records; look at those that are due."""
        positions = self._find_watched()
        due, self._state.sights = self._state.sights.find_due(positions, now)
        if due:
            self._look(due, now)
        return sorted(filter(self._state.sights.has_more, positions))

    def _find_shards_to_read(self) -> list[str]:
        """Return the shards with new records; list them again if one cannot be looked at.

        Raises:
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: a shard cannot be looked at.
        """
        now, before = self._steady_ms(), self._state.sights
        try:
            rare = find_rare(self._state.shards, self._state.sights)
            unread = self._listings.choose_unread(self.standings(rare))
            before = self._state.sights
            if unread:
                self._look(unread)
            read = self._find_shards_with_more(now)
            self._listings.check_standstill(before)
            return read
        except (ThrottledError, Unavailable):
            raise
        except KinesisError:
            changed = self._listings.check_changed_shards(before)
            if changed is False:
                raise
            return self._find_shards_with_more(now) if changed else []

    def _align(self, wanted: Collection[str], *, bounded: bool) -> AlignedRead:
        """Return what the next batch reads of the shards that have new records, so that all keep in step.

        `bounded`: the batch has a bound that other shards share, so that a turn may end anywhere.
        """
        # It is decided anew who waits for the others.
        self._waits = set()
        if self._alignment is None:
            return AlignedRead([shard for shard, one in self.standings(wanted).items() if one.reads])
        if not wanted:
            self._alignment.rest()
            return AlignedRead([])
        state, sights, options = self._state, self._state.sights, self._options
        shards, lineage = state.shards.states, state.shards.lineage
        ahead = {shard: self._state.sights.of(shard).ahead for shard in state.shards.positions}
        standings = self.standings([*state.shards.positions, *state.shards.childless])
        can_be_read = [shard for shard in wanted if standings[shard].reads]
        standing = {shard for shard, one in standings.items() if one.step is InStep.A_WHILE}
        oldest: dict[str, int | None] = {}
        for shard in state.shards.positions:
            if standings[shard].step is not InStep.NO:
                here, look = shards[shard], sights.look_of(shard)
                parents = () if here.checkpoint else lineage[shard].parents
                ends = [shards[one].checkpoint for one in parents if one in shards]
                oldest[shard] = find_oldest_unread(here, look, ahead[shard], ends)
        for shard in standing - oldest.keys():
            at = find_known_upto(shards[shard].checkpoint)
            if at is not None:
                oldest[shard] = at
        sure: dict[str, int] = {}
        if not (bounded or self._most or options.prefetch):
            sure = {shard: told[1] for shard in can_be_read if (told := ahead[shard]) is not None}
            unsure = self._alignment.choose_looks(oldest, sure, can_be_read)
            for shard, (first, last) in self._look_ahead(unsure).items():
                oldest[shard], sure[shard] = first, last
        now = max(self._now(), state.sights.newest)
        found = self._alignment.step(oldest, sure, can_be_read, standing, now, self._steady_ms())
        self._waits = set(can_be_read).difference(found.read)
        if found.passed:
            state.life.log_passed(found.passed, HOLD_MS / 1000)
        if found.upto is not None and found.span < self._alignment.pace:
            state.life.log_too_seldom(found.span / 1000, self._alignment.pace / 1000)
        return found

    def _look_ahead(self, shards: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Look at shards that have more, where their limits allow it, and return what their turns read at least.

        That is when the first and the last record arrived. The turns begin with the answers.
        """
        options, now, positions = self._options, self._steady_ms(), self._state.shards.positions
        most = options.max_fetch_records_per_shard
        size = min(options.max_fetch_bytes_per_shard, options.max_fetch_bytes_per_task) // 2

        def find_kept(shard: str) -> tuple[int, int] | None:
            look, splits = self._state.sights.look_of(shard), options.deaggregate
            return look.find_kept(positions[shard], most, size, deaggregate=splits) if look else None

        unkept, sights = (shard for shard in shards if not find_kept(shard)), self._state.sights
        due = {shard: positions[shard] for shard in unkept if sights.of(shard).may_read(now) <= now}
        if due and options.consumer_mode == "polling":
            # What is wrong with a shard its reader says.
            with suppress(KinesisError):
                self._look(due)
        return {shard: kept for shard in shards if (kept := find_kept(shard))}

    def turns(self, plan: Plan) -> list[ShardTurn]:
        """Return the work of a plan in each shard of a stream that is still there, with what looks have left, once."""
        self.end_prefetch()
        state, now, closed = self._state, self._around.steady(), self._state.shards.closed
        cursors = self._cursors(plan) if self.has_made(plan) else {}
        return [
            ShardTurn(
                shard=shard,
                index=index,
                start=plan.positions[shard],
                read=plan.reads(shard),
                due=tuple(plan.due(shard)),
                limit=plan.most_new(shard),
                closed=shard in closed,
                used=state.sights.of(shard).budget.report_usage(now),
                cursor=cursors.get(shard),
                known_until=state.lister.find_known_until(shard, state.shards, state.sights),
                is_held=state.sights.of(shard).is_held(self._now()),
            )
            for index, shard in enumerate(plan.shards)
            if not state.streams.is_recreated(shard)
        ]

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
            and self._now() - look.answered_at < FRESH_MS
        }
        state.sights = state.sights.take({shard: look.hand_on() for shard, look in left.items()}, {})
        return {shard: look.cursor for shard, look in left.items()}

    def plan(self, max_records: int | None) -> Plan | None:
        """Plan the next batch, of so many new records at most; None when there is nothing to do now.

        Raises:
            ExhaustedError: with `onExhausted=fail`, a record has failed too often.
            DataLossError: with `failOnDataLoss`, records have expired unread.
            StreamRecreatedError: a stream was deleted and created again.
            KinesisError: a shard cannot be looked at.
        """
        state, options, now = self._state, self._options, self._now()
        self._take_prefetched()
        self._listings.refresh()
        timeout, retry = state.shards.next_timeout, state.shards.next_retry
        timed_out = timeout is not None and timeout <= now
        due = options.ack_mode == "explicit" and retry is not None and retry <= now
        # An ack may be stored although its watch has not fired yet: it is read before time-outs are judged.
        if self._requested or timed_out or due:
            self._requested = False
            state.take_in_requests(now)
        if timed_out:
            state.time_out(now)
        refuse_exhausted(state.shards.dead, self._layout, options)
        aligned = self._align(
            self._find_shards_to_read(), bounded=bool(max_records or options.max_bytes_per_trigger)
        )
        read = aligned.read
        positions = state.shards.positions
        if any(isinstance(positions[shard], TrimHorizon | AtTimestamp) for shard in read):
            self._listings.describe()
        states = state.shards.named
        plan = make_plan(
            txid=state.shards.settled + 1,
            plan=mark_of(state.epoch, now, self._layout.digest, self._around.rng.getrandbits(96)),
            streams=state.streams.created,
            states=states,
            read=read,
            now=now,
            max_records=max_records,
            max_bytes=options.max_bytes_per_trigger,
            max_inflight=self._most,
            max_turn=options.max_fetch_records_per_shard,
            deaggregate=options.deaggregate,
            upto=aligned.upto,
        )
        if plan is None:
            return None
        if self._alignment is not None:
            self._alignment.note_plan(self._steady_ms())
        self._made = plan.plan
        whole = add_all_due(plan, states, now)
        amount = predict(whole, self._state.sights.sizes, now)
        enough = count_enough_tasks(len(whole.shards), amount, options)
        self._whole = msgspec.structs.replace(whole, tasks=enough)
        return msgspec.structs.replace(plan, tasks=enough)

    def complete_plan(self, plan: Plan) -> Plan:
        """Return the last plan that was made here as it is to be stored: with runs that its offset does not name."""
        whole = self._whole
        return whole if whole is not None and whole.plan == plan.plan else plan

    def seconds_until_due(self) -> float:
        """Return the seconds until something may be due: a look at a tip, a retry, a timeout."""
        now = self._steady_ms()
        shards = self._state.shards
        # Looks that are due one shortly after the other are made together.
        milliseconds = max(_TOGETHER_MS, self._state.sights.next_look(self._find_watched(), now) - now)
        for due in (shards.next_retry, shards.next_timeout):
            if due is not None:
                milliseconds = min(milliseconds, due - self._now())
        return milliseconds / 1000

    def close(self) -> None:
        """End the threads; a look under way is not waited for."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._probe.close()
