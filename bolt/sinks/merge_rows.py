"""The transaction of `merge_into`: takes back what this batch has merged before, and merges the rows that were loaded.

What the table refuses only then, by a constraint, a trigger or a partition that is missing, is found by halves and
fails alone. The next newest row of its key takes its place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.mark import Batch, WriterMark
from kinesis_trident.bolt.sinks.fence import describe
from kinesis_trident.bolt.sinks.halves import savepoint, write_in_halves
from kinesis_trident.bolt.sinks.merge_loading import marks_of
from kinesis_trident.bolt.sinks.merge_tables import INSERTED, UPDATED, MergeTables, before, written
from kinesis_trident.bolt.sinks.tombstones import is_newer, keep_values
from kinesis_trident.common.database import Cause, cause_of

_AT_ONCE = 1_000
"""Rows that one statement names."""


class ChangedMeanwhileError(Exception):
    """Another writer has changed rows that a transaction was about to update, or has inserted one of their keys."""


@dataclass(frozen=True, slots=True)
class Merging:
    """A batch that is merged, in a transaction that holds the fence."""

    connection: sa.Connection
    tables: MergeTables
    attempt: Batch

    def merge(
        self, loads: Mapping[str, int], load: Callable[[sa.Connection], str | None]
    ) -> dict[str | None, str]:
        """Merge the batch, after what an earlier attempt at it has merged was taken back.

        Args:
            loads: the names and numbers of the rows that tasks have loaded.
            load: loads further rows, and returns the name of that load.

        Returns:
            The reasons of the records that the table refuses, by `messageId`; None for rows without.
        """
        connection, tables, attempt = self.connection, self.tables, self.attempt
        every = (*tables.earlier, tables.batch)
        for table in every:
            attempt.meet(self._mark(table), self._where)
        for table in every:
            self._take_back(table)
            connection.execute(
                table.delete().where(table.c.kt_epoch <= attempt.epoch, table.c.kt_load.not_in(list(loads)))
            )
        connection.execute(tables.batch.insert().values(marks_of(attempt, attempt.token)))
        self._refuse_lost_rows(loads)
        mine = [*loads, *filter(None, [load(connection)])]
        if not mine:
            return {}
        refused = self._merge_newest(mine)
        connection.execute(tables.batch.delete().where(tables.batch.c.kt_load.in_(mine)))
        return refused

    def _merge_newest(self, loads: Sequence[str]) -> dict[str | None, str]:
        """Merge the newest row of each key, and the one after it where the table refuses that one."""
        refused: dict[int, tuple[str | None, str]] = {}
        removed: list[int] = []
        older: dict[int, _Older] | None = None
        selected, last = [self._newest_of(loads)], 0
        while selected:
            for rows in selected:
                self.connection.execute(self._select(rows, loads))
            first, last = self._chosen_after(last)
            reasons = write_in_halves(first, last + 1, self._write)
            removed += reasons
            found = self._loaded_as(list(reasons))
            refused |= {source: (name, reasons[row]) for row, source, name, _ in found}
            deletions = {source: bool(is_deletion) for _, source, _, is_deletion in found}
            if older is None:
                older = self._older_than(deletions, loads) if found else {}
            # What the table refuses is no row before a deletion.
            self._remove([source for source, is_deletion in deletions.items() if not is_deletion])
            selected = [self._named(part) for part in _chunks(_next(older, deletions, refused))]
        # At last: SQLite would give their numbers again.
        self._remove(removed)
        return dict(refused.values())

    def _remove(self, numbers: Sequence[int]) -> None:
        batch = self.tables.batch
        for part in _chunks(numbers):
            self.connection.execute(batch.delete().where(batch.c.kt_row.in_(part)))

    def _newest_of(self, loads: Sequence[str], *among: sa.ColumnElement[bool]) -> sa.Subquery:
        """Select the newest row of each key, of those that meet some conditions."""
        rows = self.tables.batch.c
        place = self._over_key(sa.func.row_number())
        placed = (
            sa.select(*self._columns, place.label("kt_place"))
            .where(rows.kt_load.in_(loads), *among)
            .subquery()
        )
        return sa.select(placed).where(placed.c.kt_place == 1).subquery()

    def _named(self, numbers: Sequence[int]) -> sa.Subquery:
        return sa.select(*self._columns).where(self.tables.batch.c.kt_row.in_(numbers)).subquery()

    @property
    def _columns(self) -> list[sa.Column[Any]]:
        rows = self.tables.batch.c
        return [rows.kt_row, *(rows[name] for name in self.tables.columns)]

    def _over_key(self, function: sa.FunctionElement[Any]) -> sa.Over[Any]:
        """Apply a function to the rows of a key, from the newest one on; any order will do among equal ones."""
        rows = self.tables.batch.c
        return function.over(
            partition_by=[rows[name] for name in self.tables.key],
            order_by=[*(rows[name].desc() for name in self.tables.order_by), rows.kt_row],
        )

    def _select(self, rows: sa.Subquery, loads: Sequence[str]) -> sa.Insert:
        """Return the statement that keeps those rows that are newer than the table's, with the values of before."""
        tables, attempt = self.tables, self.attempt
        batch, target = tables.batch.c, tables.target.c
        is_new = target[tables.key[0]].is_(None)
        found: sa.FromClause = rows.outerjoin(tables.target, self._same_key(rows))
        values: Sequence[sa.ColumnElement[Any]] = [rows.c[name] for name in tables.columns]
        if tables.deleted is not None:
            alive = self._newest_of(loads, tables.batch.c[tables.deleted] == sa.false())
            found, values = keep_values(tables, tables.deleted, rows, found, alive)
        counts = (
            sa.select(
                *values,
                *(target[name] for name in tables.columns),
                rows.c.kt_row,
                sa.case((is_new, INSERTED), else_=UPDATED),
                sa.literal(attempt.epoch, sa.BigInteger),
                sa.literal(attempt.txid, sa.BigInteger),
            )
            .select_from(found)
            .where(sa.or_(is_new, is_newer(tables.order_by, rows, tables.target)))
        )
        marks = [batch.kt_from, batch.kt_load, batch.kt_epoch, batch.kt_txid]
        columns = [*(batch[name] for name in tables.columns), *before(tables.batch), *marks]
        return tables.batch.insert().from_select([column.name for column in columns], counts)

    def _chosen_after(self, last: int) -> tuple[int, int]:
        """Return the first and the last number of the rows that were selected after one; (0, -1) for none."""
        rows = self.tables.batch.c
        chosen = rows.kt_load.in_([INSERTED, UPDATED])
        asked = sa.select(sa.func.min(rows.kt_row), sa.func.max(rows.kt_row)).where(
            chosen, rows.kt_row > last
        )
        lowest, highest = self.connection.execute(asked).one()
        return (0, -1) if lowest is None else (lowest, highest)

    def _write(self, first: int, last: int) -> None:
        """Write the selected rows from one number to before another one into the table, or none of them."""
        connection, tables = self.connection, self.tables
        batch, target = tables.batch.c, tables.target
        part = sa.and_(batch.kt_row >= first, batch.kt_row < last)
        is_updated = sa.and_(batch.kt_load == UPDATED, part)
        is_inserted = sa.and_(batch.kt_load == INSERTED, part)
        try:
            with savepoint(connection), self._constraints_of_commit():
                changed = connection.execute(
                    target.update()
                    .where(self._same_key(tables.batch), is_updated, *self._as_before())
                    .values(self._values(tables.batch, [batch[name] for name in tables.columns]))
                )
                updated = sa.select(sa.func.count()).select_from(tables.batch).where(is_updated)
                if changed.rowcount != connection.execute(updated).scalar_one():
                    raise self._changed_meanwhile()
                inserted = sa.select(*(batch[name] for name in tables.columns)).where(is_inserted)
                connection.execute(target.insert().from_select(tables.columns, inserted))
        except sa.exc.DBAPIError as error:
            if cause_of(error) is Cause.TAKEN and self._is_overtaken(is_inserted):
                raise self._changed_meanwhile() from error
            raise

    @contextmanager
    def _constraints_of_commit(self) -> Iterator[None]:
        """Check, at the end of the block, what PostgreSQL would check in the commit, where it cannot be halved."""
        is_postgres = self.connection.dialect.name == "postgresql"
        if is_postgres:
            self.connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")
        yield
        if is_postgres:
            self.connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def _is_overtaken(self, is_inserted: sa.ColumnElement[bool]) -> bool:
        """Return whether another writer has inserted one of the keys since the rows were selected."""
        batch = self.tables.batch
        theirs = sa.select(batch.c.kt_row).where(is_inserted, self._same_key(batch)).limit(1)
        return self.connection.execute(theirs).first() is not None

    def _changed_meanwhile(self) -> ChangedMeanwhileError:
        return ChangedMeanwhileError(
            f"another writer keeps changing rows of batch {self.attempt.txid} in {self._where}. The batch is tried "
            "again; let one application write a key"
        )

    @property
    def _where(self) -> str:
        return f"table {self.tables.target.fullname} of {describe(self.connection.engine)}"

    def _loaded_as(self, numbers: Sequence[int]) -> list[tuple[int, int, str | None, bool]]:
        """Return of each selected row its number, that of the row that was loaded, its `messageId`, if it deletes."""
        batch, deleted = self.tables.batch, self.tables.deleted
        loaded = batch.alias()
        found: list[tuple[int, int, str | None, bool]] = []
        is_deletion = sa.literal(value=False) if deleted is None else loaded.c[deleted]
        for part in _chunks(numbers):
            asked = sa.select(batch.c.kt_row, loaded.c.kt_row, loaded.c.kt_id, is_deletion)
            mine = asked.where(batch.c.kt_row.in_(part), loaded.c.kt_row == batch.c.kt_from)
            found += map(tuple, self.connection.execute(mine))
        return found

    def _older_than(self, sources: Iterable[int], loads: Sequence[str]) -> dict[int, _Older]:
        """Return, by the newest row of a key, all further rows of the key that were loaded, from the newest one on."""
        rows = self.tables.batch.c
        newest = self._over_key(sa.func.first_value(rows.kt_row))
        place = self._over_key(sa.func.row_number())
        placed = (
            sa.select(newest.label("newest"), rows.kt_row, place.label("kt_place"))
            .where(rows.kt_load.in_(loads))
            .subquery()
        )
        others = sa.select(placed.c.newest, placed.c.kt_row).where(placed.c.kt_place > 1)
        found = {source: _Older() for source in sources}
        for first, number in self.connection.execute(others.order_by(placed.c.newest, placed.c.kt_place)):
            if first in found:
                found[first].left.append(number)
        return found

    def _as_before(self) -> Iterator[sa.ColumnElement[bool]]:
        """Yield the conditions that nobody has changed a row since it was looked at."""
        tables = self.tables
        values = dict(zip(tables.columns, before(tables.batch), strict=True))
        for name in tables.order_by:
            column = tables.target.c[name]
            yield sa.or_(column == values[name], sa.and_(column.is_(None), values[name].is_(None)))

    def _refuse_lost_rows(self, loads: Mapping[str, int]) -> None:
        if not loads:
            return
        connection, rows = self.connection, self.tables.batch.c
        counted = sa.select(rows.kt_load, sa.func.count()).where(rows.kt_load.in_(list(loads)))
        found = dict(map(tuple, connection.execute(counted.group_by(rows.kt_load))))
        if found != dict(loads):
            msg = (
                f"{describe(connection.engine)} has {sum(found.values()):,} of the {sum(loads.values()):,} rows that "
                f"tasks have loaded into {self.tables.batch.name}: it was restored, or failed over to a server behind. "
                "Start the query again, which loads them again"
            )
            raise SinkError(msg)

    def _mark(self, table: sa.Table) -> WriterMark | None:
        """Return the mark of this attempt, if a call in it has merged; those of others are the fence's to know."""
        asked = sa.select(table.c.kt_epoch, table.c.kt_txid).where(table.c.kt_load == self.attempt.token)
        row = self.connection.execute(asked).first()
        return None if row is None else WriterMark(self.attempt.application, *row, token=self.attempt.token)

    def _take_back(self, table: sa.Table) -> None:
        """Give rows that this batch has written their values of before, unless others have changed them since."""
        connection, tables, txid = self.connection, self.tables, self.attempt.txid
        is_written = sa.and_(table.c.kt_load.in_([INSERTED, UPDATED]), table.c.kt_txid == txid)
        if connection.execute(sa.select(table.c.kt_row).where(is_written).limit(1)).first() is None:
            return
        if lacking := [name for name in (*tables.key, *tables.order_by) if name not in table.c]:
            msg = (
                f"batch {txid} is to be written again, and was written to {tables.target.name} without the column "
                f"{lacking[0]!r}. Start the query with the `key`, `order_by` and `deleted` of before, until this "
                "batch is done"
            )
            raise SinkError(msg)
        target, marks = tables.target, [*tables.key, *tables.order_by]
        ours, theirs = ([of.c[name] for name in marks] for of in (table, target))
        is_own: sa.ColumnElement[bool] = sa.and_(*map(operator.eq, theirs, ours))
        is_inserted = sa.and_(is_written, table.c.kt_load == INSERTED)
        connection.execute(
            # MySQL runs a subquery for each row of the table; SQLite deletes by nothing else.
            target.delete().where(sa.tuple_(*theirs).in_(sa.select(*ours).where(is_inserted)))
            if connection.dialect.name == "sqlite"
            else target.delete().where(is_own, is_inserted)
        )
        connection.execute(
            target.update()
            .where(is_own, is_written, table.c.kt_load == UPDATED)
            .values(self._values(table, before(table)))
        )

    def _values(self, table: sa.Table, columns: Sequence[sa.Column[Any]]) -> dict[str, sa.Column[Any]]:
        tables = self.tables
        names = [column.name for column in written(table)]
        return {
            name: column
            for name, column in zip(names, columns, strict=True)
            # Where there is nothing but the key, it is set to what it is.
            if name in tables.target.c and (name not in tables.key or len(names) == len(tables.key))
        }

    def _same_key(self, rows: sa.FromClause) -> sa.ColumnElement[bool]:
        return sa.and_(*(self.tables.target.c[name] == rows.c[name] for name in self.tables.key))


@dataclass(slots=True)
class _Older:
    """The rows of a key that are left, from the newest one on, and the deletions that were refused before."""

    left: list[int] = field(default_factory=list)
    deletions: list[int] = field(default_factory=list)


def _next(older: dict[int, _Older], sources: Mapping[int, bool], refused: dict[int, Any]) -> list[int]:
    """Return the row after each of these, of those keys that have one, and let it take its place in `older`.

    `sources`: the rows that were refused now, with True if they delete; `refused`: all, less those that come again.
    """
    found = []
    for source, is_deletion in sources.items():
        rest = older.pop(source, None)
        if rest is None:
            continue
        if is_deletion:
            rest.deletions.append(source)
        else:
            # They would have kept its values: without it they keep others.
            for one in rest.deletions:
                refused.pop(one, None)
            rest.left, rest.deletions = [*rest.deletions, *rest.left], []
        if rest.left:
            found.append(rest.left.pop(0))
            older[found[-1]] = rest
    return found


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
