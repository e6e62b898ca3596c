"""Stores that lose values: one that comes back behind stops the query, and one that evicts values is refused."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from server_fixtures import _program, empty_database
from servers import RedisServer

from kinesis_trident.trident import StateBehindError
from kinesis_trident.trident.build.checks import weakness
from kinesis_trident.trident.errors import StoreError
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlState
from kinesis_trident.trident.stores.task import TASK, StateTask


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer(_program("redis-server")) as server:
        yield server


def count(factory: MapStateFactory, txid: int, applied: int, attempt: int = 1) -> Any:
    who = Owner("shop", "lines@1", "counts", frozenset(("counts",)), applied=applied)
    state = factory.make_state({TASK: StateTask(attempt, who)}, 0, 1)
    state.begin_commit(txid)
    [counted] = state.multi_combine([("a",)], operator.add, [1])
    state.commit(txid)
    return counted


def test_a_redis_that_lost_everything(own_redis: RedisServer) -> None:
    factory = RedisState.opaque(own_redis.url)
    # Nothing was ever applied, so nothing can be lost. A batch without tuples for this state leaves a gap.
    for txid, applied in [(1, 0), (2, 1), (5, 2)]:
        count(factory, txid, applied)
    own_redis.kill()
    for attempt in (1, 2):
        with pytest.raises(
            StateBehindError,
            match=r"does not know of any batch .*shop/lines@1/counts, to which batch 5 was applied.*acceptLossUpTo=5 ",
        ):
            count(factory, 6, 5, attempt)
    with pytest.raises(StateBehindError):
        count(RedisState.opaque(own_redis.url, acceptLossUpTo=4), 6, 5)
    accepting = RedisState.opaque(own_redis.url, acceptLossUpTo=5)
    assert [count(accepting, txid, txid - 1) for txid in (6, 7)] == [1, 2]
    # The option stays in the code: what is lost later is another loss.
    own_redis.kill()
    with pytest.raises(StateBehindError, match="acceptLossUpTo=7 "):
        count(accepting, 8, 7)


def test_a_redis_that_came_back_from_an_older_copy(own_redis: RedisServer) -> None:
    factory = RedisState.opaque(own_redis.url)
    count(factory, 1, 0)
    count(factory, 2, 1)
    redis.Redis.from_url(own_redis.url).save()
    count(factory, 3, 2)
    own_redis.kill()
    with pytest.raises(
        StateBehindError, match=r"knows no batch after 2 of the state of .* which batch 3 was"
    ):
        count(factory, 4, 3)
    # The last batch that is certain may be replayed: its driver was killed before it noted it.
    assert count(factory, 3, 2, attempt=2) == 3
    assert count(RedisState.opaque(own_redis.url, acceptLossUpTo=3), 4, 3) == 4


@pytest.mark.parametrize(
    "make", [lambda url: MemoryMapState.opaque(), lambda url: RedisState.opaque(url, expireIntervalSec=60)]
)
def test_what_forgets_by_design_may_have_forgotten(own_redis: RedisServer, make: Any) -> None:
    assert count(make(own_redis.url), 9, 8) == 1


@pytest.mark.parametrize(
    ("policy", "options", "instead"),
    [
        ("allkeys-lru", {}, "CONFIG SET$"),
        ("allkeys-random", {"dataType": "HASH", "additionalKey": "h"}, "CONFIG SET$"),
        ("volatile-ttl", {"expireIntervalSec": 60}, r"CONFIG SET \(or omit expireIntervalSec\)$"),
    ],
)
def test_a_redis_that_evicts_keys_is_refused(
    own_redis: RedisServer, policy: str, options: dict[str, Any], instead: str
) -> None:
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("maxmemory", "8mb")
    client.config_set("maxmemory-policy", policy)
    factory = RedisState.opaque(own_redis.url, **options)
    # Nothing of the refused connection is used later.
    for attempt in range(3):
        with pytest.raises(
            StoreError,
            match=rf"redis://127.* has maxmemory-policy {policy}: .* Set it to noeviction.*{instead}",
        ):
            count(factory, 1, 0, attempt)
    assert client.dbsize() == 0
    client.config_set("maxmemory-policy", "noeviction")
    assert count(factory, 1, 0, 4) == 1


def test_a_policy_that_evicts_none_of_its_keys(own_redis: RedisServer) -> None:
    redis.Redis.from_url(own_redis.url).config_set("maxmemory-policy", "volatile-lru")
    assert count(RedisState.opaque(own_redis.url), 1, 0) == 1


def test_a_redis_that_begins_to_evict_is_refused_from_the_next_connection_on(own_redis: RedisServer) -> None:
    """As after a failover to a replica with other settings."""
    factory = RedisState.opaque(own_redis.url, requestRetries=0)
    count(factory, 1, 0)
    client = redis.Redis.from_url(own_redis.url)
    client.config_set("maxmemory-policy", "allkeys-lfu")
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreError, match="allkeys-lfu"):
        count(factory, 2, 1)


def test_a_redis_that_does_not_tell_its_policy(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = redis.Redis.from_url(own_redis.url)
    client.acl_setuser("state", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-info"])
    factory = RedisState.opaque(own_redis.url.replace("//", "//state:secret@"))
    store = factory.store()
    count(factory, 1, 0)
    with store.exchange(None), store.exchange(None):
        # Two more connections.
        pass
    [warned] = [record.getMessage() for record in caplog.records]
    assert "does not tell its maxmemory-policy" in warned
    assert "no permissions" in warned
    assert "secret" not in warned


def test_memcached_is_no_place_for_counts() -> None:
    assert "evicts values when it is full" in str(weakness("opaque", MemcachedState.opaque("host:11211")))


@pytest.mark.parametrize(("kind", "setting"), [("postgres", "fsync is off"), ("mariadb", "trx_commit is 0")])
def test_a_database_that_loses_what_it_has_confirmed(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, setting: str
) -> None:
    """The servers of the tests do not flush."""
    factory = SqlState.opaque(empty_database(kind, request, tmp_path))
    assert [count(factory, txid, txid - 1) for txid in (1, 2)] == [1, 2]
    [warned] = [record.getMessage() for record in caplog.records]
    assert f"{setting}, so a crash of its machine can lose the last transactions" in warned


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_database_that_came_back_without_rows(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """As an unlogged table of PostgreSQL after a crash, or on a standby, and a MEMORY table of MariaDB."""
    url = empty_database(kind, request, tmp_path)
    factory = SqlState.opaque(url)
    count(factory, 1, 0)
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("truncate table kinesis_trident_state")
    with pytest.raises(StateBehindError, match="does not know of any batch"):
        count(factory, 2, 1)
