"""Test what goes wrong in each of the stores: an outage in the middle, foreign values, values that cannot be stored."""

from __future__ import annotations

import operator
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from breakable import Breakable
from servers import PostgresServer

from kinesis_trident.trident.errors import (
    ForeignValueError,
    SerializationError,
    StoreError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import MapStateFactory
from kinesis_trident.trident.stores.dynamodb import DynamoDBState
from kinesis_trident.trident.stores.files import FileState
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlState

KEYS: list[Key] = [(f"key-{i}",) for i in range(20)]
SECRET = "hunter2"


def count(factory: MapStateFactory, txid: int, number: int) -> list[Any]:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    counts = state.multi_combine(KEYS, operator.add, [number] * len(KEYS))
    state.commit(txid)
    return counts


@pytest.fixture(params=["redis", "memcached", "postgres", "mariadb", "dynamodb"])
def behind(request: pytest.FixtureRequest) -> Iterator[tuple[MapStateFactory, Breakable]]:
    """A state in a server that is reached through a proxy, and the proxy."""
    own = uuid.uuid4().hex
    with ExitStack() as stack:

        def proxy(host: str | None, port: int | None) -> Breakable:
            assert host is not None
            assert port is not None
            return stack.enter_context(Breakable(host, port))

        if request.param == "memcached":
            broken = proxy(*request.getfixturevalue("memcached_server").address)
            yield MemcachedState.opaque(f"127.0.0.1:{broken.port}", keyPrefix=own, requestRetries=1), broken
            return
        fixture = "dynamodb" if request.param == "dynamodb" else f"{request.param}_server"
        server = request.getfixturevalue(fixture)
        url = server if isinstance(server, str) else server.url
        parts = urlsplit(url)
        broken = proxy(parts.hostname, parts.port)
        there = url.replace(f":{parts.port}", f":{broken.port}")
        if request.param == "redis":
            yield RedisState.opaque(there, keyPrefix=own, requestRetries=1), broken
        elif request.param in ("postgres", "mariadb"):
            there = there.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
            yield SqlState.opaque(there, tableName=f"state_{own}", requestRetries=1), broken
        else:
            table = request.getfixturevalue("dynamodb_table")
            yield DynamoDBState.opaque(table, endpointUrl=there, region="us-east-1", requestRetries=0), broken


def test_down_in_the_middle_of_a_batch(behind: tuple[MapStateFactory, Breakable]) -> None:
    """Test that what was written before the outage counts once: the replay starts from what came before the batch."""
    factory, proxy = behind
    count(factory, 1, 10)
    state = factory.make_state({}, 0, 1)
    state.begin_commit(2)
    state.multi_combine(KEYS[:15], operator.add, [1] * 15)
    proxy.break_()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        state.multi_combine(KEYS[15:], operator.add, [1] * 5)
    proxy.mend()
    assert count(factory, 2, 1) == [11] * len(KEYS)


def test_a_folder_that_is_away(tmp_path: Path) -> None:
    """At the start, and in the middle: the batch fails, and counts once when the folder is back."""
    folder, aside = tmp_path / "state", tmp_path / "aside"
    folder.write_text("no folder")
    factory = FileState.opaque(str(folder), requestRetries=1)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        count(factory, 1, 10)
    folder.unlink()
    count(factory, 1, 10)
    folder.rename(aside)
    folder.write_text("no folder")
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        count(factory, 2, 1)
    folder.unlink()
    aside.rename(folder)
    assert count(factory, 2, 1) == [11] * len(KEYS)
    assert FileState.opaque(str(folder)).make_state({}, 0, 1).multi_get(KEYS) == [11] * len(KEYS)


def test_files_that_somebody_has_removed_are_written_again(tmp_path: Path) -> None:
    factory = FileState.opaque(str(tmp_path))
    count(factory, 1, 10)
    for path in tmp_path.iterdir():
        path.unlink()
    state = factory.make_state({}, 0, 1)
    state.begin_commit(2)
    state.multi_combine(KEYS[:1], operator.add, [1])
    state.commit(2)
    found = FileState.opaque(str(tmp_path)).make_state({}, 0, 1).multi_get(KEYS)
    assert found == [11, *[10] * (len(KEYS) - 1)]


def test_a_foreign_value_is_named_and_left(every_store: MapStateFactory) -> None:
    prefix = every_store._options.key_prefix
    theirs, ours = f"{prefix}key-3", f"{prefix}key-2"
    store = every_store.store()
    store.set_many([theirs], [b'{"a":1}'])
    with pytest.raises(ForeignValueError, match=rf"'{theirs}' \(of \('key-3',\)\).*it was not changed"):
        count(every_store, 1, 1)
    assert store.get_many([theirs, ours])[0] == [b'{"a":1}', None]


def test_a_type_that_the_serializer_does_not_take(every_store: MapStateFactory) -> None:
    state = every_store.make_state({}, 0, 1)
    state.begin_commit(1)
    with pytest.raises(
        SerializationError, match=r"key \('key-1',\) cannot be stored.*This key was not written"
    ):
        state.multi_put(KEYS[:2], [1, {1.5}])
    state.begin_commit(1)
    assert state.multi_get(KEYS[:2]) == [None, None]


def test_more_than_the_sockets_hold(every_store: MapStateFactory) -> None:
    """Answers come while requests are still being sent; neither side may wait for the other for ever."""
    # DynamoDB takes keys one by one, so there it is only a matter of time.
    many = 100 if isinstance(every_store, DynamoDBState) else 3_000
    keys: list[Key] = [(f"large-{i}",) for i in range(many)]
    values = [f"{i} " * 500 for i in range(len(keys))]
    state = every_store.make_state({}, 0, 1)
    for txid in (1, 2):
        state.begin_commit(txid)
        state.multi_put(keys, values)
        state.commit(txid)
    assert state.multi_get(keys) == values


def test_a_reader_of_sqlite_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    factory = SqlState.opaque(f"sqlite:///{tmp_path}/state.db?timeout=0")
    count(factory, 1, 5)
    with closing(sqlite3.connect(tmp_path / "state.db")) as writer:
        writer.execute("begin immediate")
        state = factory.make_state({}, 0, 1)
        assert state.multi_get(KEYS) == [5] * len(KEYS)
        with pytest.raises(StoreUnavailableError, match="locked"):
            SqlState.opaque(f"sqlite:///{tmp_path}/state.db?timeout=0", requestRetries=0).store().set_many(
                ["a"], [b"1"]
            )


def test_a_value_that_is_too_large_for_dynamodb(dynamodb: str, dynamodb_table: str) -> None:
    factory = DynamoDBState.opaque(dynamodb_table, endpointUrl=dynamodb, region="us-east-1")
    state = factory.make_state({}, 0, 1)
    state.begin_commit(1)
    with pytest.raises(
        ValueTooLargeError, match=r"key \('key-1',\) has 410,0\d\d bytes.*this key was not written"
    ):
        state.multi_put(KEYS[:2], ["z", "y" * 410_000])
    state.begin_commit(1)
    assert state.multi_get(KEYS[:2]) == [None, None]
    state.multi_put(KEYS[:2], ["z", "y" * 390_000])


def test_a_wrong_password_of_postgres(postgres_server: PostgresServer) -> None:
    role = f"guarded_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
        admin.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        # All others are let in as before.
        rules = postgres_server.data / "pg_hba.conf"
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        admin.execute("SELECT pg_reload_conf()")
    url = postgres_server.url.replace("postgresql://postgres@", f"postgresql+psycopg://{role}:{SECRET}@")
    assert SECRET in url

    def table(password: str) -> MapStateFactory:
        return SqlState.opaque(url.replace(SECRET, password), tableName=role, requestRetries=1)

    while let_in(url.replace("+psycopg", "")):
        # The server reads its rules by and by.
        continue
    with pytest.raises(StoreError, match="Check user, password") as caught:
        count(table(SECRET), 1, 1)
    assert SECRET not in str(caught.value)
    assert count(table("right"), 1, 1) == [1] * len(KEYS)


def let_in(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_table_that_is_not_there(dynamodb: str) -> None:
    factory = DynamoDBState.opaque("no-such-table", endpointUrl=dynamodb, region="us-east-1")
    with pytest.raises(StoreError, match="no-such-table refused: ResourceNotFoundException"):
        count(factory, 1, 1)
