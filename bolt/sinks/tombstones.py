"""The SQL of rows that delete their key: in the table of `merge_into` they stay, with the values of the row before."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kinesis_trident.bolt.sinks.merge_tables import MergeTables


def is_newer(order_by: Sequence[str], rows: sa.FromClause, others: sa.FromClause) -> sa.ColumnElement[bool]:
    """Compare rows column by column; null is the oldest: rows of before a column was added to the order have none."""
    ours, theirs = ([of.c[name] for name in order_by] for of in (rows, others))
    return sa.or_(
        *(
            sa.and_(
                *map(operator.eq, ours[:index], theirs[:index]),
                sa.or_(theirs[index].is_(None), ours[index] > theirs[index]),
            )
            for index in range(len(ours))
        )
    )


def keep_values(
    tables: MergeTables, deleted: str, rows: sa.FromClause, found: sa.FromClause, alive: sa.FromClause
) -> tuple[sa.FromClause, list[sa.ColumnElement[Any]]]:
    """Give deletions the values of the newest row before, as if the rows of a batch came one by one, in their order.

    Args:
        tables: the table, and the one of the batch.
        deleted: their column that tells deletions.
        rows: of the batch, one of each key.
        found: the same, joined with the table.
        alive: of the batch, of each key the newest row that does not delete it.

    Returns:
        The rows joined with those, too, and what is written of each column.
    """
    target, order = tables.target, tables.order_by
    is_deletion = rows.c[deleted] == sa.true()
    is_before = sa.and_(
        *(alive.c[name] == rows.c[name] for name in tables.key),
        is_deletion,
        is_newer(order, rows, alive),
        is_newer(order, alive, target),
    )
    keeps = sa.and_(is_deletion, target.c[tables.key[0]].is_not(None))
    values: list[sa.ColumnElement[Any]] = []
    for name in tables.columns:
        own = rows.c[name]
        from_before = (alive.c.kt_row.is_not(None), alive.c[name]), (keeps, target.c[name])
        values.append(own if name in (*tables.key, *order) else sa.case(*from_before, else_=own))
    return found.outerjoin(alive, is_before), values
