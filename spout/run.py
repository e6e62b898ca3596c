"""One run of the source in the planning process: epoch, settling, planning, waiting.

It lives from the first planning call until it is closed, fenced or killed. Nothing is lost with it: everything is
rebuilt from Spark's offset and ZooKeeper.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from checkpoint.client import connect
from checkpoint.errors import CheckpointError, FencedError, PlanConflictError
from checkpoint.layout import Layout
from checkpoint.nodes import Plan, StopNode
from checkpoint.store import SourceStore
from spout.client import kinesis_client
from spout.errors import CheckpointMismatchError, ExhaustedError, SettledBatchError, StreamChangedError
from spout.kinesis import Kinesis, KinesisError, StreamInfo, ThrottledError, Unavailable
from spout.looks import TipWatch
from spout.options import Options
from spout.planning import make_plan, merged_due, starting_plan, waiting_besides
from spout.probe import TipProbe
from spout.reconcile import Standing, stands
from spout.state import SourceState
from spout.turns import ShardTurn, TurnsPartition

__all__ = ["SourceRun", "tasks_for"]

log = logging.getLogger(__name__)

_CHOICES = (
    "Restore the matching checkpointLocation, or start with a new checkpointLocation to go on from ZooKeeper's "
    "position, or set onCheckpointMismatch=continue"
)

_OR_NEVER_RUN = (
    ", or nothing of the batch was ever run, as where a filter is always false (then onCheckpointMismatch=continue "
    "loses and repeats nothing)"
)
"""Spark asks for no partitions of a scan that it can leave out, so no plan is stored; the two look the same."""

_PURGE_EVERY = 20
"""Batches between two purges of what settling did not remove."""

_HOLD = 1.0
"""Seconds that `latest` waits for something to do before Spark gets a chance to stop the query."""


class SourceRun:
    """The planning side of a source. One thread calls it, as Spark does.

    Args:
        options: of the source.
        kinesis: how Kinesis is reached.
        client: a started KazooClient that this run closes at its end.
        clock: epoch seconds.
        rng: for jitter and the marks of plans.
        on_replaced: called, in another thread, when a newer run took over after a stop was asked for.
    """

    def __init__(
        self,
        options: Options,
        kinesis: Kinesis,
        client: Any,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options
        self._kinesis = kinesis
        self._client = client
        self._clock = clock
        self._rng = rng or random.Random()
        self._on_replaced = on_replaced
        self._wake = threading.Event()
        self._busy = threading.Lock()
        self._replaced = False
        self._closed_for: FencedError | None = None
        self._requested = False
        self._stop_asked = False
        self._ends_when_replaced = False
        self._planned: Plan | None = None
        self._made = ""
        self._resume: Plan | None = None
        self._compared = False
        self._draining = False
        self._described = 0.0

        stream = kinesis.describe(options.stream_name)
        layout = Layout(options.zookeeper_root, options.application_name, stream.name, stream.created)
        self._layout = layout
        self._store = self._open_store(layout)
        self._epoch = self._store.raise_epoch(socket.gethostname(), os.getpid(), self._now())
        self._state = SourceState(options, self._store, kinesis, stream, self._epoch, self._rng)
        self._state.load()
        self._state.check_retention()
        self._probe = TipProbe(kinesis, stream.name, deaggregate=options.deaggregate)
        self._purged = -_PURGE_EVERY
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="purge")
        self._tip = TipWatch(self._probe)
        self._store.watch_epoch(self._epoch, self._on_epoch_moved)
        self._store.watch_stop(self._on_stop_asked)
        self._store.watch_external(self._on_request)

    @classmethod
    def open(cls, options: Options, *, on_replaced: Callable[[], None] = lambda: None) -> SourceRun:
        """Start a run against the servers that the options name; it takes over from any older one.

        Raises:
            KinesisError, CheckpointError, SpoutError: naming what is missing or disagrees.
        """
        kinesis = kinesis_client(options)
        client = connect(options.zookeeper)
        try:
            return cls(options, kinesis, client, on_replaced=on_replaced)
        except BaseException:
            client.stop()
            client.close()
            raise

    def _open_store(self, layout: Layout) -> SourceStore:
        return SourceStore(self._client, layout)

    @property
    def epoch(self) -> int:
        """This run's epoch."""
        return self._epoch

    @property
    def settled(self) -> int:
        """The newest settled txid."""
        return self._state.settled

    def initial(self) -> Plan:
        """The offset before the first batch of a new Spark checkpoint: ZooKeeper's state as it stands."""
        state = self._state
        return starting_plan(state.settled, {state.stream.name: state.stream.created}, state.shards)

    def drain_and_end(self) -> None:
        """Read only what is in the stream by now, retry what of it fails, then report that nothing is left."""
        self._draining = True
        self._made = ""
        self._tip.only_until_tip()

    def latest(self, start: Plan, max_records: int | None) -> Plan | None:
        """Settle the batch that ended at `start`, which Spark has committed, and plan the next one.

        Returns None when there is nothing to do: at once if the run drains or stops, else after about a second.

        Raises:
            FencedError: a newer run has taken over.
            CheckpointMismatchError, StreamChangedError: Spark's checkpoint and ZooKeeper disagree.
            ExhaustedError: with `onExhausted=fail`, a record has failed too often.
            DataLossError: with `failOnDataLoss`, records have expired unread.
        """
        with self._call():
            self._go_on_from(start)
            if self._resume is not None:
                self._planned, self._resume = self._resume, None
                return self._planned
            deadline = self._clock() + _HOLD
            while True:
                self._raise_if_replaced()
                if self._stop_asked:
                    self._store.answer_stop(self._state.settled, self._epoch)
                    self._rest_until(deadline)
                    return None
                plan = self._plan(max_records)
                if plan is not None:
                    self._planned, self._made = plan, plan.plan
                    return plan
                if (
                    self._draining
                    and not self._state.waiting
                    and self._tip.all_ended(self._state.positions())
                ):
                    return None
                if not self._draining and self._clock() >= deadline:
                    return None
                self._rest_until(deadline)

    def partitions(self, start: Plan, end: Plan) -> list[TurnsPartition]:
        """Store the plan that Spark has logged and cut it into tasks.

        Raises:
            SettledBatchError: the batch is settled already: it gives no rows again.
            CheckpointMismatchError, StreamChangedError, FencedError: as `latest`.
        """
        with self._call():
            if (self._planned is None or self._planned.plan != end.plan) and not self._ready_to_replay(
                start, end
            ):
                return []
            try:
                self._store.put_batch(msgspec.structs.replace(end, notDone={}), self._epoch)
            except PlanConflictError as error:
                msg = (
                    f"{error}. Another Spark checkpoint has begun this batch: restart the query with a new "
                    "checkpointLocation, and ZooKeeper's batch comes first"
                )
                raise CheckpointMismatchError(msg) from error
            self._planned = end
            return self._tasks(end, replay=end.plan != self._made)

    def settle_finished(self, plan: Plan) -> None:
        """Settle a batch that Spark has finished although it will not ask for another one."""
        with self._call():
            self._go_on_from(plan)

    def purge(self) -> None:
        """Delete plans, pins and outcomes of settled batches, beside what Spark does next."""
        with self._call():
            # Most batches are removed when they are settled; what is not has time.
            if self._state.untidy or self._state.settled >= self._purged + _PURGE_EVERY:
                self._purged, self._state.untidy = self._state.settled, False
                self._cleaner.submit(self._purge, self._purged)

    def report(self) -> dict[str, Any]:
        """What the query's progress shows: lag, in-flight, retrying and dead-lettered records."""
        state, letters = self._state, self._state.dead_letters
        shards = {
            shard: {
                "checkpoint": node.checkpoint.checkpoint if node.checkpoint else None,
                "behindMs": node.checkpoint.behind_ms if node.checkpoint else None,
                "retrying": sum(run.count for run in node.waiting),
                "dead": sum(run.count for run in node.dead),
                "deadLettered": letters[shard].count if shard in letters else 0,
                **({"blocked": node.blocked} if node.blocked else {}),
            }
            for shard, node in sorted(state.shards.items())
        }
        nodes = [node.checkpoint for node in state.shards.values() if node.checkpoint]
        retrying = sum(run.count for run in state.waiting)
        return {
            "txid": state.settled,
            "behindMs": max((node.behind_ms for node in nodes), default=0),
            "inflight": retrying + sum(run.count for runs in state.dead.values() for run in runs),
            "retrying": retrying,
            "deadLettered": sum(node.count for node in letters.values()),
            "shards": shards,
        }

    def close(self) -> None:
        """End the session with ZooKeeper; nothing can be written after this."""
        self._probe.close()
        self._cleaner.shutdown(wait=True)
        self._client.stop()
        self._client.close()

    def _purge(self, settled: int) -> None:
        try:
            self._store.purge(settled, self._epoch)
        except CheckpointError as error:
            # Nothing depends on it; a later one removes what this one did not.
            log.warning("settled batches are not purged yet: %s", error)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _plan(self, max_records: int | None) -> Plan | None:
        state, options, now = self._state, self._options, self._now()
        self._refresh_shards()
        if self._requested:
            self._requested = False
            state.take_in_requests(now)
        if options.on_exhausted == "fail":
            self._raise_if_exhausted()
        read = self._shards_to_read(now)
        return make_plan(
            txid=state.settled + 1,
            plan=uuid.UUID(int=self._rng.getrandbits(128)).hex,
            streams={state.stream.name: state.stream.created},
            states=state.shards,
            read=read,
            now=now,
            max_records=max_records,
        )

    def _shards_to_read(self, now: int) -> list[str]:
        try:
            return self._tip.shards_to_read(self._state.positions(), now)
        except (ThrottledError, Unavailable):
            raise
        except KinesisError:
            # Retention removes shards between two listings: whether that is a loss, listing them decides.
            before = self._state.lineage
            self._state.list_shards()
            if self._state.lineage == before:
                raise
            return self._tip.shards_to_read(self._state.positions(), now)

    def _refresh_shards(self) -> None:
        if self._clock() - self._described < self._options.describe_shard_interval:
            return
        self._described = self._clock()
        try:
            found = self._kinesis.describe(self._state.stream.name)
            if found.created != self._state.stream.created:
                raise StreamChangedError(self._recreated(found))
            self._state.stream = found
            self._state.list_shards()
        except (ThrottledError, Unavailable) as error:
            log.warning("cannot list the shards now, going on with those known: %s", error)
            return
        self._state.seen_at_tip(self._probe.looks)
        self._state.check_retention()

    def _rest_until(self, deadline: float) -> None:
        """Wait until something may be due, or somebody wakes this run."""
        next_due = min((run.due for run in self._state.waiting), default=None)
        until = self._tip.next_look(self._state.positions(), self._now())
        if next_due is not None:
            until = min(until, next_due)
        seconds = until / 1000 - self._clock()
        if not self._draining:
            seconds = min(seconds, deadline - self._clock())
        if self._wake.wait(max(seconds, 0.001)):
            self._wake.clear()

    def _go_on_from(self, plan: Plan) -> None:
        """Make ZooKeeper's state the one after `plan`, which Spark has committed."""
        state = self._state
        self._check_stream(plan)
        stored = None
        if plan.txid == state.settled + 1:
            stored = self._planned or self._stored_plan(plan.txid)
        standing = stands(plan, state.settled, state.settled_plan, stored)
        if standing is Standing.SETTLE:
            state.settle(plan, self._now())
            self._tip.settled(plan, state.shards, self._now(), replayed=plan.plan != self._made)
        elif self._compared:
            return
        elif standing is Standing.AGREES:
            self._resume = self._unsettled_plan()
        elif standing is Standing.SPARK_BEHIND:
            self._mismatch(
                f"Spark's checkpoint stands at txid {plan.txid}, but in ZooKeeper ({self._layout.base}) txid "
                f"{state.settled} is settled already, by another Spark checkpoint or a later state of this one",
                "ZooKeeper's position is used and nothing is read again",
            )
            self._resume = self._unsettled_plan()
        else:
            self._mismatch(
                f"Spark's checkpoint stands at txid {plan.txid}, but ZooKeeper ({self._layout.base}) knows "
                f"nothing after txid {state.settled}: its data was lost, or restored from an older copy"
                + (_OR_NEVER_RUN if plan.txid == state.settled + 1 else ""),
                f"the positions of Spark's offset are used, and the records of txid {plan.txid} are READ AGAIN "
                f"under txid {plan.txid + 1} (at least once)",
            )
            state.adopt(plan, settled=plan.txid)
        self._compared = True

    def _ready_to_replay(self, start: Plan, end: Plan) -> bool:
        """Whether a batch that Spark starts over can be given its rows; False: it was settled, and is skipped."""
        self._check_stream(end)
        state = self._state
        if end.txid == state.settled + 1:
            behind = stands(start, state.settled, state.settled_plan, None) is Standing.SPARK_BEHIND
            # What ZooKeeper holds as the next plan comes next, from wherever Spark's checkpoint came to it.
            if behind and not self._is_stored(end):
                msg = (
                    f"Spark starts txid {end.txid} over, but txid {start.txid} before it was settled in ZooKeeper "
                    f"({self._layout.base}) by another Spark checkpoint. Restore the matching checkpointLocation, or "
                    "start with a new one to go on from ZooKeeper's position"
                )
                raise CheckpointMismatchError(msg)
            self._compared = True
            return True
        if end.txid == state.settled + 2 and self._is_stored(start):
            # ZooKeeper is older by one settling, and still has all that it takes to do it again.
            self._go_on_from(start)
            return True
        if end.txid <= state.settled:
            what = (
                f"Spark starts txid {end.txid} over, but it is settled in ZooKeeper ({self._layout.base}, settled: "
                f"{state.settled}): its records are done, and no rows are given twice"
            )
            if self._options.on_checkpoint_mismatch == "stop":
                msg = f"{what}. {_CHOICES}"
                raise SettledBatchError(msg)
            log.error("%s; the batch is skipped (onCheckpointMismatch=continue)", what)
            return False
        self._mismatch(
            f"Spark starts txid {end.txid} over, but ZooKeeper ({self._layout.base}) knows nothing after txid "
            f"{state.settled}: its data was lost, or restored from an older copy",
            f"the plan in Spark's offset is used, and the records of txid {end.txid} may come AGAIN (at least once)",
        )
        return self._take_over(end)

    def _take_over(self, end: Plan) -> bool:
        """Adopt the plan of a batch in hand; False where ZooKeeper has got beyond it, so that it cannot be settled."""
        further = self._state.stands_further(end)
        self._state.adopt(end, settled=end.txid if further else end.txid - 1)
        self._compared = True
        return not further

    def _stored_plan(self, txid: int) -> Plan | None:
        batch = self._store.get_batch(txid)
        return batch.plan if batch is not None else None

    def _is_stored(self, plan: Plan) -> bool:
        stored = self._stored_plan(plan.txid)
        return stored is not None and stored.plan == plan.plan

    def _unsettled_plan(self) -> Plan | None:
        """The plan that another Spark checkpoint began and did not finish: it comes first, as it is.

        What waits besides is not kept with a stored plan, because ZooKeeper has it already.
        """
        plan = self._stored_plan(self._state.settled + 1)
        return waiting_besides(plan, self._state.shards) if plan is not None else None

    def _check_stream(self, plan: Plan) -> None:
        stream = self._state.stream
        if plan.streams == {stream.name: stream.created}:
            return
        theirs = ", ".join(f"{name!r} created at {created}" for name, created in plan.streams.items())
        msg = (
            f"Spark's checkpoint is of the stream {theirs} (epoch milliseconds), the stream now is {stream.name!r} "
            f"created at {stream.created}: another stream, or one deleted and created again, whose positions "
            "mean nothing to each other. Start with a new checkpointLocation"
        )
        raise StreamChangedError(msg)

    def _recreated(self, found: StreamInfo) -> str:
        return (
            f"stream {found.name!r} was deleted and created again while it was read: it was created at "
            f"{self._state.stream.created} (epoch milliseconds), the one there now at {found.created}. The positions "
            f"in ZooKeeper ({self._layout.base}) mean nothing in it: start with a new checkpointLocation"
        )

    def _mismatch(self, what: str, consequence: str) -> None:
        if self._options.on_checkpoint_mismatch == "stop":
            msg = f"{what}. {_CHOICES}"
            raise CheckpointMismatchError(msg)
        log.error("%s; going on (onCheckpointMismatch=continue): %s", what, consequence)

    def _raise_if_exhausted(self) -> None:
        for shard, runs in sorted(self._state.dead.items()):
            run = runs[0]
            reason = run.failures[-1].reason if run.failures else "unknown"
            msg = (
                f"stream {self._state.stream.name!r}, shard {shard}, record {run.first or run.last}: failed "
                f"{run.attempt} times (retryLimit {self._options.retry_limit}), last: {reason}. onExhausted=fail "
                "stops the query here: set deadLetter, or onExhausted=skip, or mend the cause and put the record "
                f"back with `kinesis-trident dead-letters {self._options.application_name} replay`"
            )
            raise ExhaustedError(msg)

    def _tasks(self, plan: Plan, *, replay: bool) -> list[TurnsPartition]:
        turns = [
            ShardTurn(
                shard=shard,
                index=index,
                start=plan.positions[shard],
                read=shard in plan.read,
                due=tuple(merged_due(plan, shard)),
            )
            for index, shard in enumerate(plan.shards)
        ]
        return [
            TurnsPartition(
                options=self._options,
                layout=self._layout,
                stream=self._state.stream.name,
                txid=plan.txid,
                plan=plan.plan,
                epoch=self._epoch,
                limit=plan.limit,
                replay=replay,
                turns=part,
            )
            for part in tasks_for(turns, self._options.shards_per_task, self._options.max_partitions)
        ]

    def _on_epoch_moved(self) -> None:
        self._replaced = True
        self._wake.set()
        self._leave()
        if self._ends_when_replaced:
            self._on_replaced()

    def _on_request(self) -> None:
        self._requested = True
        self._wake.set()

    def _on_stop_asked(self, request: StopNode | None) -> None:
        self._stop_asked = request is not None and request.epoch == self._epoch
        if self._stop_asked:
            self._ends_when_replaced = True
            self._wake.set()
        elif self._ends_when_replaced:
            # In a thread of its own, because this one is kazoo's.
            self._client.handler.spawn(self._on_stop_withdrawn)

    def _on_stop_withdrawn(self) -> None:
        """Forget a request that was withdrawn before the epoch moved: a later takeover is none of its doing."""
        with suppress(CheckpointError):
            self._store.check_epoch(self._epoch)
            self._ends_when_replaced = self._stop_asked

    def _raise_if_replaced(self) -> None:
        if self._replaced:
            self._store.check_epoch(self._epoch)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call of Spark's: the run is busy, and a newer run that shows itself ends it with an error."""
        with self._busy:
            if self._closed_for is not None:
                try:
                    self._note_takeover()
                except CheckpointError as trouble:
                    log.warning("cannot leave a note of the takeover: %s", trouble)
                raise self._closed_for
            try:
                yield
            except FencedError as error:
                self._closed_for = error
                try:
                    self._store.report_fenced(self._epoch)
                except CheckpointError as trouble:
                    log.warning("cannot leave a note of the takeover: %s", trouble)
                self.close()
                raise
        self._leave_if_replaced()

    def _leave_if_replaced(self) -> None:
        """A newer run that showed itself during a call, perhaps the last one: nothing else would end the session."""
        if self._replaced:
            self._leave()

    def _leave(self) -> None:
        """Give the session up at once if Spark is not in a call; a later call gets the error."""
        if self._busy.acquire(blocking=False):
            try:
                if self._closed_for is None:
                    self._store.check_epoch(self._epoch)
            except FencedError as error:
                self._closed_for = error
                self.close()
            finally:
                self._busy.release()

    def _note_takeover(self) -> None:
        """Leave the note that a run still in use had to stop, through a connection of its own."""
        client = connect(self._options.zookeeper)
        try:
            SourceStore(client, self._layout).report_fenced(self._epoch)
        finally:
            client.stop()
            client.close()


def tasks_for(
    turns: Sequence[ShardTurn], shards_per_task: int | None, max_partitions: int | None
) -> list[list[ShardTurn]]:
    """Cut a batch's turns into tasks, evenly, in order.

    By default a task serves one shard up to 8 shards in all, then more, and 5 from 40 shards on: few shards use
    all cores, many do not flood the scheduler.
    """
    if not turns:
        return []
    per_task = shards_per_task or min(5, -(-len(turns) // 8))
    tasks = -(-len(turns) // per_task)
    if max_partitions is not None:
        tasks = min(tasks, max_partitions)
    return [list(turns[i::tasks]) for i in range(tasks)]
