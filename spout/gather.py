"""Due retries of a shard gathered into few ranges, and the records of each run picked out of a range's pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from spout.positions import TRIM_HORIZON, After, At, Position
from spout.slices import compact, count_from, count_through, position_at
from tracker.records import RecordPosition, Run

__all__ = ["Picker", "gather", "start_of"]


def start_of(run: Run) -> Position:
    """Where the reading of a run begins: at its first record, or right after the one before it."""
    if run.first:
        return At(RecordPosition.parse(run.first))
    return After(RecordPosition.parse(run.prev)) if run.prev else TRIM_HORIZON


def gather(runs: Sequence[Run], ranges: int) -> list[range]:
    """Gather runs (sorted, disjoint) into at most `ranges` ranges of indexes, cut at the largest sequence gaps.

    A gap in sequence numbers is a gap in time, so the fewest foreign records are read.

    Raises:
        ValueError: `ranges` is below 1.
    """
    if ranges < 1:
        msg = f"cannot gather into {ranges} ranges"
        raise ValueError(msg)
    gaps = [_begins(after) - before.last_position.sequence for before, after in pairwise(runs)]
    widest = sorted(range(len(gaps)), key=lambda index: (-gaps[index], index))[: ranges - 1]
    cuts = [0, *(index + 1 for index in sorted(widest)), len(runs)]
    return [range(start, stop) for start, stop in pairwise(cuts) if start < stop]


def _begins(run: Run) -> int:
    known = run.first or run.prev or run.last
    return RecordPosition.parse(known).sequence


@dataclass(slots=True)
class Picker:
    """Picks the records of runs (sorted, disjoint) out of pages that come in shard order.

    Attributes:
        segments: the records of each run that was reached so far, one list of batches a run.
        served: how many records each of these has.
        through: the last record looked at, or what is known to be past it.
    """

    runs: Sequence[Run]
    segments: list[list[pa.RecordBatch]] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    through: RecordPosition | None = None
    _next: int = 0

    def offer(self, batch: pa.RecordBatch) -> None:
        """Take what belongs to the runs out of the next records of the shard."""
        if batch.num_rows == 0:
            return
        last = position_at(batch, -1)
        while self._next < len(self.runs):
            run = self.runs[self._next]
            start, stop = self._start(run, batch), count_through(batch, run.last_position)
            if start < stop:
                self._reach(self._next)
                self.segments[self._next].append(compact(batch, start, stop))
                self.served[self._next] += stop - start
            if run.last_position > last:
                break
            self._reach(self._next)
            self._next += 1
        self.through = last

    def passed(self, position: RecordPosition) -> None:
        """Everything offered so far and up to `position` was looked at: runs up to it that were not found are gone."""
        while self._next < len(self.runs) and self.runs[self._next].last_position <= position:
            self._reach(self._next)
            self._next += 1
        self.through = position

    @property
    def missing(self) -> tuple[int, ...]:
        """The runs that were read to their end without finding all their records."""
        return tuple(index for index in range(self._next) if self.served[index] < self.runs[index].count)

    def _reach(self, index: int) -> None:
        if index == len(self.segments):
            self.segments.append([])
            self.served.append(0)

    def _start(self, run: Run, batch: pa.RecordBatch) -> int:
        if run.first:
            return count_from(batch, RecordPosition.parse(run.first))
        if run.prev:
            return count_through(batch, RecordPosition.parse(run.prev))
        return count_through(batch, self.runs[self._next - 1].last_position) if self._next else 0
