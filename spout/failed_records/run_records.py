"""The records found for runs: few slices of batches and a count a run, however many runs there are. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinesis_trident.spout.kinesis.record_batches import Slice


class RunRecords:
    """The records of runs, in the order of the runs.

    Half of a shard's records can come back, and each is a run of its own then: nothing here takes a step for each run.

    Args:
        slices: the records of all runs.
        counts: how many of them each run has; -1 for a run that was not reached, whose records are unknown.
    """

    def __init__(self, slices: Sequence[Slice], counts: npt.NDArray[np.int64]) -> None:
        self.slices = slices
        self.counts = counts
        # Where each run, and each slice, ends among the records.
        self._runs = np.cumsum(np.maximum(counts, 0))
        self._slices = list(accumulate(one.num_rows for one in slices))

    @classmethod
    def none(cls, runs: int) -> RunRecords:
        """Return what there is of so many runs before any is reached."""
        return cls([], np.full(runs, -1, np.int64))

    @property
    def reached(self) -> npt.NDArray[np.bool_]:
        """Tell which runs were reached."""
        return self.counts >= 0

    def batches(self) -> list[pa.RecordBatch]:
        """Return all records."""
        return [one.records() for one in self.slices]

    def of(self, chosen: npt.NDArray[np.bool_]) -> RunRecords:
        """Return those of some of the runs, by a mask."""
        slices = [
            one
            for start, stop in _stretches(chosen)
            if chosen[start]
            for one in self._slice_between(start, stop)
        ]
        return RunRecords(slices, self.counts[chosen])

    def of_run(self, index: int) -> list[pa.RecordBatch]:
        """Return those of one run."""
        return [one.records() for one in self._slice_between(index, index + 1)]

    def replace_some(self, other: RunRecords, chosen: npt.NDArray[np.bool_]) -> RunRecords:
        """Return these records with those of the chosen runs taken from another's, which has the same runs."""
        slices = [
            one
            for start, stop in _stretches(chosen)
            for one in (other if chosen[start] else self)._slice_between(start, stop)
        ]
        return RunRecords(slices, np.where(chosen, other.counts, self.counts))

    def _slice_between(self, first: int, end: int) -> Iterator[Slice]:
        """Yield the records of neighbouring runs."""
        start, stop = (int(self._runs[run - 1]) if run else 0 for run in (first, end))
        at = bisect_right(self._slices, start)
        while start < stop:
            one, ends = self.slices[at], self._slices[at]
            upto = min(stop, ends)
            yield Slice(one.batch, one.start + one.num_rows - (ends - start), upto - start)
            start, at = upto, at + 1


def _stretches(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield where the stretches of equal values start and stop."""
    if len(mask):
        yield from pairwise([0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)])
