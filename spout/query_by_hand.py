"""A query without Spark, for tests: Spark's part is played by hand, from the offset log to the commit log.

This is what `MicroBatchExecution` of Spark 4 does, without a JVM: an offset is logged before `partitions` is called, a
batch that is logged and not committed starts over with `partitions`, and `latestOffset` is called only after a commit.
A new checkpoint always runs a batch 0: if there is nothing to do, it ends at the offset that it started from. What
differs between Spark's releases is in `spout.engines`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_none

from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect, disconnect
from kinesis_trident.spout.engines import ENGINES, Offset, SparkProtocol, find_protocol
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.consumers import ready_consumers
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.offsets import plan_from_offset
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.tracker.records import RecordPosition

_HOLD = 0.05
_LOOK_PERIOD = 0.01
"""Seconds: a test need not spare the service as a query does."""
_PATIENCE = 120
"""Seconds in which a next batch comes, if one does."""


class DeliveredRow(NamedTuple):
    """One row of the source: its payload, its `messageId`, its attempt (1 for the first), its txid."""

    data: bytes
    message_id: str
    attempt: int
    txid: int


@dataclass
class SparkCheckpoint:
    """A checkpointLocation: the log of offsets, and how many of them are committed."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0

    def copy(self) -> SparkCheckpoint:
        """Copy it, as somebody copies the folder."""
        return SparkCheckpoint(list(self.offsets), self.committed)

    def at(self, count: int) -> Plan:
        """Return the offset of an entry, the first of which is 1."""
        return plan_from_offset(self.logged(count))

    def logged(self, count: int) -> Offset:
        """Return the offset of an entry as it is logged."""
        offset: Offset = json.loads(self.offsets[count - 1])
        return offset


