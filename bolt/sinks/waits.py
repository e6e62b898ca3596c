"""Says, while a transaction waits for another one, which session holds what it needs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

log = logging.getLogger(__name__)

_AFTER = 5
"""Seconds after which a transaction is looked at, and again."""

_OF_MYSQL = (
    "SELECT holds.trx_mysql_thread_id, 'thread', coalesce(holds.trx_query, 'no statement') "
    "FROM information_schema.innodb_lock_waits JOIN information_schema.innodb_trx AS waits "
    "ON waits.trx_id = requesting_trx_id JOIN information_schema.innodb_trx AS holds ON holds.trx_id = blocking_trx_id "
    "WHERE waits.trx_mysql_thread_id = :session"
)
_HOLDERS = {
    "postgresql": "SELECT pid, concat_ws(' ', usename, application_name, client_addr), concat_ws(': ', state, query) "
    "FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(:session))",
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
}
"""By dialect: selects the sessions for which another one waits: number, who it is, what it does."""


@contextmanager
def saying_who_holds(connection: sa.Connection, what: str) -> Iterator[None]:
    """Log once, while the block lasts, for which session it waits, where the database tells that."""
    asked, session = _HOLDERS.get(connection.dialect.name), _session_of(connection)
    if asked is None or session is None:
        yield
        return
    engine, done = connection.engine, threading.Event()

    def look() -> None:
        while not done.wait(_AFTER):
            try:
                with engine.connect() as other:
                    found = other.execute(sa.text(asked), {"session": session}).all()
            except sa.exc.SQLAlchemyError as error:
                log.debug("it cannot be told what %s waits for: %s", what, error)
                return
            if found and not done.is_set():
                holders = "; ".join(f"session {number} ({who}, {does})" for number, who, does in found)
                log.warning("%s (session %s) waits for %s", what, session, holders)
                return

    threading.Thread(target=look, name="kinesis-trident-waits", daemon=True).start()
    try:
        yield
    finally:
        # The thread may wait for a connection of the pool: it is not waited for.
        done.set()


def _session_of(connection: sa.Connection) -> int | None:
    """Return the number of a session, as its driver knows it: psycopg, psycopg2, PyMySQL, mysqlclient."""
    driver: Any = connection.connection.dbapi_connection
    number = getattr(getattr(driver, "info", None), "backend_pid", None)
    if number is None and hasattr(driver, "thread_id"):
        number = driver.thread_id()
    return number if isinstance(number, int) else None
