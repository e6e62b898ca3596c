"""Operations on single tuples as steps over Arrow batches: each traces its rows back to its input rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.calls import refuse_not_run
from kinesis_trident.bolt.errors import FailedException
from kinesis_trident.bolt.steps.border import read
from kinesis_trident.bolt.steps.functions import Judged, join_parts, judge_readable
from kinesis_trident.bolt.steps.parts import chain, in_parts
from kinesis_trident.bolt.steps.watchdog import WATCHDOG
from kinesis_trident.common.arrow_columns import booleans, numbers
from kinesis_trident.tracker.failure import Failure, failure_of
from kinesis_trident.trident.errors import OperationError, TridentError
from kinesis_trident.trident.maps.storable import find_not_finite
from kinesis_trident.trident.operations import Filter
from kinesis_trident.trident.steps.replay import call_whole, convert_replay_requests, named_errors
from kinesis_trident.trident.tuples import TridentTuple, tuples_of


class TridentStep(Protocol):
    """One operation over Arrow batches."""

    @property
    def operation(self) -> str:
        """The name in messages."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output."""
        ...

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare for a task: called once, before its first batch."""

    def cleanup(self) -> None:
        """Clean up after a task: called once, after its last batch."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Judge every row of a batch."""
        ...


@dataclass(frozen=True, slots=True)
class FilterStep:
    """Keeps the rows that a filter wants."""

    operation: str
    filter: Filter
    inputs: tuple[str, ...]
    schema: pa.Schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare the filter."""
        call_whole(f"{self.operation}: prepare()", self.filter.prepare, conf)

    def cleanup(self) -> None:
        """Let the filter clean up."""
        call_whole(f"{self.operation}: cleanup()", self.filter.cleanup)

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the filter for each row."""
        return join_parts(judge_tuples(batch, self.inputs, self._filtered))

    def _filtered(self, batch: pa.RecordBatch, tuples: list[TridentTuple]) -> Iterator[Judged]:
        keep: list[int] = []
        failed: dict[int, Failure] = {}
        is_keep: Callable[[TridentTuple], object] = self.filter.is_keep
        for row, tup in enumerate(tuples):
            try:
                WATCHDOG.next_call()
                found = is_keep(tup)
                if found is not True and found is not False:
                    refuse_not_run(self.operation, found, OperationError)
                if found:
                    keep.append(row)
            except (TridentError, FailedException, KeyboardInterrupt):
                raise
            except BaseException as error:
                failed[row] = failure_of(error)
        source = np.asarray(keep, dtype=np.int64)
        rows = batch.select(self.schema.names)
        yield Judged(rows if len(keep) == batch.num_rows else rows.take(numbers(source)), source, failed)


@dataclass(frozen=True, slots=True)
class _Check:
    """The common part of steps that fail rows by the values of some columns, and change none."""

    operation: str
    inputs: tuple[str, ...]
    schema: pa.Schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def cleanup(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class ReadableStep(_Check):
    """Fails the rows whose value of a column Python cannot have: what comes next belongs to no single record."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Check the columns."""
        return join_parts(judge_readable(batch, self.inputs, self._kept))

    def _kept(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        yield Judged(batch.select(self.schema.names), np.arange(batch.num_rows, dtype=np.int64), {})


@dataclass(frozen=True, slots=True)
class FiniteStep(_Check):
    """Fails the rows that have NaN or an infinity in a column: with one of them a total is one for good."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Check the columns."""
        failed: dict[int, Failure] = {}
        for name in self.inputs:
            column = batch.column(name)
            for row in np.flatnonzero(find_not_finite(column)):
                failed[int(row)] = Failure.said(
                    f"{name} is {column[row].as_py()}, which would stay in the state for good"
                )
        rows, source = batch.select(self.schema.names), np.arange(batch.num_rows, dtype=np.int64)
        if failed:
            source = np.delete(source, list(failed))
            rows = rows.take(numbers(source))
        return Judged(rows, source, failed)


@dataclass(frozen=True, slots=True)
class ProjectStep:
    """Keeps some of the columns."""

    operation: ClassVar[str] = "project"

    schema: pa.Schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def cleanup(self) -> None:
        """Nothing to do."""

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Keep all rows."""
        return Judged(batch.select(self.schema.names), np.arange(batch.num_rows, dtype=np.int64), {})


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Consecutive steps as one. A failed row also drops all rows that came from it.

    A step that raises a `FailedException` fails the batch, not a row: it requests a replay.
    """

    steps: tuple[TridentStep, ...]

    @property
    def operation(self) -> str:
        """The last step's name."""
        return self.steps[-1].operation

    @property
    def schema(self) -> pa.Schema:
        """The last step's columns."""
        return self.steps[-1].schema

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare all steps; if one fails, those before it clean up.

        Raises:
            OperationError: one failed.
        """
        for number, step in enumerate(self.steps):
            try:
                with convert_replay_requests(step.operation), named_errors(f"{step.operation}: prepare()"):
                    # Each operation may change its own.
                    step.prepare(dict(conf))
            except BaseException:
                with suppress(Exception):
                    replace(self, steps=self.steps[:number]).cleanup()
                raise

    def cleanup(self) -> None:
        """Let all steps clean up, also after an error of another one.

        Raises:
            OperationError: one failed; of several the first.
        """
        failed: BaseException | None = None
        for step in self.steps:
            try:
                with named_errors(f"{step.operation}: cleanup()"):
                    step.cleanup()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Run all steps.

        Raises:
            BatchFailedError: one raised a `FailedException`.
        """
        return join_parts(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts.

        Raises:
            BatchFailedError: one raised a `FailedException`.
        """
        for judged in chain(self.steps, batch, judge):
            good = np.ones(len(judged.source), dtype=bool)
            if judged.failed:
                good = ~np.isin(judged.source, np.fromiter(judged.failed, dtype=np.int64))
            if good.all():
                yield judged
            else:
                yield replace(judged, rows=judged.rows.filter(booleans(good)), source=judged.source[good])


def judge(step: TridentStep, batch: pa.RecordBatch) -> Iterator[Judged]:
    """Judge a batch by one step, in parts; a `FailedException` of any subclass fails the batch.

    Raises:
        BatchFailedError: there was one.
    """
    parts = in_parts(step, batch)
    while True:
        with convert_replay_requests(step.operation):
            part = next(parts, None)
        if part is None:
            return
        yield part


def judge_tuples(
    batch: pa.RecordBatch,
    inputs: tuple[str, ...],
    judge: Callable[[pa.RecordBatch, list[TridentTuple]], Iterator[Judged]],
) -> Iterator[Judged]:
    """Judge the rows as tuples of these fields; those that Python cannot have fail, and are only then looked for."""
    try:
        tuples = _read_tuples(batch, inputs)
    except (ValueError, OverflowError):
        return judge_readable(batch, inputs, lambda good: judge(good, _read_tuples(good, inputs)))
    return judge(batch, tuples)


def _read_tuples(batch: pa.RecordBatch, inputs: tuple[str, ...]) -> list[TridentTuple]:
    """Return the rows of a batch as tuples of these fields."""
    return tuples_of(inputs, [read(batch.column(name)) for name in inputs], batch.num_rows)
