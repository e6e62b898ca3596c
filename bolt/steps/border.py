"""The border of users' functions: columns become Python values, and what functions return becomes columns of a type.

Functions of records and of batches, bolts and Trident's operations all pass here, so one rule holds for all of them:

- What Python cannot have (invalid UTF-8, a time outside the calendar) fails its record alone.
- Times with a zone are in the session's, on every path; in UTC where the calendar of the session's has ended. Maps are
  dicts, unless their keys are structs or arrays: then they are lists of pairs.
- What does not fit a field's type, whole (`bolt.steps.fits`), fails its record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type

from kinesis_trident.bolt.steps.families import UnfitError, reason_of_unfit
from kinesis_trident.bolt.steps.fits import make_column
from kinesis_trident.bolt.steps.poison import unreadable_within
from kinesis_trident.bolt.steps.time_zones import in_zone
from kinesis_trident.common.arrow_columns import booleans, numbers

Unfit = dict[int, str]
"""The values that do not cross, by their place, each with the reason."""

# In: columns become Python values.


def read(column: pa.Array | pa.ChunkedArray, zone: str | None = None) -> list[Any]:
    """Return a column as Python values; times with a zone are in the session's, or in another one.

    Raises:
        ValueError: Python cannot have one of them; of a time OverflowError.
    """
    return _read(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, zone)


def values(column: pa.Array, name: str) -> tuple[list[Any], Unfit]:
    """Return a column as Python values, None for those that Python cannot have, and the reasons of these."""
    try:
        return _read(column), {}
    except (ValueError, OverflowError):
        unfit = find_unreadable({name: column})
        if not unfit:
            raise
    bad = booleans(np.isin(np.arange(len(column)), list(unfit)))
    readable = pc.if_else(bad, pa.scalar(None, pa.int64()), numbers(np.arange(len(column))))
    return _read(column.take(readable)), unfit


def find_unreadable(columns: Mapping[str, pa.Array]) -> Unfit:
    """Return the rows of some columns with values that Python cannot have, found in columns."""
    found: Unfit = {}
    for name, column in columns.items():
        # Most types have no such values.
        if pa.types.is_primitive(column.type) and not pa.types.is_temporal(column.type):
            continue
        for check in unreadable_within(name, from_arrow_type(column.type)):
            wrong = check(column)
            if wrong is not None:
                for row in np.flatnonzero(wrong).tolist():
                    found.setdefault(row, f"the field {check.name!r} is {check.poison.words}")
    return found


def _read(column: pa.Array, zone: str | None = None) -> list[Any]:
    # Arrow has maps as lists of pairs: its own way to dicts is ten times as slow.
    made: list[Any]
    there = in_zone(column, zone)
    try:
        made = there.to_pylist()
    except OverflowError:
        # In its own zone the end of the calendar, which many write for "never", may be of the year 10000.
        made = [*map(_in_calendar, there, in_zone(column, "UTC"))]
    convert = _to_dicts(column.type)
    return made if convert is None else list(map(convert, made))


def _in_calendar(there: pa.Scalar, in_utc: pa.Scalar) -> Any:
    try:
        return there.as_py()
    except OverflowError:
        return in_utc.as_py()


@lru_cache(256)
def _to_dicts(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes dicts of the maps in a value of a type; None if it has none."""
    if pa.types.is_map(kind):
        item = _to_dicts(kind.item_type)
        if pa.types.is_nested(kind.key_type):
            # No dict has dicts or lists as keys.
            return item and (lambda value: value and [(key, item(one)) for key, one in value])
        if item is None:
            return lambda value: None if value is None else dict(value)
        return lambda value: None if value is None else {key: item(one) for key, one in value}
    if pa.types.is_struct(kind):
        found = {field.name: convert for field in kind if (convert := _to_dicts(field.type)) is not None}
        if found:
            return lambda value: (
                value and value | {name: convert(value[name]) for name, convert in found.items()}
            )
    elif pa.types.is_list(kind) and (element := _to_dicts(kind.value_type)) is not None:
        return lambda value: None if value is None else list(map(element, value))
    return None


# Out: what functions return becomes columns of a type.


def column(given: Sequence[Any] | pa.Array, field: pa.Field) -> tuple[pa.Array, Unfit]:
    """Return Python values, or a column of another type, as a column of a field's type: only those that fit.

    Raises:
        Exception: of many classes: values fit one by one, and not together, as texts of more than 2 GiB.
    """
    try:
        return make_column(given, field), {}
    except KeyboardInterrupt:
        raise
    except BaseException:
        unfit = dict(_find_unfit(given, field, 0))
        if not unfit:
            raise
    places = [place for place in range(len(given)) if place not in unfit]
    kept = (
        given.take(numbers(np.array(places, np.int64)))
        if isinstance(given, pa.Array)
        else [given[at] for at in places]
    )
    return make_column(kept, field), unfit


def rows_that_fit(
    given: Sequence[Sequence[Any]], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[int] | None, Unfit]:
    """Return rows of Python values as a batch of those that fit, the places of these (None: all), and the others."""
    columns = list(zip(*given, strict=True)) if given else [() for _ in schema]
    made = [column(values, field) for values, field in zip(columns, schema, strict=True)]
    unfit = {place: reason for _, some in reversed(made) for place, reason in some.items()}
    if not unfit:
        return _batch([one for one, _ in made], len(given), schema), None, unfit
    places = [place for place in range(len(given)) if place not in unfit]
    return rows_that_fit([given[place] for place in places], schema)[0], places, unfit


def fitting(
    given: Sequence[pa.Array | Sequence[Any]], count: int, schema: pa.Schema
) -> tuple[pa.RecordBatch, np.ndarray | None, Unfit]:
    """Return columns as a batch of those rows that fit, the places of these (None: all), and the others."""
    made = [column(values, field) for values, field in zip(given, schema, strict=True)]
    unfit = {place: reason for _, some in reversed(made) for place, reason in some.items()}
    if not unfit:
        return _batch([one for one, _ in made], count, schema), None, unfit
    places = np.arange(count, dtype=np.int64)
    good = ~np.isin(places, list(unfit))
    kept = []
    for one, own in made:
        # A column has its own unfit rows no more.
        left = good[~np.isin(places, list(own))]
        kept.append(one.filter(booleans(left)))
    return _batch(kept, int(good.sum()), schema), places[good], unfit


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return _batch([pa.nulls(0, kind) for kind in schema.types], 0, schema)


def _batch(columns: list[pa.Array], count: int, schema: pa.Schema) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), count, [None]))


def _find_unfit(given: Any, field: pa.Field, at: int) -> Iterator[tuple[int, str]]:
    """Yield the values that do not fit, found by halves."""
    try:
        make_column(given, field)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if len(given) == 1:
            yield (
                at,
                str(error)
                if isinstance(error, UnfitError)
                else reason_of_unfit(field.name, field.type, error),
            )
        else:
            middle = len(given) // 2
            yield from _find_unfit(given[:middle], field, at)
            yield from _find_unfit(given[middle:], field, at + middle)
