"""The tables of `merge_into`: the one that is written to, and beside it one of each application's last batch.

The second one, `kt_<table>_...`, holds the rows that tasks have loaded and no transaction has merged yet, and of the
last merged batch each row as it was written, and as it was before. So a batch that comes again is first taken back:
which of its records fail may have changed. An attempt that has merged leaves a row that bears its token as `kt_load`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from pyarrow.csv import WriteOptions, write_csv
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

from kinesis_trident.bolt.errors import SinkError, TableChangedError
from kinesis_trident.bolt.mark import Batch
from kinesis_trident.bolt.sinks.fence import describe, make_table
from kinesis_trident.bolt.sinks.halves import savepoint, write_in_halves
from kinesis_trident.bolt.sinks.kinds import DOUBLE, kind_of
from kinesis_trident.bolt.sinks.relied import Relied, ReliedColumn
from kinesis_trident.common.database import Cause, cause_of
from kinesis_trident.spout.reader.rows import MESSAGE_ID

INSERTED, UPDATED = "inserted", "updated"
"""What was done with a merged row, in place of the name of its load."""

_MICROSECONDS = 6
"""Digits of a second."""

_COLLATIONS = ("_default charset", "_collate")
"""The ends of the names of a reflected table's options that say how it compares texts."""

_COLLATIONS_OF_SQLITE = (
    "SELECT one.name, part.name, part.coll FROM pragma_index_list(:table, :schema) AS one, "
    'pragma_index_xinfo(one.name, :schema) AS part WHERE one."unique" AND NOT one.partial AND part.key'
)

_NAME_BYTES = 38
"""What the name of a batch's table in PostgreSQL has of the target's."""

_OURS = "kt_"
_BEFORE = "kt_before_"

# The default collations of MySQL compare "a" equal to "A", and its indexes need a length.
_TEXT_OF_MYSQL = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_OF_MYSQL: dict[tuple[str, bool], Any] = {
    ("Text", False): mysql.LONGTEXT(**_TEXT_OF_MYSQL),
    ("Text", True): mysql.VARCHAR(255, **_TEXT_OF_MYSQL),
    ("LargeBinary", False): mysql.LONGBLOB(),
    ("LargeBinary", True): mysql.VARBINARY(255),
    ("DateTime", False): mysql.DATETIME(fsp=6),
    ("DateTime", True): mysql.DATETIME(fsp=6),
}
"""The columns that MySQL has in place of SQLAlchemy's, also in a key."""


@dataclass(frozen=True, kw_only=True)
class MergeTables:
    """The tables of one application's `merge_into`.

    Attributes:
        target: the table, with all of its columns.
        batch: beside it, with those of the rows.
        earlier: as `batch`, from when the rows or the target had other columns.
        key: columns by which the target's rows are found.
        order_by: columns by which the newest row of a key is found.
        deleted: a column of the order that is true where the key is deleted.
        required: columns of the rows that must not be null.
        relied: the facts of the target by which all of this was found.
    """

    target: sa.Table
    batch: sa.Table
    earlier: Sequence[sa.Table]
    key: Sequence[str]
    order_by: Sequence[str]
    deleted: str | None
    required: Sequence[str]
    relied: Relied

    @property
    def columns(self) -> list[str]:
        """Return the columns that are written."""
        return [column.name for column in written(self.batch)]

    @property
    def spared(self) -> dict[str, str]:
        """Return the required columns that may be null in a deletion, each with the column that tells deletions."""
        names = () if self.deleted is None else set(self.required).difference(self.key, self.order_by)
        return {name: str(self.deleted) for name in names}

    def refuse_changes(self, connection: sa.Connection) -> None:
        """Compare the target with what it was when it was opened; until the transaction ends nobody can alter it.

        Raises:
            TableChangedError: it was altered meanwhile.
        """
        target, dialect = self.target, connection.dialect
        lock = (
            "LOCK TABLE {} IN ROW EXCLUSIVE MODE"
            if dialect.name == "postgresql"
            else "SELECT 1 FROM {} LIMIT 0"
        )
        try:
            connection.exec_driver_sql(lock.format(dialect.identifier_preparer.format_table(target)))
        except sa.exc.DBAPIError as error:
            if cause_of(error) is not Cause.NO_TABLE:
                raise
            raise _changed(target.fullname, connection.engine, "it was dropped or renamed") from None
        with _telling_what_is_gone(connection.engine):
            inspector = sa.inspect(connection)
            found = _reflect_target(connection, inspector, target.name, target.schema, self.key)
            now = _rely_on(inspector, found, self.key)
        if changes := self.relied.changes(now):
            raise _changed(target.fullname, connection.engine, "; ".join(changes))


