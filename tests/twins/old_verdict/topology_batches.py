"""Copies of what Trident did with the records of a batch that are not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from twins.old_verdict.outcomes import NotDoneByShard

from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.common.arrow_columns import numbers, repeated, values_of
from kinesis_trident.tracker.position_keys import KeyRanges, keys_of
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.runs import Runs


@dataclass(frozen=True)
class OutcomeFilter:
    """An outcome as the operators on the source's rows apply it: `not_done`, by shard, are the excluded records."""

    not_done: Mapping[str, Sequence[Run | NotDone]]

    @cached_property
    def _excluded(self) -> dict[str, KeyRanges]:
        return {shard: KeyRanges(pieces) for shard, pieces in self.not_done.items() if pieces}

    def find_excluded(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the rows of a batch that the verdict excludes, as booleans. Reads no column if it excludes none."""
        out = np.zeros(batch.num_rows, dtype=bool)
        if not self._excluded:
            return out
        sequence, sub = batch.column("sequenceNumber"), values_of(batch.column("subSequenceNumber"))
        for name, excluded in self._excluded.items():
            # `checkpoint.model.layout` names the shards of several streams `stream@created/shardId`.
            home, _, shard = name.rpartition("/")
            inside = pc.equal(batch.column("shardId"), repeated(shard, batch.num_rows))
            if home:
                inside = pc.and_(
                    inside, pc.equal(batch.column("stream"), repeated(home.partition("@")[0], batch.num_rows))
                )
            rows = np.flatnonzero(values_of(inside))
            if len(rows):
                out[rows] = excluded.cover(keys_of(sequence.take(numbers(rows)).to_pylist(), sub[rows]))
        return out


def join(failed: NotDoneByShard, more: NotDoneByShard) -> NotDoneByShard:
    """Return both, in the order of the shard; they have no common record."""
    shards = sorted({*failed, *more})
    return {shard: tuple(Runs.sort([*failed.get(shard, ()), *more.get(shard, ())])) for shard in shards}


def spans(not_done: Mapping[str, Sequence[Run | NotDone]]) -> dict[str, list[tuple[str, str]]]:
    return {
        shard: [(piece.first, piece.last) for piece in pieces] for shard, pieces in not_done.items() if pieces
    }
