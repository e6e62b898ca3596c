"""User functions as steps over Arrow batches: each record succeeds or fails separately.

A step takes a batch and returns the rows that succeeded, their input rows, and the failures of the others. A
function that takes a whole batch and raises an error is called again on halves, until the failing records are
isolated.

Whatever a user's function raises fails its record, also what does not derive from `Exception`: `SystemExit`, a
cancelled task, a panic of a library in Rust. It would end Spark's worker, again in each try. Only `KeyboardInterrupt`
is not the function's: it is how Spark's daemon and a person interrupt a process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as short_repr
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.border import (
    Unfit,
    empty,
    find_unreadable,
    fitting,
    rows_that_fit,
)
from kinesis_trident.bolt.steps.columns import FLUSH_BYTES, Columns, Record, size_of
from kinesis_trident.bolt.steps.fits import by_name
from kinesis_trident.bolt.steps.time_zones import times_in_zone
from kinesis_trident.bolt.steps.watchdog import WATCHDOG
from kinesis_trident.common.arrow_columns import booleans, numbers, values_of
from kinesis_trident.tracker.errors import DelayError
from kinesis_trident.tracker.failure import Failure, failure_of

if TYPE_CHECKING:
    import pandas as pd

    from kinesis_trident.spout.options.connection import ConnectionOptions

FAILED = "__failed"
"""A column of strings that a vectorised function may add: a value fails the record, with that reason."""

RETRY, AFTER = "__retry", "__after"
"""Columns that it may add beside it: false where no retry can help, or the least delay before it, such as `10m`."""

ROW = "__row"
"""A column of numbers that an Arrow function may add: the input row of each row, ascending from 0."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch after a step: `rows` that succeeded, the input row `source[i]` each came from, and the `failed` ones.

    `source` is ascending; `failed` maps an input row to its failure. Input rows in neither were dropped: they are
    done. If it is a part of the batch, `end` input rows are judged with it and the parts before; else None.
    """

    rows: pa.RecordBatch
    source: np.ndarray
    failed: Mapping[int, Failure]
    end: int | None = None


class Step(Protocol):
    """One operator's function over Arrow batches.

    One whose rows can be much larger than its input also has `parts`, which yields the same in parts; the last one's
    `end` is None.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that come out."""
        ...

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Judge every row of a batch."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A decoder of records, which makes its own step: it needs the columns, and how the stream is connected."""

    def make_step(self, schema: pa.Schema, connection: ConnectionOptions) -> Step:
        """Return the step that makes columns of this schema."""
        ...


def refuse_stray(decoder: object, names: Iterable[str], schema: pa.Schema) -> None:
    """Refuse names that are given to a decoder for columns, and are none of the schema.

    Raises:
        OperatorError: there is one.
    """
    stray = [name for name in names if name not in schema.names]
    if stray:
        msg = (
            f"{type(decoder).__name__} names {', '.join(map(repr, stray))} in defaults or keep, but the schema has "
            f"only {', '.join(schema.names)}. Add the column, or remove the name"
        )
        raise OperatorError(msg)


def join_parts(parts: Iterable[Judged]) -> Judged:
    """Return all parts of a batch as one."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    failed = {row: failure for part in found for row, failure in part.failed.items()}
    rows = pa.concat_batches([part.rows for part in found])
    return Judged(rows, np.concatenate([part.source for part in found]), failed)


def reason_of(error: object) -> str:
    """Return an error's class and message, or any other value as text; see `make_reason`."""
    return failure_of(error).reason


