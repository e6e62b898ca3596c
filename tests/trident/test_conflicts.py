"""Databases that end a transaction of a state, because another one holds its rows, or it is too large."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pymysql.cursors
import pytest
from harness import eventually
from servers import MariaDBServer, PostgresServer
from sqlalchemy.engine import make_url

from kinesis_trident.common.database import engine_of
from kinesis_trident.trident.errors import StoreError, StoreUnavailableError, ValueTooLargeError
from kinesis_trident.trident.state import ATTEMPT, Key
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
    assert "ended this transaction for another one" in str(error)
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


def of_mariadb(server: MariaDBServer, **options: Any) -> SqlState:
    return SqlState.opaque(server.url.replace("mysql:", "mysql+pymysql:"), requestRetries=0, **options)


def test_partitions_that_insert_new_keys_do_not_end_each_other(mariadb_server: MariaDBServer) -> None:
    """The keys of each are spread over the table, in another order in each."""
    store = of_mariadb(mariadb_server, tableName=f"t{uuid.uuid4().hex}").store()
    store.set_many(["first"], [b"1"])
    keys = [hashlib.md5(b"%d" % i).hexdigest() for i in range(8 * 1_000)]
    begin = threading.Barrier(8)

    def insert(partition: int) -> list[Any]:
        begin.wait()
        mine = keys[partition::8]
        return store.compare_and_set_many(mine, [b"1"] * len(mine), [None] * len(mine))

    with ThreadPoolExecutor(8) as threads:
        for written in threads.map(insert, range(8)):
            assert written == [b"1"] * len(written)
    assert store.get_many(keys)[0] == [b"1"] * len(keys)


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_values_beyond_64_kib_in_mariadb(mariadb_server: MariaDBServer, serializer: str) -> None:
    """Also many of them in one batch, which together are more than a request may have (16 MB here)."""
    factory = of_mariadb(mariadb_server, tableName=f"t{uuid.uuid4().hex}", serializer=serializer)
    keys: list[Key] = [(f"{i}",) for i in range(20)]
    text = "x'\\" * 100_000
    for txid in (1, 2):
        state = factory.make_state({ATTEMPT: 1}, 0, 1)
        state.begin_commit(txid)
        state.multi_put(keys, [f"{txid}{text}"] * len(keys))
        state.commit(txid)
    assert factory.make_state({}, 0, 1).multi_get(keys) == [f"2{text}"] * len(keys)


def test_a_value_for_which_the_column_of_an_older_release_is_too_small(mariadb_server: MariaDBServer) -> None:
    table = f"t{uuid.uuid4().hex}"
    with connected(mariadb_server) as other, other.cursor() as cursor:
        cursor.execute(
            f"create table {table} (`key` varbinary(1020) primary key, value blob not null, expires double)"
        )
        # A server that is not strict cuts a value off.
        cursor.execute("set global sql_mode = ''")
        try:
            store = of_mariadb(mariadb_server, tableName=table, serializer="msgpack").store()
            store.set_many(["a"], [b"x" * 65_535])
            with pytest.raises(ValueTooLargeError) as raised:
                store.set_many(["a", "b"], [b"x", b"x" * 65_536])
        finally:
            cursor.execute("set global sql_mode = default")
        assert "the value of key 'b' has 65,536 bytes" in str(raised.value)
        [remedy] = re.findall(r"ALTER TABLE .*", str(raised.value))
        cursor.execute(remedy)
    again = of_mariadb(mariadb_server, tableName=table, serializer="msgpack").store()
    assert len(again.get_many(["a"])[0][0] or b"") == 65_535
    again.set_many(["a", "b"], [b"x", b"x" * 65_536])


def test_a_value_that_no_request_takes(mariadb_server: MariaDBServer) -> None:
    """MariaDB ends the connection, as one that is gone does."""
    with connected(mariadb_server) as other, other.cursor() as cursor:
        cursor.execute("select @@max_allowed_packet")
        [before] = cursor.fetchone() or ()
        cursor.execute("set global max_allowed_packet = 1048576")
        # A session keeps the one with which it began.
        engine_of(mariadb_server.url.replace("mysql:", "mysql+pymysql:")).dispose()
        try:
            store = of_mariadb(mariadb_server, tableName=f"t{uuid.uuid4().hex}").store()
            store.set_many(["a"], [b"x" * 1_000_000])
            with pytest.raises(
                ValueTooLargeError,
                match=r"key 'b' has 1,200,000 bytes in a request, .* at most 1,048,576 \(max_allowed_packet\)",
            ):
                store.set_many(["a", "b"], [b"y", b'"' * 600_000])
        finally:
            cursor.execute(f"set global max_allowed_packet = {before}")
    assert len(store.get_many(["a"])[0][0] or b"") in (1, 1_000_000)


@pytest.mark.parametrize("step", ["get", "put"])
@pytest.mark.parametrize("code", ["40P01", "55P03", "57P01", "42501", "23514", "XX000"])
def test_what_passes_replays_the_batch_of_a_state_and_all_else_ends_the_query(
    postgres_server: PostgresServer, step: str, code: str
) -> None:
    """The state's table becomes a view that raises the error."""
    table = f"t{uuid.uuid4().hex}"
    factory = SqlState.opaque(
        postgres_server.url.replace("postgresql:", "postgresql+psycopg:"), tableName=table, requestRetries=0
    )
    store = factory.store()
    store.set_many(["a"], [b"1"])
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE FUNCTION f{table}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE 'broken' USING ERRCODE = '{code}'; END $$;"
            f"CREATE FUNCTION g{table}() RETURNS boolean LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE 'broken' USING ERRCODE = '{code}'; END $$"
        )
        if step == "put":
            connection.execute(
                f"CREATE TRIGGER breaks BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION f{table}()"
            )
        else:
            connection.execute(f"ALTER TABLE {table} RENAME TO r{table}")
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM r{table} WHERE g{table}()")
    passes = code in ("40P01", "55P03", "57P01")
    ask = (lambda: store.get_many(["a"])) if step == "get" else (lambda: store.set_many(["a"], [b"2"]))
    with pytest.raises(StoreUnavailableError if passes else StoreError, match="broken"):
        ask()
