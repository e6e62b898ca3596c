"""The records of a batch that are not done: one value from operators, sinks and topologies to the stored outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.bolt.errors import NotOfThisBatchError
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Pin, Plan
from kinesis_trident.common.arrow_columns import booleans, numbers, repeated, values_of
from kinesis_trident.spout.positions import After, At, parse_position
from kinesis_trident.tracker.failure import Failure, text_of
from kinesis_trident.tracker.few_failures import Few
from kinesis_trident.tracker.position_keys import KeyRanges, keys_of
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.runs import Runs, cut


@dataclass(frozen=True)
class Verdict:
    """The records of a batch that are not done; all others are.

    Attributes:
        not_done: they, by shard.
        fresh: the number of new records among which they were looked for; 0 if they were not counted.
    """

    not_done: Mapping[str, Sequence[NotDone]] = field(default_factory=dict)
    fresh: int = field(default=0, compare=False)

    @classmethod
    def of(
        cls,
        plan: Plan,
        pins: Mapping[str, Pin],
        failed: Mapping[str, Iterable[NotDone]],
        refused: Mapping[str, Failure],
        source_of: Callable[[str], str],
    ) -> Verdict:
        """Join the failures of operators (by shard) and of a sink (by message id).

        `source_of` tells how the message ids of a shard begin, `stream/shardId`.

        Raises:
            NotOfThisBatchError: a refused record was not in the batch.
        """
        turns = {shard: _Delivered(plan, shard, pin) for shard, pin in pins.items()}
        pieces = {
            shard: [turns[shard].with_prev(run) if shard in turns else run for run in runs]
            for shard, runs in failed.items()
        }
        # Looked up only for what a sink refused: an operator may have failed every record.
        known = {shard: Runs.sort(tuple(runs)) for shard, runs in pieces.items()} if refused else {}
        sources = {source_of(shard): shard for shard in plan.shards} if refused else {}
        for message_id, failure in refused.items():
            named = MessageId.find(message_id)
            if named is None or not named.is_one:
                msg = f"outcomes.fail: {message_id!r} is not a message id. Its form is stream/shardId:sequence[:sub]"
                raise NotOfThisBatchError(msg)
            shard, where = sources.get(named.source, ""), named.last
            if shard not in turns or not turns[shard].holds(where):
                streams = ", ".join(sorted(plan.streams))
                msg = (
                    f"outcomes.fail: record {message_id!r} is not in batch {plan.txid} of {streams}. Fail only rows "
                    "of the current batch"
                )
                raise NotOfThisBatchError(msg)
            if shard not in known or known[shard].find_holder(where.order) is None:
                pieces.setdefault(shard, []).append(NotDone(str(where), str(where), 1, text_of(failure)))
        found = {shard: tuple(Runs.sort(runs)) for shard, runs in pieces.items() if runs}
        return cls(found, sum(pin.fresh for pin in pins.values()))

    def __bool__(self) -> bool:
        return any(self.not_done.values())

    def union(self, other: Verdict) -> Verdict:
        """Return the records of both, which have none in common, in the order of the shard."""
        shards = sorted({*self.not_done, *other.not_done})
        both = {
            shard: tuple(Runs.sort([*self.not_done.get(shard, ()), *other.not_done.get(shard, ())]))
            for shard in shards
        }
        return Verdict(both, max(self.fresh, other.fresh))

    def same_records(self, other: Verdict) -> bool:
        """Return whether both have the same records, whatever these have failed with."""
        return self._spans == other._spans

    def limited(self) -> Verdict:
        """Return the same records with few distinct failures."""
        few, found = Few("batch"), dict[str, Sequence[NotDone]]()
        for shard, runs in self.not_done.items():
            kept = ((run, few.keep(run.text)) for run in runs)
            # Nearly all stay the same object.
            found[shard] = tuple(
                [run if text == run.text else msgspec.structs.replace(run, text=text) for run, text in kept]
            )
        return Verdict(found, self.fresh)

    def node(self, plan: Plan, epoch: int) -> BatchOutcome:
        """Return the form in which it is stored."""
        not_done = {shard: tuple(runs) for shard, runs in self.not_done.items()}
        return BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=epoch, not_done=not_done)

    def excluded_in(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return which of the source's rows are not done, as booleans. Reads no column if all are."""
        return find_rows(batch, self._ranges)

    def keep_done(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield those of the source's rows that are done."""
        for batch in batches:
            yield batch.filter(booleans(~self.excluded_in(batch)))

    @cached_property
    def _ranges(self) -> Mapping[str, KeyRanges]:
        return ranges_of(self.not_done)

    @property
    def _spans(self) -> dict[str, list[tuple[str, str]]]:
        return {
            shard: [(one.first, one.last) for one in some] for shard, some in self.not_done.items() if some
        }


def ranges_of(records: Mapping[str, Sequence[Run | NotDone]]) -> dict[str, KeyRanges]:
    """Return the ranges of records by shard, for `find_rows`."""
    return {shard: KeyRanges(pieces) for shard, pieces in records.items() if pieces}


def find_rows(batch: pa.RecordBatch, ranges: Mapping[str, KeyRanges]) -> np.ndarray:
    """Return which of the source's rows are in ranges, as booleans. Reads no column if there are no ranges."""
    found = np.zeros(batch.num_rows, dtype=bool)
    if not ranges:
        return found
    sequence, sub = batch.column("sequenceNumber"), values_of(batch.column("subSequenceNumber"))
    for name, records in ranges.items():
        # `checkpoint.model.layout` names the shards of several streams `stream@created/shardId`.
        home, _, shard = name.rpartition("/")
        inside = pc.equal(batch.column("shardId"), repeated(shard, batch.num_rows))
        if home:
            inside = pc.and_(
                inside, pc.equal(batch.column("stream"), repeated(home.partition("@")[0], batch.num_rows))
            )
        rows = np.flatnonzero(values_of(inside))
        if len(rows):
            found[rows] = records.cover(keys_of(sequence.take(numbers(rows)).to_pylist(), sub[rows]))
    return found


class _Delivered:
    """The records of one shard that a pinned turn has delivered: runs that came again, and new ones behind them."""

    def __init__(self, plan: Plan, shard: str, pin: Pin) -> None:
        start = parse_position(pin.start)
        self._after = start.record if isinstance(start, After) else None
        self._from = start.record if isinstance(start, At) else None
        self._last = RecordPosition.parse(pin.last) if pin.last is not None else None
        self._plan, self._shard, self._pin = plan, shard, pin

    @cached_property
    def _befores(self) -> dict[str, str | None]:
        """The record before each run that was delivered again, by its first one: most of what fails may be these."""
        return {run.first: run.prev for run in self._plan.retries.get(self._shard, ()) if run.first}

    @cached_property
    def _again(self) -> Runs[Run]:
        """The runs, or parts of runs, that were delivered again."""
        due, pin = self._plan.due(self._shard), self._pin
        return Runs(
            [
                cut(run, served, pin.through)[0]
                for (run, dead), served in zip(due, pin.served, strict=False)
                if served > 0 and not dead
            ]
        )

    def holds(self, where: RecordPosition) -> bool:
        """Return whether a record at this position can have been in the turn."""
        new = self._last is not None and where <= self._last
        if (
            new
            and (self._after is None or where > self._after)
            and (self._from is None or where >= self._from)
        ):
            return True
        return self._again.find_holder(where.order) is not None

    def with_prev(self, piece: NotDone) -> NotDone:
        """Return an operator's failure with the record before it; without one it is the first of its segment.

        The position before the segment is then just before it, so the safe checkpoint is exact.
        """
        if piece.prev is not None:
            return piece
        if piece.first in self._befores:
            return msgspec.structs.replace(piece, prev=self._befores[piece.first])
        where = RecordPosition.parse(piece.first)
        # What is delivered again was delivered before the turn's new records.
        is_new = self._after is not None and where > self._after
        at = None if is_new else self._again.find_holder(where.order)
        prev = self._again[at].prev if at is not None else self._after and str(self._after)
        return msgspec.structs.replace(piece, prev=prev)
