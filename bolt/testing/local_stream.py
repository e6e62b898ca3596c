"""A spout's records in this process: delivered batch by batch, judged, and delivered again.

The rows, the pins and the outcomes are those of the source; the tracker decides what is delivered again, and when.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.steps.watchdog import Watch
from kinesis_trident.bolt.testing.given_tuples import Batches, FailedTuple, batches_of, record_of
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    BatchOutcome,
    InflightNode,
    Pin,
    Plan,
    StatesNode,
)
from kinesis_trident.checkpoint.model.run_status import FailingNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.settlement import CommittedTurn, InflightRules, settle_shard
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.spout.reader.rows import SCHEMA, Segment, TurnRows
from kinesis_trident.spout.testing.clock import FakeTime
from kinesis_trident.tracker.failure import Kind, parse
from kinesis_trident.tracker.ids import tag
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import DUE_GRAIN_MS, Backoff, RetryPolicy


@dataclass
class Life:
    """The epoch of the current run and the txid of its newest batch, which rise; what was applied to each state."""

    epoch: int = 0
    txid: int = 0
    applied: dict[str, int] = field(default_factory=dict)


_LIVES: WeakKeyDictionary[object, dict[str, Life]] = WeakKeyDictionary()


def life_of(topology: object, spout: str) -> Life:
    """Begin a run of a topology: its batches go on from those of the run before, as its states do."""
    life = _LIVES.setdefault(topology, {}).setdefault(spout, Life())
    life.epoch += 1
    return life


_Given = tuple[Any, dict[str, Any]]
"""A tuple as it was given, and the columns that it tells."""


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
        self._added = arrow_schema(StructType(list(fields)))
        self._options = options
        self._clock = clock
        self._attempts = attempts
        self._failed = failed
        self._policy = RetryPolicy(
            options.retry_limit,
            Backoff.parse(options.retry_backoff),
            hold_ms=round(options.message_timeout * 1000),
            no_retry=options.no_retry_for,
        )
        self._state = ShardState(TRIM_HORIZON)
        self._rng = random.Random(0)
        # When something happened last but that tuples were held.
        self._changed = 0
        self._waiting: list[list[_Given]] = []
        self._given: list[_Given] = []
        self._life = life

    def feed(self, tuples: Iterable[Any] | Batches) -> None:
        """Give tuples, to be delivered in the next batches.

        Raises:
            TopologyError: one is not of the spout's fields.
        """
        for batch in batches_of(tuples):
            if batch:
                self._waiting.append([(one, self._record(one)) for one in batch])

    @property
    def due(self) -> int | None:
        """The time at which the next batch is due, in epoch milliseconds; None if everything was delivered."""
        if self._waiting:
            return self._clock.milliseconds()
        return min((run.due for run in self._again), default=None)

    def run(self, session: LocalSession, process: Callable[[LocalFrame, CurrentBatch], None]) -> None:
        """Deliver what is due as one batch, and settle it when `process` has judged it."""
        now = self._clock.milliseconds()
        # What bolts hold goes into each batch, as with the source.
        due = tuple(run for run in self._again if run.due <= now or run.is_held)
        read = len(self._given)
        self._given += self._waiting.pop(0) if self._waiting else []
        fresh = range(read, len(self._given))
        if fresh or not all(run.is_held for run in due):
            self._changed = now
        again = [(number, run.attempt + 1) for run in due for number in _numbers(run)]
        deliveries = [*again, *((number, 1) for number in fresh)]
        self.delivered += [self._given[number][0] for number, _ in deliveries]
        self._life.txid += 1
        txid, epoch = self._life.txid, self._life.epoch
        plan = Plan(
            txid=txid,
            plan=f"plan-{txid}",
            streams={self._stream: 1},
            positions={SHARD: _after(read)},
            read=(SHARD,),
            retries={SHARD: due} if due else {},
        )
        segments = [Segment([self._records(_numbers(run))], run.attempt + 1) for run in due]
        segments += [Segment([self._records(fresh)], 1)] if fresh else []
        rows = TurnRows(self._stream, SHARD, 0, txid, tag(epoch, plan.plan), segments)
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
            served=tuple(run.count for run in due),
            through=due[-1].last if due else None,
        )
        layout = Layout("/local", self._options.application_name or "local", self._stream, 1)
        store = LocalStore(layout, pin, self._life.applied)
        frame = session.frame(self._schema, [[self._with_scheme(rows, [number for number, _ in deliveries])]])
        # A batch asks no more of its store than this one has.
        batch, watch = BatchNode(epoch=epoch, plan=plan), Watch(no_retry=self._policy.no_retry)
        process(frame, CurrentBatch(cast(SourceStore, store), batch, watch=watch))
        self._settle(plan, store, deliveries, now)

    @property
    def _again(self) -> list[Run]:
        """The records that failed, or that a bolt holds, and that are delivered again.

        A bolt that resets the timeout of what it holds could wait for ever: it does not, if nothing else happens.
        """
        most = self._attempts
        idle = self._clock.milliseconds() - self._changed > self._policy.hold_ms + DUE_GRAIN_MS
        return [
            run
            for run in self._state.waiting
            if (most is None or run.attempt < most) and not (idle and run.is_held)
        ]

    @property
    def held(self) -> list[Any]:
        """The tuples that bolts hold now."""
        return [
            self._given[number][0] for run in self._state.waiting if run.is_held for number in _numbers(run)
        ]

    def _record(self, given: object) -> dict[str, Any]:
        arrived = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        record = {
            "stream": self._stream,
            "approximateArrivalTimestamp": arrived,
            **record_of(self.name, self._scheme, given),
        }
        if record["stream"] not in self._options.streams:
            msg = (
                f"spout {self.name!r}: {given!r} is of the stream {record['stream']!r}, which the spout does not read. "
                f"It reads {', '.join(self._options.streams)}"
            )
            raise TopologyError(msg)
        return record

    @property
    def _stream(self) -> str:
        return self._options.streams[0]

    def _records(self, numbers: Iterable[int]) -> pa.RecordBatch:
        """Return records in the columns in which a turn has them."""
        rows = [
            {**self._given[number][1], "sequenceNumber": str(number + 1), "subSequenceNumber": -1}
            for number in numbers
        ]
        return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)

    def _with_scheme(self, rows: TurnRows, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of the source with the fields of the scheme."""
        (whole,) = pa.Table.from_batches(rows.record_batches()).combine_chunks().to_batches()
        columns = dict(zip(whole.schema.names, whole.columns, strict=True))
        columns["stream"] = pa.array([self._given[number][1]["stream"] for number in numbers])
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

    def _settle(self, plan: Plan, store: LocalStore, deliveries: Sequence[tuple[int, int]], now: int) -> None:
        """Settle the batch as the source does, and note what became of its records."""
        not_done = store.outcome.not_done.get(SHARD, ()) if store.outcome is not None else ()
        turn = CommittedTurn(plan, SHARD, f"{self._stream}/{SHARD}", store.pin, not_done, now)
        rules = InflightRules(self._policy, self._rng, max_retrying=len(self._given) + 1)
        settled, _ = settle_shard(self._state, turn, rules)
        waiting, dead = settled.waiting, settled.dead
        # What is exhausted is told at once: nobody writes dead letters here.
        self._state = ShardState(
            TRIM_HORIZON, settled.checkpoint, InflightNode(txid=plan.txid, waiting=waiting)
        )
        after = {number: run for run in (*waiting, *dead) for number in _numbers(run)}
        failures = {
            number: parse(piece.text)
            for piece in not_done
            for number in range(int(piece.first) - 1, int(piece.last))
        }
        for number, attempt in deliveries:
            given, failure = self._given[number][0], failures.get(number)
            if failure is None:
                self._changed = now
                self.acked.append(given)
                continue
            run = after[number]
            if failure.kind is Kind.HELD:
                failure = parse(run.failures[-1].text)
            if failure.kind is not Kind.HELD:
                self._changed = now
                due = run.due / 1000 if run in waiting else None
                self._failed.append(FailedTuple(self.name, given, attempt, str(failure), due))


