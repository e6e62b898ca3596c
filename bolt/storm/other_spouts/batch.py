"""Tracks the rows of any DataFrame: numbers them, and finds those whose trees failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kinesis_trident.bolt.errors import NotCoveredError
from kinesis_trident.bolt.tracking.coverage import Total, Wiring, failures, uncovered
from kinesis_trident.bolt.tracking.operators import Verdict
from kinesis_trident.bolt.tracking.reports import FailedRun, Reports, merged
from kinesis_trident.bolt.tracking.spans import Range, Spans
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID, SCHEMA
from kinesis_trident.tracker.ids import MAX_ORDINAL, MAX_SHARDS

__all__ = ["FrameBatch", "numbered"]

_NUMBER = "__number"
_PARTITION_SHIFT = 33
"""`monotonically_increasing_id` has the partition above these bits, and the row's number in it below."""


def numbered(rows: DataFrame, txid: int) -> DataFrame:
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
    """A micro-batch of `numbered` rows, in the place of the source's `CurrentBatch`: a partition is a shard."""

    spool: RetrySpool | None = None
    verdict: Verdict | None = None
    tasks: int | None = None
    deadly: Mapping[int, list[FailedRun]] = MappingProxyType({})

    def __init__(self, rows: DataFrame, txid: int) -> None:
        self.rows = rows
        self.txid = txid
        sums = rows.select(
            F.shiftright(_NUMBER, _PARTITION_SHIFT).alias("partition"),
            F.col(ANCHORS)[0]["edge"].alias("edge"),
        )
        found = sums.groupBy("partition").agg(F.count("*").alias("rows"), F.bit_xor("edge").alias("xor"))
        self._totals: dict[int, Total] = {one.partition: (one.rows, one.xor) for one in found.collect()}
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

    def uncovered(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> list[tuple[str, str]]:
        """Return the operators, each with a partition whose rows it has not all seen."""
        return [(name, str(partition)) for name, partition in uncovered(wiring, reports, self._totals)]

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
        missing = self.uncovered(wiring, reports, pins)
        if missing:
            msg = (
                f"Start the query again: it reads batch {self.txid} again. The operator {missing[0][0]} did not see "
                "every row, although it ran to its end"
            )
            raise NotCoveredError(msg)

    def failed(self, wiring: Wiring, reports: Reports, pins: Mapping[str, Pin]) -> dict[int, list[FailedRun]]:
        """Return the failures of operators, by partition."""
        return failures(wiring, reports, self._totals)

    def outcome(
        self, failed: Mapping[int, Iterable[FailedRun]], pins: Mapping[str, Pin], refused: Mapping[str, str]
    ) -> dict[str, tuple[NotDone, ...]]:
        """Return the rows that are not done, by partition, with their numbers as positions."""
        return {
            str(partition): tuple(run.not_done() for run in merged(runs))
            for partition, runs in failed.items()
        }

    def settled(
        self, not_done: Mapping[str, tuple[NotDone, ...]], message_id: str
    ) -> tuple[DataFrame, DataFrame]:
        """Return the ids of the rows that are done, and those of the failed ones with their reasons."""
        ids = self.rows.select(_NUMBER, F.col(f"`{message_id}`").alias(message_id))
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
