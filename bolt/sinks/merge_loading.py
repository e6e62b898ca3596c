"""Loads the rows of a task into the table of a batch of `merge_into`, by COPY where the database has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyarrow.csv import WriteOptions, write_csv

from kinesis_trident.bolt.mark import Batch
from kinesis_trident.bolt.sinks.halves import savepoint, write_in_halves


def marks_of(attempt: Batch, load: str) -> dict[str, Any]:
    """Return what a row of a table of a batch says of itself."""
    return {"kt_load": load, "kt_epoch": attempt.epoch, "kt_txid": attempt.txid}


def load_rows(
    connection: sa.Connection, table: sa.Table, rows: pa.RecordBatch, marks: dict[str, Any]
) -> dict[int, str]:
    """Insert rows into a table of a batch; return those that the database does not take, by place, with its reason."""
    insert = _copy if _takes_csv(connection, rows) else _insert

    def load(first: int, last: int) -> None:
        with savepoint(connection):
            insert(connection, table, rows.slice(first, last - first), marks)

    return write_in_halves(0, rows.num_rows, load)


def _takes_csv(connection: sa.Connection, rows: pa.RecordBatch) -> bool:
    # Arrow writes bytes into CSV as they are.
    has_bytes = any(pa.types.is_binary(one) or pa.types.is_large_binary(one) for one in rows.schema.types)
    return connection.dialect.driver == "psycopg" and not has_bytes


def _insert(connection: sa.Connection, table: sa.Table, rows: pa.RecordBatch, marks: dict[str, Any]) -> None:
    connection.execute(table.insert(), [row | marks for row in rows.to_pylist()])


def _copy(connection: sa.Connection, table: sa.Table, rows: pa.RecordBatch, marks: dict[str, Any]) -> None:
    """Insert rows by PostgreSQL's COPY, as psycopg offers it: https://www.psycopg.org/psycopg3/docs/basic/copy.html."""
    for name, value in marks.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    buffer = pa.BufferOutputStream()
    # Null is nothing, and a text that is empty is quoted: as PostgreSQL reads it.
    write_csv(rows, buffer, WriteOptions(include_header=False, quoting_style="all_valid"))
    names = map(connection.dialect.identifier_preparer.quote, rows.schema.names)
    place = connection.dialect.identifier_preparer.format_table(table)
    statement = f"COPY {place} ({', '.join(names)}) FROM STDIN (FORMAT csv)"
    cursor: Any = connection.connection.cursor()
    try:
        with cursor, cursor.copy(statement) as copy:
            copy.write(buffer.getvalue().to_pybytes())
    except connection.dialect.loaded_dbapi.Error as error:
        # SQLAlchemy does not see it.
        raise sa.exc.DBAPIError(statement, None, error) from error
