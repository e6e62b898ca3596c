"""Collects due retries of a shard into few ranges, and picks the records of each run out of a range's pages. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinesis_trident.common.arrow_columns import spread, values_of
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis.aggregation import deaggregate_page
from kinesis_trident.spout.kinesis.record_batches import (
    Slice,
    compact,
    count_through,
    keys_in,
    position_at,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, Position
from kinesis_trident.tracker.position_keys import Keys, counts, find, key_of, keys_of, keys_of_texts
from kinesis_trident.tracker.records import RecordPosition, Run


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


_PARTS = 8
"""A gap of one such part of the whole is left out."""


def start_of(run: Run) -> Position:
    """Return the start position of a run: its first record, or directly after the record before it."""
    if run.first:
        return At(RecordPosition.parse(run.first))
    return After(RecordPosition.parse(run.prev)) if run.prev else TRIM_HORIZON


def gather(runs: Sequence[Run], ranges: int) -> list[range]:
    """Collect runs (sorted, disjoint) into at most `ranges` ranges of indexes, cut at the largest sequence gaps.

    A gap in sequence numbers is a gap in time, so this reads the fewest other records. A gap of less than an eighth of
    the whole is read too: another range takes two more calls, of which a shard allows five a second.

    Raises:
        ValueError: `ranges` is below 1.
    """
    if ranges < 1:
        msg = f"cannot collect runs into {ranges} ranges"
        raise ValueError(msg)
    if not runs:
        return []
    low, high = _begin_of(runs[0]), _end_of(runs[-1])
    # A gap of a part of the whole holds one of as many places, which are looked up: there may be very many runs.
    places = [low + -(-(high - low) * part // _PARTS) for part in range(_PARTS + 1)]
    before = {bisect_left(runs, place, key=_end_of) - 1 for place in places} - {-1}
    gaps = {index: _begin_of(runs[index + 1]) - _end_of(runs[index]) for index in before}
    wide = [index for index, gap in gaps.items() if gap * _PARTS >= high - low]
    widest = sorted(wide, key=lambda index: (-gaps[index], index))[: ranges - 1]
    cuts = [0, *(index + 1 for index in sorted(widest)), len(runs)]
    return [range(start, stop) for start, stop in pairwise(cuts) if start < stop]


def _begin_of(run: Run) -> int:
    return RecordPosition.parse(run.first or run.prev or run.last).number


def _end_of(run: Run) -> int:
    return run.last_position.number


class Picker:
    """Picks the records of runs (sorted, disjoint) out of pages in shard order.

    Attributes:
        through: the last record that was offered, or a position known to be past it.
        strange: the runs of which a page has no record, though it has older ones: retention takes the oldest first, so
            the stream never had them.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.through: RecordPosition | None = None
        self._whole = np.array([run.count for run in runs], np.int64)
        self._bounds = _Bounds.of(runs)
        self._slices: list[Slice] = []
        self._counts = np.full(len(runs), -1, np.int64)
        self._next = 0
        self.strange: list[int] = []

    def offer(self, page: pa.RecordBatch, upto: RecordPosition | None = None) -> None:
        """Take the records of the runs out of the next page of the shard, of those up to a position."""
        batch = page if upto is None else page.slice(0, count_through(page, upto))
        if batch.num_rows == 0:
            return
        keys, begun = keys_in(batch), self._next
        starts, stops, ended = self._bounds.locate(keys, begun)
        sizes = np.maximum(stops - starts, 0)
        # One copy for all runs: that of a single record would take as long.
        taken = compact(batch, spread(starts, sizes))
        if taken.num_rows:
            self._slices.append(Slice(taken, 0, taken.num_rows))
        found = self._counts[begun : begun + len(sizes)]
        reached = sizes > 0
        reached[:ended] = True
        found[reached] = np.maximum(found[reached], 0) + sizes[reached]
        self._next += ended
        self.through = position_at(batch, -1)
        if upto is not None and batch.num_rows < page.num_rows:
            self.note_passed(upto)
        lacking = begun + np.flatnonzero(self._counts[begun : self._next] == 0)
        if len(lacking):
            self.strange += lacking[counts(self._bounds.lasts[lacking], keys[:1], through=True)[0] :].tolist()

    def note_passed(self, position: RecordPosition) -> None:
        """Note that everything up to `position` was offered: runs up to it that were not found have left the stream."""
        ended = int(counts(self._bounds.lasts[self._next :], key_of(position), through=True)[0])
        found = self._counts[self._next : self._next + ended]
        np.maximum(found, 0, out=found)
        self._next += ended
        self.through = position

    @property
    def records(self) -> RunRecords:
        """Return the records found so far."""
        return RunRecords(self._slices, self._counts)

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the runs that were read to their end without finding all their records."""
        ended = slice(self._next)
        return tuple(np.flatnonzero(self._counts[ended] < self._whole[ended]).tolist())


class _Bounds(NamedTuple):
    """The bounds of runs (sorted, disjoint) as keys: a run has the records from its first, or after another one.

    `froms`: its first record, where that is `known`; else the record before it, "" for a run at the head of the shard.
    """

    froms: Keys
    known: np.ndarray
    lasts: Keys

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Bounds:
        lasts = [run.last for run in runs]
        froms = [run.first or run.prev or before for run, before in zip(runs, ["", *lasts], strict=False)]
        # Before the first record of the shard there is none: what begins there begins with whatever is first.
        known = np.array(
            [bool(run.first) or not begins for run, begins in zip(runs, froms, strict=True)], np.bool_
        )
        keys = keys_of_texts(lasts)
        # Nearly every run is a single record.
        return cls(keys if froms == lasts else keys_of_texts(froms), known, keys)

    def locate(self, keys: Keys, index: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return where the records of runs begin and end among sorted keys, and how many of these runs end there.

        `index` is the first run; those that begin after the last key are left out.
        """
        froms, known, lasts = self.froms[index:], self.known[index:], self.lasts[index:]
        begun = int(counts(froms, keys[-1:], through=True)[0])
        froms, known, lasts = froms[:begun], known[:begun], lasts[:begun]
        starts = counts(keys, froms, through=True)
        starts[known] = counts(keys, froms[known], through=False)
        stops = counts(keys, lasts, through=True)
        return starts, stops, int(counts(lasts, keys[-1:], through=True)[0])


