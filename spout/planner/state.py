"""The planning process's state of each shard: loaded from ZooKeeper, and changed there before it changes here."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.change_nodes import AuditNode, BackupNode
from kinesis_trident.checkpoint.model.nodes import Plan, SettledNode, ShardsNode, mark_of
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Refused
from kinesis_trident.common.redaction import redact
from kinesis_trident.spout.data_loss import DataLossLog
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.offsets import adopt_nodes
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.settling.external_requests import Event, step
from kinesis_trident.spout.planner.settling.finished_batch import CommittedBatch, Origin
from kinesis_trident.spout.planner.settling.settlement import InflightRules
from kinesis_trident.spout.planner.settling.shard_events import (
    Amended,
    BatchSettled,
    HomeUnit,
    Paused,
    Requested,
    ShardEvent,
    ShardUnit,
    TimedOut,
    Watcher,
)
from kinesis_trident.spout.planner.shards.lineage import add_left_out, parents_of
from kinesis_trident.spout.planner.shards.lister import ShardLister
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.shards.stored_shards import load_shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.spout.planner.watching.consumer_watch import ConsumerWatch
from kinesis_trident.spout.planner.watching.counting import RunCounter
from kinesis_trident.spout.planner.watching.life_log import LifeLog
from kinesis_trident.tracker.retry import DUE_GRAIN_MS, Backoff, RetryPolicy

log = logging.getLogger(__name__)

_SAID = 20
"""The number of requests that are named in the log one by one."""


def make_rules(options: SourceOptions, rng: random.Random) -> InflightRules:
    """Return how the options settle the records in flight; addresses are without their credentials."""
    timeout = round(options.message_timeout * 1000)
    return InflightRules(
        RetryPolicy(
            options.retry_limit,
            Backoff.parse(options.retry_backoff),
            hold_ms=timeout,
            no_retry=options.no_retry_for,
        ),
        rng,
        options.max_retrying_records,
        timeout=timeout,
        max_inflight=options.max_inflight_records if options.ack_mode == "explicit" else None,
        buries=options.on_exhausted != "fail",
        target=redact(options.dead_letter or options.on_exhausted),
    )


class SourceState:
    """Writes each change of the shards through the store under this run's epoch, then replaces their value.

    Attributes:
        epoch: of the run.
        shards: the value; nobody else replaces it.
        sights: what the run saw of them; whoever sees something replaces it.
        streams: those that are read now.
        lister: asks for the shards.
        losses: the data losses of the run.
        life: what is told of the shards in the log.
        counter: counts what became of the records of the run.
        consumers: notices who else subscribes with the query's consumers.
        watchers: are told of each change, once it is written.
        settled_at: when the last batch was settled, or the shards were loaded, in epoch milliseconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        store: SourceStore,
        streams: Streams,
        epoch: int,
        around: Surroundings,
    ) -> None:
        self._now, rng = around.now, around.rng
        self._store = store
        self._layout = store.layout
        self._rng = rng
        self._rules = make_rules(options, rng)
        self._judged = False
        self._ignored: set[str] = set()
        self._drawn: BatchSettled | None = None
        self.epoch = epoch
        self.streams = streams
        self.shards = Shards(options.shard_ordering, retry_order=options.retry_order)
        idle = options.idle_poll_interval if around.look_period is None else around.look_period
        self.sights = Sights(LookTimes.of(idle, options.min_fetch_period, options.max_fetch_rate))
        self.settled_at = self._now()
        self.losses = DataLossLog(options.fail_on_data_loss)
        what = f"written to {redact(options.dead_letter)}" if options.dead_letter else "skipped"
        self.life = LifeLog(store.layout, what)
        self.counter = RunCounter()
        self.consumers = ConsumerWatch()
        self.watchers: list[Watcher] = [self.counter.watch]
        self.lister = ShardLister(options, store, streams, epoch, self.losses)

    def _become(self, event: ShardEvent, after: Shards) -> None:
        before, self.shards, self._drawn = self.shards, after, None
        self.consumers.watch(event, self.sights)
        self.sights = self.life.watch(before, event, after, self.sights)
        for watch in self.watchers:
            watch(before, event, after)

    def load(self) -> None:
        """Read everything from ZooKeeper; the very first time, list the shards and store where they start."""
        store = self._store
        store.shards.check_folders(self.epoch)
        settled, known = store.batches.settled(), store.shards.lineage()
        store.shards.check_lineage(settled, known, store.streams.get() if self._layout.several else None)
        self.settled_at = self._now()
        loaded = load_shards(
            store,
            self.shards.ordering,
            self.lister.load(known),
            settled,
            now=self.settled_at,
            longest_delay=self._rules.policy.backoff.cap_ms + DUE_GRAIN_MS,
            timeout=self._rules.timeout or 0,
        )
        unread = frozenset(shard for shard in loaded.states if self.streams.info_of(shard) is None)
        order, pauses = self.shards.retry_order, self.shards.pauses
        self._take(replace(loaded, parked=unread, retry_order=order, pauses=pauses), self.settled_at)
        self.take_pauses(self.settled_at)

    def copy(self) -> BackupNode:
        """Return a copy of the nodes of all shards, as `ChangeStore.keep` stores it."""
        shards = self.shards
        return BackupNode(
            application=self._layout.application,
            home=self._layout.base,
            time=self._now(),
            settled=shards.settled,
            checkpoints={name: one.checkpoint for name, one in shards.states.items() if one.checkpoint},
            inflight={name: one.inflight for name, one in shards.states.items() if one.inflight},
            lineage=dict(shards.lineage),
        )

    def list_shards(self, *, everything: bool) -> None:
        """List the shards again and add new ones. Only a full listing (`everything`) shows which ones were removed.

        No batch may be unsettled.

        Raises:
            DataLossError: with `failOnDataLoss`, a shard was removed that was not read to its end.
        """
        self._take(self.lister.list_shards(self.shards, everything=everything), self._now())

    def note_at_tip(self, sights: Sights) -> None:
        """Record that idle shards were seen at their tips; in ZooKeeper only now and then.

        Otherwise a shard that is idle for longer than the retention would look as if unread records had expired.
        """
        units = self._take(sights, self._now())
        noted = {unit.shard: sights.look_of(unit.shard) for unit in units if unit.writes == "checkpoint"}
        changed = {
            s: msgspec.structs.replace(self.sights.of(s), noted=one.at) for s, one in noted.items() if one
        }
        self.sights = self.sights.put(changed)

    def take_in_requests(self, now: int) -> None:
        """Take in what other processes ask for: replays, acks and fails."""
        while True:
            found = self._store.external.read()
            self._put_aside(found.unreadable)
            try:
                self._take(Requested(found.asked), now)
                break
            except Refused as refused:
                # Somebody has withdrawn a request after we have read it.
                if not refused.op.path.startswith(f"{self._store.external.folder}/"):
                    raise

    def take_pauses(self, now: int) -> None:
        """Take over what people have paused and resumed, and end the pauses whose time is over."""
        node = self._store.pauses.get()
        event = Paused(node.pauses if node is not None else (), now)
        after = event.after(self.shards)
        if after != self.shards:
            self._become(event, after)

    def time_out(self, now: int) -> None:
        """Fail the records of the streams read now that nobody has acked in time."""
        self._take(TimedOut(), now)

    def _take(self, event: Event, now: int) -> list[ShardUnit]:
        """Write the units of an event one by one: what is written counts and is told, also if another one fails.

        Returns the units of single shards.
        """
        written: list[ShardUnit] = []
        try:
            for unit in step(self.shards, event, self._rules, self._layout, now):
                if isinstance(unit, HomeUnit):
                    self._write_home(unit)
                    self._become(unit, unit.after)
                    continue
                assert isinstance(unit, ShardUnit)
                self._put_aside(unit.unreadable)
                if unit.writes != "nothing":
                    self._store.shards.amend(
                        unit.shard,
                        self.epoch,
                        checkpoint=unit.state.checkpoint if unit.state else None,
                        inflight=unit.state.inflight if unit.state and unit.writes == "all" else None,
                        dead_letters=unit.dead_letters,
                        consumed=unit.consumed,
                    )
                written.append(unit)
                for line in unit.told:
                    log.warning("%s", line)
                if unit.answer:
                    self._answer(unit.answer)
        finally:
            if any(unit.state is not None for unit in written):
                self._become(amended := Amended(written), amended.after(self.shards))
        return written

    def _write_home(self, unit: HomeUnit) -> None:
        if unit.lineage is not None:
            self.lister.report_gone(self.shards, unit.after, self.sights)
            self._store.shards.put_lineage(unit.lineage, self.epoch)
        if unit.settled is not None:
            self._store.shards.settle({}, {}, None, unit.settled, self.epoch)
        if unit.gone:
            self._store.shards.forget(unit.gone, unit.dead_letters, self.epoch)
            log.info("forgot %d shards past retention: %s", len(unit.gone), ", ".join(unit.gone))

    def _answer(self, what: str) -> None:
        """Note what is not done among the requests of people, who look there; nothing depends on it."""
        note = AuditNode(time=self._now(), user="the query", host=socket.gethostname(), what=what)
        try:
            self._store.changes.note(note)
        except CheckpointError as error:
            log.info("what is not done is only in the log: %s", error)

    def _put_aside(self, unreadable: Mapping[str, str]) -> None:
        """Move unreadable requests away, path to what is wrong: only their authors can repair them."""
        paths = [path for path in unreadable if path not in self._ignored]
        if not paths:
            return
        places = self._store.external.reject_many(paths, self.epoch)
        self._ignored.update(path for path in paths if path not in places)
        for path in paths[:_SAID]:
            place, why = places.get(path), unreadable[path]
            if place is None:
                log.error("a request of another process cannot be read, and stays at %s", why)
                continue
            where = f"it is now at {place}" if place else f"it was removed: {self._layout.rejected} is full"
            log.error("a request of another process cannot be read, and was not applied: %s; %s", why, where)
        if len(paths) > _SAID:
            what = "%d more such requests were not applied; %s has the first ones of all"
            log.error(what, len(paths) - _SAID, self._layout.rejected)

    def settle(self, plan: Plan, origin: Origin) -> None:
        """Settle a batch that Spark has committed: move checkpoints and queue failed records, in ZooKeeper first.

        Shards with the batch's stamp were settled before a crash interrupted the earlier settling. After an error, what
        ZooKeeper has not answered may be there: it is written again as it was drawn. `origin`: how Spark's checkpoint
        came to the batch.

        Raises:
            OutcomeMissingError: it is not known what of the batch is done; nothing was changed.
        """
        begun, store, before = time.monotonic(), self._store, self.shards
        if (event := self._drawn) is None or event.finished.plan != plan:
            event = self._draw(plan, origin)
        units, moved = event.units, list[str]()
        try:
            store.shards.settle(
                event.nodes(before),
                {unit.shard: unit.dead_letters for unit in units if unit.dead_letters is not None},
                ShardsNode(shards=dict(event.lineage)) if event.ended else None,
                event.settled,
                self.epoch,
                event.leftover,
                moved,
            )
        except BaseException:
            known = set(moved)
            part = replace(event, units=[unit for unit in units if unit.shard in known], is_whole=False)
            self._become(part, part.after(before))
            self._drawn = replace(event, units=[unit for unit in units if unit.shard not in known])
            raise
        seconds = time.monotonic() - begun
        event = replace(event, seconds=seconds, operations=store.requests, written=store.written)
        self._become(event, event.after(before))
        self.settled_at = self._now()
        if event.finished.verdict.is_plain_now:
            store.judging.forget(self.epoch)
        if event.finished.verdict.warning:
            log.error("%s", event.finished.verdict.warning)

    def _draw(self, plan: Plan, origin: Origin) -> BatchSettled:
        """Return how a batch is to be settled, with the due times of the records that have failed."""
        store, epoch = self._store, self.epoch
        finished = CommittedBatch.of(store, plan, epoch, origin, judged=self._judged)
        self._judged = finished.judged
        if finished.empty:
            finished = finished.pin_empty(store, epoch, is_stored=origin.stored)
        (event,) = step(self.shards, finished, self._rules, self._layout, self._now())
        assert isinstance(event, BatchSettled)
        gone = {shard: pin.start for shard, pin in finished.pins.items() if pin.gone}
        for shard, what in finished.losses(self._layout, self.streams):
            if self.sights.of(shard).reported != gone.get(shard):
                self.losses.record(what)
        self.sights = self.sights.note_reported(gone)
        return event

    def adopt(self, plan: Plan, settled: int) -> None:
        """Continue from an offset alone, because ZooKeeper lost its data; delivery is at least once from here.

        Positions are those that the offset's batch started from; its retries and the waiting runs are not done.
        """
        lineage = self.lister.adopt(self.shards.lineage, plan.streams, {**plan.positions, **plan.resume})
        # The offset leaves out shards that were done: what an older copy of ZooKeeper says of them does not count.
        whole = add_left_out(plan.positions, parents_of(lineage))
        updates = adopt_nodes(msgspec.structs.replace(plan, positions=whole), self.shards.states, settled)
        mark = plan.plan if settled == plan.txid else ""
        if settled - 1 > self.shards.settled:
            # Interrupted, it would leave stamps that are further above what is settled than a crash explains.
            self.leave_out(settled - 1, "")
        self._store.shards.settle(
            updates, {}, ShardsNode(shards=dict(lineage)), SettledNode(txid=settled, plan=mark), self.epoch
        )
        self.load()

    def leave_out(self, txid: int, mark: str) -> None:
        """Count the txids up to this one as settled, with nothing done; `mark`: of the plan that counts as the last."""
        plan = mark or mark_of(self.epoch, self._now(), self._layout.digest, self._rng.getrandbits(96))
        self._take(SettledNode(txid=txid, plan=plan), self._now())
        self.settled_at = self._now()
