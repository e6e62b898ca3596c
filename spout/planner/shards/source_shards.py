"""The value that a run plans with: all shards of a source, replaced as a whole at each change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, Plan
from kinesis_trident.checkpoint.model.pauses import Pause, find_paused
from kinesis_trident.checkpoint.model.standing import PLAIN, RETRIES_FIRST, Standing, find_standing
from kinesis_trident.spout.options.modes import RetryOrder, ShardOrdering
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.shards.lineage import Lineage, find_childless, find_readable, left_out
from kinesis_trident.spout.planner.shards.retry_order import Chains
from kinesis_trident.spout.positions import Position, parse_position
from kinesis_trident.spout.shard_rules import find_known
from kinesis_trident.tracker.records import Run


@dataclass(frozen=True)
class Shards:
    """The shards of a source: lineage, positions, records in flight, and the newest settled txid.

    Shards of a stream that is not read any more are kept as they are: a batch of theirs may still have to be settled,
    and the stream may be read again.

    Attributes:
        ordering: `shardOrdering`.
        states: by name.
        lineage: the listed shards, by name.
        dead_letters: the counts by shard.
        settled: the newest settled txid, 0 for none; `settled_plan` is its plan's mark.
        parked: the shards of streams that are not read now.
        missed: those that the last full listing has lacked, as they stood.
        pauses: what people have paused, each with the end that counts here; those that are over at `paused_at` do not.
        retry_order: `retryOrder`.
    """

    ordering: ShardOrdering
    states: Mapping[str, ShardState] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=dict)
    dead_letters: Mapping[str, DeadLettersNode] = field(default_factory=dict)
    settled: int = 0
    settled_plan: str = ""
    parked: frozenset[str] = frozenset()
    missed: Mapping[str, ShardState] = field(default_factory=dict)
    pauses: Mapping[Pause, Pause] = field(default_factory=dict)
    paused_at: int = 0
    retry_order: RetryOrder = "none"

    def of(self, plan: Plan, shard: str) -> ShardState:
        """Return a shard of a plan; retention may have removed it from the listing since the planning."""
        return self.states.get(shard) or ShardState(parse_position(plan.positions[shard]))

    def known_until(self, shard: str, there: int = 0) -> int:
        """Return the time up to which no record of a shard was lost, as `find_known`.

        `there`: when its position was last seen to exist.
        """
        state = self.states[shard]
        listed = self.lineage[shard].listed if shard in self.lineage else 0
        return find_known(state.position, state.checkpoint, max(listed, there))

    @cached_property
    def closed(self) -> frozenset[str]:
        """Return the shards that were listed as closed: they get no new records, and an answer shows their end."""
        return frozenset(shard for shard, node in self.lineage.items() if node.state != "open")

    @cached_property
    def active(self) -> Mapping[str, ShardState]:
        """Return the shards of the streams that are read now."""
        return self._leave_out(self.parked, self.states)

    @cached_property
    def named(self) -> Mapping[str, ShardState]:
        """Return the shards that an offset names: those read now, without the done ones whose descendants it names.

        Otherwise every batch would carry all shards that were split or merged within the retention.
        """
        return self._leave_out(left_out(self.lineage, lambda shard: self.states[shard].held > 0), self.active)

    @cached_property
    def positions(self) -> Mapping[str, Position]:
        """Return the position of each shard that may be read for new records now."""
        return {
            shard: self.states[shard].position
            for shard in find_readable(self.lineage, self.ordering)
            if shard not in self.parked
        }

    @cached_property
    def lasting(self) -> tuple[Pause, ...]:
        """Return the pauses that are not over."""
        return tuple(one for one in self.pauses.values() if one.lasts(self.paused_at))

    @property
    def next_resume(self) -> int | None:
        """Return the time at which the first pause ends by itself; None if none does."""
        return min((one.until for one in self.lasting if one.until is not None), default=None)

    @cached_property
    def paused(self) -> Mapping[str, Pause]:
        """Return the pause of each shard of which nothing new is read for that."""
        if not self.lasting:
            return {}
        listed = {shard: node for shard, node in self.lineage.items() if shard not in self.parked}
        return find_paused(self.lasting, listed, listed.keys() - self.positions.keys())

    @cached_property
    def coming(self) -> Mapping[str, ShardState]:
        """Return the shards whose failed records and dead letters come: those read now, unless all of it is paused."""
        still = [one for one in self.lasting if one.everything]
        left = (shard for shard in self.active if any(one.covers(shard) for one in still)) if still else ()
        return self._leave_out(left, self.active)

    @cached_property
    def standings(self) -> Mapping[str, Standing]:
        """Return how the shards stand that are not simply read, by what is stored of them; a run sees more."""
        readable, childless, parked = self.positions.keys(), self.childless, self.parked
        paused = self.paused.keys()
        # Of very many shards nearly all are simply read.
        blocked = {shard for shard, one in self.states.items() if one.inflight and one.inflight.blocked}
        found = {
            shard: find_standing(
                self.lineage.get(shard),
                self.states[shard].inflight,
                is_read=shard not in parked,
                waits=shard not in readable and shard not in parked,
                is_paused=shard in paused,
                is_childless=shard in childless,
            )
            for shard in (self.states.keys() - readable) | blocked | paused
        }
        if self.retry_order == "none":
            return found
        first = readable & self.chains.stand
        return found | {shard: found.get(shard, PLAIN).also(RETRIES_FIRST) for shard in first}

    def standing(self, shard: str) -> Standing:
        """Return how a shard stands by what is stored of it."""
        return self.standings.get(shard, PLAIN)

    @cached_property
    def childless(self) -> frozenset[str]:
        """Return the shards that were read to their end and whose children were not listed yet."""
        return frozenset(shard for shard in find_childless(self.lineage) if shard in self.active)

    @cached_property
    def chains(self) -> Chains:
        """Return what waits for what."""
        if self.retry_order == "none":
            return Chains()
        waits = {shard: state.waiting for shard, state in self.states.items() if state.waiting}
        return Chains(self.retry_order, self.lineage, waits)

    def due_of(self, plan: Plan, shard: str) -> tuple[tuple[Run, bool], ...]:
        """Return the runs of a shard that a plan takes up, as `Plan.due`: with their keys, if these are in order."""
        due = plan.due(shard)
        if self.retry_order != "key" or shard not in plan.retries:
            return tuple(due)
        keys = {run.last: tuple(self.chains.keys_of(run)) for run in self.of(plan, shard).waiting}
        return tuple((replace(run, keys=keys.get(run.last, ())), is_dead) for run, is_dead in due)

    def ahead_of(self, plan: Plan, shard: str) -> frozenset[str]:
        """Return the hashes of the keys, with `retryOrder=key`, whose new records wait in the batch of a plan."""
        taken = {run.last for run in plan.retries.get(shard, ())}
        return self.chains.hold(shard, taken) if self.retry_order == "key" else frozenset()

    @property
    def waited_for(self) -> frozenset[str]:
        """Return the shards at their ends for whose retries those wait that come of them, and the ones in between."""
        first = (self.chains.open.keys() | self.chains.ahead.keys()) & self.lineage.keys()
        return frozenset(shard for shard in first if self.lineage[shard].state == "drained")

    @cached_property
    def unacked(self) -> int:
        """Return the number of records that are not acked yet."""
        return sum(state.unacked for state in self.active.values())

    @cached_property
    def next_timeout(self) -> int | None:
        """Return the time at which the first unacked record times out; None if there is none."""
        return min((run.due for state in self.active.values() for run in state.pending), default=None)

    @cached_property
    def next_retry(self) -> int | None:
        """Return the time at which the first retry is due that waits for no other; None if there is none."""
        waits = ((shard, state.waiting) for shard, state in self.coming.items() if state.waiting)
        return min((run.due for one in waits for run in self.chains.find_heads(*one)), default=None)

    @property
    def begun(self) -> bool:
        """Return whether anything was read."""
        return any(state.begun for state in self.states.values())

    @property
    def turns_in_use(self) -> frozenset[int]:
        """Return the settled batches whose pins have positions of records in flight."""
        return frozenset(txid for state in self.states.values() for txid in state.turns)

    @property
    def dead(self) -> Mapping[str, tuple[Run, ...]]:
        """Return the exhausted runs by shard."""
        return {shard: state.dead for shard, state in self.active.items() if state.dead}

    @staticmethod
    def _leave_out(some: Iterable[str], states: Mapping[str, ShardState]) -> Mapping[str, ShardState]:
        left = frozenset(some)
        return {shard: state for shard, state in states.items() if shard not in left} if left else states
