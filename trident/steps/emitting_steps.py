"""Steps whose operations emit: new columns next to the existing ones, each row traced back to its source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.calls import refuse_returned
from kinesis_trident.bolt.errors import FailedException
from kinesis_trident.bolt.steps.border import empty, fitting, rows_that_fit
from kinesis_trident.bolt.steps.columns import FLUSH_BYTES, is_text, size_of
from kinesis_trident.bolt.steps.functions import Judged, fail_rows, join_parts
from kinesis_trident.bolt.steps.time_zones import times_in_zone
from kinesis_trident.bolt.steps.watchdog import WATCHDOG
from kinesis_trident.common.arrow_columns import booleans, numbers
from kinesis_trident.tracker.failure import Failure, failure_of
from kinesis_trident.trident.errors import OperationError, TridentError
from kinesis_trident.trident.operations import ArrowFunction, Function
from kinesis_trident.trident.order import ORDER, rank_emitted
from kinesis_trident.trident.state import QueryFunction, State, StateFactory
from kinesis_trident.trident.steps.replay import call_whole, named_errors
from kinesis_trident.trident.steps.tuple_steps import judge_tuples
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

_MOST_BYTES = 1 << 30
"""The bytes that a function may emit for one tuple: Arrow's texts end at twice as many."""


class _Emitted:
    """The values that an operation emitted, row by row, until they become columns: `size` is that of the values."""

    def __init__(self, operation: str, schema: pa.Schema) -> None:
        self._operation = operation
        self._schema = schema
        self.collector = TridentCollector(operation, schema.names)
        self._source: list[int] = []
        self._failed: dict[int, Failure] = {}
        self.size = 0
        # Most operations emit texts and numbers, whose sizes C functions add up.
        self._texts = [itemgetter(at) for at, kind in enumerate(schema.types) if is_text(kind)]
        self._nested = any(map(pa.types.is_nested, schema.types))

    def run(self, row: int, execute: Callable[[TridentCollector], object]) -> None:
        """Let an operation emit for a row; an exception discards what it emitted, as does a wrong number of values."""
        collector = self.collector
        rows, collector.refused = collector.rows, None
        before = len(rows)
        failed: BaseException | None = None
        try:
            WATCHDOG.next_call()
            returned = execute(collector)
            if returned is not None:
                refuse_returned(f"{self._operation}: execute()", returned, OperationError)
        except (TridentError, FailedException) as error:
            if error is not collector.refused:
                raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed = error
        failed = collector.refused if failed is None else failed
        size = 0 if failed is not None else self._size_of(rows[before:])
        if size > _MOST_BYTES:
            msg = f"emitted {size:,} bytes for one tuple, but {_MOST_BYTES:,} are the most. Emit less"
            failed = OperationError(msg)
        if failed is None:
            self._source += [row] * (len(rows) - before)
            self.size += size
        else:
            del rows[before:]
            self._failed[row] = failure_of(failed)

    def _size_of(self, rows: list[tuple[Any, ...]]) -> int:
        if self._nested:
            return size_of(rows)
        size = 0
        try:
            for text in self._texts:
                size += sum(map(len, map(text, rows)))
            return size
        except TypeError:
            # A null, or a value that does not fit.
            return size_of(rows)

    def take(self) -> tuple[pa.RecordBatch, np.ndarray, dict[int, Failure]]:
        """Return all values as Arrow columns, their input rows, and the failed ones; begin again.

        A value that does not fit fails its row.
        """
        rows, source, failed = self.collector.rows, self._source, self._failed
        self.collector.rows, self._source, self._failed, self.size = [], [], {}, 0
        made, places, unfit = rows_that_fit(rows, self._schema)
        came = np.asarray(source, dtype=np.int64)
        if places is not None:
            fail_rows(failed, came, unfit)
            made, came = _without(failed, made, came[places])
        return made, came, failed


