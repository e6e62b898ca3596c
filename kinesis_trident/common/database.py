"""Databases that are reached through SQLAlchemy: one engine for each URL in a process, and the cause of an error.

A database says why it refuses in the language of its server, so only codes decide: the SQLSTATE of PostgreSQL and of
ODBC, the numbers of MySQL and MariaDB, the names of SQLite. Both states and sinks ask here.
"""

from __future__ import annotations

import os
import re
import select
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.common.redaction import redact

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


class Cause(Enum):
    """The causes for which a database ends a statement; each value says what it does then, and how to help it."""

    CONFLICT = (
        "ended this transaction for another one ({said}). It is tried again: partitions of one batch can do that to "
        "each other. If it stays so, use fewer partitions, or let one program at a time write these rows"
    )
    LOCKED = (
        "ended a transaction that waited for another one ({said}). If it stays so, find out what else locks "
        "these rows"
    )
    AWAY = "does not answer ({said}). Check that it runs and that the driver and the executors reach it"
    NO_TABLE = "has no such table ({said}). Create it, or check the schema in which this user looks for it"
    NOT_LET_IN = (
        "refused this user ({said}). Check user, password, rights and the name of the database, and start the query "
        "again"
    )
    RECORD = "refused a value ({said}). Check the table's columns, constraints and triggers"
    TAKEN = "has such a row already ({said}). Check the table's unique indexes"
    OTHER = "refused ({said}). Check the rights and the table's columns"


PASSING = frozenset({Cause.CONFLICT, Cause.LOCKED, Cause.AWAY})
"""The causes that pass by themselves: the batch is tried again in place."""

