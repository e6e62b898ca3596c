"""One run of the source in the planning process: epoch, settling, planning, waiting.

It lives from the first planning call until it is closed, fenced or killed. Nothing is lost with it: everything is
rebuilt from Spark's offset and ZooKeeper.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from kinesis_trident.checkpoint.errors import CheckpointError, FencedError, PlanConflictError
from kinesis_trident.checkpoint.model.nodes import PastNode, Plan
from kinesis_trident.checkpoint.model.run_status import How, run_name
from kinesis_trident.checkpoint.store.failed_starts import note_start
from kinesis_trident.checkpoint.store.source_home import (
    close_left_homes,
    find_home,
    merge_into_shared_home,
    past_of,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect, disconnect
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.errors import CheckpointMismatchError
from kinesis_trident.spout.failed_records.places import check_places, remove_parts
from kinesis_trident.spout.failed_records.retry_spool import spool_of
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.kinesis.consumers import ready_consumers
from kinesis_trident.spout.log_lines import configure_logging
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import TurnsPartition, tasks_of
from kinesis_trident.spout.planner.choose import Planned, Wait
from kinesis_trident.spout.planner.cleanup import Purger
from kinesis_trident.spout.planner.clocks import IdleWait, Surroundings
from kinesis_trident.spout.planner.plan import make_starting_plan
from kinesis_trident.spout.planner.reconciler import Reconciler
from kinesis_trident.spout.planner.reconciliation import find_highest_epoch, past_in
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.status import StatusNotes, progress_of
from kinesis_trident.spout.planner.steps import PlanningSteps
from kinesis_trident.spout.planner.streams import RecreatedStreams, Streams, refuse_scattered_keys
from kinesis_trident.spout.planner.takeover import TakeoverWatch, has_ended, prefer_fenced_error
from kinesis_trident.spout.shard_rules import describe_streams
from kinesis_trident.tracker.runs import full

log = logging.getLogger(__name__)

_NO_EPOCH = 2**31 - 1
"""The highest version of a node, which no run reaches: ZooKeeper's versions have 32 bits."""

_END_SECONDS = 2.0
"""Seconds that the end of a run waits for ZooKeeper."""

_LONGEST_LOOKS = 10.0
"""Seconds after which looks that have found something end, however long batches take: meanwhile none is stopped."""