class QueryByHand:
    """One life of a query: a planning process over a Spark checkpoint, with one connection to ZooKeeper.

        with EmbeddedZooKeeper() as zookeeper:
            kinesis = MemoryKinesis("orders")
            query = QueryByHand.start(options, kinesis)     # the options of the format
            rows = query.batch(fails=lambda row: row.data == b"bad")
            query.end()

    Args:
        options: of the source.
        kinesis: serves the records.
        client: a started KazooClient, which the query closes at its end.
        checkpoint: Spark's checkpoint, which several lives may share one after the other.
        clock: epoch seconds.
        hold: seconds that the source waits for something to do before it answers that there is nothing.
        look_period: seconds between two looks at the tip of an idle shard; `idlePollInterval` if None.
        judges: True for a query of `reliable`, `foreach_batch`, bolts or Trident: it says before its first task that
            each of its batches has an outcome. False for a plain query, which publishes none. None: it judges from its
            first outcome on.
        protocol: of the calls of Spark, "4.0" (also for 4.1) or "4.2" (and newer); that of the installed Spark if None.
        run: other fields of `spout.planner.clocks.Surroundings`, such as how it waits.
    """

    judges: bool | None = None
    _ended = _drains = False

    def __init__(
        self,
        options: SourceOptions,
        kinesis: Kinesis,
        client: Any,
        checkpoint: SparkCheckpoint,
        clock: Callable[[], float] = time.time,
        hold: float = _HOLD,
        look_period: float | None = _LOOK_PERIOD,
        judges: bool | None = None,
        protocol: SparkProtocol | None = None,
        **run: Any,
    ) -> None:
        self.checkpoint = checkpoint
        self._clock = clock
        self._most_records = options.max_records_per_trigger
        self.judges = judges
        self._subscriber = (
            kinesis if isinstance(kinesis, BotoKinesis) and options.consumer_mode == "efo" else None
        )
        consumers = ready_consumers(self._subscriber, options) if self._subscriber else None
        self.run = SourceRun(
            options,
            kinesis,
            client,
            Surroundings(clock=clock, hold=hold, look_period=look_period, **run),
            consumers=consumers,
            offsets=self._named_offsets(),
        )
        self.kinesis = kinesis
        self.store = SourceStore(client, self.run.layout)
        self._begin(protocol)

    def _begin(self, protocol: SparkProtocol | None) -> None:
        """Make the calls with which Spark begins; the run is there already."""
        self._states_starts = (protocol or find_protocol()) == "4.2"
        self._engine = ENGINES["4.2" if self._states_starts else "4.0"](lambda _: self.run)
        offsets = self.checkpoint.offsets
        if offsets and not self._states_starts:
            last = self.checkpoint.logged(len(offsets))
            self._engine.partitions(last, last)

    @classmethod
    def start(
        cls,
        options: Mapping[str, str],
        kinesis: Kinesis | None = None,
        checkpoint: SparkCheckpoint | None = None,
        *,
        clock: Callable[[], float] = time.time,
        hold: float = _HOLD,
        look_period: float | None = _LOOK_PERIOD,
        judges: bool | None = None,
        protocol: SparkProtocol | None = None,
        **run: Any,
    ) -> Self:
        """Start a life with these options of the format, over `kinesis` or else the options' endpoint.

        A new checkpoint is made unless one is given; the rest as in the class.

        Raises:
            OptionsError: an option is unknown, missing, or has a value that cannot be used.
            KinesisError, CheckpointError: the stream or ZooKeeper cannot be reached.
        """
        parsed = SourceOptions.parse(dict(options))
        client = connect(parsed.zookeeper)
        try:
            return cls(
                parsed,
                kinesis or BotoKinesis(parsed),
                client,
                checkpoint or SparkCheckpoint(),
                clock,
                hold,
                look_period,
                judges,
                protocol,
                **run,
            )
        except BaseException:
            disconnect(client)
            raise

    def stop(self) -> None:
        """End the process, as Spark does when its driver ends: nothing is settled, but how the run ended is noted."""
        self._ended = True
        self.run.end()

    def _named_offsets(self) -> tuple[Plan, ...]:
        """Return the offsets that Spark's first call names."""
        log, in_hand = self.checkpoint, self.in_hand
        if in_hand is None:
            return (log.at(log.committed),) if log.committed else ()
        return (log.at(log.committed) if log.committed else in_hand, in_hand)

    def end(self) -> None:
        """End the process, as a kill does: nothing is settled or stopped."""
        self._ended = True
        with suppress(Exception):
            self.run.close()

    @property
    def in_hand(self) -> Plan | None:
        """The batch that is logged and not committed."""
        log = self.checkpoint
        return log.at(len(log.offsets)) if len(log.offsets) > log.committed else None

    @property
    def committed(self) -> Plan:
        """The offset from which the current batch, or the next one, starts."""
        return plan_from_offset(self._committed)

    @property
    def _committed(self) -> Offset:
        if self.checkpoint.committed:
            return self.checkpoint.logged(self.checkpoint.committed)
        # Spark asks each time.
        return self._engine.initial()

    def plan(self) -> Plan | None:
        """Ask for the next batch once, and log it; None if there is nothing to do."""
        self._require(in_hand=False)
        start = self._committed if self._states_starts else None
        end = self._engine.latest(start, self._most_records)
        if start is None:
            start = self._committed
        if end != start:
            self.checkpoint.offsets.append(json.dumps(end))
            if self.checkpoint.committed:
                # Once the next batch is logged, Spark calls the source's commit for the batch before.
                self.run.purge()
            return self.in_hand
        if not self.checkpoint.offsets:
            self.checkpoint.offsets.append(json.dumps(end))
            if self.rows():
                msg = "batch 0 ends at the offset that it started from, and has rows. This is a defect of the source"
                raise AssertionError(msg)
            self.commit()
        return None

    def planned(self) -> Plan:
        """Ask until there is a next batch, at most two minutes, and log it.

        Raises:
            AssertionError: the run has drained or was asked to stop, so that nothing comes any more; or nothing came.
        """
        Retrying(
            stop=stop_after_delay(_PATIENCE),
            wait=wait_none(),
            retry=retry_if_result(lambda found: found is None and not self._plans_nothing_more),
            retry_error_callback=lambda _: None,
        )(self.plan)
        if self.in_hand is None:
            ended = self._plans_nothing_more
            why = (
                "the run has drained, or was asked to stop"
                if ended
                else f"nothing came in {_PATIENCE} seconds"
            )
            msg = f"there is no next batch: {why}. Put records first, or start another query over the checkpoint"
            raise AssertionError(msg)
        return self.in_hand

    def rows(self) -> list[Any]:
        """Read the current batch: its rows, sorted."""
        plan = self._require(in_hand=True)
        found: list[Any] = []
        parts = self.parts()
        if self.judges and parts:
            self._say_judging(plan)
        for part in parts:
            found += self.task(part)
        return sorted(found)

    def parts(self) -> list[TurnsPartition]:
        """Store the plan of the current batch, and return its tasks."""
        return self._engine.partitions(self._committed, self.checkpoint.logged(len(self.checkpoint.offsets)))

    def task(self, part: TurnsPartition) -> list[Any]:
        """Run one task of a batch: its rows, in the order in which the task gives them."""
        reader = TurnReader(
            part,
            self.kinesis,
            self.store,
            look_first=part.replay,
            subscriber=self._subscriber,
            wall=lambda: round(self._clock() * 1000),
        )
        found: list[Any] = []
        for batch in reader.rows():
            columns = [batch.column(name).to_pylist() for name in ("data", "messageId", "attempt", "txid")]
            found += map(self.as_row, *columns)
        return found

    def as_row(self, data: bytes, message_id: str, attempt: int, txid: int) -> Any:
        """Make what `rows` gives of one row; override it for rows of your own."""
        return DeliveredRow(data, message_id, attempt, txid)

    def publish(
        self, rows: Iterable[Any] = (), reason: Callable[[Any], str] = lambda _: "failed by hand"
    ) -> BatchOutcome | None:
        """Publish the outcome of the current batch: these rows are not done, each for its reason.

        Returns:
            The outcome that an earlier attempt has published, if there is one: it is valid, and this one is not.
        """
        plan = self._require(in_hand=True)
        if self.judges is False:
            msg = f"batch {plan.txid} is of a plain query (judges=False), which publishes no outcome"
            raise AssertionError(msg)
        sources = {self.run.layout.key_of(shard).source: shard for shard in plan.positions}
        not_done: dict[str, list[NotDone]] = {}
        for row in rows:
            source, _, position = str(row[1]).partition(":")
            not_done.setdefault(sources[source], []).append(NotDone(position, position, 1, reason(row)))
        epoch = self._say_judging(plan)
        in_order = {
            shard: tuple(sorted(runs, key=lambda run: RecordPosition.parse(run.last)))
            for shard, runs in not_done.items()
        }
        outcome = BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=epoch, not_done=in_order)
        valid, _ = self.store.batches.put_outcome(outcome, epoch)
        return valid if valid != outcome else None

    def _say_judging(self, plan: Plan) -> int:
        """Say that this query judges, as a driver does; return the epoch of the run that works on the batch."""
        batch = self.store.batches.get(plan.txid)
        if batch is None:
            msg = f"batch {plan.txid} is not stored: read its rows before its outcome is published"
            raise AssertionError(msg)
        self.store.judging.declare(
            batch.epoch,
            lambda: {pin.epoch for pin in self.store.batches.get_pins(plan.txid, plan.shards).values()},
        )
        return batch.epoch

    def commit(self) -> None:
        """Count the current batch as finished, as Spark does."""
        self._require(in_hand=True)
        self.checkpoint.committed += 1

    def batch(self, fails: Callable[[Any], bool] = lambda _: False) -> list[Any]:
        """Run one batch from beginning to end, a replay if one is unfinished: its rows; those that `fails` fail.

        A plain query publishes nothing, so none fails.
        """
        if self.in_hand is None:
            self.planned()
        rows = self.rows()
        if self.judges is not False:
            self.publish(row for row in rows if fails(row))
        self.commit()
        return rows

    def drain(self) -> list[Any]:
        """Run batches until nothing is left of what the stream holds now, retries included: all their rows."""
        self.run.drain_and_end()
        self._drains = True
        rows: list[Any] = []
        while self.in_hand is not None or self.plan() is not None:
            rows += self.batch()
        return rows

    @property
    def _plans_nothing_more(self) -> bool:
        """Return whether a run that has nothing to do now has nothing more to do."""
        asked = self.store.stop.get()
        return self._drains or (asked is not None and asked.epoch == self.run.epoch and not asked.drain)

    def _require(self, *, in_hand: bool) -> Plan:
        if self._ended:
            msg = "the query has ended: start another one over its checkpoint"
            raise AssertionError(msg)
        plan = self.in_hand
        if (plan is not None) is not in_hand:
            msg = (
                f"batch {plan.txid} is not committed: commit() it first"
                if plan is not None
                else "there is no current batch: plan() one first"
            )
            raise AssertionError(msg)
        return plan  # type: ignore[return-value]