def _numbers(run: Run) -> range:
    """Return the records of a run: their indexes among all that were given."""
    return range(run.last_position.number - run.count, run.last_position.number)


def _after(records: int) -> str:
    """Return the position after that many records."""
    return str(After(RecordPosition(records)) if records else TRIM_HORIZON)


SHARD = "shardId-000000000000"
"""The shard of all given tuples."""


@dataclass
class LocalStore:
    """The pin of a batch's one turn, its outcome, and the note of what states hold: in the place of a `SourceStore`."""

    layout: Layout
    pin: Pin
    applied: dict[str, int]
    outcome: BatchOutcome | None = None

    @property
    def batches(self) -> Self:
        """The batches."""
        return self

    judging = epochs = states = failing = batches

    def get_pins(self, _txid: int, _shards: Sequence[str], *, fresh: bool) -> dict[str, Pin]:
        """Return the pins."""
        return {SHARD: self.pin}

    def put_outcome(self, outcome: BatchOutcome, _epoch: int) -> tuple[BatchOutcome, bool]:
        """Publish the outcome."""
        self.outcome = outcome
        return outcome, True

    def get(self, *, fresh: bool) -> StatesNode:
        """Return the newest batch that was applied to each state."""
        return StatesNode(applied=dict(self.applied))

    def put(self, node: StatesNode | FailingNode, _epoch: int) -> None:
        """Note the newest batch that was applied to each state; nobody reads that a batch fails."""
        if isinstance(node, StatesNode):
            self.applied.update(node.applied)

    def declare(self, _epoch: int, _readers: object) -> list[int]:
        """Nobody else judges."""
        return []

    def check_epoch(self, _epoch: int) -> None:
        """Nobody takes over."""
