"""Keeps all that a run sees of its shards in one value: tips, looks to come, budgets and the sizes of turns. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Pin, Subscribing
from kinesis_trident.checkpoint.model.standing import (
    AHEAD,
    BLOCKED,
    DRAINED,
    IDLE,
    PLAIN,
    READING,
    REFUSED,
    UNKNOWN,
    Looks,
    Standing,
)
from kinesis_trident.spout.kinesis.rate_limit import Budget
from kinesis_trident.spout.planner.pace import IDLE_MS, LookTimes, Pace, add_seconds
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.positions import Position
from kinesis_trident.spout.turn_size import TurnSize

_TRUST_MS = 10_000
"""The milliseconds for which a look that found something stays valid.

A look reads a record, and one of 10 MiB blocks the shard for 5 seconds. If the turn after it is refused for that,
another look would cause the refusal of the next turn too, for ever.
"""

HELD_MS = 5_000
"""Milliseconds from the start of a subscription in which Kinesis refuses another one."""


class Blocked(NamedTuple):
    """A shard reads nothing new: since when in steady seconds, why, and whether the log says so."""

    since: float
    why: str
    is_told: bool = False


class Sight(msgspec.Struct, frozen=True, gc=False):
    """What a run saw of one shard, and told of it. Times are milliseconds of a clock that never steps back.

    Attributes:
        pace: of its looks.
        budget: of the calls of looks and turns, and of their bytes; its times are those of the pace, in seconds.
        look: the last one at it.
        more: it is known to have something new at its position, or nothing; None if that is unknown.
        looked: when it was last seen; `found`: when a look last found something that no turn has read since.
        at_tip, beyond: a drain has seen its tip, or read it beyond the bound.
        size: of its last turn.
        ahead: `Pin.ahead` of that; `polled`: when a turn was last seen to have read it without a subscription.
        look_again: when it may be looked at again though it is not read, in seconds.
        noted: the tip that ZooKeeper knows; `there`: when its position was last seen to exist, in epoch milliseconds.
        subscribed: when a turn of this query was last seen to have subscribed, in epoch milliseconds.
        reported: the position at which a loss was reported.
        held: `Standing.held_by` of the last status, and since when in epoch milliseconds; None if it was read.
        stood: it was not read, or its lag was unknown, at the last sample of the lag.
        halt: for the log, as of the last batch; `denied`: since when its looks were refused when the log
            said so last, and when it may again, in epoch milliseconds.
        unmoved: its last turn should have read it and could not.
    """

    pace: Pace
    budget: Budget
    look: Look | None = None
    more: bool | None = None
    looked: int = 0
    found: int | None = None
    at_tip: bool = False
    beyond: bool = False
    size: TurnSize | None = None
    ahead: tuple[int, int] | None = None
    polled: int | None = None
    look_again: float | None = None
    noted: int | None = None
    there: int = 0
    subscribed: int | None = None
    reported: str = ""
    held: tuple[str, int] | None = None
    stood: bool = False
    halt: Blocked | None = None
    denied: tuple[int, int] | None = None
    unmoved: bool = False

    def is_held(self, now: int) -> bool:
        """Return whether a turn of this query, or one that took its place, has subscribed less than 5 seconds ago."""
        return self.subscribed is not None and now - self.subscribed < HELD_MS

    def next_look(self, now: int) -> int:
        """Return the time of the next look; `now` if there was none."""
        return self.pace.next_look(now, self.budget)

    def may_read(self, now: int) -> int:
        """Return the time from which the planning process may read ahead; the first read of a turn fits after it."""
        return add_seconds(self.budget.wait(now / 1000, 2), now)

    def note_calls(self, pin: Pin, now: int, txid: int, ago_ms: int = 0) -> Sight:
        """Count the calls of a turn, in place of what was said of it before.

        `ago_ms`: the milliseconds that have passed since the pin, at least.
        """
        budget = self.budget.count_turn(txid, pin.reads, (now - ago_ms) / 1000, pin.busy_ms / 1000)
        return replace(self, pace=replace(self.pace, reads=pin.reads), budget=budget)

    def note_look(self, now: int, *, found: bool | None) -> Sight:
        """Return the sight at the pace after a look: whether it `found` something; None if it was refused."""
        return replace(self, pace=self.pace.note_look(now, self.budget, found=found))


class Sights(msgspec.Struct, frozen=True):
    """What a run saw of all its shards; each change is a new value.

    Attributes:
        times: those of the looks.
        by_shard: what was seen of each shard.
        until: after `stop_at_tip`, its bound; None if everything is read.
    """

    times: LookTimes
    by_shard: Mapping[str, Sight] = msgspec.field(default_factory=dict)
    until: int | None = None

    def of(self, shard: str) -> Sight:
        """Return the sight of a shard, also of one that was never looked at."""
        found = self.by_shard.get(shard)
        return found or Sight(Pace(self.times, self.times.idle), Budget(self.times.limits))

    @property
    def sizes(self) -> dict[str, TurnSize]:
        """Return the size of the last turn of each shard that is known."""
        return {shard: one.size for shard, one in self.by_shard.items() if one.size is not None}

    def put(self, changed: Mapping[str, Sight]) -> Sights:
        """Return the sights with those of some shards replaced."""
        return replace(self, by_shard={**self.by_shard, **changed}) if changed else self

    def note_reported(self, positions: Mapping[str, str]) -> Sights:
        """Return the sights after losses were reported, at these positions of shards."""
        return self.put({shard: replace(self.of(shard), reported=at) for shard, at in positions.items()})

    def only(self, shards: Mapping[str, object]) -> Sights:
        """Return the sights of the shards that are there."""
        if self.by_shard.keys() <= shards.keys():
            return self
        left = {shard: sight for shard, sight in self.by_shard.items() if shard in shards}
        return replace(self, by_shard=left)

    def forget_looks(self, before: Sights) -> Sights:
        """Return the sights of `before` some looks, whose calls count all the same."""
        made = self.by_shard.items()
        return before.put({s: replace(before.of(s), pace=one.pace, budget=one.budget) for s, one in made})

    def stop_at_tip(self, until: int) -> Sights:
        """From now on, stop reading a shard once it is at its tip, or was read beyond `until`.

        `until` is in epoch milliseconds by the server's clock. A shard that receives records as fast as they are read
        never reaches its tip. A closed shard is read to its end: its children may have records from before.
        """
        return replace(self.go_on(), until=until)

    def go_on(self) -> Sights:
        """Read on after `stop_at_tip`."""
        drained = {s: one for s, one in self.by_shard.items() if one.at_tip or one.beyond}
        changed = {shard: replace(one, at_tip=False, beyond=False) for shard, one in drained.items()}
        return replace(self.put(changed), until=None)

    def find_drained(self, shards: Shards) -> set[str]:
        """Return the shards that have been read as far as `stop_at_tip` says; a closed one has an end, and no tip."""
        if self.until is None:
            return set()
        closed = shards.closed
        seen = self.by_shard.items()
        return {shard for shard, one in seen if one.beyond or (one.at_tip and shard not in closed)}

    def has_more(self, shard: str) -> bool:
        """Return whether a shard is known to have something new at its position."""
        sight = self.by_shard.get(shard)
        return sight is not None and bool(sight.more)

    def find_due(self, positions: Mapping[str, Position], now: int) -> tuple[dict[str, Position], Sights]:
        """Return the shards of which it is not known whether they have more, and that may be looked at now.

        Not all of them need be looked at: those that were left out the last time come first. Whoever was seen to have
        something a short while ago has it still: the sights that are returned say so.
        """
        known, due, trusted = self.by_shard, [], {}
        for shard in positions:
            sight = known.get(shard)
            if sight is None:
                due.append((0, shard))
            elif not sight.more and sight.next_look(now) <= now:
                if sight.found is not None and now - sight.found < _TRUST_MS:
                    trusted[shard] = self._see(sight, True, now)
                else:
                    due.append((sight.looked, shard))
        due.sort(key=lambda pair: pair[0])
        return {shard: positions[shard] for _, shard in due}, self.put(trusted)

    def next_look(self, positions: Mapping[str, Position], now: int) -> int:
        """Return the time of the next look; shards known to have more, even if they may not be read, need none."""
        known, first = self.by_shard, math.inf
        for shard in positions:
            sight = known.get(shard)
            if sight is None or not sight.more:
                first = min(first, now if sight is None else sight.next_look(now))
        return now + IDLE_MS if math.isinf(first) else int(first)

    def standings(
        self, names: Iterable[str], shards: Shards, *, most: int | None = None, ahead: Container[str] = ()
    ) -> dict[str, Standing]:
        """Return how some shards stand.

        `most`: the maximum of the records of a shard that are read and not done. `ahead`: the shards that wait for the
        others, for the last plan.
        """
        states, stored, found, drained = shards.states, shards.standings, {}, self.find_drained(shards)
        for shard in names:
            standing, sight = stored.get(shard, PLAIN), self.by_shard.get(shard)
            if standing.looks > Looks.SELDOM:
                look = sight.look if sight is not None else None
                more = look.more if look is not None else None
                has_more = sight is not None and sight.more
                standing = standing.also(READING if has_more else IDLE if more is False else UNKNOWN)
                if most and states[shard].held >= most:
                    standing = standing.also(BLOCKED)
                if look is not None and look.refused is not None and look.position == states[shard].position:
                    standing = standing.also(REFUSED)
                if shard in ahead:
                    standing = standing.also(AHEAD)
                if shard in drained:
                    standing = standing.also(DRAINED)
            # Else nothing that is seen of it has it read.
            found[shard] = standing
        return found

    def find_rare(self, shards: Shards) -> set[str]:
        """Return the shards, of streams that are read, that may be looked at otherwise than at their pace."""
        return (shards.standings.keys() | self.find_drained(shards)) & shards.active.keys()

    @property
    def newest(self) -> int:
        """Return the time of the newest look, by the server's clock; 0 if there was none."""
        return max((one.look.at for one in self.by_shard.values() if one.look is not None), default=0)

    def look_of(self, shard: str) -> Look | None:
        """Return the last look at a shard."""
        sight = self.by_shard.get(shard)
        return sight.look if sight is not None else None

    def take(
        self,
        looks: Mapping[str, Look],
        budgets: Mapping[str, Budget],
        now: int | None = None,
        *,
        ahead: bool = False,
    ) -> Sights:
        """Return the sights with the answers of looks, and what these have left of the calls and bytes of shards.

        `now`: the time, of looks that were due at the positions where the shards stand now, so that they tell of the
        tips. `ahead`: they were made beside the batch before, which has told the pace.
        """
        if not (looks or budgets):
            return self
        changed, drains = dict(self.by_shard), self.until is not None
        for shard, look in looks.items():
            sight, more = changed.get(shard) or self.of(shard), look.more
            budget = budgets.get(shard, sight.budget)
            if now is None or (ahead and more is None):
                changed[shard] = replace(sight, look=look, budget=budget)
                continue
            changed[shard] = replace(
                # One copy, because there may be very many shards.
                sight,
                pace=sight.pace if ahead else sight.pace.note_look(now, budget, found=more),
                budget=budget,
                look=look,
                more=more,
                looked=now,
                found=now if more else sight.found,
                at_tip=sight.at_tip or (drains and more is False),
            )
        for shard in budgets.keys() - looks.keys():
            changed[shard] = replace(changed.get(shard) or self.of(shard), budget=budgets[shard])
        return replace(self, by_shard=changed)

    def observe(
        self, event: ShardEvent, shards: Shards, now: int, *, passed: int = 0, replayed: bool = False
    ) -> Sights:
        """Return the sights after an event has changed the shards; nothing is known of those that are gone.

        Args:
            event: the event.
            shards: as they are after it.
            now: the time.
            passed: the milliseconds since the batch before was settled.
            replayed: the turns of the batch saw the tips as they were before a crash, or before draining began.
        """
        if isinstance(event, BatchSettled) and event.is_whole:
            return self._note_batch(event, shards, now, passed, replayed=replayed).only(shards.states)
        return self.only(shards.states)

    def _note_batch(
        self, event: BatchSettled, shards: Shards, now: int, passed: int, *, replayed: bool
    ) -> Sights:
        """Learn from a settled batch: at the tip, more to come, or unknown (nothing read, for example throttled)."""
        finished, changed = event.finished, dict(self.by_shard)
        plan, pins = finished.plan, finished.pins
        for shard, pin in pins.items():
            ago = max(0, passed - finished.since.get(shard, passed))
            sight = (changed.get(shard) or self.of(shard)).note_calls(pin, now, plan.txid, ago)
            if pin.subscribing in (Subscribing.BEGUN, Subscribing.TAKEN):
                sight = replace(sight, subscribed=event.now)
            changed[shard] = sight
        for shard in plan.read:
            sight, read = changed.get(shard) or self.of(shard), pins.get(shard)
            polls = read is not None and (read.reads or read.subscribing >= Subscribing.REFUSED)
            state, start = shards.of(plan, shard), plan.positions[shard]
            ahead = read.ahead if read is not None else None
            sight = replace(
                sight,
                size=TurnSize.after(sight.size, read, event.now),
                ahead=ahead,
                polled=now if polls else sight.polled,
                unmoved=ahead is None and str(state.position) == start,
            )
            changed[shard] = self._note_turn(sight, state.checkpoint, start, now, replayed=replayed)
        return replace(self, by_shard=changed)

    def _note_turn(
        self, sight: Sight, node: CheckpointNode | None, start: str, now: int, *, replayed: bool
    ) -> Sight:
        """Learn from a turn; if the position has not moved, `seen` may come from an earlier one.

        Then another look must follow, and after one that was `replayed`. To `stop_at_tip` what was seen before it says
        nothing.
        """
        until = self.until
        if until is not None and node is not None and (node.arrival or 0) > until:
            sight = replace(sight, beyond=True)
        if replayed:
            return replace(sight, more=None, found=None)
        if node is None:
            return sight
        moved = node.position != start
        early = until is not None and node.seen is not None and node.seen < until
        pace, found = sight.pace.note_turn(now, moved=moved), None if moved else sight.found
        more = node.seen is None if moved and not early else None
        return self._see(replace(sight, found=found, pace=pace), more, now)

    def _see(self, sight: Sight, more: bool | None, now: int) -> Sight:
        at_tip = sight.at_tip or (more is False and self.until is not None)
        return replace(sight, more=more, looked=now, at_tip=at_tip)