@dataclass(frozen=True, slots=True)
class RowStep:
    """A function of one record, which returns a row of the schema (a tuple, a dict, a Row), or None to drop it.

    It may return a list of such rows, or yield them, too: the record fails with the first of them that does not fit.
    """

    function: Callable[[Record], Any]
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the function on each record; an exception fails that record."""
        return join_parts(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts of about `FLUSH_BYTES`."""
        columns = Columns(batch)
        values: list[tuple[Any, ...]] = []
        source: list[int] = []
        failed: dict[int, Failure] = {}
        size = 0
        for row in range(batch.num_rows):
            try:
                WATCHDOG.next_call()
                result = self.function(Record(columns, row))
                if type(result) is list or type(result) is GeneratorType:
                    # Nothing of a record is kept that fails at a later row of its own.
                    rows = [self._values(one) for one in _rows_in(result)]
                    values += rows
                    source += [row] * len(rows)
                    size += sum(map(size_of, rows))
                elif result is not None:
                    found = self._values(result)
                    values.append(found)
                    source.append(row)
                    size += size_of(found)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failed[row] = failure_of(error)
            if size >= FLUSH_BYTES:
                yield replace(self._convert(values, source, failed), end=row + 1)
                values, source, failed, size = [], [], {}, 0
        yield self._convert(values, source, failed)

    def _values(self, result: Any) -> tuple[Any, ...]:
        names = self.schema.names
        if type(result) is not tuple and type(result) is not list:
            try:
                found = by_name(result, names)
            except KeyError as error:
                msg = f"the function's result has no {error.args[0]!r}. Return a value for each of {names}"
                raise OperatorError(msg) from error
            if found is not None:
                return tuple(found)
            if not isinstance(result, list | tuple):
                msg = (
                    f"the function returned {type(result).__name__}; expected a tuple, a dict, a Row or None"
                )
                raise OperatorError(msg)
        if len(result) != len(names):
            msg = f"the function returned {len(result)} values; the schema has {len(names)}: {names}"
            raise OperatorError(msg)
        return tuple(result)

    def _convert(
        self, values: list[tuple[Any, ...]], source: list[int], failed: dict[int, Failure]
    ) -> Judged:
        """Convert rows to Arrow columns; a value that does not fit its type fails its record."""
        made, places, unfit = rows_that_fit(values, self.schema)
        rows = np.asarray(source, dtype=np.int64)
        if places is None:
            return Judged(made, rows, failed)
        fail_rows(failed, rows, unfit)
        return _without_failed(made, rows[places], failed)


def _rows_in(result: list[Any] | Iterator[Any]) -> Iterable[Any]:
    """Return the rows of a record: a list of other things than rows is one itself."""
    is_one = isinstance(result, list) and not all(isinstance(one, tuple | Mapping) for one in result)
    return (result,) if is_one else result


def _without_failed(rows: pa.RecordBatch, source: np.ndarray, failed: Mapping[int, Failure]) -> Judged:
    """Return the rows of the input rows that have not failed: if one row of an input row fails, all of them go."""
    good = ~np.isin(source, np.fromiter(failed, dtype=np.int64))
    return Judged(rows.filter(booleans(good)), source[good], dict(failed))