class SourceRun:
    """The planning side of a source. One thread calls it, as Spark does.

    Args:
        options: of the source.
        kinesis: how Kinesis is reached.
        client: a started KazooClient that this run closes at its end.
        around: its clocks and threads; those of a process by default.
        on_replaced: called, in another thread, when a newer run took over after a stop was asked for.
        consumers: the ARNs of the consumers that executors subscribe, by stream; none to poll.
        relieved: the epoch of a run that was asked to end. This one takes over from it without a warning, and from no
            other: it ends with FencedError.
        offsets: those that Spark's next call names, if they are known: the start, and the end of a batch in hand.
        on_epoch: called with this run as soon as it has an epoch; its start may still fail.

    Attributes:
        layout: the source's home in ZooKeeper.
        epoch: of this run.
    """

    def __init__(
        self,
        options: SourceOptions,
        kinesis: Kinesis,
        client: Any,
        around: Surroundings | None = None,
        *,
        on_replaced: Callable[[], None] = lambda: None,
        consumers: Mapping[str, str] | None = None,
        relieved: int | None = None,
        offsets: Sequence[Plan] = (),
        on_epoch: Callable[[SourceRun], object] = lambda _: None,
    ) -> None:
        self._options = options
        self._on_epoch = on_epoch
        self._kinesis = kinesis
        self._around = around = around or Surroundings()
        self._now = around.now
        self._idle_wait = IdleWait(around.hold)
        self._consumers = consumers or {}
        self._client = client
        self._wake = threading.Event()
        self._closed = False
        self._has_noted_end = False
        self._has_seen_offsets = bool(offsets)

        check_places(options, kinesis)
        described = around.steady()
        infos = describe_streams(kinesis, options.streams)
        if options.retry_order == "key":
            refuse_scattered_keys(infos)
        self._created = {name: info.created for name, info in infos.items()}
        self._store = self._open_store(self._created)
        self.layout = layout = self._store.layout
        self._streams = Streams(kinesis, layout, infos, described)
        before = self._store.open_for_looking(lambda _: None).epochs.owner()
        # One that only settles what another run has finished ends as that one did.
        ends = self._store.ends.runs() if relieved is not None else ()
        finished = (end for end in ends if end.how == "finished" and end.epoch == relieved)
        self._usual_end: tuple[How, str] = next(((end.how, end.why) for end in finished), ("stopped", ""))
        self._takeover = TakeoverWatch(
            self._store,
            client,
            _NO_EPOCH,
            wake=self._wake,
            close=self.close,
            reconnect=around.reconnect or partial(connect, options.zookeeper),
            on_replaced=on_replaced,
        )
        self._take_over(offsets, relieved)
        self._takeover.epoch = self.epoch
        self._takeover.watch()
        self._store.external.watch(self._on_request)
        self._store.pauses.watch(self._on_pause)
        log.info(
            "application %r %s %s: %s, settled up to txid %d, epoch %d of %s",
            options.application_name,
            "starts on" if relieved is None else "stops, and settles what it has finished of",
            ", ".join(self._created),
            count_noun(len(self._state.shards.active), "shard"),
            self._state.shards.settled,
            self.epoch,
            layout.base,
        )
        if before is not None and before.epoch != relieved:
            ended = has_ended(before)
            log.log(
                logging.INFO if ended else logging.WARNING,
                "it takes over from %s, which %s",
                run_name(before.host, before.pid, before.epoch),
                "has ended" if ended else "is still connected",
            )

    def _select_own(self, offsets: Sequence[Plan]) -> list[Plan]:
        """Return the offsets without those of another stream or application, which are refused later."""
        ours = ("", self.layout.digest)
        return [plan for plan in offsets if plan.streams.keys() & self._created.keys() and plan.whose in ours]

    def _load_used_before(self) -> PastNode:
        """Return what was used in the homes from which this one takes over its streams."""
        return past_of(self._store, self._created)

    def _close_left_homes(self, epoch: int) -> None:
        for stream, left in close_left_homes(self._store, self._created, epoch).items():
            log.warning(
                "stream %s was created again: %d requests for its old records are removed", stream, left
            )

    def _take_over(self, offsets: Sequence[Plan], relieved: int | None = None) -> None:
        """Raise the epoch above all that `offsets` and ZooKeeper name, and load the state.

        `relieved`: as for the class.
        """
        self._has_taken_over = False
        options, store, layout, created = self._options, self._store, self.layout, self._created
        around = self._around
        ours = self._select_own(offsets)
        me = (socket.gethostname(), os.getpid(), self._now())
        self.epoch = epoch = store.epochs.raise_epoch(
            *me,
            known=past_in(ours) if ours else None,
            before=self._load_used_before(),
            above=self._find_highest_epoch(ours),
            over=relieved,
        )
        self._on_epoch(self)
        with prefer_fenced_error(store, lambda: epoch):
            known = (
                merge_into_shared_home(store, self._client, created, epoch, *me)
                if layout.several
                else created
            )
            self._state = SourceState(options, store, self._streams, epoch, around)
            self._state.load()
            self._close_left_homes(epoch)
            self._state.sights = self._state.lister.check_retention(self._state.shards, self._state.sights)
            past = store.epochs.past()
            # What was read while a newer run moved it on does not belong together.
            store.epochs.check_epoch(epoch)
        pins_of = store.batches.get_pins
        self._planner = PlanningSteps(options, self._kinesis, layout, self._state, around, pins_of)
        self._notes = StatusNotes(store, self._state, around)
        tidy = partial(remove_parts, options.dead_letter, layout.identity)
        self._purger = Purger(store, self._state, spool_of(options, layout), tidy, around.executor)
        self._purger.keep_copy(self._now())
        self._state.watchers += [self._planner.watch, self._purger.watch]
        self._recreated = RecreatedStreams(
            layout, self._streams, known, self._state.losses, fail=options.fail_on_data_loss
        )
        self._reconciler = Reconciler(options, store, self._state, self._recreated, past)
        self._has_taken_over = True

    def _find_highest_epoch(self, offsets: Sequence[Plan]) -> int:
        """Return the highest epoch that may have been used for the batch that comes first; 0 if there is none."""
        if not offsets:
            return 0
        begun = [*offsets[1:]]
        batch = self._store.batches.newest()
        if batch is not None and batch.plan.txid > offsets[0].txid:
            begun.append(batch.plan)
        return max((find_highest_epoch(plan, self._now()) for plan in begun), default=0)

    def _see_offsets(self, *offsets: Plan) -> None:
        """Take over once more if the first offsets that Spark names may be of a run that ZooKeeper does not know.

        Offsets of later calls are of this run's own plans.
        """
        if self._has_seen_offsets:
            return
        own = self._select_own(offsets)
        used = max((0, *(plan.epoch for plan in own), self._find_highest_epoch(own)))
        if self._has_taken_over and used < self.epoch:
            self._has_seen_offsets = True
            return
        drains, planner, purger = self._planner.is_draining, self._planner, self._purger
        # Until the epoch is raised, nobody takes that for a newer run.
        self._takeover.epoch = _NO_EPOCH
        try:
            # After an error, the next call takes over.
            self._take_over(offsets)
            self._has_seen_offsets = True
        finally:
            self._takeover.epoch = self.epoch
            planner.close()
            purger.close()
        if drains:
            self._planner.drain(planner.course.drain)

    @classmethod
    def open(
        cls,
        options: SourceOptions,
        *,
        on_replaced: Callable[[], None] = lambda: None,
        relieved: int | None = None,
        offsets: Sequence[Plan] = (),
    ) -> SourceRun:
        """Start a run against the servers that the options name; it takes over from any older one.

        `on_replaced`, `relieved`, `offsets`: as for the class.

        Raises:
            KinesisError, CheckpointError, SpoutError: naming what is missing or disagrees.
        """
        configure_logging(options.log_format)
        # First of all, because a start that fails is noted there.
        client = connect(options.zookeeper)
        where = client, options.zookeeper_root, options.application_name
        begun: list[SourceRun] = []
        try:
            kinesis = kinesis_client(options)
            run = cls(
                options,
                kinesis,
                client,
                on_replaced=on_replaced,
                consumers=ready_consumers(kinesis, options) if options.consumer_mode == "efo" else None,
                relieved=relieved,
                offsets=offsets,
                on_epoch=begun.append,
            )
        except BaseException as error:
            if not isinstance(error, FencedError):
                why = f"{type(error).__name__}: {error}"
                note_start(*where, _END_SECONDS, "" if begun else why)
                for failed in begun:
                    failed.note_end("failed", why)
            disconnect(client)
            raise
        note_start(*where, _END_SECONDS)
        return run

    def _open_store(self, created: Mapping[str, int]) -> SourceStore:
        """The store of these streams, name to creation time."""
        options = self._options
        home = find_home(self._client, options.zookeeper_root, options.application_name, created)
        return SourceStore(self._client, home)

    @property
    def settled(self) -> int:
        """The newest settled txid."""
        return self._state.shards.settled

    @property
    def written(self) -> int:
        """Bytes that this run has written to ZooKeeper so far."""
        return self._store.written

    def initial(self) -> Plan:
        """The offset before the first batch of a new Spark checkpoint: ZooKeeper's state as it stands."""
        shards = self._state.shards
        return make_starting_plan(shards.settled, self._streams.created, shards.named)

    def drain_and_end(self) -> None:
        """Read only what is in the stream by now, retry what of it fails, then report that nothing is left."""
        self._planner.drain()

    def latest(self, start: Plan, max_records: int | None) -> Plan | None:
        """Settle the batch that ended at `start`, which Spark has committed, and plan the next one.

        Returns None when there is nothing to do: at once if the run drains or stops, else after `hold` seconds at most.

        Raises:
            FencedError: a newer run has taken over.
            CheckpointMismatchError, StreamChangedError: Spark's checkpoint and ZooKeeper disagree.
            ExhaustedError: with `onExhausted=fail`, a record has failed too often.
            DataLossError: with `failOnDataLoss`, records have expired unread.
        """
        with self._takeover.call():
            self._see_offsets(start)
            self._planner.end_prefetch()
            begun = self._reconciler.resume_from(start)
            if begun is not None:
                return self._reconciler.hand_over(begun)
            began = self._around.steady()
            plan = self._next_plan(max_records, began + self._idle_wait.begin(began))
            self._idle_wait.end(self._around.steady(), idle=plan is None)
            return plan

    def _next_plan(self, max_records: int | None, deadline: float) -> Plan | None:
        """Plan as soon as there is something to do; None if there is nothing by then, or the run drains or stops."""
        planner, takeover = self._planner, self._takeover
        # What is found after the call waits for the next batch, or for the next trigger: a start of very many shards
        # would read one part of them a batch.
        planner.begin_round(min(self._idle_wait.between / 2, _LONGEST_LOOKS))
        unseen_before = math.inf
        while True:
            takeover.raise_if_replaced()
            # In this order: it is asked to drain before it is asked to stop.
            stops = takeover.stop_asked
            found = planner.choose(stops, takeover.drains if takeover.drain_asked else 0, max_records)
            match found:
                case Planned(plan, whole):
                    self._notes.note(planner.standings)
                    self._reconciler.hand_over(whole)
                    return plan
                case Wait(seconds, end, unseen, unread):
                    paused = self._state.life.names_of(unread)
                    if end != "stopped":
                        self._notes.note(planner.standings)
                    if end == "drained":
                        self.note_end("finished", paused and f"not read, because it is paused: {paused}")
                    if end and takeover.stop_asked:
                        # From here on, a request to drain is one to stop without more.
                        self._store.stop.answer(self._state.shards.settled, self.epoch, paused)
                    # A round looks at a part of very many shards; with a trigger the next call may come much later.
                    looks_on, unseen_before = 0 < unseen < unseen_before, unseen
                    left = math.inf if planner.is_draining or looks_on else deadline - self._around.steady()
                    goes_on = not end and left > 0
                    if goes_on or end == "stopped":
                        self._rest(min(seconds, left))
                    if not goes_on:
                        return None
                case "go on":
                    log.info(
                        "nobody waits any longer for the run of epoch %d to drain: it reads on", self.epoch
                    )
                    if self._has_noted_end:
                        self._store.ends.forget(self.epoch)
                    self._has_noted_end = False
            planner.carry_out(found)

    def partitions(self, start: Plan, end: Plan) -> list[TurnsPartition]:
        """Store the plan that Spark has logged and cut it into tasks.

        A new Spark checkpoint always runs a batch 0, also where there is nothing to do: Spark then logs the offset that
        it started from, and asks for the partitions between two equal ones. There are none, and nothing changes.

        Raises:
            SettledBatchError: the batch is settled already: it gives no rows again.
            CheckpointMismatchError, StreamChangedError, FencedError: as `latest`.
        """
        if not end.plan or end == start:
            return []
        with self._takeover.call():
            self._see_offsets(start, end)
            start, end = self._recreated.normalize(start), self._recreated.normalize(end)
            planned = self._reconciler.planned
            ours = planned is not None and planned.plan == end.plan
            plan = planned if ours else self._reconciler.take_up(start, end)
            if plan is None:
                return []
            try:
                plan = self._store.batches.put(
                    msgspec.structs.replace(plan, notDone={}, adopter=end.adopter), self.epoch
                ).plan
            except PlanConflictError as error:
                msg = (
                    f"{error}: another Spark checkpoint has begun it. Start the query with a new checkpointLocation, "
                    "and ZooKeeper's batch comes first"
                )
                raise CheckpointMismatchError(msg) from error
            self._reconciler.planned, self._reconciler.stored = plan, plan.plan
            known = self._state.shards.dead
            dead = {shard: full(runs, known.get(shard, ())) for shard, runs in plan.dead.items()}
            turns = self._planner.turns(msgspec.structs.replace(plan, dead=dead))
            # Its time is taken after what the turns say of calls, for a pause between must not make them older.
            tasks = tasks_of(self._work_of(plan), turns, plan.tasks)
            self._planner.prefetch(plan)
            return tasks

    def _work_of(self, plan: Plan) -> TurnsPartition:
        """Return what the tasks of a plan have in common; letters bear the first name of an application."""
        options, today = self._options, self._options.deaggregate
        splits = today if plan.deaggregate is None else plan.deaggregate
        return TurnsPartition(
            options=replace(options, deaggregate=splits, application_name=self.layout.identity),
            deaggregate=today,
            layout=self.layout,
            txid=plan.txid,
            plan=plan.plan,
            epoch=self.epoch,
            replay=not self._planner.has_made(plan),
            limit_bytes=plan.limitBytes,
            consumers=self._consumers,
            described=dict(self._streams.infos),
            told=self._now(),
            upto=plan.upto,
        )

    def settle_finished(self, plan: Plan) -> None:
        """Settle a batch that Spark has finished although it will not ask for another one."""
        with self._takeover.call():
            self._see_offsets(plan)
            self._planner.end_prefetch()
            self._reconciler.resume_from(plan)

    def purge(self) -> None:
        """Delete plans, pins and outcomes of settled batches, beside what Spark does next."""
        with self._takeover.call():
            self._purger.purge()
            self._purger.keep_copy(self._now())

    def report(self) -> dict[str, Any]:
        """Return the figures of the query's progress: lag, in-flight, retrying and dead-lettered records."""
        return progress_of(self._state, self.layout, self._planner.standings, self._now())

    def end(self) -> None:
        """End the run as Spark does, and note how; Spark does not say whether the query failed in a batch."""
        planned, settled = self._reconciler.planned, self._state.shards.settled
        if planned is not None and planned.txid > settled and not self._takeover.stop_asked:
            self.note_end("interrupted", f"txid {planned.txid} was not finished, or not settled")
        else:
            self.note_end(*self._usual_end)
        self.close()

    def note_end(self, how: How, why: str = "") -> None:
        """Note in ZooKeeper how this run ends, unless it was noted; an end waits only moments for that."""
        if self._has_noted_end or self._closed or self._takeover.replaced or not self._client.connected:
            return
        try:
            SourceStore(self._client, self.layout, _END_SECONDS).ends.note(self.epoch, how, self._now(), why)
        except CheckpointError as error:
            log.info("how epoch %d has ended is not noted: %s", self.epoch, error)
        else:
            self._has_noted_end = True

    def close(self) -> None:
        """End the session with ZooKeeper; nothing can be written after this."""
        if not self._closed:
            self._closed = True
            self._state.life.flush()
            settled = self._state.shards.settled
            log.info("epoch %d of %s ends, settled up to txid %d", self.epoch, self.layout.base, settled)
        try:
            self._planner.close()
            self._purger.close()
        finally:
            disconnect(self._client)

    def _rest(self, seconds: float) -> None:
        """Wait for so many seconds, or until somebody wakes this run."""
        if self._around.wait(self._wake, max(seconds, 0.001)):
            self._wake.clear()

    def _on_request(self) -> None:
        self._planner.note_request()
        self._wake.set()

    def _on_pause(self) -> None:
        self._planner.note_pauses()
        self._wake.set()
