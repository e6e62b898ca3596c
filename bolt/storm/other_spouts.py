"""Runs a topology whose spouts are DataFrames other than the source: numbers rows, and finds those that failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.utils import is_remote

from kinesis_trident.bolt.cancelling import cancelling
from kinesis_trident.bolt.errors import NotCoveredError, TopologyError
from kinesis_trident.bolt.names import quoted
from kinesis_trident.bolt.storm.components import SpoutPart
from kinesis_trident.bolt.storm.frames import unite
from kinesis_trident.bolt.storm.spout import DataFrameSpout, KinesisSpout, Settle
from kinesis_trident.bolt.storm.streams import Declared
from kinesis_trident.bolt.storm.topology_run import TopologyRun
from kinesis_trident.bolt.tracking.carriers import AccumulatorCarrier, Carrier
from kinesis_trident.bolt.tracking.held import Held
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID, SCHEMA
from kinesis_trident.tracker.ids import MAX_ORDINAL, MAX_SHARDS
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
        with Held() as held:
            stored = number_rows(rows, txid, held)
            verdict = self.run.run_tracked(stored, facts_of(stored, txid), self._carrier, run, facts)
            self.settle(*settled(stored, verdict, self.message_id), txid)


_NUMBER = "__number"
_TXID_BITS = 0xFFFFFF
"""Those of the txid that rows have in their roots, in the place of the tag of the run and plan."""
_PARTITION_SHIFT = 33
"""`monotonically_increasing_id` has the partition above these bits, and the row's number in it below."""


def number_rows(rows: DataFrame, txid: int, held: Held) -> DataFrame:
    """Return the rows, held for the batch, with `__anchors` and `messageId`, which names their places.

    A row's root has its partition in the place of a shard. Rows that are computed again could come in another order,
    so they are stored, and an executor that is lost with some of them fails the attempt.
    """
    number = F.col(_NUMBER)
    partition, ordinal = (
        F.shiftright(number, _PARTITION_SHIFT),
        number.bitwiseAND((1 << _PARTITION_SHIFT) - 1),
    )
    mark = F.lit((txid & _TXID_BITS) << 40).cast("long")
    root = mark.bitwiseOR(F.shiftleft(partition, 26)).bitwiseOR(ordinal)
    anchor = F.array(F.struct(root.alias("root"), F.xxhash64(F.lit(txid), number).alias("edge")))
    stored = held.store(rows.withColumn(_NUMBER, F.monotonically_increasing_id()))
    return stored.withColumns(
        {
            MESSAGE_ID: F.concat(
                F.lit("spout/"), partition.cast("string"), F.lit(":"), ordinal.cast("string")
            ),
            ANCHORS: anchor.cast(SCHEMA[ANCHORS].dataType),
        }
    )


def facts_of(rows: DataFrame, txid: int) -> JudgedFacts:
    """Return the facts of a micro-batch of rows from `number_rows`: a partition is a shard, whose turn is counted.

    Raises:
        NotCoveredError: the rows are too many for their ids.
    """
    sums = rows.select(
        F.shiftright(_NUMBER, _PARTITION_SHIFT).alias("partition"),
        F.col(ANCHORS)[0]["edge"].alias("edge"),
    )
    found = sums.groupBy("partition").agg(F.count("*").alias("rows"), F.bit_xor("edge").alias("xor"))
    totals = {one.partition: XorSum(one.rows, one.xor) for one in found.collect()}
    partitions, largest = max(totals, default=-1) + 1, max((rows for rows, _ in totals.values()), default=0)
    if largest > MAX_ORDINAL or partitions > MAX_SHARDS:
        msg = (
            f"batch {txid}: {partitions:,} partitions of up to {largest:,} rows cannot be tracked, at "
            f"most {MAX_SHARDS:,} of {MAX_ORDINAL:,}. Repartition the spout's DataFrame, or read less in a "
            "micro-batch"
        )
        raise NotCoveredError(msg)
    # A shard's index is its place among the names in their order.
    pins = {
        f"{partition:08d}": _counted(txid, totals.get(partition, XorSum())) for partition in range(partitions)
    }
    plan = Plan(txid=txid, plan="", streams={}, positions={}, read=tuple(pins))
    return JudgedFacts(plan, 0, txid & _TXID_BITS, lambda: pins)


def settled(rows: DataFrame, verdict: Verdict, message_id: str) -> tuple[DataFrame, DataFrame]:
    """Return the ids of the rows that are done, and those of the failed ones with their reasons."""
    ids = rows.select(_NUMBER, F.col(quoted(message_id)).alias(message_id))
    runs = [
        (*(_number(partition, one) for one in (run.first, run.last)), run.reason)
        for partition, some in verdict.not_done.items()
        for run in some
    ]
    known = rows.sparkSession.createDataFrame(runs, "first long, last long, reason string")
    reasons = known.select(F.explode(F.sequence("first", "last")).alias(_NUMBER), "reason")
    failed = ids.join(F.broadcast(reasons), _NUMBER).select(message_id, "reason")
    return ids.join(F.broadcast(reasons), _NUMBER, "left_anti").select(message_id), failed


def _counted(txid: int, total: XorSum) -> Pin:
    start, (rows, xor) = str(TRIM_HORIZON), total
    return Pin(
        txid=txid,
        plan="",
        epoch=0,
        start=start,
        end=start,
        last=None,
        count=rows,
        fresh=rows,
        digest="",
        xor=xor,
    )


def _number(partition: str, ordinal: str) -> int:
    return (int(partition) << _PARTITION_SHIFT) + int(ordinal)
