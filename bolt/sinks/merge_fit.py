"""Refuses what `merge_into` could not write right: rows that do not fit into the table, and a table without the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlalchemy.dialects import mysql

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.kinds import DOUBLE, kind_of
from kinesis_trident.bolt.sinks.relied import Relied

OURS = "kt_"
"""The names of the columns of `merge_into` itself begin so."""

_MICROSECONDS = 6
"""Digits of a second."""


def refuse_missing(names: set[str], key: Sequence[str], order_by: Sequence[str]) -> None:
    """Refuse a key or an order of columns that the rows do not have; raise `SinkError` then, as all of these do."""
    for what, columns in (("key", key), ("order_by", order_by)):
        lacking = [name for name in columns if name not in names]
        if lacking or not columns:
            msg = (
                f"merge_into: {what} names {lacking[0]!r}, which is not a column of the rows"
                if lacking
                else f"merge_into: {what} names no column"
            )
            msg += f". The rows have {', '.join(sorted(names))}"
            raise SinkError(msg)


def refuse_deletions(deleted: str, schema: StructType, key: Sequence[str], order_by: Sequence[str]) -> None:
    """Refuse a column that cannot say which keys are deleted."""
    if {*order_by} == {deleted}:
        what = "and order_by no other column. Name there the time or the version of a row, too"
    elif deleted not in schema.names:
        what = f"which is not a column of the rows. The rows have {', '.join(sorted(schema.names))}"
    elif not isinstance(kind := schema[deleted].dataType, BooleanType):
        what = f"which is {kind.simpleString()}. Select a boolean, such as operation = 'delete' AS gone"
    elif deleted in key:
        what = "which is in key. Name a column beside it"
    else:
        return
    msg = f"merge_into: deleted names {deleted!r}, {what}"
    raise SinkError(msg)


def refuse_other_columns(schema: StructType, target: sa.Table, names: Sequence[str], where: str) -> None:
    """Refuse rows with other columns than the table has, or with types that it does not take."""
    wrong = []
    for name in names:
        kind = schema[name].dataType.simpleString()
        if name.startswith(OURS):
            wrong.append(f"column {name!r} begins with kt_, as those of merge_into itself do")
        elif name not in target.c:
            wrong.append(f"column {name!r} is {kind}, in the table missing")
        elif not _fits(schema[name].dataType, target.c[name].type):
            wrong.append(f"column {name!r} is {kind}, in the table {target.c[name].type!r}")
    wrong += [
        f"column {column.name!r} of the table must not be null, and the rows do not have it"
        for column in target.columns
        if column.name not in names and not may_lack(target, column)
    ]
    if wrong:
        msg = (
            f"the rows do not fit into {where}: {'; '.join(wrong)}. Select and cast the table's columns, or alter the "
            "table"
        )
        raise SinkError(msg)


def _fits(of: DataType, column: Any) -> bool:
    """Return whether a column takes values of one of Spark's types."""
    try:
        python_type = column.python_type
    except NotImplementedError:
        return False
    if isinstance(of, TimestampNTZType) and getattr(column, "timezone", False):
        return False
    if isinstance(of, BooleanType) and isinstance(column, mysql.TINYINT):
        return True
    kind = kind_of(of)
    return kind is not None and python_type in kind.sql


def refuse_rounding(
    schema: StructType, target: sa.Table, key: Sequence[str], order_by: Sequence[str], where: str
) -> None:
    """Refuse columns that round what decides: other keys, or newer rows, would count as equal."""
    wrong = [
        f"column {name!r} is {schema[name].dataType.simpleString()}, and the table rounds it to "
        f"{target.c[name].type!r}"
        for name in (*key, *order_by)
        if _rounds(schema[name].dataType, target.c[name].type)
    ]
    if wrong:
        msg = (
            f"merge_into cannot tell keys and newer rows apart in {where}: {'; '.join(wrong)}. Alter the table: a time "
            "needs microseconds, as DATETIME(6) has them"
        )
        raise SinkError(msg)


def _rounds(kind: DataType, column: Any) -> bool:
    """Return whether a column of PostgreSQL or MySQL keeps only a part of some values."""
    scale, is_float = getattr(column, "scale", None), isinstance(column, sa.Float)
    match kind:
        case TimestampType() | TimestampNTZType():
            is_mysql = isinstance(column, mysql.DATETIME | mysql.TIMESTAMP)
            digits = (column.fsp or 0) if is_mysql else getattr(column, "precision", None)
            return digits is not None and bool(digits < _MICROSECONDS)
        case DecimalType():
            return (scale is not None and kind.scale > scale) or (is_float and kind.precision > DOUBLE)
        case LongType():
            return is_float
        case FloatType():
            return scale is not None
        case DoubleType():
            is_single = isinstance(column, sa.REAL | mysql.FLOAT) and not isinstance(column, mysql.REAL)
            return scale is not None or is_single
    return False


def refuse_other_key(
    connection: sa.Connection, target: sa.Table, key: Sequence[str], relied: Relied, where: str
) -> None:
    """Refuse a table that can have several rows of one key."""
    if unique_rule(key) not in relied.rules:
        quote = connection.dialect.identifier_preparer
        statement = (
            f"CREATE UNIQUE INDEX {quote.quote(f'{target.name}_key')} ON {quote.format_table(target)} "
            f"({', '.join(quote.quote(name) for name in key)})"
        )
        msg = f"{where} can have several rows of one {', '.join(key)}. Give it a unique index: {statement}"
        raise SinkError(msg)


def may_lack(target: sa.Table, column: sa.Column[Any]) -> bool:
    """Return whether rows may be without a column."""
    made = (column.server_default, column.identity, column.computed) != (None, None, None)
    # MySQL counts up one that is in no primary key, too.
    counts = column is target.autoincrement_column or column.autoincrement is True
    return bool(column.nullable) or counts or made


def unique_rule(key: Sequence[str]) -> str:
    """Return the name of the rule of a table that a key is unique."""
    return f"the unique index of {', '.join(key)}"
