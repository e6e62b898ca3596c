"""A store that fails over, restarts or loads: the batch fails with a request for its replay, and then counts once."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis
from harness import eventually
from server_fixtures import _program
from servers import LOOPBACK, MemcachedServer, PostgresServer, RedisServer

from kinesis_trident.trident import FailedException
from kinesis_trident.trident.errors import StoreError, StoreUnavailableError
from kinesis_trident.trident.state import ATTEMPT, Key
from kinesis_trident.trident.stores import MapStateFactory
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.redis import RedisByteStore, RedisState
from kinesis_trident.trident.stores.sql import SqlState

KEYS: list[Key] = [(f"key-{i}",) for i in range(20)]


def count(factory: MapStateFactory, txid: int, number: int, attempt: int = 1) -> list[Any]:
    state = factory.make_state({ATTEMPT: attempt}, 0, 1)
    state.begin_commit(txid)
    counts = state.multi_combine(KEYS, operator.add, [number] * len(KEYS))
    state.commit(txid)
    return counts


def fails_then_counts(factory: MapStateFactory, broken: Any, mended: Any) -> None:
    """Batch 2 meets the failure, before it begins or after; its replay does not."""
    count(factory, 1, 10)
    begun = factory.make_state({ATTEMPT: 1}, 0, 1)
    begun.begin_commit(2)
    begun.multi_combine(KEYS[:5], operator.add, [1] * 5)
    broken()
    with pytest.raises(StoreUnavailableError) as raised:
        begun.multi_combine(KEYS[5:], operator.add, [1] * 15)
    assert isinstance(raised.value, FailedException)
    with pytest.raises(StoreUnavailableError):
        count(factory, 2, 1, attempt=2)
    mended()
    assert count(factory, 2, 1, attempt=3) == [11] * len(KEYS)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer(_program("redis-server")) as server:
        yield server


def configured(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


@pytest.mark.parametrize("options", [{}, {"localCacheSize": 100}, {"dataType": "HASH", "additionalKey": "h"}])
def test_a_redis_that_became_a_replica(own_redis: RedisServer, options: dict[str, Any]) -> None:
    """READONLY: it still answers reads. Afterwards the connections that saw it are gone."""
    client = configured(own_redis)
    factory = RedisState.opaque(own_redis.url, requestRetries=0, **options)

    def ids() -> set[str]:
        return {one["id"] for one in client.client_list() if one["id"] != str(client.client_id())}

    seen: set[str] = set()

    def demote() -> None:
        seen.update(ids())
        assert seen
        client.replicaof(LOOPBACK, "1")

    def promote() -> None:
        assert not seen & ids()
        client.replicaof("NO", "ONE")

    fails_then_counts(factory, demote, promote)


def test_a_replica_that_has_lost_its_primary(own_redis: RedisServer) -> None:
    """MASTERDOWN: it answers nothing."""
    client = configured(own_redis)
    client.config_set("replica-serve-stale-data", "no")
    fails_then_counts(
        RedisState.opaque(own_redis.url, requestRetries=0),
        lambda: client.replicaof(LOOPBACK, "1"),
        lambda: client.replicaof("NO", "ONE"),
    )


def test_a_redis_without_memory(own_redis: RedisServer) -> None:
    """OOM: it writes nothing until it has more, or keys have expired."""
    client = configured(own_redis)
    client.config_set("maxmemory-policy", "noeviction")
    fails_then_counts(
        RedisState.opaque(own_redis.url, requestRetries=0),
        lambda: client.config_set("maxmemory", 1),
        lambda: client.config_set("maxmemory", 0),
    )


@pytest.mark.parametrize(
    "error",
    [
        "CLUSTERDOWN Hash slot not served",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ],
)
def test_every_passing_error_asks_for_a_replay(redis_server: RedisServer, error: str) -> None:
    """A script gives the error, as the server would, and redis-py takes its code away from some."""
    client = configured(redis_server)
    store = RedisByteStore(client, "redis")
    with pytest.raises(StoreUnavailableError), store.convert_errors(()):
        client.eval("return redis.error_reply(ARGV[1])", 0, error)
    with pytest.raises(StoreError, match="refused"), store.convert_errors(()):
        client.eval("return redis.error_reply(ARGV[1])", 0, "NOPERM this user has no permissions")


def of_postgres(server: PostgresServer) -> MapStateFactory:
    return SqlState.opaque(
        server.url.replace("postgresql:", "postgresql+psycopg:"),
        tableName=f"t{uuid.uuid4().hex}",
        requestRetries=0,
    )


def test_a_postgresql_that_became_a_standby(postgres_server: PostgresServer) -> None:
    """Its sessions only read. A fresh connection finds the primary."""
    factory = of_postgres(postgres_server)

    def default(readonly: str) -> None:
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(f"alter system set default_transaction_read_only = {readonly}")
            connection.execute("select pg_reload_conf()")
        # The server reads its configuration later, and tells its sessions before it accepts another one.
        eventually(lambda: shown() == readonly, f"new sessions to be read-only: {readonly}")

    def shown() -> object:
        with psycopg.connect(postgres_server.url) as connection:
            row = connection.execute("show default_transaction_read_only").fetchone()
            return row and row[0]

    try:
        fails_then_counts(factory, lambda: default("on"), lambda: default("off"))
    finally:
        default("off")


def test_a_postgresql_that_restarts() -> None:
    with PostgresServer(_program("postgres")) as server:
        fails_then_counts(of_postgres(server), server.stop, server.start)


def test_a_constraint_is_no_race(postgres_server: PostgresServer) -> None:
    """The database's own words come at once; a row that another writer has inserted is still a lost one."""
    table = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(
            f"create table {table} (key text primary key, value text not null, expires double precision, "
            "constraint only_short_ones check (length(value) < 20))"
        )
    factory = SqlState.opaque(
        postgres_server.url.replace("postgresql:", "postgresql+psycopg:"), tableName=table, requestRetries=0
    )
    store = factory.store()
    store.set_many(["a"], [b"1"])
    with pytest.raises(StoreError, match=r'violates check constraint "only_short_ones"'):
        store.set_many(["a", "b"], [b"2" * 20, b"3"])
    with pytest.raises(StoreError, match="only_short_ones"):
        store.compare_and_set_many(["b"], [b"2" * 20], [None])
    assert store.get_many(["a", "b"])[0] == [b"1", None]
    state = factory.make_state({}, 0, 1)
    state.begin_commit(1)
    with pytest.raises(StoreError, match="only_short_ones"):
        state.multi_put([("c",)], ["x" * 20])


def test_a_memcached_that_is_gone() -> None:
    """Killed and started anew: it has forgotten all, but the batch is replayed on a fresh connection."""
    with MemcachedServer(_program("memcached")) as server:
        factory = MemcachedState.opaque("{}:{}".format(*server.address), requestRetries=0)
        assert count(factory, 1, 10) == [10] * len(KEYS)
        port = server.port
        server.stop()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            count(factory, 2, 1)
        server.start()
        assert server.port == port
        assert count(factory, 2, 1, attempt=2) == [1] * len(KEYS)
