"""Handles each batch of a query in the driver: identifies it, attempts it, and publishes the outcome."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.cancelling import cancelling, is_cancelled, wait_in_batch
from kinesis_trident.bolt.errors import (
    BatchFailedError,
    FailedShareError,
    OperatorError,
    StaleBatchError,
    TargetAwayError,
    WorkerDiedError,
)
from kinesis_trident.bolt.failed_share import FailedShare
from kinesis_trident.bolt.steps.time_zones import SETTING, known_zone
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier, Carrier, NodeCarrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch, open_store
from kinesis_trident.bolt.tracking.failed import Failed, unite
from kinesis_trident.bolt.tracking.isolation import has_worker_died
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.errors import CheckpointError, FencedError
from kinesis_trident.checkpoint.model.run_status import FailingNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.visible_text import count_noun, make_reason
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.ids import tag_of
from kinesis_trident.tracker.retry import Backoff

log = logging.getLogger(__name__)

Attempt = Callable[["DataFrame", CurrentBatch, "BatchHandler"], Verdict | None]
"""Processes a batch once; returns the records that are not done, or None if nothing is to be published."""

Isolate = Callable[["DataFrame", CurrentBatch, Carrier], Tracking]
"""Runs the operators of a batch with `isolating`, without sinks and states; returns what tracked them."""

_MOST_ISOLATIONS = 3
"""Records that end a worker can hide others: those of a later operator, or of the same task."""


class BatchHandler:
    """A function for `foreachBatch`: it attempts each batch until it succeeds as a whole, at most a few times.

    The batch is the newest that ZooKeeper holds. The first row shows, once an epoch, that it is the one whose rows
    Spark passes: a driver that was paused through a takeover finds the newer run's batch there, and must not write
    under its txid. From then on a batch of the same epoch is of the same run, which has one at a time.

    Raises, when it is called:
        StaleBatchError: the current rows are of another run than the batch that ZooKeeper holds.
        FencedError: a newer run has taken over; nothing was written.
        BatchFailedError: the batch failed as a whole, `batch_retries` + 1 times.
        WorkerDiedError: Python workers ended again and again, and no record ends one when it is alone.

    Args:
        options: of the source.
        attempt: processes a batch.
        batch_retries: the number of further attempts at a batch that fails as a whole.
        isolate: finds the records that end the worker that processes them, if a batch ended workers twice; these
            fail with the reason WORKER_DIED, or TIMED_OUT. None: no functions are run record by record.
        may_skip: `attempt` need not take all rows, and those that it takes count as done: the rows of the look at the
            first one are not among them.
        carrier: brings reports to this process; None for that of Spark's session, or of ZooKeeper under Spark Connect.
        sleep: waits before a batch is tried again of which more failed than `maxFailedShare`.
    """

    def __init__(
        self,
        options: SourceOptions,
        attempt: Attempt,
        batch_retries: int,
        *,
        isolate: Isolate | None = None,
        may_skip: bool = False,
        carrier: Carrier | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.options = options
        self._attempt = attempt
        self._batch_retries = batch_retries
        self._isolate = isolate
        self._may_skip = may_skip
        self._opened: SourceStore | None = None
        self._carrier = carrier
        self._epoch: int | None = None
        self._sleep = sleep
        self._small = FailedShare()
        self._failing: int | None = None

    @property
    def _store(self) -> SourceStore:
        if self._opened is None:
            self._opened = open_store(self.options)
        return self._opened

    @property
    def carrier(self) -> Carrier:
        """The carrier that brings reports to this driver; made when first needed."""
        if self._carrier is None:
            self._carrier = (
                NodeCarrier(self._store, self.options.zookeeper) if is_remote() else AccumulatorCarrier()
            )
        return self._carrier

    @property
    def counts_all(self) -> bool:
        """True if a batch of which no record has failed counts too: for a share, or as the end of failures."""
        return self.options.max_failed_share is not None or self._failing is not None

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        """Process the batch of these rows of the source."""
        with cancelling(rows):
            batch = self._batch_of(rows)
            if batch is None:
                return
            try:
                self.process(rows, batch)
            except Exception as error:
                if not is_cancelled(rows, error):
                    self._note_failure(batch, error)
                raise

    def _note_failure(self, batch: CurrentBatch, error: Exception) -> None:
        """Note that the run ends by this error: its planning process does not learn of it."""
        with suppress(CheckpointError):
            self._store.ends.note(batch.epoch, "failed", int(time.time() * 1000), why_of(error))

    def process(self, rows: DataFrame, batch: CurrentBatch) -> None:
        """Attempt a batch until it succeeds as a whole."""
        batch.say_judging()
        failed = died = 0
        while True:
            # The driver may have been paused since it read the batch: a run that was replaced writes nothing.
            batch.check_epoch()
            try:
                verdict = self._attempt(rows, batch, self)
                if batch.verdict is None:
                    # One that names no record is false, and still counts those that are done.
                    self.publish(batch, Verdict() if verdict is None else verdict)
            except Exception as error:
                if self._isolate is not None and has_worker_died(error):
                    died += 1
                    self._isolate_deadly(rows, batch, died, error)
                elif failed < self._batch_retries and _has_batch_failed(error):
                    failed += 1
                    log.warning(
                        "batch %d failed and is tried again (%d more attempts): %s",
                        batch.txid,
                        self._batch_retries - failed,
                        error,
                    )
                    if isinstance(error, FailedShareError):
                        delay = Backoff.parse(self.options.retry_backoff).bound(failed)
                        wait_in_batch(random.uniform(0.5, 1) * delay / 1000, self._sleep)
                else:
                    if _has_batch_failed(error):
                        error.add_note(
                            f"Batch {batch.txid} has failed in {count_noun(failed + 1, 'attempt')} (batch_retries="
                            f"{self._batch_retries}). Fix the cause, and start the query again: it reads the batch "
                            "again"
                        )
                    raise
            else:
                return

    def _isolate_deadly(self, rows: DataFrame, batch: CurrentBatch, died: int, error: Exception) -> None:
        """Find out which records end their worker; the first time it may have been anything, such as memory.

        With `recordTimeout` the first time is looked into too: to try again might take as long again.

        Raises:
            WorkerDiedError: none does.
        """
        assert self._isolate is not None
        found: Mapping[int, Failed] = {}
        if (died > 1 or self.options.record_timeout is not None) and died <= _MOST_ISOLATIONS + 1:
            log.warning(
                "batch %d ended a Python worker: looking for the record, in child processes", batch.txid
            )
            found = self._isolate(rows, batch, self.carrier).deadly()
        if not found and died == 1:
            log.warning("batch %d ended a Python worker and is tried again", batch.txid)
            return
        if not found:
            others = " other" if batch.deadly else ""
            msg = (
                f"batch {batch.txid}: Python workers ended {count_noun(died, 'time')}, and no single{others} record "
                "ends one by itself. They may run out of memory: lower maxFetchRecordsPerShard or raise the executors' "
                "memory, and start the query again, which reads the batch again. None of its records is acked"
            )
            raise WorkerDiedError(msg) from error
        batch.deadly = unite(batch.deadly, found)
        count = sum(some.count for some in found.values())
        log.warning(
            "batch %d: %d records end the Python worker that processes them; they fail with %s",
            batch.txid,
            count,
            " and ".join(
                sorted({str(one).partition(":")[0] for some in found.values() for one in some.failures})
            ),
        )

    def _batch_of(self, rows: DataFrame) -> CurrentBatch | None:
        """Return the batch of these rows; None for a batch of Spark without any work for us.

        There is none in batch 0 of a new Spark checkpoint if nothing is to be read, in a settled batch that
        `onCheckpointMismatch=continue` skips, and if Spark sees that it has no rows. `write` must not get another
        batch's txid without rows then: it would replace that batch's output with nothing.
        """
        try:
            batch = self._newest()
        except StaleBatchError as error:
            if not rows.isEmpty():
                raise
            log.debug("a batch without rows is skipped: %s", error)
            return None
        if batch.epoch == self._epoch:
            return batch
        with suppress(FencedError):
            # Before the first job: turns that it reads must not count as those of a plain query.
            batch.say_judging()
        is_ours = False
        try:
            is_ours = self._is_of(rows, batch)
        finally:
            if not is_ours:
                # The newer run may be of a plain query.
                batch.take_back_judging()
        return batch if is_ours else None

    def _is_of(self, rows: DataFrame, batch: CurrentBatch) -> bool:
        """Return whether the current rows are of this batch; there may be none."""
        # This read comes after that of the batch, so a task of a run that was replaced before fails with FencedError.
        root = F.col(ANCHORS)[0]["root"] if ANCHORS in rows.columns else F.lit(None)
        before = batch.pins() if self._may_skip else {}
        first = rows.select(root.alias("root")).head()
        if first is None:
            newest = self._store.epochs.newest_run()
            return batch.is_empty() and newest is not None and newest[0] == batch.epoch
        if first.root is not None and int(tag_of(np.array([first.root]))[0]) != batch.tag:
            msg = (
                f"the newest batch in ZooKeeper is txid {batch.txid} of epoch {batch.epoch}, and the current rows were "
                "read by another run: this driver was paused, and a newer run has taken over meanwhile. Nothing was "
                "written: start the query again"
            )
            raise StaleBatchError(msg)
        if self._may_skip:
            batch.unpin(before)
        self._epoch = batch.epoch
        return True

    def _newest(self) -> CurrentBatch:
        """Read the newest batch in the current home of the stream: a recreated stream has another home."""
        try:
            return CurrentBatch.newest(self._store, self.options)
        except StaleBatchError:
            again = open_store(self.options)
            if again.layout == self._store.layout:
                raise
            self._opened, self._carrier = again, None
            return CurrentBatch.newest(again, self.options)

    def publish(self, batch: CurrentBatch, verdict: Verdict) -> None:
        """Publish the outcome of a batch, or adopt the published one.

        Raises:
            BatchFailedError: records failed under `spout=transactional`.
            FailedShareError: more of them than `maxFailedShare`.
        """
        verdict = verdict.limited()
        if verdict and self.options.spout == "transactional":
            shard, pieces = next(iter(verdict.not_done.items()))
            count = sum(p.count for runs in verdict.not_done.values() for p in runs)
            msg = (
                f"batch {batch.txid}: {count_noun(count, 'record')} failed, "
                f"the first is {batch.first_of(shard, pieces[0])} ({pieces[0].reason}). spout=transactional fails the "
                "batch as a whole. Fix the cause, or use spout=opaque, where failed records come back in later "
                "batches"
            )
            raise BatchFailedError(msg)
        share = self._small.add(batch.share_of(verdict))
        is_refused = share.exceeds(self.options.max_failed_share)
        self._note_share(batch, share, is_refused=is_refused)
        if is_refused:
            msg = (
                f"batch {batch.txid}: {share.failed:,} of {share.records:,} new records failed, more than "
                f"maxFailedShare={self.options.max_failed_share:g} allows, most often with {share.reason}. The batch "
                "fails as a whole, and no record has used up a delivery: mend what they fail at"
            )
            raise FailedShareError(msg)
        batch.publish(verdict)
        self._small = FailedShare() if share.shows else share

    def _note_share(self, batch: CurrentBatch, share: FailedShare, *, is_refused: bool) -> None:
        """Note that most new records fail, for people to see, and later that they do no more."""
        is_failing = is_refused or share.is_alike
        if not is_failing and (self._failing != batch.epoch or not share.shows):
            return
        node = FailingNode(epoch=batch.epoch, txid=batch.txid, at=int(time.time() * 1000))
        if is_failing:
            node = msgspec.structs.replace(
                node,
                records=share.records,
                failed=share.failed,
                same=share.same,
                reason=share.reason,
                whole=is_refused,
            )
        with suppress(CheckpointError):
            batch.note_failing(node)
            self._failing = batch.epoch if is_failing else None


def why_of(error: Exception) -> str:
    """Return the class and the first sentence of an error."""
    # Before the error of the JVM, Py4J says only which call has raised it.
    text = re.sub(r"\AAn error occurred while calling .*\n: ", "", str(error))
    sentence = next((line for line in text.splitlines() if line.strip()), "")
    return make_reason(f"{type(error).__name__}: {sentence}")


def _has_batch_failed(error: Exception) -> bool:
    # A task's error arrives as Spark's error, with the name of our class in it.
    return isinstance(error, BatchFailedError) or (
        isinstance(error, PythonException)
        and any(kind.__name__ in str(error) for kind in (BatchFailedError, TargetAwayError))
    )


def start_query(
    stream: DataFrame,
    process: Callable[[DataFrame, int], None],
    *,
    checkpointLocation: str,
    queryName: str | None,
    trigger: Mapping[str, Any] | None,
) -> StreamingQuery:
    """Start the query that passes each batch of `stream` to `process`; None leaves the choice to Spark.

    Args:
        stream: reads `kinesis-trident`, or anything else that `process` takes.
        process: processes each batch.
        checkpointLocation: the folder of Spark's checkpoint.
        queryName: a name, unique among the running queries of the session.
        trigger: the arguments of `DataStreamWriter.trigger`.

    Raises:
        OperatorError: the trigger runs no micro-batches; or Python does not know the session's time zone.
    """
    for mode in ("realTime", "continuous"):
        if (trigger or {}).get(mode) is not None:
            msg = (
                f"trigger({mode}={(trigger or {})[mode]!r}) runs no micro-batches, but batches are what is acked, "
                "replayed and checkpointed here. Use processingTime or availableNow, or no trigger: a batch begins as "
                "soon as there are records"
            )
            raise OperatorError(msg)
    known_zone(str(stream.sparkSession.conf.get(SETTING)))
    writer = stream.writeStream.foreachBatch(process).option("checkpointLocation", checkpointLocation)
    if queryName is not None:
        writer = writer.queryName(queryName)
    if trigger == {"availableNow": True} and isinstance(process, BatchHandler):
        from kinesis_trident.spout.engines import find_protocol
        from kinesis_trident.spout.graceful_stop import stop_when_drained

        if find_protocol() == "4.0":
            query = writer.start()
            stop_when_drained(query, process.options)
            return query
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()
