"""Compares the columns of a batch with those of a table in files."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import SinkError

_PARTITIONS = ("string", "boolean", "date", "tinyint", "smallint", "int", "bigint")


def make_nullable(schema: StructType) -> StructType:
    """Return a schema whose columns may all be null: a batch without nulls makes no promise about the next one."""
    result = StructType.fromJson(json.loads(schema.json()))
    for field in result.fields:
        field.nullable, field.metadata = True, {}
    return result


def refuse_partitions(schema: StructType, columns: Sequence[str], table: str) -> None:
    """Refuse columns by whose values a table cannot be partitioned.

    Raises:
        SinkError: one is missing, or has another type than text, a whole number, a boolean or a date.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in columns:
        kind = types.get(name)
        if kind not in _PARTITIONS:
            is_what = f"has the type {kind}" if kind else "is not among the columns"
            msg = (
                f"{table} cannot be partitioned by {name!r}, which {is_what}. Partition by text, whole "
                "numbers, booleans or dates"
            )
            raise SinkError(msg)


def refuse_other_columns(rows: StructType, columns: StructType, table: str) -> None:
    """Refuse rows that a table does not take.

    Raises:
        SinkError: a column is not in the table or has another type there, or one that must not be null is missing.
    """
    theirs = {field.name: field.dataType.simpleString() for field in columns.fields}
    ours = {field.name: field.dataType.simpleString() for field in rows.fields}
    wrong = [
        f"column {name!r} is {kind}, in the table {theirs.get(name, 'missing')}"
        for name, kind in ours.items()
        if theirs.get(name) != kind
    ]
    wrong += [
        f"column {field.name!r} of the table must not be null, and the rows do not have it"
        for field in columns.fields
        if field.name not in ours and not field.nullable
    ]
    if wrong:
        msg = (
            f"the rows do not fit into {table}: {'; '.join(wrong)}. Select and cast the table's "
            "columns, or alter the table"
        )
        raise SinkError(msg)