def _without(
    failed: Mapping[int, Failure], made: pa.RecordBatch, source: np.ndarray
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return rows without those of input rows that failed."""
    good = ~np.isin(source, np.fromiter(failed, dtype=np.int64))
    return made.filter(booleans(good)), source[good]


def _emit(
    operation: str,
    batch: pa.RecordBatch,
    kept: pa.Schema,
    added: pa.Schema,
    calls: Iterable[Callable[[TridentCollector], object]],
) -> Iterator[Judged]:
    """Yield the kept columns beside what each row's call emits, in parts of about `FLUSH_BYTES`."""
    emitted, schema = _Emitted(operation, added), pa.schema([*kept, *added])

    def part(end: int | None) -> Judged:
        emitted.collector.close()
        new, source, failed = emitted.take()
        return Judged(_beside(batch, kept, new, source, schema), source, failed, end)

    for row, call in enumerate(calls):
        emitted.run(row, call)
        if emitted.size >= FLUSH_BYTES:
            yield part(row + 1)
            # Others' calls may have come between.
            emitted.collector.open()
    yield part(None)


@dataclass(frozen=True, slots=True)
class _EachStep:
    """The common part of function steps: columns `added` to those `kept`, from the `inputs`."""

    operation: str
    function: Function | ArrowFunction
    inputs: tuple[str, ...]
    added: pa.Schema
    kept: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """The kept columns, then the new ones."""
        return pa.schema([*self.kept, *self.added])

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare the function."""
        call_whole(f"{self.operation}: prepare()", self.function.prepare, conf)

    def cleanup(self) -> None:
        """Let the function clean up."""
        call_whole(f"{self.operation}: cleanup()", self.function.cleanup)


@dataclass(frozen=True, slots=True)
class FunctionStep(_EachStep):
    """`each` with a function: adds the new columns to the existing ones, or replaces them."""

    function: Function

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the function for each row."""
        return join_parts(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts."""
        return judge_tuples(batch, self.inputs, self._emitted)

    def _emitted(self, batch: pa.RecordBatch, tuples: list[TridentTuple]) -> Iterator[Judged]:
        execute = self.function.execute
        calls = (partial(execute, tup) for tup in tuples)
        return _emit(self.operation, batch, self.kept, self.added, calls)


@dataclass(frozen=True, slots=True)
class ArrowEachStep(_EachStep):
    """`each` with a function over Arrow batches; after an error it is called on halves."""

    function: ArrowFunction

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the function on the batch."""
        given = times_in_zone(batch.select(list(self.inputs)))
        failed: dict[int, Failure] = {}
        parts = list(self._halves(given, 0, failed))
        columns = [new for new, _ in parts] or [empty(self.added)]
        source = np.concatenate([rows for _, rows in parts]) if parts else np.empty(0, dtype=np.int64)
        new = columns[0] if len(columns) == 1 else pa.concat_batches(columns)
        return Judged(_beside(batch, self.kept, new, source, self.schema), source, failed)

    def _halves(
        self, batch: pa.RecordBatch, at: int, failed: dict[int, Failure]
    ) -> list[tuple[pa.RecordBatch, np.ndarray]]:
        if not batch.num_rows:
            return []
        try:
            WATCHDOG.next_call()
            new, rows = self.function.execute(batch)
            new = self._check(new, rows, batch.num_rows)
        except (TridentError, FailedException, KeyboardInterrupt):
            raise
        except BaseException as error:
            if batch.num_rows == 1:
                failed[at] = failure_of(error)
                return []
            middle = batch.num_rows // 2
            return [
                *self._halves(batch.slice(0, middle), at, failed),
                *self._halves(batch.slice(middle), at + middle, failed),
            ]
        source = at + rows.astype(np.int64)
        made, places, unfit = fitting(list(map(new.column, self.added.names)), new.num_rows, self.added)
        if places is not None:
            fail_rows(failed, source, unfit)
            made, source = _without(failed, made, source[places])
        return [(made, source)]

    def _check(self, new: Any, source: Any, rows: int) -> pa.RecordBatch:
        if isinstance(new, pa.Table):
            whole = new.combine_chunks().to_batches()
            new = whole[0] if whole else empty(self.added)
        good = (
            isinstance(new, pa.RecordBatch)
            and isinstance(source, np.ndarray)
            and sorted(new.schema.names) == sorted(self.added.names)
            and len(source) == new.num_rows
            and (
                not len(source)
                or (source[0] >= 0 and source[-1] < rows and bool((np.diff(source) >= 0).all()))
            )
        )
        if not good:
            msg = (
                f"{self.operation}: the ArrowFunction's result is not valid. It must return a RecordBatch with the "
                f"columns {', '.join(self.added.names)}, and a numpy array with the input row of each row, ascending "
                f"from 0 to {rows - 1}"
            )
            raise OperationError(msg)
        return new


@dataclass(slots=True)
class QueryStep:
    """`state_query`: queries a state for a batch of tuples at once, then emits for each."""

    operation: str
    factory: StateFactory
    query: QueryFunction[Any, Any]
    inputs: tuple[str, ...]
    added: pa.Schema
    kept: pa.Schema
    _state: State | None = field(default=None, init=False)

    @property
    def schema(self) -> pa.Schema:
        """The kept columns, then the new ones."""
        return pa.schema([*self.kept, *self.added])

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Make the state, outside of any batch, and prepare the query."""
        self._state = self.factory.make_state(dict(conf), 0, 1)
        call_whole(f"{self.operation}: prepare()", self.query.prepare, conf)

    def cleanup(self) -> None:
        """Let the query clean up."""
        call_whole(f"{self.operation}: cleanup()", self.query.cleanup)
        self._state = None

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Query for the whole batch, then emit.

        Raises:
            OperationError: the result is not a list, or has more or fewer items than tuples.
        """
        return join_parts(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts; see `__call__`."""
        return judge_tuples(batch, self.inputs, self._answered)

    def _answered(self, batch: pa.RecordBatch, tuples: list[TridentTuple]) -> Iterator[Judged]:
        with named_errors(f"{self.operation}: batch_retrieve()"):
            results: Any = self.query.batch_retrieve(self._state, tuples)
        if not isinstance(results, Collection):
            msg = (
                f"{self.operation}: batch_retrieve returned {type(results).__name__}. It must return a list with "
                "one result for each tuple, in their order, None for none"
            )
            raise OperationError(msg)
        if len(results) != len(tuples):
            msg = (
                f"{self.operation}: batch_retrieve got {len(tuples)} tuples and returned {len(results)} results. "
                "It must return one for each tuple, in their order, None for none"
            )
            raise OperationError(msg)
        execute = self.query.execute
        calls = (partial(execute, tup, result) for tup, result in zip(tuples, results, strict=True))
        yield from _emit(self.operation, batch, self.kept, self.added, calls)


def _beside(
    batch: pa.RecordBatch, kept: pa.Schema, new: pa.RecordBatch, source: np.ndarray, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the old columns, each row repeated for each of its new rows, with the new columns."""
    if not len(kept):
        return pa.RecordBatch.from_arrays(new.columns, schema=schema)
    old = batch.select(kept.names)
    if len(source) != batch.num_rows or not np.array_equal(source, np.arange(len(source))):
        old = old.take(numbers(source))
        if ORDER in kept.names:
            old = old.set_column(
                kept.get_field_index(ORDER), ORDER, rank_emitted(batch.column(ORDER), source)
            )
    return pa.RecordBatch.from_arrays([*old.columns, *new.columns], schema=schema)