def open_tables(
    engine: sa.Engine,
    name: str,
    application: str,
    schema: StructType,
    key: Sequence[str],
    order_by: Sequence[str],
    deleted: str | None = None,
) -> MergeTables:
    """Open the tables of an application; what does not exist is created, with the columns of the rows.

    Raises:
        SinkError: the table does not have the columns, or not the key; or the database refuses to create it.
    """
    folder, _, table_name = name.rpartition(".")
    where = f"table {name} of {describe(engine)}"
    _refuse_missing({field.name for field in schema.fields}, key, order_by)
    if deleted is not None:
        _refuse_deletions(deleted, schema, key, order_by)
        # A deletion is newer than other rows of its instant.
        order_by = [*(name for name in order_by if name != deleted), deleted]
    with _telling_what_is_gone(engine), engine.connect() as connection:
        inspector = sa.inspect(connection)
        if not inspector.has_table(table_name, folder or None):
            connection.rollback()
            make_table(connection, _new_table(table_name, folder or None, schema, key, order_by, where))
            inspector.clear_cache()
        target = _reflect_target(connection, inspector, table_name, folder or None, key)
        relied = _rely_on(inspector, target, key)
        names = [
            field.name
            for field in schema.fields
            if field.name in target.c or field.name in (*key, *order_by) or field.name != MESSAGE_ID
        ]
        _refuse_other_columns(schema, target, names, where)
        if connection.dialect.name != "sqlite":
            # Whatever its types are called, it rounds nothing but decimals, of which the rows are looked at.
            _refuse_rounding(schema, target, key, order_by, where)
        _refuse_other_key(connection, target, key, relied, where)
        batch = _batch_table(target, names, application, connection.dialect.name)
        beside = inspector.get_table_names(folder or None)
        family = batch.name.rpartition("_")[0]
        earlier = [
            _reflect(inspector, other, folder or None)
            for other in beside
            if other.startswith(f"{family}_") and other != batch.name
        ]
        connection.rollback()
        if batch.name not in beside:
            make_table(connection, batch)
    return MergeTables(
        target=target,
        batch=batch,
        earlier=earlier,
        key=key,
        order_by=order_by,
        deleted=deleted,
        required=[column for column in names if column in (*key, *order_by) or not target.c[column].nullable],
        relied=relied,
    )


def _reflect(inspector: sa.Inspector, name: str, schema: str | None) -> sa.Table:
    table = sa.Table(name, sa.MetaData(), schema=schema)
    # An inspector remembers what it has read: `autoload_with=connection` would ask the database for all of it again.
    inspector.reflect_table(table, include_columns=None, resolve_fks=False)
    return table


def _reflect_target(
    connection: sa.Connection, inspector: sa.Inspector, name: str, schema: str | None, key: Sequence[str]
) -> sa.Table:
    target = _reflect(inspector, name, schema)
    if connection.dialect.name == "sqlite":
        # SQLAlchemy does not ask which keys are equal there, such as "a" and "A".
        asked = sa.text(_COLLATIONS_OF_SQLITE).columns(*map(sa.column, ("place", "name", "collation")))
        found: dict[str, dict[str, str]] = {}
        for place, column, collation in connection.execute(
            asked, {"table": name, "schema": schema or "main"}
        ):
            found.setdefault(place, {})[column] = collation
        for collations in found.values():
            for column in target.columns if collations.keys() == {*key} else ():
                of = column.type
                if isinstance(of, sa.String) and collations.get(column.name, "BINARY") != "BINARY":
                    of.collation = collations[column.name]
    return target


