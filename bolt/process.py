"""What the driver does for each batch of a query: finds out which one it is, attempts it, publishes the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from bolt.batch import BatchInHand, open_store
from bolt.carrier import AccumulatorCarrier, Carrier
from bolt.errors import BatchFailedError, StaleBatchError
from bolt.report_nodes import NodeCarrier
from checkpoint.nodes import NotDone
from checkpoint.store import SourceStore
from spout.options import Options

__all__ = ["Attempt", "Process"]

log = logging.getLogger(__name__)

Attempt = Callable[["DataFrame", BatchInHand, "Process"], Mapping[str, tuple[NotDone, ...]] | None]
"""Processes a batch once: gives what is not done, by shard, to be published; None where nothing is, or it was."""


class Process:
    """A function for `foreachBatch`: each batch is attempted until it succeeds as a whole, at most a few times.

    Raises, when it is called:
        StaleBatchError: the rows in hand are of another run than the batch that ZooKeeper holds.
        BatchFailedError: the batch failed as a whole, `batch_retries` + 1 times.
    """

    def __init__(self, options: Options, attempt: Attempt, batch_retries: int) -> None:
        self._options = options
        self._attempt = attempt
        self._batch_retries = batch_retries

    @cached_property
    def _store(self) -> SourceStore:
        return open_store(self._options)

    @cached_property
    def carrier(self) -> Carrier:
        """How reports come to this driver; made when it is first needed."""
        if is_remote():
            return NodeCarrier(self._store, self._options.zookeeper)
        return AccumulatorCarrier()

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        """Process a batch of which these are the source's rows."""
        try:
            batch = BatchInHand.newest(self._store, self._options)
        except StaleBatchError as error:
            if not rows.isEmpty():
                raise
            # Skipped by onCheckpointMismatch=continue, or Spark saw that nothing of it is used. Another batch's txid
            # must not be given to `write` with no rows: it would replace with nothing what that batch wrote.
            log.warning("a batch without rows is not handed on: %s", error)
            return
        batch.say_judging()
        for left in range(self._batch_retries, -1, -1):
            try:
                not_done = self._attempt(rows, batch, self)
                if batch.verdict is None:
                    self.publish(batch, not_done or {})
            except (BatchFailedError, PythonException) as error:
                # An operator's error arrives as Spark's, with the name of ours in it.
                if not left or not (
                    isinstance(error, BatchFailedError) or BatchFailedError.__name__ in str(error)
                ):
                    raise
                log.warning("batch %d failed and is tried again (%d more): %s", batch.txid, left, error)
            else:
                return

    def publish(self, batch: BatchInHand, not_done: Mapping[str, Sequence[NotDone]]) -> None:
        """Publish the outcome of a batch, or adopt the one that was.

        Raises:
            BatchFailedError: records failed under `spout=transactional`.
        """
        if not_done and self._options.spout == "transactional":
            shard, pieces = next(iter(not_done.items()))
            msg = (
                f"batch {batch.txid}: {sum(p.count for runs in not_done.values() for p in runs)} records failed, the "
                f"first is {shard}:{pieces[0].first} ({pieces[0].reason}). spout=transactional fails the batch as a "
                "whole: mend the cause, or use spout=opaque, where failed records come back in later batches"
            )
            raise BatchFailedError(msg)
        batch.publish(not_done)
