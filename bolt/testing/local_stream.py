"""A spout's records in this process: delivered batch by batch, judged, and delivered again.

The rows, the pins and the outcomes are those of the source; the tracker decides what is delivered again, and when.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.testing.given_tuples import batches_of, record_of
from kinesis_trident.bolt.testing.lives import Life
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession, arrow
from kinesis_trident.bolt.testing.results import FailedTuple
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Batch, BatchOutcome, Pin, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.spout.reader.rows import SCHEMA, Segment, TurnRows
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.inflight.record_tracker import InflightRecordTracker
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.retry import Backoff, RetryPolicy

__all__ = ["LocalStream"]

_SHARD = "shardId-000000000000"
_Given = tuple[Any, dict[str, Any]]
"""A tuple as it was given, and the columns that it tells."""


@dataclass
class _Store:
    """What a batch asks of ZooKeeper: the pin of its one turn, and its outcome."""

    layout: Layout
    pin: Pin
    outcome: BatchOutcome | None = None

    @property
    def batches(self) -> Self:
        """The batches."""
        return self

    judging = epochs = batches

    def get_pins(self, _txid: int, _shards: Sequence[str], *, fresh: bool) -> dict[str, Pin]:
        """Return the pins."""
        return {_SHARD: self.pin}

    def get_outcome(self, _txid: int) -> BatchOutcome | None:
        """Return the published outcome."""
        return self.outcome

    def put_outcome(self, outcome: BatchOutcome, _epoch: int) -> tuple[BatchOutcome, bool]:
        """Publish the outcome."""
        self.outcome = outcome
        return outcome, True

    def say(self, _epoch: int) -> None:
        """Nobody else judges."""

    def check_epoch(self, _epoch: int) -> None:
        """Nobody takes over."""


class LocalStream:
    """The records of one spout.

    Args:
        name: the spout's.
        scheme: its fields with their expressions.
        fields: the same with their types.
        options: of the source.
        clock: says when failed tuples are due.
        attempts: the most deliveries of a tuple; None for as many as the retry policy allows.
        failed: gets the failed deliveries.
        life: of the topology.
    """

    def __init__(
        self,
        name: str,
        scheme: Mapping[str, str],
        fields: Sequence[StructField],
        options: SourceOptions,
        clock: FakeTime,
        attempts: int | None,
        failed: list[FailedTuple],
        life: Life,
    ) -> None:
        self.name = name
        self.acked: list[Any] = []
        self.delivered: list[Any] = []
        self._scheme = scheme
        self._schema = StructType([*fields, *SCHEMA.fields])
        self._added = arrow(StructType(list(fields)))
        self._options = options
        self._clock = clock
        self._attempts = attempts
        self._failed = failed
        policy = RetryPolicy(options.retry_limit, Backoff.parse(options.retry_backoff))
        self._tracker = InflightRecordTracker(policy)
        self._rng = random.Random(0)
        self._waiting: list[list[_Given]] = []
        self._given: list[_Given] = []
        self._life = life

    def feed(self, tuples: Iterable[Any]) -> None:
        """Give tuples, to be delivered in the next batches.

        Raises:
            TopologyError: one is not of the spout's fields.
        """
        for batch in batches_of(tuples):
            if batch:
                self._waiting.append([(one, record_of(self.name, self._scheme, one)) for one in batch])

    @property
    def due(self) -> int | None:
        """When the next batch is due, in epoch milliseconds; None if nothing is to be delivered any more."""
        if self._waiting:
            return self._clock.milliseconds()
        return min((run.due for run in self._tracker.waiting), default=None)

    def run(self, session: LocalSession, process: Callable[[LocalFrame, CurrentBatch], None]) -> None:
        """Deliver what is due as one batch, and settle it when `process` has judged it."""
        now = self._clock.milliseconds()
        due = tuple(run for run in self._tracker.waiting if run.due <= now)
        read = len(self._given)
        self._given += self._waiting.pop(0) if self._waiting else []
        fresh = range(read, len(self._given))
        again = [(run.last_position.sequence - 1, run.attempt + 1) for run in due]
        deliveries = [*again, *((number, 1) for number in fresh)]
        self.delivered += [self._given[number][0] for number, _ in deliveries]
        self._life.txid += 1
        txid, epoch = self._life.txid, self._life.epoch
        plan = Plan(
            txid=txid,
            plan=f"plan-{txid}",
            streams={self._stream: 1},
            positions={_SHARD: _after(read)},
            read=(_SHARD,),
            retries={_SHARD: due} if due else {},
        )
        segments = [Segment([self._records([number])], attempt) for number, attempt in again]
        segments += [Segment([self._records(fresh)], 1)] if fresh else []
        rows = TurnRows(self._stream, _SHARD, 0, txid, tag(epoch, plan.plan), segments)
        pin = Pin(
            txid=txid,
            plan=plan.plan,
            epoch=epoch,
            start=_after(read),
            end=_after(len(self._given)),
            last=str(len(self._given)) if fresh else None,
            count=rows.count,
            fresh=len(fresh),
            digest=rows.digest(),
            xor=rows.xor(),
            served=(1,) * len(due),
            through=due[-1].last if due else None,
        )
        store = _Store(Layout("/local", self._options.application_name or "local", self._stream, 1), pin)
        frame = session.frame(self._schema, [[self._with_scheme(rows, [number for number, _ in deliveries])]])
        # A batch asks no more of its store than this one has.
        process(frame, CurrentBatch(cast(SourceStore, store), Batch(epoch=epoch, plan=plan)))
        self._settle(store, deliveries, now)

    @property
    def _stream(self) -> str:
        return self._options.streams[0]

    def _records(self, numbers: Iterable[int]) -> pa.RecordBatch:
        """Return records in the columns in which a turn has them."""
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        rows = [
            {
                "approximateArrivalTimestamp": now,
                **self._given[number][1],
                "sequenceNumber": str(number + 1),
                "subSequenceNumber": -1,
            }
            for number in numbers
        ]
        return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)

    def _with_scheme(self, rows: TurnRows, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of the source with the fields of the scheme."""
        (whole,) = pa.Table.from_batches(rows.record_batches()).combine_chunks().to_batches()
        columns = dict(zip(whole.schema.names, whole.columns, strict=True))
        for kind in self._added:
            values = [self._given[number][1][kind.name] for number in numbers]
            try:
                columns[kind.name] = pa.array(values, kind.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                msg = (
                    f"spout {self.name!r}: a value of the field {kind.name!r}, which is {kind.type}, does not fit: "
                    f"{error}. Give values of the type"
                )
                raise TopologyError(msg) from error
        return pa.RecordBatch.from_pydict(columns)

    def _settle(self, store: _Store, deliveries: Sequence[tuple[int, int]], now: int) -> None:
        """Tell the tracker what became of the records."""
        runs = store.outcome.not_done.get(_SHARD, ()) if store.outcome is not None else ()
        reasons = {number: run.reason for run in runs for number in range(int(run.first) - 1, int(run.last))}
        tracker = self._tracker
        for number, attempt in deliveries:
            given, position = self._given[number][0], RecordPosition(number + 1)
            tracker.emit(position, retry=attempt > 1)
            reason = reasons.get(number)
            if reason is None:
                tracker.ack(position)
                self.acked.append(given)
                continue
            again = tracker.fail(position, now, reason, self._rng)
            (due,) = (run.due for run in (*tracker.waiting, *tracker.dead) if run.last == str(position))
            self._failed.append(FailedTuple(self.name, given, attempt, reason, due / 1000 if again else None))
            if not again or attempt == self._attempts:
                # It is not delivered any more.
                tracker.ack(position)


def _after(records: int) -> str:
    """Return the position after that many records."""
    return str(After(RecordPosition(records)) if records else TRIM_HORIZON)