_CODES: dict[Cause, tuple[str | int, ...]] = {
    Cause.CONFLICT: ("40", "72", 1020, 1213, 1412),
    Cause.LOCKED: ("55P03", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", 1205, 3572),
    # No connection, no room, a shutdown, a standby; a session that was ended.
    Cause.AWAY: (
        *("08", "53", "57", "58", "25006", "25P03", "25P04"),
        *("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_INTERRUPT", "SQLITE_CANTOPEN"),
        "SQLITE_READONLY_DBMOVED",
        *(
            2002,
            2003,
            2005,
            2006,
            2013,
            2055,
            1021,
            1037,
            1040,
            1041,
            1047,
            1053,
            1114,
            1135,
            1158,
            1159,
            1160,
            1161,
        ),
        *(1203, 1226, 1290, 1317, 1792, 1836, 1927, 1969, 3024, 3168, 4031),
    ),
    Cause.NO_TABLE: ("42P01", "42S02", 1146),
    Cause.NOT_LET_IN: (
        *("28", "42501", "3D", "3F", "SQLITE_AUTH", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_NOTADB"),
        *(
            1044,
            1045,
            1049,
            1129,
            1130,
            1142,
            1143,
            1227,
            1251,
            1370,
            1410,
            1524,
            1698,
            1820,
            1862,
            1873,
            2059,
            2061,
        ),
        *(3118, 4151),
    ),
    Cause.RECORD: (
        *("22", "23", "27", "38", "44", "09", "P0", "54000"),
        # The standard leaves these to programs: a trigger raises what it likes.
        *("45", *"6789JKLMNOQRTUVWYZ"),
        *("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG"),
        *(
            1048,
            1216,
            1217,
            1263,
            1264,
            1265,
            1292,
            1300,
            1366,
            1367,
            1406,
            1411,
            1441,
            1451,
            1452,
            1526,
            1644,
            1690,
        ),
        *(1748, 1977, 3140, 3819, 3988, 4025, 4161),
    ),
    Cause.TAKEN: (
        *("23505", "SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"),
        *(1022, 1062, 1169, 1586),
    ),
}
"""By cause: beginnings of SQLSTATEs and of SQLite's names, of which the longest counts, and numbers of MySQL."""

_CAUSES = {code: cause for cause, codes in _CODES.items() for code in codes}

_REFUSES_VALUES = {"DataError", "IntegrityError"}
_NO_ANSWER = {"OperationalError", "InterfaceError"}
"""The classes of the DB API of errors of which the code is unknown, or that have none."""

_ENGINES: PerProcess[URL, Engine] = PerProcess()
_PATIENCE_MS = 5_000
"""The time in which a server that has refused a connection says why."""


def cause_of(error: BaseException | None) -> Cause:
    """Return the cause of an error of SQLAlchemy, or of a database's driver."""
    said = getattr(error, "orig", None) or error
    names = {kind.__name__ for kind in type(said).__mro__}
    if said is None or "Error" not in names:
        # It is of no driver.
        return Cause.OTHER
    code = _code_of(said)
    beginnings = (code[:length] for length in range(len(code), 0, -1)) if isinstance(code, str) else (code,)
    if (known := next((one for one in beginnings if one in _CAUSES), None)) is not None:
        return _CAUSES[known]
    no_answer = code is None and names & _NO_ANSWER and not type(said).__module__.startswith("sqlite3")
    if no_answer or getattr(error, "connection_invalidated", False):
        return Cause.AWAY
    if names & _REFUSES_VALUES:
        return Cause.RECORD
    # SQLite speaks English only, and has no code for it.
    return Cause.NO_TABLE if str(said).startswith("no such table") else Cause.OTHER


def words_of(error: BaseException) -> str:
    """Return the database's own words."""
    return str(getattr(error, "orig", None) or error).strip()


def place_of(url: URL) -> str:
    """Return a database's address without secrets."""
    return redact(url.render_as_string(hide_password=False))


def explain(error: BaseException, engine: Engine, where: str) -> tuple[Cause, str]:
    """Return the cause of an error, and two sentences for people: what has happened there, and what to do.

    After `AWAY` the engine makes its connections anew: the next one may lead to another server.
    """
    from sqlalchemy.pool import SingletonThreadPool, StaticPool

    cause = cause_of(error)
    # What is only in memory would go with its connection.
    if cause is Cause.AWAY and not isinstance(engine.pool, SingletonThreadPool | StaticPool):
        engine.dispose()
    return cause, f"{where} {cause.value.format(said=words_of(error))}"


def engine_of(url: str | URL) -> Engine:
    """Return this process's engine of a database: all states and sinks of one URL share its connections.

    Raises:
        sqlalchemy.exc.ArgumentError: it is no URL of SQLAlchemy.
        ImportError: the database's driver is not installed.
    """
    from sqlalchemy import make_url

    parsed = make_url(url)
    return _ENGINES.get(parsed, lambda: _create(parsed))


def is_mysql(url: URL) -> bool:
    """Return whether a database is MySQL or MariaDB."""
    return url.get_backend_name() in ("mysql", "mariadb")


def _create(url: URL) -> Engine:
    from sqlalchemy import create_engine, event

    if not is_mysql(url):
        return create_engine(url, pool_pre_ping=True)
    # By default it also locks the gaps between rows, where others insert.
    created = create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
    event.listen(created, "connect", _prepare_mysql)
    return created


def _prepare_mysql(connection: Any, _record: object) -> None:
    with closing(connection.cursor()) as cursor:
        # What is written into a TIMESTAMP it takes for a time of this zone. One that is not strict cuts texts that are
        # too long: two keys would become one.
        cursor.execute("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")


def _code_of(error: BaseException) -> str | int | None:
    """Return the database's own code of a driver's error; None: it has none."""
    first = next(iter(error.args), None)
    if isinstance(first, int):
        # PyMySQL; 0 is its own, for a connection that is closed. Others have a SQLSTATE beside the number, which is
        # the same for errors that differ.
        return first or None
    if isinstance(first, dict):
        # pg8000 gives the fields of PostgreSQL's message.
        return first.get("C")
    names = ("errno", "sqlstate", "pgcode", "sqlite_errorname")
    found = next(filter(None, (getattr(error, name, None) for name in names)), None)
    if isinstance(found, str | int):
        return found
    if (refused := getattr(error, "pgconn", None)) is not None:
        return _ask_why(refused)
    # ODBC.
    return first if isinstance(first, str) and re.fullmatch("[0-9A-Z]{5}", first) else None


def _ask_why(refused: Any) -> str | None:
    """Return the SQLSTATE with which PostgreSQL refuses a connection.

    psycopg has only the words, as libpq gives the code to nothing but its trace of the protocol, from release 18 on.

    Args:
        refused: psycopg's connection that failed.
    """
    from psycopg import Error, conninfo, pq

    given = {one.keyword.decode(): one.val.decode() for one in refused.info if one.val is not None}
    trace = b""
    with suppress(Error, OSError, AttributeError), open(os.memfd_create("libpq"), "rb") as lines:
        connection = pq.PGconn.connect_start(conninfo.make_conninfo("", **given).encode())
        connection.trace(lines.fileno())
        waits = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
        while connection.status != pq.ConnStatus.BAD:
            state = pq.PollingStatus(connection.connect_poll())
            if state not in waits:
                break
            socket = select.poll()
            socket.register(connection.socket, waits[state])
            if not socket.poll(_PATIENCE_MS):
                break
        connection.untrace()
        connection.finish()
        lines.seek(0)
        trace = lines.read()
    found = re.search(rb'\tErrorResponse\t.* C "([0-9A-Z]{5})"', trace)
    if found:
        return found[1].decode()
    # An older libpq still tells that the server has asked for a password.
    return "28" if refused.used_password or refused.needs_password else None
