"""The tables of `merge_into`: the one that is written to, and beside it one of each application's last batch.

The second one, `kt_<table>_...`, holds the rows that tasks have loaded and no transaction has merged yet, and of the
last merged batch each row as it was written, and as it was before. So a batch that comes again is first taken back:
which of its records fail may have changed. An attempt that has merged leaves a row that bears its token as `kt_load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TableChangedError
from kinesis_trident.bolt.sinks.fence import describe, make_table
from kinesis_trident.bolt.sinks.merge_fit import (
    OURS,
    may_lack,
    refuse_deletions,
    refuse_missing,
    refuse_other_columns,
    refuse_other_key,
    refuse_rounding,
    unique_rule,
)
from kinesis_trident.bolt.sinks.new_tables import BEFORE, batch_table, new_table
from kinesis_trident.bolt.sinks.relied import Relied, ReliedColumn
from kinesis_trident.common.database import Cause, cause_of
from kinesis_trident.spout.reader.rows import MESSAGE_ID

INSERTED, UPDATED = "inserted", "updated"
"""What was done with a merged row, in place of the name of its load."""

_COLLATIONS_OF_SQLITE = (
    "SELECT one.name, part.name, part.coll FROM pragma_index_list(:table, :schema) AS one, "
    'pragma_index_xinfo(one.name, :schema) AS part WHERE one."unique" AND NOT one.partial AND part.key'
)


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
    refuse_missing({field.name for field in schema.fields}, key, order_by)
    if deleted is not None:
        refuse_deletions(deleted, schema, key, order_by)
        # A deletion is newer than other rows of its instant.
        order_by = [*(name for name in order_by if name != deleted), deleted]
    with _telling_what_is_gone(engine), engine.connect() as connection:
        inspector = sa.inspect(connection)
        if not inspector.has_table(table_name, folder or None):
            connection.rollback()
            make_table(connection, new_table(table_name, folder or None, schema, key, order_by, where))
            inspector.clear_cache()
        target = _reflect_target(connection, inspector, table_name, folder or None, key)
        relied = _rely_on(inspector, target, key)
        names = [
            field.name
            for field in schema.fields
            if field.name in target.c or field.name in (*key, *order_by) or field.name != MESSAGE_ID
        ]
        refuse_other_columns(schema, target, names, where)
        if connection.dialect.name != "sqlite":
            # Whatever its types are called, it rounds nothing but decimals, of which the rows are looked at.
            refuse_rounding(schema, target, key, order_by, where)
        refuse_other_key(connection, target, key, relied, where)
        batch = batch_table(target, names, application, connection.dialect.name)
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
        column.name: ReliedColumn(repr(column.type), may_lack(target, column)) for column in target.columns
    }
    has_key = set(key) in [set(columns) for columns in unique]
    return Relied("", columns, rules={unique_rule(key): "there"} if has_key else {})


def written(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of a table of a batch that are written into the target."""
    return [column for column in table.columns if not column.name.startswith(OURS)]


def before(table: sa.Table) -> list[sa.Column[Any]]:
    """Return, in the same order, those with the values of before."""
    return [column for column in table.columns if column.name.startswith(BEFORE)]
