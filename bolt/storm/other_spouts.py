"""Runs a topology whose spouts are DataFrames other than the source: numbers rows, and finds those that failed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.cancelling import cancelling
from kinesis_trident.bolt.errors import NotCoveredError, TopologyError
from kinesis_trident.bolt.names import quoted
from kinesis_trident.bolt.outcomes import NotDoneByShard
from kinesis_trident.bolt.steps.watchdog import Watch
from kinesis_trident.bolt.storm.components import SpoutPart
from kinesis_trident.bolt.storm.frames import unite
from kinesis_trident.bolt.storm.spout import DataFrameSpout, KinesisSpout, Settle
from kinesis_trident.bolt.storm.streams import Declared
from kinesis_trident.bolt.storm.topology_run import TopologyRun
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier, Carrier
from kinesis_trident.bolt.tracking.coverage import Wiring, failures, find_uncovered
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.operators import OutcomeFilter
from kinesis_trident.bolt.tracking.reports import Reports
from kinesis_trident.bolt.tracking.spans import Range, Spans
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID, SCHEMA
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import MAX_ORDINAL, MAX_SHARDS
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.sums import XorSum

AnySpout = KinesisSpout | DataFrameSpout

_LONG_AGO = 1_700_000_000
"""A time before all runs, in epoch seconds: numbers from it on are small for decades."""


def check_spouts(spouts: Mapping[str, AnySpout]) -> None:
    """Check that spouts can be in one topology.

    Raises:
        TopologyError: they cannot.
    """
    *others, (name, spout) = spouts.items()
    if not others:
        if isinstance(spout, DataFrameSpout) and spout.message_id is not None and is_remote():
            msg = (
                f"spout {name!r}: rows with a message_id cannot be tracked under Spark Connect. Run the driver in "
                "the cluster, or omit message_id"
            )
            raise TopologyError(msg)
        return
    first, other = others[0]
    if isinstance(spout, KinesisSpout) or isinstance(other, KinesisSpout):
        msg = (
            f"spout {name!r}: the topology already has the spout {first!r}, and a KinesisSpout must be the only one, "
            "because its state belongs to one query. To read several streams, name them in one spout, as in "
            "streamName='a,b'; the field `stream` tells them apart. Build another topology for another spout"
        )
        raise TopologyError(msg)
    if spout.message_id is not None or other.message_id is not None:
        msg = (
            f"spout {name!r}: the topology already has the spout {first!r}, and a DataFrameSpout with a message_id "
            "must be the only one. Unite the DataFrames before, or build another topology for another spout"
        )
        raise TopologyError(msg)
    if spout.frame.isStreaming != other.frame.isStreaming:
        msg = (
            f"spout {name!r} and spout {first!r}: one DataFrame is streaming, the other is not. Give only one kind; "
            "to look values up in the other, join it in a transform"
        )
        raise TopologyError(msg)


def frame_parts(spouts: Mapping[str, DataFrameSpout]) -> dict[str, SpoutPart]:
    """Return the spouts as parts of a checked topology."""
    all_ = {name: Declared(spout.frame.schema) for name, spout in spouts.items()}
    several = all_ if len(all_) > 1 else {}
    return {name: SpoutPart({}, declared.fields, several) for name, declared in all_.items()}


def rows_of_spouts(spouts: Mapping[str, DataFrameSpout]) -> DataFrame:
    """Return the rows of all spouts in one DataFrame."""
    frames = [spout.frame for spout in spouts.values()]
    return unite(frames) if len(frames) > 1 else frames[0]


@dataclass
class FrameHandler:
    """Runs a topology over the micro-batches of DataFrames, as a function for `foreachBatch`.

    `message_id` and `settle`: those of the one spout whose rows are tracked. `started`: in epoch seconds. A state
    refuses the tasks of an earlier attempt, and only the time tells this driver's attempts from those of the last one.
    """

    run: TopologyRun
    message_id: str | None = None
    settle: Settle | None = None
    started: float = field(default_factory=time.time)

    @cached_property
    def _carrier(self) -> Carrier:
        return AccumulatorCarrier()

    def __call__(self, rows: DataFrame, txid: int) -> None:
        """Process a batch; Spark's number of it is the txid."""
        with cancelling(rows):
            self._process(rows, txid)

    def _process(self, rows: DataFrame, txid: int) -> None:
        run = self.run.runs.next(txid, int(self.started) - _LONG_AGO)
        facts = StateFacts(run.attempt)
        if self.message_id is None or self.settle is None:
            self.run.run_untracked(rows, run, facts)
            return
        if not self.run.tracked:
            # Nothing is judged: all rows are done when the batch has run.
            self.run.run_untracked(rows, run, facts)
            ids = rows.select(f"`{self.message_id}`")
            self.settle(ids, ids.selectExpr("*", "'' AS reason").where("false"), txid)
            return
        stored = number_rows(rows, txid)
        batch = FrameBatch(stored, txid)
        not_done = self.run.run_tracked(stored, batch, self._carrier, run, facts)
        self.settle(*batch.settled(not_done, self.message_id), txid)


_NUMBER = "__number"
_PARTITION_SHIFT = 33
"""`monotonically_increasing_id` has the partition above these bits, and the row's number in it below."""