@dataclass(frozen=True, slots=True)
class PandasStep:
    """A function from DataFrame to DataFrame; the index of its result identifies the input records."""

    function: Callable[[pd.DataFrame], Any]
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the function on the batch; where it raises, on its halves."""
        return join_parts(judge_readable(_without_ours(batch), batch.schema.names, self._judge))

    def _judge(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        yield _call_by_halves(batch, self._call, self.schema)

    def _call(self, batch: pa.RecordBatch) -> Judged:
        # Here, because only functions of DataFrames need this slow import.
        import pandas as pd

        from kinesis_trident.bolt.steps.pandas_frames import to_column, to_frame

        given = to_frame(batch)
        WATCHDOG.next_call()
        result = self.function(given)
        if not isinstance(result, pd.DataFrame):
            msg = f"the function returned {type(result).__name__}; expected a pandas DataFrame"
            raise OperatorError(msg)
        source = result.index.to_numpy()
        if result.index.has_duplicates or not np.isin(source, np.arange(batch.num_rows)).all():
            msg = (
                "the returned rows do not have the index of the input rows, so their records are unknown. Keep "
                "the index (no reset_index, no repeated rows)"
            )
            raise OperatorError(msg)
        missing = [column for column in self.schema.names if column not in result.columns]
        if missing:
            msg = f"the function's result has no column {', '.join(map(repr, missing))}; it has {list(result.columns)}"
            raise OperatorError(msg)
        result = result.sort_index()
        source = result.index.to_numpy().astype(np.int64)
        failed: dict[int, Failure] = {}
        _refuse_alone(result.columns, self.function)
        if FAILED in result:
            bad = result[FAILED].notna().to_numpy()
            said = result[bad]
            told = {
                name: [None if pd.isna(value) else value for value in said[name]]
                for name in (FAILED, RETRY, AFTER)
                if name in said
            }
            failed = dict(zip(source[bad].tolist(), _failures_in(told, self.function), strict=True))
            result, source = result[~bad], source[~bad]
        columns = [to_column(result[field.name], field.type) for field in self.schema]
        return _fitted(columns, source, failed, self.schema)


@dataclass(frozen=True, slots=True)
class ArrowStep:
    """A function from RecordBatch to RecordBatch: one row for each input row, in order, or with the column `__row`."""

    function: Callable[[pa.RecordBatch], Any]
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Call the function on the batch; where it raises, on its halves."""
        return _call_by_halves(batch, self._call, self.schema)

    def _call(self, batch: pa.RecordBatch) -> Judged:
        given = times_in_zone(_without_ours(batch))
        WATCHDOG.next_call()
        result = self.function(given)
        if isinstance(result, pa.Table):
            whole = result.combine_chunks().to_batches()
            result = whole[0] if whole else empty(result.schema)
        source = np.arange(batch.num_rows, dtype=np.int64)
        if isinstance(result, pa.RecordBatch) and ROW in result.schema.names:
            source = _rows_named(result, batch.num_rows)
        elif not isinstance(result, pa.RecordBatch) or result.num_rows != batch.num_rows:
            got = f"{result.num_rows} rows" if isinstance(result, pa.RecordBatch) else type(result).__name__
            msg = (
                f"the function got {batch.num_rows} rows and returned {got}. Return a RecordBatch with one row "
                f"for each, in order, or with the input row of each in a column {ROW!r} (name failed ones in a "
                f"column {FAILED!r})"
            )
            raise OperatorError(msg)
        failed: dict[int, Failure] = {}
        _refuse_alone(result.schema.names, self.function)
        if FAILED in result.schema.names:
            reasons = result.column(FAILED)
            good = values_of(reasons.is_null())
            said = result.filter(booleans(~good))
            told = {
                name: said.column(name).to_pylist()
                for name in (FAILED, RETRY, AFTER)
                if name in said.schema.names
            }
            failed = dict(zip(source[~good].tolist(), _failures_in(told, self.function), strict=True))
            # If one row of an input row failed, all rows of that input row are dropped.
            good = ~np.isin(source, np.fromiter(failed, dtype=np.int64))
            result, source = result.filter(booleans(good)), source[good]
        names = result.schema.names
        missing = [name for name in self.schema.names if name not in names]
        if missing:
            msg = f"the function's result has no column {missing[0]!r}; it has {names}"
            raise OperatorError(msg)
        return _fitted([result.column(name) for name in self.schema.names], source, failed, self.schema)


def _refuse_alone(names: Collection[str], function: object) -> None:
    """Refuse columns about failures in a result that names none.

    Raises:
        OperatorError: there is one.
    """
    alone = [name for name in (RETRY, AFTER) if name in names]
    if alone and FAILED not in names:
        msg = (
            f"the result of {_name_of(function)} has a column {alone[0]!r}, but none {FAILED!r}, which names the rows "
            "that it is about. Add it: a text fails its row, null does not"
        )
        raise OperatorError(msg)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _failures_in(columns: Mapping[str, Sequence[Any]], function: object) -> list[Failure]:
    """Return the failures of rows of a function's result, from the columns that name them.

    Raises:
        OperatorError: a value is none of its column.
    """
    count = len(columns[FAILED])
    retries, afters = (columns.get(name) or [None] * count for name in (RETRY, AFTER))
    rows = list(zip(map(str, columns[FAILED]), retries, afters, strict=True))
    # Nearly all are alike. What is no delay may not be hashable.
    keys = list(map(repr, rows))
    known = {key: _failure_in(*row, function) for key, row in dict(zip(keys, rows, strict=True)).items()}
    return list(map(known.__getitem__, keys))


def _failure_in(reason: str, retry: object, after: Any, function: object) -> Failure:
    what = RETRY
    try:
        if retry is not None and not isinstance(retry, bool | np.bool_):
            msg = f"{short_repr(retry)} is neither true, false nor null. Give false where no retry can help"
            raise DelayError(msg)
        what = AFTER
        return Failure.said(reason, retry=retry is None or bool(retry), after=after)
    except DelayError as error:
        where = f"the column {what!r} of the result of {_name_of(function)}"
        msg = f"{where}, in a row that fails with {short_repr(reason)}: {error}"
        raise OperatorError(msg) from error


