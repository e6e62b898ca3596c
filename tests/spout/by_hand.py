"""Spark's part of a streaming query, done by hand: the offset log, the commit log, and the order of the calls.

What `MicroBatchExecution` does, without a JVM: an offset is logged before `partitions`, a batch that was logged and
not committed is started over with `partitions` first, and `latest` is called only after a commit. A new checkpoint
always runs a batch 0: where there is nothing to do it ends at the offset that it starts from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_none

from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.spout.kinesis import Kinesis
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.consumers import ready_consumers
from kinesis_trident.spout.options.source import Options
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.reader.task import TurnReader

__all__ = ["Lives", "Query", "Row", "SparkCheckpoint", "numbers"]

_HOLD = 0.05
_LOOK_PERIOD = 0.01
"""Seconds: no test waits for what is spared a service that is shared."""

Row = tuple[int, str, int, int]
"""What a record says, its messageId, its attempt, its txid."""


def numbers(rows: Iterable[Row]) -> list[int]:
    """What the rows say, sorted."""
    return sorted(row[0] for row in rows)


@dataclass
class SparkCheckpoint:
    """A checkpointLocation."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0

    def copy(self) -> SparkCheckpoint:
        """As somebody copies the folder."""
        return SparkCheckpoint(list(self.offsets), self.committed)


class Query:
    """One life of a query: a planning process over a Spark checkpoint, with one connection to ZooKeeper."""

    def __init__(
        self,
        options: Options,
        kinesis: Kinesis,
        client: object,
        checkpoint: SparkCheckpoint,
        clock: Callable[[], float] = time.time,
        hold: float = _HOLD,
        look_period: float = _LOOK_PERIOD,
    ) -> None:
        self.checkpoint = checkpoint
        self._subscriber = (
            kinesis if isinstance(kinesis, BotoKinesis) and options.consumer_mode == "efo" else None
        )
        consumers = ready_consumers(self._subscriber, options) if self._subscriber else None
        self.run = SourceRun(
            options,
            kinesis,
            client,
            clock=clock,
            hold=hold,
            look_period=look_period,
            consumers=consumers,
        )
        self.kinesis = kinesis
        self.store = SourceStore(client, self.run.layout)  # type: ignore[arg-type]

    def end(self) -> None:
        """The process is gone."""
        with suppress(Exception):
            self.run.close()

    @property
    def in_hand(self) -> Plan | None:
        """The batch that is logged and not committed."""
        log = self.checkpoint
        return self._at(len(log.offsets)) if len(log.offsets) > log.committed else None

    @property
    def committed(self) -> Plan:
        """Where the batch in hand, or the next one, starts."""
        if self.checkpoint.committed:
            return self._at(self.checkpoint.committed)
        # Spark asks each time, and logs what it was told.
        return plan_from_offset(offset_from_plan(self.run.initial()))

    def plan(self) -> Plan | None:
        """Ask for the next batch once, and log it."""
        assert self.in_hand is None
        plan = self.run.latest(self.committed, None)
        if plan is not None:
            self._log(plan)
        elif not self.checkpoint.offsets:
            self._log(self.committed)
            assert self.rows() == []
            self.commit()
        return plan

    def _log(self, plan: Plan) -> None:
        self.checkpoint.offsets.append(json.dumps(offset_from_plan(plan)))

    def planned(self) -> Plan:
        """Ask until there is a next batch, and log it."""
        plan: Plan | None = Retrying(
            stop=stop_after_delay(120), wait=wait_none(), retry=retry_if_result(lambda found: found is None)
        )(self.plan)
        assert plan is not None
        return plan

    def rows(self) -> list[Row]:
        """Do the batch in hand: its rows, sorted."""
        end = self.in_hand
        assert end is not None
        found: list[Row] = []
        for part in self.run.partitions(self.committed, end):
            found += self.task(part)
        return sorted(found)

    def task(self, part: TurnsPartition) -> list[Row]:
        """Run one task: its rows."""
        reader = TurnReader(
            part, self.kinesis, self.store, look_first=part.replay, subscriber=self._subscriber
        )
        found: list[Row] = []
        for batch in reader.rows():
            columns = [batch.column(name).to_pylist() for name in ("data", "messageId", "attempt", "txid")]
            found += [
                (int(data), id_, attempt, txid) for data, id_, attempt, txid in zip(*columns, strict=True)
            ]
        return found

    def publish(self, rows: Iterable[Row] = ()) -> None:
        """Publish the outcome: these rows are not done."""
        plan = self.in_hand
        assert plan is not None
        sources = {self.run.layout.key_of(shard).source: shard for shard in plan.positions}
        not_done: dict[str, tuple[NotDone, ...]] = {}
        for number, id_, _, _ in sorted(rows, key=lambda row: int(row[1].rpartition(":")[2])):
            source, _, position = id_.partition(":")
            shard = sources[source]
            piece = NotDone(position, position, 1, f"ValueError: {number}")
            not_done[shard] = (*not_done.get(shard, ()), piece)
        batch = self.store.get_batch(plan.txid)
        assert batch is not None
        self.store.put_outcome(
            BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=batch.epoch, not_done=not_done), batch.epoch
        )

    def commit(self) -> None:
        """Spark counts the batch in hand as finished."""
        assert self.in_hand is not None
        self.checkpoint.committed += 1

    def batch(self, failing: Iterable[int] = ()) -> list[Row]:
        """One batch from beginning to end, a replay if one is in hand; records that say one of `failing` fail."""
        if self.in_hand is None:
            self.planned()
        rows = self.rows()
        bad = set(failing)
        self.publish(row for row in rows if row[0] in bad)
        self.commit()
        return rows

    def drain(self) -> list[Row]:
        """Batches until nothing is left of what is in the stream by now, retries included: all their rows."""
        self.run.drain_and_end()
        rows = []
        while self.in_hand is not None or self.plan() is not None:
            rows += self.batch()
        return rows

    def _at(self, count: int) -> Plan:
        return plan_from_offset(json.loads(self.checkpoint.offsets[count - 1]))


