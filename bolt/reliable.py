"""`reliable(stream)`: records succeed or fail one by one, and what failed comes back in a later micro-batch."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from bolt.batch import BatchInHand, open_store
from bolt.errors import BatchFailedError, NotBareStreamError, OperatorError, StaleBatchError
from bolt.functions import Step, step_for
from bolt.operator import TrackedOperator
from bolt.outcomes import Outcomes
from bolt.reports import ReportParam, Reports
from checkpoint.nodes import NotDone
from checkpoint.store import SourceStore
from spout.discover import is_bare, options_of
from spout.options import Options
from spout.rows import ANCHORS, MESSAGE_ID, SCHEMA

__all__ = ["Reliable", "ReliableSink", "foreach_batch", "reliable"]

log = logging.getLogger(__name__)

Write = Callable[..., object]


def reliable(stream: DataFrame) -> Reliable:
    """Track the records of a `kinesis-trident` DataFrame one by one.

        query = (reliable(stream)
            .map(parse, "order_id string, amount double")
            .for_each_batch(write)
            .start(checkpointLocation=...))

    Raises:
        NotOurSourceError: `stream` does not read `kinesis-trident`.
        NotBareStreamError: something was done to `stream` already.
    """
    options = options_of(stream)
    if not is_bare(stream):
        msg = (
            "reliable() takes the DataFrame as load() returned it: rows that were filtered or changed before could "
            "not be told from rows that were lost. Do it in .map(): a function that returns None drops the record"
        )
        raise NotBareStreamError(msg)
    return Reliable(stream, options)


@dataclass(frozen=True, slots=True)
class Reliable:
    """A stream whose records are judged one by one."""

    stream: DataFrame
    options: Options
    steps: tuple[Step, ...] = ()

    def map(self, function: Callable[..., Any], schema: StructType | str) -> Reliable:
        """Apply a function to each record; where it raises, that record fails, with the error as its reason.

        The type hint of the function's parameter says what it takes: one record by default (`record.data`, any
        column of the source, or of the step before), which gives a tuple, a dict, a Row, or None to drop the
        record; a `pandas.DataFrame`, whose index it keeps; or a `pyarrow.RecordBatch`, of which it keeps every row.
        Vectorised functions may fail single records with a reason in a column `__failed`.

        Raises:
            OperatorError: the schema cannot be used.
        """
        return replace(self, steps=(*self.steps, step_for(function, schema)))

    def for_each_batch(self, write: Write, *, batch_retries: int = 3) -> ReliableSink:
        """Give `write(df, txid)` the rows that succeeded, batch by batch.

        `write(df, txid, outcomes)` may also send rows back with `outcomes.fail(df, reason)`; its `df` has the
        column `messageId` besides. The outcome is published when `write` returns. A replay of a batch has the same
        txid and gives the same rows: replacing what was written under a txid makes the result exact.

        `batch_retries`: how often a batch that fails as a whole (a record failed under `spout=transactional`, or a
        replay disagrees with the published outcome) is tried again in place before the query stops.

        Raises:
            OperatorError: `write` takes neither two nor three arguments.
        """
        return ReliableSink(self, _Writer(write), batch_retries)


class _Writer:
    """The user's function, with two or three parameters."""

    def __init__(self, write: Write) -> None:
        self.name = getattr(write, "__name__", type(write).__name__)
        try:
            parameters = inspect.signature(write).parameters.values()
        except (TypeError, ValueError):
            parameters = ()  # type: ignore[assignment]
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        ]
        self.with_outcomes = len(positional) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in positional)
        if not self.with_outcomes and len(positional) != 2:
            msg = f"{self.name} must take (df, txid) or (df, txid, outcomes); it takes {len(positional)} arguments"
            raise OperatorError(msg)
        self._write = write

    def __call__(self, rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        if self.with_outcomes:
            self._write(rows, txid, outcomes)
        else:
            self._write(rows, txid)


@dataclass(frozen=True, slots=True)
class ReliableSink:
    """A reliable stream with its sink, ready to start."""

    source: Reliable
    writer: _Writer
    batch_retries: int = 3

    def start(
        self,
        *,
        checkpointLocation: str,
        queryName: str | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start the query.

        `trigger` is what `DataStreamWriter.trigger` takes, such as `{"processingTime": "10 seconds"}` or
        `{"availableNow": True}`; by default a batch starts as soon as there is something to do.
        """
        source = self.source
        process = _Process(source.options, self.writer, source.steps, self.batch_retries)
        out = source.stream.writeStream.foreachBatch(process).option("checkpointLocation", checkpointLocation)
        if queryName is not None:
            out = out.queryName(queryName)
        if trigger is not None:
            out = out.trigger(**trigger)
        return out.start()


class _Process:
    """What runs in the driver for each batch: hands the rows over, and publishes the outcome.

    `steps` None means a plain batch function: it gets the source's rows as they are, and only it fails records.
    """

    def __init__(
        self, options: Options, writer: _Writer, steps: tuple[Step, ...] | None, batch_retries: int
    ) -> None:
        self._options = options
        self._writer = writer
        self._steps = steps
        self._batch_retries = batch_retries
        self._store: SourceStore | None = None
        self._accumulator: Accumulator[Reports] | None = None

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        if self._store is None:
            self._store = open_store(self._options)
        try:
            batch = BatchInHand.newest(self._store)
        except StaleBatchError as error:
            if not rows.isEmpty():
                raise
            # Skipped by onCheckpointMismatch=continue, or Spark saw that nothing of it is used. Another batch's txid
            # must not be given to `write` with no rows: it would replace with nothing what that batch wrote.
            log.warning("a batch without rows is not handed on: %s", error)
            return
        for left in range(self._batch_retries, -1, -1):
            try:
                self._attempt(rows, batch)
            except (BatchFailedError, PythonException) as error:
                # An operator's error arrives as Spark's, with the name of ours in it.
                if not left or not (
                    isinstance(error, BatchFailedError) or BatchFailedError.__name__ in str(error)
                ):
                    raise
                log.warning("batch %d failed and is tried again (%d more): %s", batch.txid, left, error)
            else:
                return

    def _attempt(self, rows: DataFrame, batch: BatchInHand) -> None:
        outcomes = Outcomes()
        given, judge = self._prepared(rows, batch)
        self._writer(given, batch.txid, outcomes)
        if batch.verdict is not None:
            if outcomes.message_ids:
                msg = (
                    f"batch {batch.txid} is replayed, and {self._writer.name} refused {len(outcomes)} records, the "
                    f"first is {min(outcomes.message_ids)}, that the published outcome counts as done"
                )
                raise BatchFailedError(msg)
            return
        not_done = judge(outcomes)
        if not_done is None:
            return
        if not_done and self._options.spout == "transactional":
            shard, pieces = next(iter(not_done.items()))
            msg = (
                f"batch {batch.txid}: {sum(p.count for runs in not_done.values() for p in runs)} records failed, the "
                f"first is {shard}:{pieces[0].first} ({pieces[0].reason}). spout=transactional fails the batch as a "
                "whole: mend the cause, or use spout=opaque, where failed records come back in later batches"
            )
            raise BatchFailedError(msg)
        batch.publish(not_done)

    def _prepared(self, rows: DataFrame, batch: BatchInHand) -> tuple[DataFrame, _Judge]:
        """The rows for the user's function, and what finds the outcome when it has returned."""
        if self._steps is not None:
            return self._tracked(rows, batch, self._steps)
        return _without_excluded(
            rows, batch
        ), lambda outcomes: batch.outcome({}, batch.pins(), outcomes.message_ids) if len(outcomes) else None

    def _tracked(
        self, rows: DataFrame, batch: BatchInHand, steps: tuple[Step, ...]
    ) -> tuple[DataFrame, _Judge]:
        if self._accumulator is None:
            # One for all batches, because Spark keeps each for good; its value is that of the batch in hand.
            self._accumulator = SparkContext.getOrCreate().accumulator({}, ReportParam())
        accumulator = self._accumulator
        accumulator.value = {}
        carry = (MESSAGE_ID,) if self._writer.with_outcomes else ()
        operator = TrackedOperator("map", steps, accumulator, carry, batch.verdict)
        judged = rows.mapInArrow(operator, _spark_schema(steps, carry))

        def judge(outcomes: Outcomes) -> dict[str, tuple[NotDone, ...]]:
            pins = batch.pins()
            reports = batch.reports(accumulator.value, operator.name)
            if batch.uncovered(reports, pins):
                # The user's function took only part of the rows, or none: judge the others too.
                judged.write.format("noop").mode("overwrite").save()
                pins = batch.pins()
                reports = batch.reports(accumulator.value, operator.name)
                batch.require_covered(reports, pins)
            return batch.outcome(reports, pins, outcomes.message_ids)

        return judged, judge


_Judge = Callable[[Outcomes], Mapping[str, tuple[NotDone, ...]] | None]


def foreach_batch(
    stream: DataFrame, write: Write, *, batch_retries: int = 3
) -> Callable[[DataFrame, int], None]:
    """A function for `stream.writeStream.foreachBatch(...)` that lets `write` send single rows back.

    `write(df, txid, outcomes)` gets the rows of the source as they are; `outcomes.fail(df, reason)` fails records by
    their `messageId`. Everything else of the batch is done when Spark has committed it. `batch_retries` as in
    `Reliable.for_each_batch`.

    Raises:
        NotOurSourceError: `stream` does not read `kinesis-trident`.
        OperatorError: `write` takes neither two nor three arguments.
    """
    return _Process(options_of(stream), _Writer(write), None, batch_retries)


def _without_excluded(rows: DataFrame, batch: BatchInHand) -> DataFrame:
    """The rows without those that a published outcome leaves out: refused one by one, so by message id."""
    if batch.verdict is None:
        return rows
    return rows.where(~F.col(MESSAGE_ID).isin(batch.excluded_ids()))


def _spark_schema(steps: tuple[Step, ...], carry: tuple[str, ...]) -> StructType:
    """The schema of what an operator of these steps yields; without steps, the source's columns."""
    if steps:
        fields = list(from_arrow_schema(steps[-1].schema).fields)
    else:
        fields = [field for field in SCHEMA.fields if field.name not in (*carry, ANCHORS)]
    return StructType([*fields, *(SCHEMA[name] for name in carry)])
