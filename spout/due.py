"""Due records of one shard, taken up again: from the spool where they are kept, else from the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spout.fetch import DueTurn
from spout.spool import RetrySpool
from tracker.records import RecordPosition, Run

__all__ = ["DueRecords", "take_up"]


@dataclass(frozen=True, slots=True)
class DueRecords:
    """What was found of due runs.

    Attributes:
        batches: the records of each run that was reached, by its index.
        missing: the indexes of runs that lack records: those have left the stream.
        through: everything up to here was looked at in the stream; None when it was not read.
        fetched: the runs whose records came from the stream.
    """

    batches: dict[int, list[pa.RecordBatch]]
    missing: tuple[int, ...]
    through: RecordPosition | None
    fetched: tuple[int, ...]

    def served(self, index: int) -> int:
        """How many records of a run were found; -1 where it was not reached."""
        return _count(self.batches[index]) if index in self.batches else -1


def take_up(
    runs: Sequence[Run], fetch: Callable[[Sequence[Run]], DueTurn], spool: RetrySpool | None, shard: str
) -> DueRecords:
    """Find the records of runs (sorted, disjoint); `fetch` reads from the stream what the spool does not have whole.

    Raises:
        KinesisError, DeaggregateChangedError: as `ShardFetcher.fetch_due`.
    """
    kept = spool.get(shard, runs) if spool is not None and runs else {}
    whole = {index for index, batches in kept.items() if _count(batches) == runs[index].count}
    rest = [index for index in range(len(runs)) if index not in whole]
    turn = fetch([runs[index] for index in rest])
    batches = {index: kept[index] for index in whole}
    fetched = []
    for index, segment in zip(rest, turn.segments, strict=False):
        # Of what has left the stream meanwhile the spool may have kept more.
        if _count(kept.get(index, [])) > _count(segment):
            batches[index] = kept[index]
        else:
            batches[index] = segment
            fetched.append(index)
    return DueRecords(batches, tuple(rest[index] for index in turn.missing), turn.through, tuple(fetched))


def _count(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)
