"""The planning process's state of each shard, loaded from ZooKeeper and advanced by settling."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.codec import misfit_error, naming
from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    Plan,
    SettledNode,
    ShardsNode,
    mark_of,
)
from kinesis_trident.checkpoint.model.replays import settle_replays
from kinesis_trident.checkpoint.model.run_status import RunCounts
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.data_loss import DataLossLog
from kinesis_trident.spout.options.redaction import shown
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.exhausted import add_dead_letters
from kinesis_trident.spout.planner.external_requests import Amender, Tally
from kinesis_trident.spout.planner.finished_batch import Finished, Origin
from kinesis_trident.spout.planner.offset_recovery import adopted_nodes
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settlement import SettledShard, settle_shard
from kinesis_trident.spout.planner.shards.counting import RunCounter
from kinesis_trident.spout.planner.shards.forgetting import Forgetting
from kinesis_trident.spout.planner.shards.life_log import LifeLog
from kinesis_trident.spout.planner.shards.lineage import (
    Lineage,
    childless,
    drained,
    left_out,
    parents_of,
    readable,
    with_left_out,
)
from kinesis_trident.spout.planner.shards.lineage_keeper import LineageKeeper
from kinesis_trident.spout.planner.shards.loading import load_shards
from kinesis_trident.spout.planner.shards.settled_records import Explicit
from kinesis_trident.spout.planner.shards.turn_sizes import TurnSizes
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.spout.planner.tip.look_pace import TurnCalls
from kinesis_trident.spout.planner.tip.looks import Look
from kinesis_trident.spout.planner.tip.tips import TipNotes
from kinesis_trident.spout.positions import Position, ShardEnd, parse_position
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.retry import DUE_GRAIN_MS, Backoff, RetryPolicy

log = logging.getLogger(__name__)

_FEW_SHARDS = 500
"""The size up to which a plan is one node, and the multi that settles a batch removes its remains too."""


class SourceState:
    """The shards of a source: lineage, positions, records in flight, and the newest settled txid.

    Every write goes through the store under this run's epoch. Shards of a stream that is not read any more are kept
    as they are: a batch of theirs may still have to be settled, and the stream may be read again.

    Attributes:
        epoch: of the run.
        settled: the newest settled txid, 0 for none; `settled_plan` is its plan's mark.
        shards: by name; nobody else changes them.
        untidy_upto: the newest batch that this run has settled without removing all that it left.
        life: what is told of the shards in the log.
        sizes: of the last turns.
        ended: how many shards were read to their end so far whose children are not known: they are to be listed.
        turn_calls: the GetRecords calls of each turn of the batch that was settled last.
        ahead: `Pin.ahead` of the last turn of each shard, where it has seen records that it has left.
    """

    def __init__(
        self,
        options: SourceOptions,
        store: SourceStore,
        streams: Streams,
        epoch: int,
        rng: random.Random,
        now: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._options = options
        self._now = now
        self._store = store
        self.epoch = epoch
        self._rng = rng
        timeout = round(options.message_timeout * 1000)
        self._policy = RetryPolicy(options.retry_limit, Backoff.parse(options.retry_backoff), hold_ms=timeout)
        self._layout = store.layout
        self._parked: frozenset[str] = frozenset()
        self._judged = False
        self.streams = streams
        self.settled = 0
        self.settled_plan = ""
        self.untidy_upto = 0
        self.ended = 0
        self.turn_calls: dict[str, TurnCalls] = {}
        self.ahead: dict[str, tuple[int, int]] = {}
        self._settled_at = self._now()
        self.losses = DataLossLog(options.fail_on_data_loss)
        what = f"written to {shown(options.dead_letter)}" if options.dead_letter else "skipped"
        self.life = LifeLog(store.layout, what)
        self.sizes = TurnSizes()
        self._counter = RunCounter()
        self._forgetting = Forgetting(store, epoch)
        self._keeper = LineageKeeper(options, store, streams, epoch, self.losses)
        self.shards: dict[str, ShardState] = {}
        self.dead_letters: dict[str, DeadLettersNode] = {}
        self._tips = TipNotes(store, epoch)
        bound = options.max_inflight_records if options.ack_mode == "explicit" else None
        self._explicit = Explicit(timeout, bound)
        self._amender = Amender(
            store,
            epoch,
            self._policy,
            rng,
            self._explicit,
            options.max_retrying_records,
            buries=options.on_exhausted != "fail",
        )

    def load(self) -> None:
        """Read everything from ZooKeeper; the very first time, list the shards and store where they start."""
        settled = self._store.batches.settled()
        self._settled_at = self._now()
        if settled is not None:
            self.settled, self.settled_plan = settled.txid, settled.plan
        self._keeper.load()
        loaded = load_shards(
            self._store,
            self.lineage,
            now=self._now(),
            longest_delay=self._policy.backoff.cap_ms + DUE_GRAIN_MS,
            timeout=self._explicit.timeout,
        )
        self.shards |= loaded.shards
        for shard, state in self._amender.unblock(loaded.shards):
            self.shards[shard] = state
        self.dead_letters = loaded.dead_letters
        self._forgetting.note_stored(loaded.unlisted)
        self._parked = frozenset(shard for shard in self.shards if self.streams.info_of(shard) is None)

    def copy(self) -> BackupNode:
        """Return a copy of the nodes of all shards, as `ChangeStore.keep` stores it."""
        return BackupNode(
            application=self._layout.application,
            home=self._layout.base,
            time=self._now(),
            settled=self.settled,
            checkpoints={name: one.checkpoint for name, one in self.shards.items() if one.checkpoint},
            inflight={name: one.inflight for name, one in self.shards.items() if one.inflight},
            lineage=dict(self.lineage),
        )

    @property
    def lineage(self) -> Lineage:
        """Return all shards with their parents."""
        return self._keeper.lineage

    def describe_streams(self) -> None:
        """Describe the streams again, as `Streams.describe_again`."""
        self.streams.describe_again(self._stood)

    def _stood(self, stream: str) -> dict[str, str]:
        """Return the positions of a stream's shards by id."""
        keys = {shard: self.key_of(shard) for shard in self.active}
        return {
            key.shard: str(self.shards[shard].position) for shard, key in keys.items() if key.stream == stream
        }

    def list_shards(self, *, everything: bool) -> None:
        """List the shards again and add new ones. Only a full listing (`everything`) shows which ones were removed.

        No batch may be unsettled.

        Raises:
            DataLossError: with `failOnDataLoss`, a shard was removed that was not read to its end.
        """
        if everything:
            self._keeper.list_all(self.shards)
        else:
            self._keeper.list_new()
        new = sorted(self.lineage.keys() - self.shards.keys())
        self.life.resharded({shard: self.lineage[shard] for shard in new})
        for shard in new:
            self.shards[shard] = ShardState(parse_position(self.lineage[shard].start))
        if everything:
            for shard in sorted(self.shards.keys() - self.lineage.keys()):
                if not self.shards[shard].held:
                    at = self.shards.pop(shard).position
                    self._forgetting.note(shard, drained=isinstance(at, ShardEnd))
            self.dead_letters = self._forgetting.forget({*self.lineage, *self.shards}, self.dead_letters)

    def known_until(self, shard: str) -> int:
        """Return the time up to which no record of a shard was lost, in epoch milliseconds; 0 if unknown."""
        return self._keeper.known_until(shard, self.shards[shard]) if shard in self.shards else 0

    def check_retention(self) -> None:
        """Check that no shard's position has fallen out of the stream.

        Raises:
            DataLossError: with `failOnDataLoss`, records may have expired before they were read.
        """
        self._keeper.check_retention(self.shards)

    def seen_at_tip(self, looks: Mapping[str, Look]) -> None:
        """Record that idle shards were seen at their tips; in ZooKeeper only now and then.

        Otherwise a shard that is idle for longer than the retention would look as if unread records had expired.
        """
        for shard, state in self._tips.note(self.shards, looks, self.lineage):
            self.shards[shard] = state

    def take_in_requests(self, now: int) -> None:
        """Take in what other processes ask for: replays, acks and fails."""
        for shard, state in self._amender.take_in_requests(self.shards, self.dead_letters, now):
            self._counter.amend(self.shards[shard], state)
            self.shards[shard] = state

    def time_out(self, now: int) -> None:
        """Fail the records of the streams read now that nobody has acked in time."""
        for shard, state in self._amender.time_out(self.active, self.dead_letters, now):
            self._counter.amend(self.shards[shard], state)
            self.shards[shard] = state

    def settle(self, plan: Plan, now: int, origin: Origin) -> None:
        """Settle a batch that Spark has committed: move checkpoints and queue failed records, in ZooKeeper first.

        Shards with the batch's stamp were settled before a crash interrupted the earlier settling. `origin`: how
        Spark's checkpoint came to the batch.

        Raises:
            OutcomeMissingError: it is not known what of the batch is done; nothing was changed.
        """
        begun = time.monotonic()
        finished = Finished.of(self._store, plan, self.epoch, origin, judged=self._judged)
        self._judged = finished.judged
        pins, not_done = finished.pins, finished.not_done
        was: dict[str, ShardState] = {}
        done: dict[str, SettledShard] = {}
        for shard in plan.shards:
            before = self._of(plan, shard)
            if before.checkpoint is not None and before.checkpoint.txid >= plan.txid:
                continue
            was[shard] = before
            try:
                done[shard] = settle_shard(
                    before,
                    plan,
                    self._layout.source_of(shard),
                    shard,
                    pins.get(shard),
                    not_done.get(shard, ()),
                    self._policy,
                    max_retrying=self._options.max_retrying_records,
                    now=now,
                    rng=self._rng,
                    explicit=self._explicit,
                )
            except ValueError as error:
                # An outcome, a pin and the records in flight must agree with each other.
                raise misfit_error(self._layout.pin_of(plan.txid, shard), error) from error
        for what, place in finished.losses(plan.txid, self._layout, self.streams):
            self.losses.record(what, place)
        ended = [shard for shard, pin in pins.items() if pin.closed]
        lineage = drained(self.lineage, ended)
        letters = dict(self._letters_after(done, plan.txid))
        # A purge removes plans and outcomes of many nodes; pins with positions of records in flight stay.
        known = plan.txid in self.turns_in_use or any(plan.txid in result.turns for result in done.values())
        small = not (plan.retries or plan.dead or not_done or known) and len(plan.positions) < _FEW_SHARDS
        self._store.shards.settle(
            {shard: _nodes_of(was[shard], result) for shard, result in done.items()},
            letters,
            ShardsNode(shards=lineage) if ended else None,
            SettledNode(txid=plan.txid, plan=plan.plan),
            self.epoch,
            leftover=self._store.batches.nodes_of(plan.txid, finished.pinned, outcome=finished.judged)
            if small
            else (),
        )
        if finished.verdict.is_plain_now:
            self._store.judging.forget(self.epoch)
        if finished.verdict.warning:
            log.error("%s", finished.verdict.warning)
        self._keeper.lineage = lineage
        self.dead_letters |= letters
        failures = finished.failures()
        self._counter.settle(was, done, pins, failures)
        for shard, result in done.items():
            start = was[shard].start
            self.shards[shard] = ShardState(start, result.checkpoint, result.inflight, result.turns)
        self.settled, self.settled_plan = plan.txid, plan.plan
        self.sizes.learn(plan, pins, now)
        for shard in plan.read:
            self.ahead.pop(shard, None)
            pin = pins.get(shard)
            if pin is not None and pin.ahead is not None:
                self.ahead[shard] = pin.ahead
        seconds = time.monotonic() - begun
        self._counter.spend(seconds, self._store.requests, self._store.written)
        self.life.settled(
            plan.txid,
            failures.values(),
            [letter for result in done.values() for letter in result.dead_lettered],
            {shard: result.inflight.blocked for shard, result in done.items()},
            ended,
            seconds,
        )
        followed = set[str]().union(*parents_of(lineage).values()) if ended else ()
        self.ended += sum(shard not in followed for shard in ended)
        passed = self._now() - self._settled_at
        ago = {shard: max(0, passed - since) for shard, since in finished.since.items()}
        self.turn_calls = {
            shard: TurnCalls(pin.reads, pin.busy_ms, ago.get(shard, 0)) for shard, pin in pins.items()
        }
        self._settled_at = self._now()
        if not small:
            self.untidy_upto = plan.txid

    def _letters_after(
        self, done: Mapping[str, SettledShard], txid: int
    ) -> Iterator[tuple[str, DeadLettersNode]]:
        """Yield the nodes of dead letters that a batch changes, by shard."""
        for shard, result in done.items():
            before = node = self.dead_letters.get(shard)
            if node is not None and node.replays:
                with naming(self._layout.deadletters_of(shard)):
                    node = settle_replays(node, result.inflight, result.turns, result.dead_lettered, txid)
            if result.dead_lettered:
                node = add_dead_letters(node, result.dead_lettered, self._options)
            if node is not None and node is not before:
                yield shard, node

    def _of(self, plan: Plan, shard: str) -> ShardState:
        """Return a shard of a plan; retention may have removed it from the listing since the planning."""
        return self.shards.get(shard) or ShardState(parse_position(plan.positions[shard]))

    def adopt(self, plan: Plan, settled: int) -> None:
        """Continue from an offset alone, because ZooKeeper lost its data; delivery is at least once from here.

        Positions are those that the offset's batch started from; its retries and the waiting runs are not done.
        """
        lineage = self._keeper.adopted(plan.streams, {**plan.positions, **plan.resume})
        # What an older copy says of a shard that the offset leaves out is done since.
        whole = with_left_out(plan.positions, parents_of(lineage))
        updates = adopted_nodes(msgspec.structs.replace(plan, positions=whole), self.shards, settled)
        mark = plan.plan if settled == plan.txid else ""
        self._store.shards.settle(
            updates, {}, ShardsNode(shards=dict(lineage)), SettledNode(txid=settled, plan=mark), self.epoch
        )
        self.shards.clear()
        self.load()

    def leave_out(self, txid: int, mark: str) -> None:
        """Count the txids up to this one as settled, with nothing done; `mark`: of the plan that counts as the last."""
        settled = SettledNode(
            txid=txid,
            plan=mark
            or mark_of(self.epoch, self._now(), self._store.layout.digest, self._rng.getrandbits(96)),
        )
        self._store.shards.settle({}, {}, None, settled, self.epoch)
        self._settled_at = self._now()
        self.settled, self.settled_plan = settled.txid, settled.plan
        self.untidy_upto = txid

    def positions(self) -> dict[str, Position]:
        """Return the position of each shard that may be read for new records now."""
        return {
            shard: self.shards[shard].position
            for shard in readable(self.lineage, self._options.shard_ordering)
            if shard not in self._parked
        }

    def childless(self) -> list[str]:
        """Return the shards that were read to their end and whose children were not listed yet."""
        active = self.active
        return [shard for shard in childless(self.lineage) if shard in active]

    def is_closed(self, shard: str) -> bool:
        """Tell whether a shard was listed as closed: it gets no new records, and an answer shows its end."""
        node = self.lineage.get(shard)
        return node is not None and node.state != "open"

    def key_of(self, shard: str) -> ShardKey:
        """Return the shard and stream of a name."""
        return self._layout.key_of(shard)

    @property
    def application(self) -> str:
        """Return the name of the application."""
        return self._layout.application

    @property
    def active(self) -> Mapping[str, ShardState]:
        """Return the shards of the streams that are read now."""
        if not self._parked:
            return self.shards
        return {shard: state for shard, state in self.shards.items() if shard not in self._parked}

    @property
    def named(self) -> Mapping[str, ShardState]:
        """Return the shards that an offset names: those read now, without the done ones whose descendants it names.

        Otherwise every batch would carry all shards that were split or merged within the retention.
        """
        done = left_out(self.lineage, lambda shard: self.shards[shard].held > 0)
        if not done:
            return self.active
        return {shard: state for shard, state in self.active.items() if shard not in done}

    @property
    def counts(self) -> RunCounts:
        """Return what became of the records of this run, and what it took."""
        return self._counter.total(self.tally)

    @property
    def tally(self) -> Tally:
        """The numbers of records that were acked and failed by name."""
        return self._amender.tally

    @property
    def waiting(self) -> list[Run]:
        """Return all runs that wait for a retry."""
        return [run for state in self.active.values() for run in state.waiting]

    @property
    def unacked(self) -> int:
        """Return the number of records that are not acked yet."""
        return sum(state.unacked for state in self.active.values())

    @property
    def next_timeout(self) -> int | None:
        """Return the time at which the first unacked record times out; None if there is none."""
        return min((run.due for state in self.active.values() for run in state.pending), default=None)

    @property
    def dues(self) -> list[int]:
        """Return the time at which the next retry, or the timeout of an unacked record, is due."""
        states = self.active.values()
        acks = [run.due for state in states for run in state.pending]
        return [run.due for state in states for run in state.waiting] + acks

    @property
    def begun(self) -> bool:
        """Return True if anything was read."""
        return any(state.begun for state in self.shards.values())

    @property
    def turns_in_use(self) -> frozenset[int]:
        """Return the settled batches whose pins have positions of records in flight."""
        return frozenset(txid for state in self.shards.values() for txid in state.turns)

    @property
    def dead(self) -> Mapping[str, tuple[Run, ...]]:
        """Return the exhausted runs by shard."""
        return {shard: state.dead for shard, state in self.active.items() if state.dead}


def _nodes_of(before: ShardState, settled: SettledShard) -> tuple[CheckpointNode, InflightNode | None]:
    """Return the nodes of a shard that a batch changes; most have nothing in flight, before it and after it."""
    was, becomes = before.inflight, settled.inflight
    is_idle = becomes.is_empty and (was is None or was.is_empty)
    return settled.checkpoint, None if is_idle else becomes
