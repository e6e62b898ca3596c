"""The types that sinks take: one row each, with what the sinks need to know of it and the values that nobody can read.

What a row holds is decided in columns of Arrow, before anything is written: Spark and Arrow let values be that Python,
databases and other readers do not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.steps.poison import (
    ColumnCheck,
    Mask,
    Poison,
    parts_of,
    types_within,
    unreadable_within,
)
from kinesis_trident.common.arrow_columns import values_of


def _find_infinite(column: pa.Array) -> Mask | None:
    return _find_others(pc.is_finite(column))


def _find_nan(column: pa.Array) -> Mask | None:
    return _find_others(pc.invert(pc.is_nan(column)))


def _find_others(right: pa.Array) -> Mask | None:
    return None if right.true_count + right.null_count == len(right) else ~values_of(right.fill_null(True))


def _find_null(column: pa.Array) -> Mask | None:
    return values_of(column.is_null()) if column.null_count else None


def _find_null_field(place: int, column: pa.Array) -> Mask | None:
    """Return which values have a null in a field, those aside that are null themselves."""
    found = _find_null(pc.struct_field(column, place))
    return None if found is None else found & values_of(column.is_valid())


def _find_too_exact(column: pa.Array) -> Mask | None:
    least = Decimal((0, (1,), DOUBLE - column.type.scale))
    found = pc.greater_equal(pc.abs(column), pa.scalar(least, column.type)).fill_null(False)
    return values_of(found) if found.true_count else None


def _find_empty(column: pa.Array) -> Mask | None:
    found: Mask = values_of(pc.binary_length(column).fill_null(1)) == 0
    return found if found.any() else None


DOUBLE = 15
"""The digits that a double keeps of any number."""

TOO_EXACT = Poison(f"a number of more than {DOUBLE} digits", _find_too_exact)
EMPTY = Poison("an empty text, which is null there", _find_empty)
NOT_FINITE = Poison("no finite number", _find_infinite)
NAN = Poison("no number", _find_nan)
NULL = Poison("null", _find_null)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """A type of Spark's columns.

    Attributes:
        sql: the Python types of the values of a database's columns that take it; none if a database has no such.
        new: the column of a new table of a database, by its name in SQLAlchemy.
        partitions: a new table can be partitioned by its values.
        strict: values with which a row fails alone in some columns: see `checks_of`.
    """

    sql: tuple[type, ...] = ()
    new: str = ""
    partitions: bool = False
    strict: bool = False


_WHOLE, _BROKEN = (int, Decimal), (float, Decimal)

KINDS: Mapping[type[T.DataType], ColumnKind] = {
    T.StringType: ColumnKind(sql=(str, UUID), new="Text", partitions=True),
    T.BooleanType: ColumnKind(sql=(bool,), new="Boolean", partitions=True),
    T.ByteType: ColumnKind(sql=_WHOLE, new="SmallInteger", partitions=True),
    T.ShortType: ColumnKind(sql=_WHOLE, new="SmallInteger", partitions=True),
    T.IntegerType: ColumnKind(sql=_WHOLE, new="Integer", partitions=True),
    T.LongType: ColumnKind(sql=_WHOLE, new="BigInteger", partitions=True),
    T.DecimalType: ColumnKind(sql=(Decimal,), new="Numeric"),
    T.FloatType: ColumnKind(sql=_BROKEN, new="Double", strict=True),
    T.DoubleType: ColumnKind(sql=_BROKEN, new="Double", strict=True),
    T.DateType: ColumnKind(sql=(date,), new="Date", partitions=True),
    T.TimestampType: ColumnKind(sql=(datetime,), new="DateTime"),
    T.TimestampNTZType: ColumnKind(sql=(datetime,), new="DateTime"),
    T.BinaryType: ColumnKind(sql=(bytes,), new="LargeBinary"),
    # What is in these is checked as it is outside of them.
    T.ArrayType: ColumnKind(),
    T.MapType: ColumnKind(),
    T.StructType: ColumnKind(),
}
"""All types that a sink takes."""


def checks_of(
    schema: T.StructType, columns: Collection[str], strict: Mapping[str, Poison]
) -> list[ColumnCheck]:
    """Return the checks of the columns that a sink writes.

    Args:
        schema: of the table, which says what must not be null within a column.
        columns: those that are written.
        strict: values that a float must not have there, such as where it decides which row is newer.
    """
    found: list[ColumnCheck] = []
    for field in schema.fields:
        if field.name in columns:
            found += _checks_within(field.name, field.dataType)
            if field.name in strict and (kind := kind_of(field.dataType)) and kind.strict:
                found.append(ColumnCheck(field.name, field.name, strict[field.name]))
    return found


def _checks_within(column: str, of: T.DataType) -> Iterator[ColumnCheck]:
    yield from unreadable_within(column, of)
    for name, path, inner in types_within(column, of):
        match inner:
            case T.StructType():
                for number, field in enumerate(inner.fields):
                    if not field.nullable:
                        null = Poison(NULL.words, partial(_find_null_field, number))
                        yield ColumnCheck(column, f"{name}.{field.name}", null, path)
            case T.ArrayType(containsNull=False):
                yield ColumnCheck(column, name, NULL, (*path, None))
            case T.MapType(valueContainsNull=False):
                yield ColumnCheck(column, name, NULL, (*path, None, 1))


def kind_of(of: T.DataType) -> ColumnKind | None:
    """Return what sinks know of a type; None for one that no sink takes."""
    return KINDS.get(type(of))


def refuse_types(schema: T.StructType, where: str) -> None:
    """Refuse columns of a type that no table of files has.

    Raises:
        SinkError: it names them.
    """
    if unknown := [one for field in schema.fields for one in _find_unknown(field.name, field.dataType)]:
        msg = f"{where} cannot have the rows: {'; '.join(unknown)}. Cast them, for example to text, or leave them out"
        raise SinkError(msg)


def _find_unknown(name: str, of: T.DataType) -> Iterator[str]:
    if kind_of(of) is None:
        yield f"column {name!r} is {of.simpleString()}"
    for inner, _, found in parts_of(name, of):
        yield from _find_unknown(inner, found)


def refuse_partitions(schema: T.StructType, columns: Sequence[str], where: str) -> None:
    """Refuse columns by whose values a table cannot be partitioned.

    Raises:
        SinkError: one is missing, or has another type than text, a whole number, a boolean or a date.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name in columns:
        kind = kind_of(types[name]) if name in types else None
        if kind is None or not kind.partitions:
            is_what = (
                f"has the type {types[name].simpleString()}" if name in types else "is not among the columns"
            )
            msg = (
                f"{where} cannot be partitioned by {name!r}, which {is_what}. Partition by text, whole "
                "numbers, booleans or dates"
            )
            raise SinkError(msg)


def refuse_no_columns(columns: Collection[str], where: str) -> None:
    """Refuse files without columns, which cannot hold rows.

    Raises:
        SinkError: no column is left for them.
    """
    if not columns:
        msg = (
            f"{where} has no columns but those by which it is partitioned: its files would have none, and hold no "
            "rows. Give it one more column, or partition it by fewer"
        )
        raise SinkError(msg)
