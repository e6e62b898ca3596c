"""The codes by which databases say why they ended a transaction."""

from __future__ import annotations

LOCKED = frozenset({"55P03", "SQLITE_BUSY", 1205})
"""A lock took too long: PostgreSQL's lock that was not available, SQLite's locked database, the lock wait timeout of
MySQL and MariaDB."""

CONFLICTS = frozenset({"40001", "40P01", 1020, 1213})
"""The transaction gave way to another one: PostgreSQL's serialization failure and deadlock, and those of MySQL and
MariaDB."""


def code_of(error: BaseException | None) -> object:
    """Return the database's own code of an error: MySQL's number, else the sqlstate, or SQLite's name of it."""
    first = next(iter(error.args), None) if error is not None else None
    if isinstance(first, int):
        # PyMySQL has a sqlstate too, the same for errors that differ.
        return first
    if isinstance(first, dict):
        # pg8000 gives the fields of PostgreSQL's message.
        return first.get("C")
    names = ("errno", "sqlstate", "pgcode", "sqlite_errorname")
    return next(filter(None, (getattr(error, name, None) for name in names)), first)
