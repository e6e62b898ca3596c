"""Statements of another session while a batch is merged into a table: tests play them, docs/sinks.md lists them."""

from __future__ import annotations

from meanwhile import ADDED, AGAIN, REFUSED

__all__ = ["CHANGES", "CREATE", "ENDS"]

CREATE = (
    "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, version INTEGER NOT NULL, "
    "amount DOUBLE PRECISION, note VARCHAR(9))"
)
CHANGES: dict[str, list[str] | dict[str, list[str]]] = {
    "gives a column another type": {
        "postgresql": ["ALTER TABLE orders ALTER amount TYPE INTEGER"],
        "mysql": ["ALTER TABLE orders MODIFY amount INTEGER"],
    },
    "drops a column that the rows have": ["ALTER TABLE orders DROP COLUMN amount"],
    "renames a column that the rows have": ["ALTER TABLE orders RENAME COLUMN amount TO price"],
    "drops another column": ["ALTER TABLE orders DROP COLUMN note"],
    "adds a column that may be null": ["ALTER TABLE orders ADD COLUMN city VARCHAR(9)"],
    "adds a column that must not be null": {
        "postgresql": ["TRUNCATE orders", "ALTER TABLE orders ADD COLUMN city VARCHAR(9) NOT NULL"],
        # It fills in an empty text.
        "mysql": ["ALTER TABLE orders ADD COLUMN city VARCHAR(9) NOT NULL"],
    },
    "makes a column `NOT NULL`": {
        "postgresql": ["ALTER TABLE orders ALTER amount SET NOT NULL"],
        "mysql": ["ALTER TABLE orders MODIFY amount DOUBLE NOT NULL"],
    },
    "drops the unique index of the key": {
        "postgresql": ["ALTER TABLE orders DROP CONSTRAINT orders_pkey"],
        "mysql": ["ALTER TABLE orders DROP PRIMARY KEY"],
    },
    "drops the table, and creates it again": [
        "DROP TABLE orders",
        "CREATE TABLE orders (amount DOUBLE PRECISION, version INTEGER NOT NULL, order_id VARCHAR(9) PRIMARY KEY)",
    ],
    "drops the table": ["DROP TABLE orders"],
    "renames the table": ["ALTER TABLE orders RENAME TO gone"],
    "empties the table": {
        "postgresql": ["TRUNCATE orders"],
        "mysql": ["TRUNCATE orders"],
        "sqlite": ["DELETE FROM orders"],
    },
    "adds a `CHECK`": {
        "postgresql": ["ALTER TABLE orders ADD CHECK (amount < 9)"],
        "mysql": ["ALTER TABLE orders ADD CHECK (amount < 9)"],
    },
}
"""By what another session does: the statements, by the kind of database where it has others."""

ENDS: dict[str, str] = {
    "gives a column another type": REFUSED,
    "drops a column that the rows have": REFUSED,
    "renames a column that the rows have": REFUSED,
    "drops another column": AGAIN,
    "adds a column that may be null": ADDED,
    "adds a column that must not be null": REFUSED,
    "makes a column `NOT NULL`": AGAIN,
    "drops the unique index of the key": REFUSED,
    "drops the table, and creates it again": AGAIN,
    "drops the table": AGAIN,
    "renames the table": AGAIN,
    "empties the table": ADDED,
    "adds a `CHECK`": ADDED,
}
"""By the same: what becomes of a batch whose rows are loaded and not yet merged."""
