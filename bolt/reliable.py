"""`reliable(stream)`: records succeed or fail one by one, and failed ones come back in a later micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kinesis_trident.bolt.calls import check_runs, count_needed, refuse_not_run
from kinesis_trident.bolt.errors import BatchFailedError, NotBareStreamError, OperatorError
from kinesis_trident.bolt.foreach_batch import BatchHandler, start_query
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.steps.functions import Decodes, Judged, RowStep, Step
from kinesis_trident.bolt.steps.kinds import step_for
from kinesis_trident.bolt.steps.parts import in_parts
from kinesis_trident.bolt.tracking.carriers import Carrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.tracking import Tracking, pins_of_read, run_frame
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID, SCHEMA
from kinesis_trident.spout.spark_plan import source_of
from kinesis_trident.tracker.runs import Runs

Write = Callable[..., object]


def reliable(stream: DataFrame, *, options: Mapping[str, str] | None = None) -> Reliable:
    """Track the records of a `kinesis-trident` DataFrame one by one.

        query = (reliable(stream)
            .map(parse, "order_id string, amount double")
            .for_each_batch(write)
            .start(checkpointLocation=...))

    Args:
        stream: the DataFrame as `load()` returned it.
        options: those with which it was loaded; needed only on a release of Spark that does not show them.

    Raises:
        NotOurSourceError: `stream` does not read `kinesis-trident`.
        NotBareStreamError: `stream` has already been transformed.
    """
    found, is_bare = source_of(stream, options)
    if not is_bare:
        msg = (
            "reliable() needs the DataFrame as load() returned it: rows that were filtered or changed before "
            "cannot be distinguished from lost rows. Filter and change rows in .map(): a function that returns "
            "None drops the record"
        )
        raise NotBareStreamError(msg)
    return Reliable(stream, found)


@dataclass(frozen=True, slots=True)
class MapStep:
    """A step whose failures say which function it calls."""

    operation: str
    step: Step

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that come out."""
        return self.step.schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Judge a batch."""
        return self.step(batch)

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts."""
        return in_parts(self.step, batch)


@dataclass(frozen=True, slots=True)
class Reliable:
    """A stream whose records succeed or fail one by one."""

    stream: DataFrame
    options: SourceOptions
    steps: tuple[Step, ...] = ()

    def map(self, function: Callable[..., Any] | Decodes, schema: StructType | str) -> Reliable:
        """Apply a function to each record; an exception fails that record, with the error as its reason.

        The type hint of the function's parameter decides what it gets. By default it is one record (`record.data`, any
        column of the source, or of the previous step), for which it returns a tuple, a dict, a Row, several of these in
        a list, or None to drop the record; it may yield rows, too. Else it is a `pandas.DataFrame`, whose index it must
        keep, or a `pyarrow.RecordBatch`, of which it must keep every row. Vectorised functions may fail single records
        with a reason in a column `__failed`.

        A `GlueDecoder` decodes records by their schemas in a registry; `kinesis_trident.decoders` has others.

        Raises:
            OperatorError: the schema cannot be used, or the function is async or yields.
        """
        name = getattr(function, "__name__", type(function).__name__)
        made = step_for(function, schema, self.options)
        if not isinstance(function, Decodes):
            check_runs(
                f"operator {name}: the function",
                function,
                yields=isinstance(made, RowStep),
                refusal=OperatorError,
            )
        step = MapStep(f"map({name})", made)
        return replace(self, steps=(*self.steps, step))

    def for_each_batch(self, write: Write, *, batch_retries: int | None = None) -> ReliableSink:
        """Give `write(df, txid)` the rows that succeeded, batch by batch.

        `write(df, txid, outcomes)` may also send rows back with `outcomes.fail(df, reason)`; its `df` also has the
        column `messageId`. A parameter with a default is never filled in. The outcome is published when `write`
        returns. A replay of a batch has the same txid and the same rows: a sink that replaces the rows of a txid is
        exactly-once.

        `batch_retries`, if given here, overrides that of `start`.

        Raises:
            OperatorError: `write` takes neither two nor three arguments, is async, or yields; or it takes `outcomes`,
                and a column of the rows is called as the one that names their records.
        """
        writer = _Writer(write)
        if writer.with_outcomes and self.steps:
            own = [name for name in self.steps[-1].schema.names if name.lower() == MESSAGE_ID.lower()]
            if own:
                msg = (
                    f"map makes a column {own[0]!r}, and the rows for {writer.name} have one of this name, which says "
                    "what record a row is. Give yours another name"
                )
                raise OperatorError(msg)
        return ReliableSink(self, writer, batch_retries)


