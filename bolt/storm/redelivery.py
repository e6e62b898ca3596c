"""Records that come again to a topology: their attempt, and the branches of their trees that are done already.

A record that a bolt holds comes again with the next batch. Only the bolts on the way to the one that holds it, this
bolt, and what is below it then run again for the record: all other branches of its tree are done. The driver keeps
that from one batch to the next; after a new start, and for a new attempt, all of them run.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.tracking.batch_run import BatchRun
from kinesis_trident.bolt.tracking.verdict import find_rows, ranges_of
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.common.arrow_columns import numbers, values_of
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import RecordPosition, Run

DELIVERY = "__delivery"
"""The column with the number of a tuple's delivery among those of the batch; 0, or null, for new records."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A further delivery of records: its attempt, and the bolts that hold them; none if all bolts run again."""

    attempt: int
    bolts: frozenset[str] = frozenset()


_Held = Mapping[str, Sequence[tuple[Delivery, NotDone]]]
_Known = Sequence[tuple[Delivery, Mapping[str, Sequence[Run | NotDone]]]]


@dataclass(frozen=True, slots=True)
class MarkDeliveries:
    """An operator on the source's rows that adds the column `DELIVERY`. `known`: records by their delivery."""

    known: _Known

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the column: of several deliveries of a record the first counts."""
        known = [(delivery.attempt, ranges_of(records)) for delivery, records in self.known]
        for batch in batches:
            marks = np.zeros(batch.num_rows, np.int32)
            attempts = values_of(batch.column("attempt"))
            for number, (attempt, ranges) in enumerate(known, 1):
                here = find_rows(batch, ranges) & (attempts == attempt)
                marks[here & (marks == 0)] = number
            yield batch.append_column(DELIVERY, numbers(marks))


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The further deliveries in a batch, by the numbers in the column `DELIVERY`, for one bolt.

    `below`: the bolt and all components below it.
    """

    known: Sequence[Delivery]
    bolt: str
    below: Collection[str]

    def marks_in(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the number of each row's delivery."""
        if DELIVERY not in batch.schema.names:
            return np.zeros(batch.num_rows, np.int32)
        column: pa.Array = batch.column(DELIVERY)
        return (
            np.where(values_of(column.is_valid()), values_of(column), 0)
            if column.null_count
            else values_of(column)
        )

    def is_done(self, mark: int) -> bool:
        """Return whether the bolt has done its part for the records of a delivery."""
        bolts = self.known[mark - 1].bolts if mark else None
        return bool(bolts) and bolts.isdisjoint(self.below)  # type: ignore[union-attr]

    def emitted(self, marks: Iterable[int]) -> int:
        """Return the mark of a tuple that is emitted for tuples with these: what a holder emits is new."""
        first, *others = {int(mark) for mark in marks} or {0}
        if others or not first or self.bolt not in self.known[first - 1].bolts:
            return 0 if others else first
        return self.known.index(Delivery(self.known[first - 1].attempt)) + 1


@dataclass(slots=True)
class Holds:
    """The records that bolts of one query hold, from one batch to the next; in the driver."""

    _held: _Held = field(default_factory=dict)

    def known_in(
        self, run: BatchRun, again: Mapping[str, Sequence[Run]], components: Collection[str]
    ) -> _Known:
        """Return the deliveries of a batch, each with its records: those that are held first.

        `again`: the runs of records that the batch delivers again. What a further attempt at a batch finds is what the
        first one found.
        """
        held = self._held_before(run)
        found: dict[Delivery, dict[str, list[Run | NotDone]]] = {}
        for shard in again:
            for delivery, piece in held.get(shard, ()):
                if delivery.bolts <= set(components):
                    found.setdefault(delivery, {}).setdefault(shard, []).append(piece)
        for shard, runs in again.items():
            for one in runs:
                found.setdefault(Delivery(one.attempt + 1), {}).setdefault(shard, []).append(one)
        for delivery in list(found):
            found.setdefault(Delivery(delivery.attempt), {})
        return list(found.items())

    def note(
        self, run: BatchRun, again: Mapping[str, Sequence[Run]], not_done: Mapping[str, Iterable[NotDone]]
    ) -> None:
        """Note which records bolts hold after a batch, for the next one: also those that this one had no room for."""
        before = self._held_before(run)
        held: dict[str, list[tuple[Delivery, NotDone]]] = {}
        for shard in {*not_done, *before}:
            runs = sorted(
                (RecordPosition.parse(one.first or one.last), one.last_position, one.attempt + 1)
                for one in again.get(shard, ())
            )
            kept = [one for one in before.get(shard, ()) if _attempt_of(one[1], runs) is None]
            for piece in not_done.get(shard, ()):
                failure = piece.failure
                if failure.kind is Kind.HELD and failure.where and piece.first:
                    kept.append((Delivery(_attempt_of(piece, runs) or 1, frozenset(failure.where)), piece))
            if kept:
                held[shard] = kept
        self._held = held

    def _held_before(self, run: BatchRun) -> _Held:
        """Return what was held before the batch: what an attempt at it has noted is for the next one."""
        return run.once("held", lambda: self._held)


def _attempt_of(piece: NotDone, runs: Sequence[tuple[RecordPosition, RecordPosition, int]]) -> int | None:
    """Return the attempt of the first of sorted runs that has records of a piece; None if none has."""
    at = bisect_left(runs, RecordPosition.parse(piece.first or piece.last), key=operator.itemgetter(1))
    return runs[at][2] if at < len(runs) and runs[at][0] <= RecordPosition.parse(piece.last) else None
