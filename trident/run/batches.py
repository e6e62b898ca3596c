"""The driver's side of a topology: what it does with each batch of one spout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.bolt.foreach_batch import Process
from kinesis_trident.bolt.tracking.current_batch import BatchInHand
from kinesis_trident.bolt.tracking.operators import Verdict
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.trident.build.graph import Node, SpoutNode
from kinesis_trident.trident.run.attempt import Attempt, BatchFacts
from kinesis_trident.trident.run.frames import lost
from kinesis_trident.trident.run.tracked import Sections
from kinesis_trident.trident.state import ATTEMPT

__all__ = ["TopologyAttempts"]

_ATTEMPTS_A_RUN = 1 << 32

NotDoneByShard = Mapping[str, Sequence[NotDone]]


@dataclass(slots=True)
class TopologyAttempts:
    """Attempts each batch of one spout: decides about its records, publishes that, then updates the states.

    Args:
        spout: whose batches they are.
        nodes: all that is below it, in the order of declaration.
        partitions: of state updates and groupings that have no `parallelism_hint`.
    """

    spout: SpoutNode
    nodes: Sequence[Node]
    partitions: int
    _attempts: int = field(default=0, init=False)

    def __call__(self, rows: DataFrame, batch: BatchInHand, process: Process) -> None:
        """One attempt. The outcome is published before the first state is touched, so there is nothing to return.

        Raises:
            BatchFailedError: records failed under `spout=transactional`, or an executor took rows that it held
            with it.
        """
        try:
            attempt = self._judged(rows, batch, process)
            try:
                attempt.apply(self.nodes)
            finally:
                attempt.release()
        except Exception as error:
            if lost(error):
                msg = (
                    f"batch {batch.txid}: an executor is lost, and rows that it held; the batch is read again"
                )
                raise BatchFailedError(msg) from error
            raise

    def _judged(self, rows: DataFrame, batch: BatchInHand, process: Process) -> Attempt:
        """Run what is tracked until nothing more fails, and publish the verdict, or adopt the one there is.

        Raises:
            BatchFailedError: records failed under `spout=transactional`.
        """
        failed: NotDoneByShard = {}
        while True:
            excluded = Verdict({shard: tuple(pieces) for shard, pieces in failed.items()})
            tracking = Tracking(rows, batch, process.carrier, excluded)
            facts = self._facts(batch)
            attempt = Attempt({self.spout: rows}, facts, Sections(tracking, facts.conf, facts.partitions))
            try:
                attempt.judge(self.nodes)
                if tracking.final:
                    return attempt
                more = tracking.not_done()
                if not more:
                    process.publish(batch, failed)
                    adopted = batch.verdict
                    if adopted is not None and _spans(adopted.not_done) == _spans(failed):
                        return attempt
                failed = _joined(failed, more)
            except BaseException:
                attempt.release()
                raise
            attempt.release()

    def _facts(self, batch: BatchInHand) -> BatchFacts:
        assert self.spout.options is not None
        self._attempts += 1
        conf = {
            "trident.application": self.spout.options.application_name,
            "trident.stream": self.spout.name,
            # Rises with each attempt, and from one run to the next.
            ATTEMPT: batch.epoch * _ATTEMPTS_A_RUN + self._attempts,
        }
        return BatchFacts(batch.txid, conf, self.partitions)


def _joined(failed: NotDoneByShard, more: NotDoneByShard) -> NotDoneByShard:
    """Both, in the order of the shard; they have no record in common."""
    return {
        shard: sorted(
            [*failed.get(shard, ()), *more.get(shard, ())], key=lambda piece: RecordPosition.parse(piece.last)
        )
        for shard in sorted({*failed, *more})
    }


def _spans(not_done: NotDoneByShard) -> dict[str, list[tuple[str, str]]]:
    return {
        shard: [(piece.first, piece.last) for piece in pieces] for shard, pieces in not_done.items() if pieces
    }