def number_rows(rows: DataFrame, txid: int) -> DataFrame:
    """Return the rows, stored for the batch, with `__anchors` and `messageId`, which names their places.

    A row's root has its partition in the place of a shard. Rows that are computed again could come in another order,
    so they are stored, and an executor that is lost with some of them fails the attempt.
    """
    number = F.col(_NUMBER)
    partition, ordinal = (
        F.shiftright(number, _PARTITION_SHIFT),
        number.bitwiseAND((1 << _PARTITION_SHIFT) - 1),
    )
    mark = F.lit((txid & 0xFFFFFF) << 40).cast("long")
    root = mark.bitwiseOR(F.shiftleft(partition, 26)).bitwiseOR(ordinal)
    anchor = F.array(F.struct(root.alias("root"), F.xxhash64(F.lit(txid), number).alias("edge")))
    stored = rows.withColumn(_NUMBER, F.monotonically_increasing_id()).localCheckpoint(eager=True)
    return stored.withColumns(
        {
            MESSAGE_ID: F.concat(
                F.lit("spout/"), partition.cast("string"), F.lit(":"), ordinal.cast("string")
            ),
            ANCHORS: anchor.cast(SCHEMA[ANCHORS].dataType),
        }
    )


class FrameBatch:
    """A micro-batch of rows from `number_rows`, in the place of the source's `CurrentBatch`: a partition is a shard."""

    spool: RetrySpool | None = None
    verdict: OutcomeFilter | None = None
    epoch: int = 0
    deadly: Mapping[int, Failed] = MappingProxyType({})
    watch: Watch | None = None
    again: Mapping[str, Sequence[Run]] = MappingProxyType({})

    def __init__(self, rows: DataFrame, txid: int) -> None:
        self.rows = rows
        self.txid = txid
        sums = rows.select(
            F.shiftright(_NUMBER, _PARTITION_SHIFT).alias("partition"),
            F.col(ANCHORS)[0]["edge"].alias("edge"),
        )
        found = sums.groupBy("partition").agg(F.count("*").alias("rows"), F.bit_xor("edge").alias("xor"))
        self._totals: dict[int, XorSum] = {
            one.partition: XorSum(one.rows, one.xor) for one in found.collect()
        }
        largest = max((count for count, _ in self._totals.values()), default=0)
        if largest > MAX_ORDINAL or max(self._totals, default=0) >= MAX_SHARDS:
            msg = (
                f"batch {txid}: {max(self._totals) + 1:,} partitions of up to {largest:,} rows cannot be tracked, at "
                f"most {MAX_SHARDS:,} of {MAX_ORDINAL:,}. Repartition the spout's DataFrame, or read less in a "
                "micro-batch"
            )
            raise NotCoveredError(msg)

    def reports(self, reports: Reports) -> Reports:
        """Return the reports of this batch."""
        return {key: failed for key, failed in reports.items() if key.txid == self.txid}

    def pins(self) -> Mapping[str, Pin]:
        """Return nothing: the totals are counted."""
        return {}

    def is_unread(self, pins: Mapping[str, Pin]) -> bool:
        """Return False: the rows are stored."""
        return False

    def find_uncovered(
        self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]
    ) -> list[tuple[str, str]]:
        """Return the operators, each with a partition whose rows it has not all seen."""
        return [(name, str(partition)) for name, partition in find_uncovered(wiring, reports, self._totals)]

    def spans(self, missing: Iterable[tuple[str, str]], pins: Mapping[str, Pin]) -> Spans:
        """Return spans of partitions."""
        ranges: dict[int, list[Range]] = {
            int(partition): [(0, self._totals[int(partition)][0])] for _, partition in missing
        }
        return Spans.over(ranges)

    def require_covered(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> None:
        """Check that every row was judged.

        Raises:
            NotCoveredError: an operator has not seen all rows.
        """
        missing = self.find_uncovered(wiring, reports, pins)
        if missing:
            msg = (
                f"the operator {missing[0][0]} did not see every row, although it ran to its end. Start the query "
                f"again: it reads batch {self.txid} again"
            )
            raise NotCoveredError(msg)

    def failed(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> dict[int, Failed]:
        """Return the failures of operators, by partition."""
        return failures(wiring, reports, self._totals)

    def outcome(
        self, failed: Mapping[int, Failed], pins: Mapping[str, Pin], refused: Mapping[str, Failure]
    ) -> dict[str, tuple[NotDone, ...]]:
        """Return the rows that are not done, by partition, with their numbers as positions."""
        return {str(partition): tuple(some.not_done()) for partition, some in failed.items()}

    def settled(self, not_done: NotDoneByShard, message_id: str) -> tuple[DataFrame, DataFrame]:
        """Return the ids of the rows that are done, and those of the failed ones with their reasons."""
        ids = self.rows.select(_NUMBER, F.col(quoted(message_id)).alias(message_id))
        runs = [
            (*(_number(partition, one) for one in (run.first, run.last)), run.reason)
            for partition, some in not_done.items()
            for run in some
        ]
        known = self.rows.sparkSession.createDataFrame(runs, "first long, last long, reason string")
        reasons = known.select(F.explode(F.sequence("first", "last")).alias(_NUMBER), "reason")
        failed = ids.join(F.broadcast(reasons), _NUMBER).select(message_id, "reason")
        return ids.join(F.broadcast(reasons), _NUMBER, "left_anti").select(message_id), failed


def _number(partition: str, ordinal: str) -> int:
    return (int(partition) << _PARTITION_SHIFT) + int(ordinal)