class Lives:
    """The lives of one application, one after the other or side by side; `_` in an option's name stands for a dot."""

    def __init__(self, hosts: str, application: str, **options: str) -> None:
        self._options = {
            "streamName": "orders",
            "endpointUrl": "http://localhost:1",
            "region": "us-east-1",
            "applicationName": application,
            "zookeeper.hosts": hosts,
            "startingPosition": "TRIM_HORIZON",
            "retryBackoff": "1ms..1ms x1",
            "retryLimit": "1",
            "onExhausted": "skip",
            "minFetchPeriod": "0ms",
            # What is there by then is one turn, however slow the machine.
            "maxFetchTime": "60s",
            "describeShardInterval": "1ms",
        } | _dotted(options)
        self._begun: list[Query] = []
        self.clock: Callable[[], float] = time.time

    def begin(
        self,
        kinesis: Kinesis | None = None,
        checkpoint: SparkCheckpoint | None = None,
        *,
        hold: float = _HOLD,
        look_period: float = _LOOK_PERIOD,
        **options: str,
    ) -> Query:
        """A life of the query over `kinesis`, the endpoint's if none is given; with a new checkpoint by default."""
        parsed = self.parsed(**options)
        client = connect(parsed.zookeeper)
        try:
            query = Query(
                parsed,
                kinesis or BotoKinesis(parsed),
                client,
                checkpoint or SparkCheckpoint(),
                self.clock,
                hold,
                look_period,
            )
        except BaseException:
            client.stop()
            client.close()
            raise
        self._begun.append(query)
        return query

    def parsed(self, **options: str) -> Options:
        """What a life with these options is given."""
        return Options.parse(self._options | _dotted(options))

    def end(self) -> None:
        """End all of them."""
        for query in self._begun:
            query.end()


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}
