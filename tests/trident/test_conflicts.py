"""Databases that end a transaction of a state, because another one holds its rows: the batch is replayed."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from pathlib import Path

import psycopg
import pymysql
import pymysql.cursors
import pytest
from harness import eventually
from servers import MariaDBServer, PostgresServer
from sqlalchemy.engine import make_url

from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.stores.sql import SqlState

ENDED = r"(?s)table {table} ended a transaction that waited for another one \(.*find out what else locks these rows"


def test_a_lock_that_postgresql_waited_for_too_long(postgres_server: PostgresServer) -> None:
    table = f"t{uuid.uuid4().hex}"
    url = postgres_server.url.replace("postgresql:", "postgresql+psycopg:")
    waits_shortly = make_url(url).update_query_dict({"options": "-c lock_timeout=100"})
    store = SqlState.opaque(
        waits_shortly.render_as_string(hide_password=False), tableName=table, requestRetries=0
    ).store()
    store.set_many(["a", "b"], [b"1", b"1"])
    with psycopg.connect(postgres_server.url) as other:
        other.execute(f"update {table} set value = '2' where key = 'b'")
        with pytest.raises(StoreUnavailableError, match=ENDED.format(table=table)):
            store.set_many(["a", "b"], [b"3", b"3"])
    store.set_many(["a", "b"], [b"3", b"3"])
    assert store.get_many(["a", "b"])[0] == [b"3", b"3"]


def connected(server: MariaDBServer) -> pymysql.Connection[pymysql.cursors.Cursor]:
    at = make_url(server.url)
    return pymysql.connect(host=at.host, port=at.port or 0, user=at.username, database=at.database)


def test_a_deadlock_in_mariadb(mariadb_server: MariaDBServer) -> None:
    """It ends the transaction that has changed less."""
    table = f"t{uuid.uuid4().hex}"
    store = SqlState.opaque(
        mariadb_server.url.replace("mysql:", "mysql+pymysql:"), tableName=table, requestRetries=0
    ).store()
    many = [f"c{number}" for number in range(50)]
    store.set_many(["a", "b", *many], [b"1"] * 52)
    with connected(mariadb_server) as other, other.cursor() as cursor:
        cursor.execute(f"update {table} set value = '2' where `key` = 'b' or `key` like 'c%'")
        raised: list[Exception] = []

        def write() -> None:
            try:
                store.set_many(["a", "b"], [b"3", b"3"])
            except StoreUnavailableError as error:
                raised.append(error)

        writing = threading.Thread(target=write)
        writing.start()

        def waits() -> bool:
            with connected(mariadb_server) as watching, watching.cursor() as look:
                look.execute("select count(*) from information_schema.innodb_lock_waits")
                return bool(look.fetchone() == (1,))

        eventually(waits, "the store to wait for b")
        cursor.execute(f"update {table} set value = '2' where `key` = 'a'")
        writing.join()
        other.commit()
    (error,) = raised
    assert "ended a transaction that waited for another one" in str(error)
    assert "Deadlock found" in str(error)
    assert store.get_many(["a", "b"])[0] == [b"2", b"2"]


def test_a_locked_file_of_sqlite(tmp_path: Path) -> None:
    store = SqlState.opaque(
        f"sqlite:///{tmp_path}/state.db?timeout=0.1", tableName="t", requestRetries=0
    ).store()
    store.set_many(["a"], [b"1"])
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailableError, match=ENDED.format(table="t")):
        store.set_many(["a"], [b"2"])
    other.execute("rollback")
    other.close()
    store.set_many(["a"], [b"2"])
    assert store.get_many(["a"])[0] == [b"2"]
