"""The cause of a database's error: its code decides, with each driver, and in each language of the server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from server_fixtures import _program
from servers import MariaDBServer, PostgresServer

from kinesis_trident.common.database import (
    PASSING,
    Cause,
    cause_of,
    engine_of,
    explain,
    place_of,
    words_of,
)
from kinesis_trident.trident.errors import StoreError, StoreUnavailableError
from kinesis_trident.trident.stores.sql import SqlByteStore, SqlState

CAUSES = {
    # PostgreSQL, ODBC.
    "08006": Cause.AWAY,
    "57P01": Cause.AWAY,
    "57P03": Cause.AWAY,
    "53300": Cause.AWAY,
    "53100": Cause.AWAY,
    "25006": Cause.AWAY,
    "25P03": Cause.AWAY,
    "40001": Cause.CONFLICT,
    "40P01": Cause.CONFLICT,
    "55P03": Cause.LOCKED,
    "28P01": Cause.NOT_LET_IN,
    "28000": Cause.NOT_LET_IN,
    "42501": Cause.NOT_LET_IN,
    "3D000": Cause.NOT_LET_IN,
    "42P01": Cause.NO_TABLE,
    "42S02": Cause.NO_TABLE,
    "22001": Cause.RECORD,
    "22P05": Cause.RECORD,
    "23514": Cause.RECORD,
    "23503": Cause.RECORD,
    "23502": Cause.RECORD,
    "P0001": Cause.RECORD,
    "54000": Cause.RECORD,
    "U0815": Cause.RECORD,
    "45000": Cause.RECORD,
    "23505": Cause.TAKEN,
    "42703": Cause.OTHER,
    "0A000": Cause.OTHER,
    "XX000": Cause.OTHER,
    # MySQL, MariaDB.
    2003: Cause.AWAY,
    2006: Cause.AWAY,
    2013: Cause.AWAY,
    1040: Cause.AWAY,
    1053: Cause.AWAY,
    1290: Cause.AWAY,
    1927: Cause.AWAY,
    1020: Cause.CONFLICT,
    1213: Cause.CONFLICT,
    1205: Cause.LOCKED,
    1044: Cause.NOT_LET_IN,
    1045: Cause.NOT_LET_IN,
    1049: Cause.NOT_LET_IN,
    1142: Cause.NOT_LET_IN,
    1146: Cause.NO_TABLE,
    1048: Cause.RECORD,
    1406: Cause.RECORD,
    1452: Cause.RECORD,
    1644: Cause.RECORD,
    4025: Cause.RECORD,
    1062: Cause.TAKEN,
    1054: Cause.OTHER,
    # SQLite.
    "SQLITE_BUSY": Cause.LOCKED,
    "SQLITE_BUSY_RECOVERY": Cause.LOCKED,
    "SQLITE_BUSY_SNAPSHOT": Cause.LOCKED,
    "SQLITE_BUSY_TIMEOUT": Cause.LOCKED,
    "SQLITE_LOCKED": Cause.LOCKED,
    "SQLITE_LOCKED_SHAREDCACHE": Cause.LOCKED,
    "SQLITE_LOCKED_VTAB": Cause.LOCKED,
    "SQLITE_IOERR_READ": Cause.AWAY,
    "SQLITE_FULL": Cause.AWAY,
    "SQLITE_CANTOPEN": Cause.AWAY,
    "SQLITE_READONLY_DIRECTORY": Cause.NOT_LET_IN,
    "SQLITE_CONSTRAINT_CHECK": Cause.RECORD,
    "SQLITE_CONSTRAINT_TRIGGER": Cause.RECORD,
    "SQLITE_CONSTRAINT_NOTNULL": Cause.RECORD,
    "SQLITE_CONSTRAINT_UNIQUE": Cause.TAKEN,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Cause.TAKEN,
    "SQLITE_ERROR": Cause.OTHER,
}


def errors_of(code: str | int) -> Iterator[Exception]:
    """Yield the errors with a code of the drivers that have it; their words are of no language."""
    if isinstance(code, int):
        yield pymysql.OperationalError(code, "???")
        yield type("MariaDBConnector", (pymysql.Error,), {"errno": code, "sqlstate": "HY000"})("???")
    elif code.startswith("SQLITE_"):
        error = sqlite3.OperationalError("???")
        error.sqlite_errorname = code
        yield error
    else:
        yield type("Psycopg", (psycopg.DatabaseError,), {"sqlstate": code})("???")
        yield type("Psycopg2", (pymysql.Error,), {"pgcode": code})("???")
        yield pymysql.Error({"S": "???", "C": code, "M": "???"})
        yield pymysql.Error(code, "???")


@pytest.mark.parametrize(("code", "cause"), CAUSES.items(), ids=str)
def test_a_code_means_the_same_with_each_driver_and_in_each_language(code: str | int, cause: Cause) -> None:
    for error in errors_of(code):
        assert cause_of(error) is cause, error
        assert cause_of(sa.exc.DBAPIError("SELECT 1", None, error)) is cause, error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (pymysql.InterfaceError(0, ""), Cause.AWAY),
        (psycopg.OperationalError("???"), Cause.AWAY),
        (psycopg.DataError("NUL"), Cause.RECORD),
        (sqlite3.OperationalError("Could not decode to UTF-8 column"), Cause.OTHER),
        (sqlite3.OperationalError("no such table: orders"), Cause.NO_TABLE),
        (ValueError("57P01"), Cause.OTHER),
        (None, Cause.OTHER),
    ],
)
def test_an_error_without_a_code(error: Exception | None, cause: Cause) -> None:
    assert cause_of(error) is cause


def test_a_connection_that_sqlalchemy_has_given_up_is_away() -> None:
    lost = sa.exc.DBAPIError("SELECT 1", None, pymysql.Error("???"), connection_invalidated=True)
    assert cause_of(lost) is Cause.AWAY
    full = sa.exc.DBAPIError("SELECT 1", None, pymysql.Error(1045, "???"), connection_invalidated=True)
    assert cause_of(full) is Cause.NOT_LET_IN


def test_states_of_one_url_share_an_engine(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/states.db"
    stores = [SqlState.opaque(url, tableName=f"t{number}").store() for number in range(10)]
    assert all(isinstance(store, SqlByteStore) for store in stores)
    assert {id(store._engine) for store in stores} == {id(engine_of(sa.make_url(url)))}  # type: ignore[attr-defined]
    assert engine_of("sqlite://") is not engine_of(url)


def test_an_explanation_shows_no_secret() -> None:
    engine = sa.create_engine("postgresql+psycopg://me:hunter2@host:5432/shop?password=hunter3")
    said = explain(psycopg.OperationalError("{gone}"), engine, place_of(engine.url))
    assert said == (
        Cause.AWAY,
        "postgresql+psycopg://host:5432/shop does not answer ({gone}). Check that it runs and that the driver and the "
        "executors reach it",
    )


# Servers that speak other languages.


@pytest.fixture(scope="module")
def french_mariadb() -> Iterator[sa.URL]:
    with MariaDBServer(_program("mariadbd"), grants=True, **{"lc-messages": "fr_FR"}) as server:
        url = sa.make_url(server.url.replace("mysql:", "mysql+pymysql:"))
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE USER guarded IDENTIFIED BY 'right'")
            connection.exec_driver_sql("CREATE DATABASE closed")
            connection.exec_driver_sql("GRANT SELECT ON test.* TO guarded")
        yield url
        engine.dispose()


@pytest.fixture(scope="module")
def french_postgres() -> Iterator[sa.URL]:
    # The messages of a server of Debian are there, its locales need not be.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGUAGE", "fr")
        with PostgresServer(_program("postgres"), lc_messages="C.utf8", max_connections="5") as server:
            url = sa.make_url(server.url.replace("postgresql:", "postgresql+psycopg:"))
            engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
            rules = server.data / "pg_hba.conf"
            rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
            with engine.connect() as connection:
                connection.exec_driver_sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
                connection.exec_driver_sql("CREATE DATABASE closed")
                connection.exec_driver_sql("REVOKE CONNECT ON DATABASE closed FROM public")
            engine.dispose()
            # It reads its rules.
            server.stop()
            server.start()
            yield url


LOGINS = [
    ({"username": "guarded", "password": "wrong"}, Cause.NOT_LET_IN),
    ({"username": "guarded", "password": "right"}, Cause.NOT_LET_IN),
    ({"username": "guarded", "password": "right", "database": "closed"}, Cause.NOT_LET_IN),
    ({"database": "nowhere"}, Cause.NOT_LET_IN),
    ({"port": 1}, Cause.AWAY),
]


@pytest.mark.parametrize("kind", ["french_mariadb", "french_postgres"])
@pytest.mark.parametrize(("change", "cause"), LOGINS, ids=str)
def test_who_is_not_let_in_is_told_at_once_in_each_language(
    request: pytest.FixtureRequest, kind: str, change: dict[str, Any], cause: Cause
) -> None:
    """The second one is let in, and may not create the table."""
    url = request.getfixturevalue(kind).set(**change)
    state = SqlState.opaque(url.render_as_string(hide_password=False), requestRetries=0)
    with pytest.raises((StoreError, StoreUnavailableError)) as raised:
        state.store().get_many(["a"])
    assert isinstance(raised.value, StoreUnavailableError) is (cause in PASSING), raised.value
    assert "wrong" not in str(raised.value)
    if cause is Cause.NOT_LET_IN:
        assert " refused this user (" in str(raised.value)
        english = ("denied", "password authentication", "does not exist", "Unknown")
        assert not [word for word in english if word in str(raised.value)]


def test_a_server_without_room_is_away_in_each_language(french_postgres: sa.URL) -> None:
    url = french_postgres.set(drivername="postgresql").render_as_string(hide_password=False)
    room: list[psycopg.Connection[Any]] = []
    with pytest.raises(psycopg.OperationalError) as raised:  # noqa: PT012
        while len(room) < 10:
            room.append(psycopg.connect(url))
    try:
        assert raised.value.sqlstate is None
        assert cause_of(raised.value) is Cause.AWAY, words_of(raised.value)
    finally:
        for one in room:
            one.close()