@contextmanager
def _telling_what_is_gone(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except sa.exc.NoSuchTableError as error:
        raise _changed(str(error), engine, "it was dropped or renamed") from None


def _changed(name: str, engine: sa.Engine, what: str) -> TableChangedError:
    return TableChangedError(
        f"table {name} of {describe(engine)} was changed while a batch was written to it: {what}. Nothing was written; "
        "the batch is tried again with the table as it is now"
    )


def _rely_on(inspector: sa.Inspector, target: sa.Table, key: Sequence[str]) -> Relied:
    of = (target.name, target.schema)
    unique: list[Any] = [
        inspector.get_pk_constraint(*of)["constrained_columns"],
        *(one["column_names"] for one in inspector.get_unique_constraints(*of)),
        *(
            one["column_names"]
            for one in inspector.get_indexes(*of)
            if one["unique"] and not one.get("dialect_options", {}).get("postgresql_where")
        ),
    ]
    columns = {
        column.name: ReliedColumn(repr(column.type), _may_lack(target, column)) for column in target.columns
    }
    has_key = set(key) in [set(columns) for columns in unique]
    return Relied("", columns, rules={_unique(key): "there"} if has_key else {})


def _unique(key: Sequence[str]) -> str:
    return f"the unique index of {', '.join(key)}"


def _may_lack(target: sa.Table, column: sa.Column[Any]) -> bool:
    """Return whether rows may be without a column."""
    made = (column.server_default, column.identity, column.computed) != (None, None, None)
    # MySQL counts up one that is in no primary key, too.
    counts = column is target.autoincrement_column or column.autoincrement is True
    return bool(column.nullable) or counts or made


def _new_table(
    name: str,
    folder: str | None,
    schema: StructType,
    key: Sequence[str],
    order_by: Sequence[str],
    where: str,
) -> sa.Table:
    columns = []
    for field in schema.fields:
        if field.name == MESSAGE_ID and field.name not in (*key, *order_by):
            continue
        type_ = _new_type(field.dataType, is_key=field.name in key)
        if type_ is None:
            msg = (
                f"{where} cannot be created: the column {field.name!r} is {field.dataType.simpleString()}. Turn it "
                "into columns of numbers, text, times or bytes, for example by to_json"
            )
            raise SinkError(msg)
        columns.append(
            sa.Column(
                field.name,
                type_,
                primary_key=field.name in key,
                nullable=field.name not in (*key, *order_by),
                autoincrement=False,
            )
        )
    return sa.Table(
        name, sa.MetaData(), *columns, schema=folder, mysql_engine="InnoDB", mariadb_engine="InnoDB"
    )


def _new_type(of: DataType, *, is_key: bool) -> Any:
    """Return the type of a new column; None if a database has no such."""
    kind = kind_of(of)
    if kind is None or not kind.new:
        return None
    if isinstance(of, DecimalType):
        return sa.Numeric(of.precision, of.scale)
    has_zone = {"timezone": True} if isinstance(of, TimestampType) else {}
    made = getattr(sa, kind.new)(**has_zone)
    theirs = _OF_MYSQL.get((kind.new, is_key))
    return made if theirs is None else made.with_variant(theirs, "mysql", "mariadb")


def _refuse_missing(names: set[str], key: Sequence[str], order_by: Sequence[str]) -> None:
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


def _refuse_deletions(deleted: str, schema: StructType, key: Sequence[str], order_by: Sequence[str]) -> None:
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


def _refuse_other_columns(schema: StructType, target: sa.Table, names: Sequence[str], where: str) -> None:
    wrong = []
    for name in names:
        kind = schema[name].dataType.simpleString()
        if name.startswith(_OURS):
            wrong.append(f"column {name!r} begins with kt_, as those of merge_into itself do")
        elif name not in target.c:
            wrong.append(f"column {name!r} is {kind}, in the table missing")
        elif not _fits(schema[name].dataType, target.c[name].type):
            wrong.append(f"column {name!r} is {kind}, in the table {target.c[name].type!r}")
    wrong += [
        f"column {column.name!r} of the table must not be null, and the rows do not have it"
        for column in target.columns
        if column.name not in names and not _may_lack(target, column)
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


def _refuse_rounding(
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


def _refuse_other_key(
    connection: sa.Connection, target: sa.Table, key: Sequence[str], relied: Relied, where: str
) -> None:
    if _unique(key) not in relied.rules:
        quote = connection.dialect.identifier_preparer
        statement = (
            f"CREATE UNIQUE INDEX {quote.quote(f'{target.name}_key')} ON {quote.format_table(target)} "
            f"({', '.join(quote.quote(name) for name in key)})"
        )
        msg = f"{where} can have several rows of one {', '.join(key)}. Give it a unique index: {statement}"
        raise SinkError(msg)


def _batch_table(target: sa.Table, names: Sequence[str], application: str, dialect: str) -> sa.Table:
    """Return the table beside the target; its name tells applications and columns apart."""
    columns = [sa.Column(name, _as_text(target.c[name].type)) for name in names]
    # By the table's collation in MySQL, which its columns do not name, texts are equal that are not by another.
    collation = {name: value for name, value in target.kwargs.items() if name.endswith(_COLLATIONS)}
    whose = hashlib.sha256(f"{application}\0{target.name}".encode()).hexdigest()[:12]
    shape = hashlib.sha256("".join(f"{one.name} {one.type!r},".encode().hex() for one in columns).encode())
    # Those of releases before have no such columns.
    shape.update(b"kt_id,kt_from,")
    shape.update("".join(f"{name}={collation[name]}," for name in sorted(collation)).encode())
    name = target.name[:30]
    if dialect == "postgresql":
        # It cuts the whole after 63 bytes, and would not find it again.
        name = name.encode()[:_NAME_BYTES].decode(errors="ignore")
    return sa.Table(
        f"kt_{name}_{whose}_{shape.hexdigest()[:8]}",
        sa.MetaData(),
        # Some clusters of MySQL take no table without a key.
        sa.Column("kt_row", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("kt_load", sa.String(32), nullable=False),
        sa.Column("kt_epoch", sa.BigInteger, nullable=False),
        sa.Column("kt_txid", sa.BigInteger, nullable=False),
        sa.Column("kt_id", sa.Text),
        sa.Column("kt_from", sa.BigInteger),
        *columns,
        *(sa.Column(f"{_BEFORE}{place}", one.type) for place, one in enumerate(columns)),
        schema=target.schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        **collation,
    )


def written(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of a table of a batch that are written into the target."""
    return [column for column in table.columns if not column.name.startswith(_OURS)]


def before(table: sa.Table) -> list[sa.Column[Any]]:
    """Return, in the same order, those with the values of before."""
    return [column for column in table.columns if column.name.startswith(_BEFORE)]


def _as_text(column: Any) -> Any:
    """Return a type that takes Spark's values."""
    return sa.Uuid(as_uuid=False) if isinstance(column, sa.Uuid) else column


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