def _fitted(
    columns: Sequence[pa.Array | Sequence[Any]],
    source: np.ndarray,
    failed: dict[int, Failure],
    schema: pa.Schema,
) -> Judged:
    """Return the columns of a result as those of the schema; an input row of which a value does not fit fails."""
    made, places, unfit = fitting(columns, len(source), schema)
    if places is None:
        return Judged(made, source, failed)
    fail_rows(failed, source, unfit)
    return _without_failed(made, source[places], failed)


def fail_rows(failed: dict[int, Failure], source: np.ndarray, unfit: Unfit) -> None:
    """Add the input rows of rows that do not fit to those that failed; the first reason of each counts."""
    for place in sorted(unfit):
        failed.setdefault(int(source[place]), Failure.said(unfit[place]))


def judge_readable(
    batch: pa.RecordBatch, names: Iterable[str], judge: Callable[[pa.RecordBatch], Iterator[Judged]]
) -> Iterator[Judged]:
    """Judge the rows whose values of some columns Python can have; the others fail."""
    unfit = find_unreadable({name: batch.column(name) for name in names if not name.startswith("__")})
    if not unfit:
        yield from judge(batch)
        return
    left = {row: Failure.said(unfit[row]) for row in sorted(unfit)}
    good = np.delete(np.arange(batch.num_rows, dtype=np.int64), list(left))
    for part in judge(batch.take(numbers(good))):
        end = None if part.end is None else int(good[part.end]) if part.end < len(good) else batch.num_rows
        failed = {int(good[row]): failure for row, failure in part.failed.items()}
        done = [row for row in left if end is None or row < end]
        failed |= {row: left.pop(row) for row in done}
        yield Judged(part.rows, good[part.source], failed, end)


def _rows_named(result: pa.RecordBatch, count: int) -> np.ndarray:
    column = result.column(ROW)
    rows = values_of(column) if pa.types.is_integer(column.type) and not column.null_count else None
    if rows is None or not (
        (rows[1:] >= rows[:-1]).all() and (not len(rows) or (rows[0] >= 0 and rows[-1] < count))
    ):
        msg = (
            f"the column {ROW!r} is not valid. It must hold the input rows: whole numbers from 0 to {count - 1}, "
            "ascending"
        )
        raise OperatorError(msg)
    return rows.astype(np.int64)


def _call_by_halves(
    batch: pa.RecordBatch, call: Callable[[pa.RecordBatch], Judged], schema: pa.Schema
) -> Judged:
    """Call a vectorised function; after an error on halves, so that only the faulty records fail."""
    parts = list(_halves(batch, 0, call))
    if len(parts) == 1 and len(parts[0][1].source):
        return parts[0][1]
    failed = {at + row: failure for at, judged in parts for row, failure in judged.failed.items()}
    good = [(at, judged) for at, judged in parts if len(judged.source)]
    if not good:
        return Judged(empty(schema), np.empty(0, dtype=np.int64), failed)
    rows = pa.concat_batches([judged.rows for _, judged in good])
    return Judged(rows, np.concatenate([at + judged.source for at, judged in good]), failed)


def _halves(
    batch: pa.RecordBatch, at: int, call: Callable[[pa.RecordBatch], Judged]
) -> Iterator[tuple[int, Judged]]:
    if batch.num_rows == 0:
        return
    try:
        judged = call(batch)
    except (OperatorError, KeyboardInterrupt):
        # An error of the function itself is the same for all records: halves cannot help.
        raise
    except BaseException as error:
        if batch.num_rows > 1:
            middle = batch.num_rows // 2
            yield from _halves(batch.slice(0, middle), at, call)
            yield from _halves(batch.slice(middle), at + middle, call)
            return
        judged = Judged(batch.slice(0, 0), np.empty(0, dtype=np.int64), {0: failure_of(error)})
    yield at, judged


def _without_ours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with only the columns that a user's function sees."""
    return batch.select([name for name in batch.schema.names if not name.startswith("__")])