class DeaggregateChangedError(SpoutError):
    """Records to be read again were delivered under the other value of the option `deaggregate`."""


def check_runs(runs: Iterable[Run], where: str) -> None:
    """Check that runs can be read again without splitting aggregates.

    Raises:
        DeaggregateChangedError: one begins, or ends, with a user record of an aggregate.
    """
    for run in runs:
        for text in (run.first, run.last, run.prev):
            if text and RecordPosition.parse(text).sub >= 0:
                _refuse(where, text, was="true", now="false")


def check_whole(records: pa.RecordBatch, delivered: Sequence[str], where: str) -> None:
    """Check that no record that was delivered unsplit is now split.

    Args:
        records: the records read again, in the columns of `spout.kinesis.record_batches.RECORD_SCHEMA`.
        delivered: sorted positions of records delivered before, as text; those with a sub-sequence were split then too.
        where: stream and shard, for the error.

    Raises:
        DeaggregateChangedError: one is.
    """
    if not (values_of(records.column("subSequenceNumber")) >= 0).any():
        return
    # Very many runs may be read again, and few of them from one page.
    begin = bisect_left(delivered, position_at(records, 0).whole, key=_whole_of)
    end = bisect_right(delivered, position_at(records, -1).whole, key=_whole_of)
    plain = [text for text in delivered[begin:end] if ":" not in text]
    _, is_split = find(keys_in(records), keys_of(plain, 0))
    if is_split.any():
        _refuse(where, plain[int(is_split.argmax())], was="false", now="true")


def _whole_of(position: str) -> RecordPosition:
    return RecordPosition.parse(position).whole


def check_start(records: pa.RecordBatch, start: Position, where: str) -> None:
    """Check that a start is not inside of an aggregate that stays unsplit: what is left of it would be left out.

    Args:
        records: the first page from there on.
        start: a position.
        where: stream and shard, for the error.

    Raises:
        DeaggregateChangedError: it is.
    """
    if not isinstance(start, After | At) or start.record.sub < 0 or not records.num_rows:
        return
    if position_at(records, 0).whole != start.record.whole:
        return
    last = position_at(deaggregate_page(records.slice(0, 1)), -1)
    if last > start.record or (last == start.record and isinstance(start, At)):
        msg = (
            f"{where}: reading is to go on at {start}, inside of an aggregate, and deaggregate=false would leave out "
            f"the rest of it, up to {last}. Set deaggregate=true until the shard is past it"
        )
        raise DeaggregateChangedError(msg)


def _refuse(where: str, record: str, *, was: str, now: str) -> None:
    msg = (
        f"{where}: record {record} was delivered with deaggregate={was}, and would be delivered again with "
        f"deaggregate={now} as different rows. Set deaggregate={was} until no failed record waits and no batch is "
        "unfinished, then change it"
    )
    raise DeaggregateChangedError(msg)