class _Writer:
    """The user's function, with two or three parameters."""

    def __init__(self, write: Write) -> None:
        self.name = getattr(write, "__name__", type(write).__name__)
        check_runs(self.name, write, refusal=OperatorError)
        needed = count_needed(write)
        self.with_outcomes = needed in (None, 3)
        if needed not in (None, 2, 3):
            msg = f"{self.name} takes {needed} arguments. Define it as (df, txid) or (df, txid, outcomes)"
            raise OperatorError(msg)
        self._write = write

    def __call__(self, rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        given = (rows, txid, outcomes) if self.with_outcomes else (rows, txid)
        refuse_not_run(self.name, self._write(*given))


@dataclass(frozen=True, slots=True)
class ReliableSink:
    """A reliable stream with its sink, ready to start."""

    source: Reliable
    writer: _Writer
    batch_retries: int | None = None

    def process(self, batch_retries: int = 3) -> BatchHandler:
        """Return the function that `start` passes to `foreachBatch`, for a query that you start yourself."""
        retries = batch_retries if self.batch_retries is None else self.batch_retries
        mapped = _Mapped(self.writer, self.source.steps)
        return BatchHandler(self.source.options, mapped, retries, isolate=mapped.isolate)

    def start(
        self,
        *,
        checkpointLocation: str,
        queryName: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        batch_retries: int = 3,
    ) -> StreamingQuery:
        """Start the query.

        Args:
            checkpointLocation: the folder of Spark's checkpoint.
            queryName: a name, unique among the running queries of the session.
            trigger: the arguments of `DataStreamWriter.trigger`, such as `{"processingTime": "10 seconds"}` or
                `{"availableNow": True}`; by default a batch starts as soon as there is something to do.
            batch_retries: the number of times that a batch that fails as a whole (a record failed under
                `spout=transactional`, or a replay disagrees with the published outcome) is tried again in place
                before the query stops.
        """
        return start_query(
            self.source.stream,
            self.process(batch_retries),
            checkpointLocation=checkpointLocation,
            queryName=queryName,
            trigger=trigger,
        )


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Attempts a batch by steps: each record is judged, and those that succeeded are written."""

    writer: _Writer
    steps: tuple[Step, ...]

    def __call__(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler) -> Verdict | None:
        outcomes = _outcomes_of(batch)
        if not self.steps and batch.verdict is None:
            # No function can fail, so there is nothing to track: the rows need not pass another Python worker.
            # For each column that is named the driver asks the JVM several times.
            shown = rows.select(*self._schema.names) if self._carry else rows.drop(ANCHORS)
            self.writer(shown, batch.txid, outcomes)
            return batch.facts.judge({}, pins_of_read(rows, batch.facts), outcomes.failures)
        tracking = Tracking(rows, batch.facts, process.carrier)
        self.writer(self._judge(tracking), batch.txid, outcomes)
        if batch.verdict is not None:
            _none_refused(batch, outcomes, self.writer)
            return None
        return tracking.judge(outcomes.failures)

    def isolate(self, rows: DataFrame, batch: CurrentBatch, carrier: Carrier) -> Tracking:
        """Run the steps to find the records that end their worker."""
        tracking = Tracking(rows, batch.facts, carrier, isolating=True)
        run_frame(self._judge(tracking))
        return tracking

    def _judge(self, tracking: Tracking) -> DataFrame:
        """Return the rows that succeed."""
        return tracking.steps(
            "map", tracking.source, self.steps, self._schema, carry=self._carry, anchored=False
        ).frame

    @property
    def _carry(self) -> tuple[str, ...]:
        return (MESSAGE_ID,) if self.writer.with_outcomes else ()

    @property
    def _schema(self) -> StructType:
        """The columns that `write` gets."""
        return _spark_schema(self.steps, self._carry)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Attempts a batch with a plain batch function: it gets the source's rows unchanged, and only it fails records."""

    writer: _Writer

    def __call__(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler) -> Verdict | None:
        outcomes = _outcomes_of(batch)
        self.writer(_without_excluded(rows, batch), batch.txid, outcomes)
        if batch.verdict is not None:
            _none_refused(batch, outcomes, self.writer)
            return None
        # The pins of very many shards are not read for nothing.
        is_judged = len(outcomes) or process.counts_all
        return batch.facts.judge({}, batch.pins(), outcomes.failures) if is_judged else Verdict()


def _outcomes_of(batch: CurrentBatch) -> Outcomes:
    return Outcomes(batch.epoch, batch.application, batch.txid, home=batch.home, merged=batch.merged_homes)


def _none_refused(batch: CurrentBatch, outcomes: Outcomes, writer: _Writer) -> None:
    """Check that the sink refused nothing in a replay, in which nothing is judged again.

    Raises:
        BatchFailedError: it refused a record.
    """
    if outcomes.failures:
        msg = (
            f"batch {batch.txid} is a replay, but {writer.name} refused {count_noun(len(outcomes), 'record')} that the "
            f"published outcome counts as done; the first is {min(outcomes.failures)}. Let {writer.name} "
            "accept the rows of a replay"
        )
        raise BatchFailedError(msg)


def foreach_batch(
    stream: DataFrame, write: Write, *, batch_retries: int = 3, options: Mapping[str, str] | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `stream.writeStream.foreachBatch(...)` that lets `write` send single rows back.

    `write(df, txid, outcomes)` gets the rows of the source unchanged; `outcomes.fail(df, reason)` fails records by
    their `messageId`. All other records of the batch are done when Spark has committed it. `batch_retries`: as in
    `ReliableSink.start`. `options`: as in `reliable`.

    Raises:
        NotOurSourceError: `stream` does not read `kinesis-trident`.
        OperatorError: `write` takes neither two nor three arguments, is async, or yields.
    """
    plain = _Plain(_Writer(write))
    return BatchHandler(source_of(stream, options)[0], plain, batch_retries, may_skip=True)


def _without_excluded(rows: DataFrame, batch: CurrentBatch) -> DataFrame:
    """Return the rows without those that a published outcome excludes, by message id: they may have nothing else."""
    verdict = batch.verdict
    if verdict is None:
        return rows
    alone, several, source = list[str](), dict[str, Runs[NotDone]](), batch.facts.source_of
    for shard, pieces in verdict.not_done.items():
        alone += [batch.first_of(shard, piece) for piece in pieces if piece.count == 1]
        # Operators have made the outcome, before the query became one without them.
        several[source(shard)] = Runs([piece for piece in pieces if piece.count > 1])
    others = rows.where(~F.col(MESSAGE_ID).isin(alone))
    if not any(map(len, several.values())):
        return others

    def is_excluded(text: str) -> bool:
        named = MessageId.find(text)
        if named is None or named.source not in several:
            return False
        return several[named.source].find_holder(named.last.order) is not None

    return others.where(~F.udf(is_excluded, "boolean", useArrow=False)(F.col(MESSAGE_ID)))


def _spark_schema(steps: tuple[Step, ...], carry: tuple[str, ...]) -> StructType:
    """Return the schema of the output of these steps; without steps, the source's columns."""
    if steps:
        fields = list(from_arrow_schema(steps[-1].schema).fields)
    else:
        fields = [field for field in SCHEMA.fields if field.name not in (*carry, ANCHORS)]
    return StructType([*fields, *(SCHEMA[name] for name in carry)])
