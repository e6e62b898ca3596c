"""The tracked operator: a generator over Arrow batches that runs in the executors and reports once, at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator

from bolt.errors import BatchFailedError
from bolt.functions import Step, chain
from bolt.reports import Reports, TurnLedger, anchors_of
from checkpoint.nodes import NotDone
from spout.rows import ANCHORS, MESSAGE_ID
from tracker.records import RecordPosition

__all__ = ["TrackedOperator", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A published outcome, as the operator of a replay applies it: it judges nothing again.

    `not_done` is by shard: the records left out. Everything else was good, so if it fails now, the batch fails.
    """

    not_done: Mapping[str, tuple[NotDone, ...]]

    def excluded(self, batch: pa.RecordBatch) -> np.ndarray:
        """Which rows of a batch the verdict leaves out, as booleans."""
        out = np.zeros(batch.num_rows, dtype=bool)
        shards = batch.column("shardId").dictionary_encode()
        sequence, sub = batch.column("sequenceNumber"), batch.column("subSequenceNumber")
        for index, shard in enumerate(shards.dictionary.to_pylist()):
            runs = [
                (RecordPosition.parse(piece.first), RecordPosition.parse(piece.last))
                for piece in self.not_done.get(shard, ())
            ]
            if not runs:
                continue
            rows = np.flatnonzero(shards.indices.to_numpy() == index)
            for row in rows.tolist():
                here = RecordPosition(int(sequence[row].as_py()), sub[row].as_py())
                out[row] = any(first <= here <= last for first, last in runs)
        return out


@dataclass(frozen=True, slots=True)
class TrackedOperator:
    """Runs steps over the source's rows; rows that fail do not come out, and are reported.

    `carry` names columns of the source that the output keeps beside the steps' schema. An operator that is not
    run to the end of its input reports nothing: nothing is acked whose operators did not run.
    """

    name: str
    steps: tuple[Step, ...]
    accumulator: Accumulator[Reports]
    carry: tuple[str, ...] = ()
    verdict: Verdict | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that succeeded."""
        ledger = TurnLedger(self.name)
        for batch in batches:
            if batch.num_rows:
                yield self._one(batch, ledger)
        self.accumulator.add(ledger.reports())

    def _one(self, batch: pa.RecordBatch, ledger: TurnLedger) -> pa.RecordBatch:
        roots, edges = anchors_of(batch, ANCHORS)
        taken = np.arange(batch.num_rows)
        if self.verdict is not None:
            taken = np.flatnonzero(~self.verdict.excluded(batch))
        given = batch if len(taken) == batch.num_rows else batch.take(pa.array(taken))
        judged = chain(self.steps, given)
        failed = {int(taken[row]): reason for row, reason in judged.failed.items()}
        if failed and self.verdict is not None:
            row, reason = min(failed.items())
            msg = (
                f"record {batch.column('messageId')[row]} failed in a replay of its batch ({reason}), but the "
                "batch's published outcome counts it as done: a store may hold it already. The batch is tried again"
            )
            raise BatchFailedError(msg)
        ledger.add(_txid(batch), roots, edges, batch.column(MESSAGE_ID), failed)
        if not self.steps:
            names = [name for name in batch.schema.names if name not in (*self.carry, ANCHORS)]
            return judged.rows.select([*names, *self.carry])
        if not self.carry:
            return judged.rows
        kept = pa.array(taken[judged.source])
        columns = [*judged.rows.columns, *(batch.column(name).take(kept) for name in self.carry)]
        names = [*judged.rows.schema.names, *self.carry]
        return pa.RecordBatch.from_arrays(columns, names=names)


def _txid(batch: pa.RecordBatch) -> int:
    return int(pc.min(batch.column("txid")).as_py())
