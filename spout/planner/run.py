"""One run of the source in the planning process: epoch, settling, planning, waiting.

It lives from the first planning call until it is closed, fenced or killed. Nothing is lost with it: everything is
rebuilt from Spark's offset and ZooKeeper.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from kinesis_trident.checkpoint.errors import PlanConflictError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.checkpoint.store.source_home import find_home, settle_in
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.errors import CheckpointMismatchError
from kinesis_trident.spout.failed_records.retry_spool import spool_of
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.kinesis.consumers import ready_consumers
from kinesis_trident.spout.options.source import Options
from kinesis_trident.spout.partition import TurnsPartition, tasks_of
from kinesis_trident.spout.planner.cleanup import Purger
from kinesis_trident.spout.planner.clocks import SteadyClock
from kinesis_trident.spout.planner.exhausted import refuse_exhausted
from kinesis_trident.spout.planner.named_runs import with_failures
from kinesis_trident.spout.planner.plan import make_plan, starting_plan
from kinesis_trident.spout.planner.progress import progress_of
from kinesis_trident.spout.planner.reconciliation import Reconciler
from kinesis_trident.spout.planner.shards.discovery import Listings
from kinesis_trident.spout.planner.shards.tip_probe import TipProbe
from kinesis_trident.spout.planner.shards.tips import LOOK_PERIOD_MS, TipWatch
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.planner.streams import Streams, describe_streams
from kinesis_trident.spout.planner.takeover import TakeoverWatch, fenced_first

__all__ = ["SourceRun"]

log = logging.getLogger(__name__)


class SourceRun:
    """The planning side of a source. One thread calls it, as Spark does.

    Args:
        options: of the source.
        kinesis: how Kinesis is reached.
        client: a started KazooClient that this run closes at its end.
        clock: epoch seconds; it may step back.
        steady: seconds that never step back, for all that is waited for.
        rng: for jitter and the marks of plans.
        hold: seconds that `latest` waits for something to do before Spark gets a chance to stop the query.
        look_period: seconds between two looks at the tip of a shard.
        wait: waits until an event is set, at most so many seconds of `clock`; says whether it was.
        executor: removes beside the rest what settled batches leave; a thread of the run's own if None.
        reconnect: gives another started KazooClient, for a note after this run's is closed; of the options if None.
        on_replaced: called, in another thread, when a newer run took over after a stop was asked for.
        consumers: the ARNs of the consumers that executors subscribe, by stream; none to poll.
    """

    def __init__(
        self,
        options: Options,
        kinesis: Kinesis,
        client: Any,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        hold: float = 1.0,
        look_period: float = LOOK_PERIOD_MS / 1000,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        executor: Executor | None = None,
        reconnect: Callable[[], Any] | None = None,
        on_replaced: Callable[[], None] = lambda: None,
        consumers: Mapping[str, str] | None = None,
    ) -> None:
        self._options = options
        self._hold = hold
        self._wait = wait
        self._consumers = consumers
        self._client = client
        self._now = SteadyClock(clock, steady)
        self._steady = steady
        self._rng = rng or random.Random()
        self._wake = threading.Event()
        self._requested = False
        self._planned: Plan | None = None
        self._made = ""
        self._draining = False

        infos = describe_streams(kinesis, options.streams)
        created = {name: info.created for name, info in infos.items()}
        self._store = self._open_store(created)
        self._layout = layout = self._store.layout
        me = (socket.gethostname(), os.getpid(), self._now())
        self._epoch = self._store.raise_epoch(*me)
        with fenced_first(self._store, self._epoch):
            known = settle_in(self._store, client, created, self._epoch, *me) if layout.several else created
            streams = Streams(kinesis, layout, infos)
            self._state = SourceState(options, self._store, streams, self._epoch, self._rng, self._now)
            self._state.load()
            self._state.check_retention()
            # What was read while a newer run moved it on does not belong together.
            self._store.check_epoch(self._epoch)
        self._probe = TipProbe(
            kinesis,
            layout,
            deaggregate=options.deaggregate,
            wall=self._now,
            is_closed=self._state.is_closed,
        )
        self._listings = Listings(self._state, self._probe, options, self._steady, self._rng)
        self._purger = Purger(self._store, self._state, spool_of(options, layout), self._epoch, executor)
        self._tip = TipWatch(self._probe, self._state.is_closed, int(look_period * 1000))
        self._reconciler = Reconciler(options, self._store, self._state, known, self._settle)
        self._tenure = TakeoverWatch(
            self._store,
            client,
            self._epoch,
            wake=self._wake,
            close=self.close,
            reconnect=reconnect or partial(connect, options.zookeeper),
            on_replaced=on_replaced,
        )
        self._tenure.watch()
        self._store.watch_external(self._on_request)

    @classmethod
    def open(cls, options: Options, *, on_replaced: Callable[[], None] = lambda: None) -> SourceRun:
        """Start a run against the servers that the options name; it takes over from any older one.

        Raises:
            KinesisError, CheckpointError, SpoutError: naming what is missing or disagrees.
        """
        kinesis = kinesis_client(options)
        consumers = ready_consumers(kinesis, options) if options.consumer_mode == "efo" else None
        client = connect(options.zookeeper)
        try:
            return cls(options, kinesis, client, on_replaced=on_replaced, consumers=consumers)
        except BaseException:
            client.stop()
            client.close()
            raise

    def _open_store(self, created: Mapping[str, int]) -> SourceStore:
        """The store of these streams, name to creation time."""
        options = self._options
        home = find_home(self._client, options.zookeeper_root, options.application_name, created)
        return SourceStore(self._client, home)

    @property
    def layout(self) -> Layout:
        """Where the source has its home in ZooKeeper."""
        return self._layout

    @property
    def epoch(self) -> int:
        """This run's epoch."""
        return self._epoch

    @property
    def settled(self) -> int:
        """The newest settled txid."""
        return self._state.settled

    @property
    def written(self) -> int:
        """Bytes that this run has written to ZooKeeper so far."""
        return self._store.written

    def initial(self) -> Plan:
        """The offset before the first batch of a new Spark checkpoint: ZooKeeper's state as it stands."""
        state = self._state
        return starting_plan(state.settled, state.streams.created, state.active)

    def drain_and_end(self) -> None:
        """Read only what is in the stream by now, retry what of it fails, then report that nothing is left."""
        self._draining = True
        self._made = ""
        self._tip.only_until_tip(self._listings.arrived_by())
        # What was split before then has children that hold records of then.
        self._listings.list_at_once()

    def latest(self, start: Plan, max_records: int | None) -> Plan | None:
        """Settle the batch that ended at `start`, which Spark has committed, and plan the next one.

        Returns None when there is nothing to do: at once if the run drains or stops, else after `hold` seconds.

        Raises:
            FencedError: a newer run has taken over.
            CheckpointMismatchError, StreamChangedError: Spark's checkpoint and ZooKeeper disagree.
            ExhaustedError: with `onExhausted=fail`, a record has failed too often.
            DataLossError: with `failOnDataLoss`, records have expired unread.
        """
        with self._tenure.call():
            self._reconciler.go_on_from(self._reconciler.as_it_counts(start), self._planned)
            if self._reconciler.resume is not None:
                self._planned, self._reconciler.resume = self._reconciler.resume, None
                return self._planned
            deadline = self._steady() + self._hold
            while True:
                self._tenure.raise_if_replaced()
                if self._tenure.stop_asked:
                    self._store.answer_stop(self._state.settled, self._epoch)
                    self._rest_until(deadline)
                    return None
                plan = self._plan(max_records)
                if plan is not None:
                    self._planned, self._made = plan, plan.plan
                    return plan
                if (
                    self._draining
                    and self._listings.is_current
                    and not (self._state.waiting or self._state.unacked)
                    and self._tip.all_ended(self._state.positions())
                ):
                    return None
                if not self._draining and self._steady() >= deadline:
                    return None
                self._rest_until(deadline)

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
        with self._tenure.call():
            start, end = self._reconciler.as_it_counts(start), self._reconciler.as_it_counts(end)
            ours = self._planned is not None and self._planned.plan == end.plan
            if not (ours or self._reconciler.ready_to_replay(start, end, self._planned)):
                return []
            try:
                self._store.put_batch(msgspec.structs.replace(end, notDone={}), self._epoch)
            except PlanConflictError as error:
                msg = (
                    "Start the query with a new checkpointLocation, and ZooKeeper's batch comes first: another Spark "
                    f"checkpoint has begun it. {error}"
                )
                raise CheckpointMismatchError(msg) from error
            self._planned = end
            return tasks_of(
                with_failures(end, self._state.dead),
                self._options,
                self._layout,
                self._epoch,
                replay=end.plan != self._made,
                consumers=self._consumers,
                without=[shard for shard in end.shards if self._state.streams.is_recreated(shard)],
                is_closed=self._state.is_closed,
            )

    def settle_finished(self, plan: Plan) -> None:
        """Settle a batch that Spark has finished although it will not ask for another one."""
        with self._tenure.call():
            self._reconciler.go_on_from(self._reconciler.as_it_counts(plan), self._planned)

    def purge(self) -> None:
        """Delete plans, pins and outcomes of settled batches, beside what Spark does next."""
        with self._tenure.call():
            self._purger.purge()

    def report(self) -> dict[str, Any]:
        """What the query's progress shows: lag, in-flight, retrying and dead-lettered records."""
        return progress_of(self._state, self._probe.looks, self._now())

    def close(self) -> None:
        """End the session with ZooKeeper; nothing can be written after this."""
        self._probe.close()
        self._purger.close()
        self._client.stop()
        self._client.close()

    def _steady_ms(self) -> int:
        return int(self._steady() * 1000)

    def _plan(self, max_records: int | None) -> Plan | None:
        state, options, now = self._state, self._options, self._now()
        self._listings.refresh()
        timeout = state.next_timeout
        timed_out = timeout is not None and timeout <= now
        due = options.ack_mode == "explicit" and any(run.due <= now for run in state.waiting)
        # An ack that came in time must not lose against the news of it.
        if self._requested or timed_out or due:
            self._requested = False
            state.amender.take_in_requests(now)
        if timed_out:
            state.amender.time_out(list(state.active), now)
        refuse_exhausted(state.dead, self._layout, options)
        read = self._listings.shards_to_read(self._tip, self._steady_ms())
        return make_plan(
            txid=state.settled + 1,
            plan=uuid.UUID(int=self._rng.getrandbits(128)).hex,
            streams=state.streams.created,
            states=state.active,
            read=read,
            now=now,
            max_records=max_records,
            max_bytes=self._options.max_bytes_per_trigger,
            max_inflight=options.max_inflight_records if options.ack_mode == "explicit" else None,
            max_turn=options.max_fetch_records_per_shard,
            deaggregate=options.deaggregate,
        )

    def _rest_until(self, deadline: float) -> None:
        """Wait until something may be due, or somebody wakes this run."""
        now = self._steady_ms()
        due = min(self._state.dues, default=None)
        milliseconds = self._tip.next_look(self._state.positions(), now) - now
        if due is not None:
            milliseconds = min(milliseconds, due - self._now())
        seconds = milliseconds / 1000
        if not self._draining:
            seconds = min(seconds, deadline - self._steady())
        if self._wait(self._wake, max(seconds, 0.001)):
            self._wake.clear()

    def _on_request(self) -> None:
        self._requested = True
        self._wake.set()

    def _settle(self, plan: Plan) -> None:
        with _uncollected():
            self._state.settle(plan, self._now())
        self._tip.settled(plan, self._state.shards, self._steady_ms(), replayed=plan.plan != self._made)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: what is made of very many failed records is kept, and looked at in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
