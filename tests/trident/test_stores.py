"""The conformance kit on every store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from servers import MariaDBServer, MemcachedServer, PostgresServer, RedisServer
from thorough import cases

from kinesis_trident.trident.maps import CachedMap
from kinesis_trident.trident.maps.backing import BackingMap
from kinesis_trident.trident.stores import MapStateFactory, StateType, StoreMap
from kinesis_trident.trident.stores.dynamodb import DynamoDBByteStore, DynamoDBState
from kinesis_trident.trident.stores.files import FileByteStore
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.memory import MemoryByteStore, MemoryMapState
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer
from kinesis_trident.trident.stores.sql import SqlState
from kinesis_trident.trident.testing import BackingMapConformance
from kinesis_trident.trident.testing.conformance import Connect

SERIALIZERS = ["json", "msgpack"]
ONE_LATER = cases("json", long=("msgpack",))
"""Bytes are bytes to any store: `make test` puts both serializers into memory and into Redis."""


def connecting(factory: type[MapStateFactory], target: str, **options: object) -> Connect:
    """Connections of two factories in turn, as of two processes."""
    factories = {kind: cycle([factory(kind, target, **options) for _ in range(2)]) for kind in StateType}
    return lambda kind: next(factories[kind]).make_backing({})


class NotedState(MemoryMapState):
    """A state whose maps are kept."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made: list[BackingMap[Any]] = []

    def make_backing(self, conf: Mapping[str, Any]) -> BackingMap[Any]:
        self.made.append(super().make_backing(conf))
        return self.made[-1]


@pytest.mark.parametrize("kind", StateType)
def test_a_state_stands_on_the_map_that_its_factory_makes(kind: StateType) -> None:
    factory = NotedState(kind, uuid.uuid4().hex)
    state = factory.make_state({}, 0, 1)
    (made,) = factory.made
    state.begin_commit(1)
    state.multi_put([("a",)], [1])
    state.commit(1)
    assert made.multi_get([("a",)]) != [None]


class TestMemory(BackingMapConformance):
    @pytest.fixture(params=[JsonSerializer, MsgpackSerializer])
    def connect(self, request: pytest.FixtureRequest) -> Connect:
        store = MemoryByteStore("memory")
        return lambda kind: StoreMap(store, request.param(kind))


class TestCached(BackingMapConformance):
    """Each connection with a cache of its own, smaller than what it reads; and requests of odd sizes."""

    @pytest.fixture
    def connect(self) -> Connect:
        store = MemoryByteStore("memory")
        return lambda kind: CachedMap(StoreMap(store, JsonSerializer(kind), most_read=7, most_written=3), 30)


class TestFiles(BackingMapConformance):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        store = FileByteStore(str(tmp_path / "state"), snapshot_interval=2)
        return lambda kind: StoreMap(store, JsonSerializer(kind))


class TestRedis(BackingMapConformance):
    @pytest.fixture(params=SERIALIZERS)
    def connect(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Connect:
        prefix = f"{uuid.uuid4().hex}:"
        return connecting(RedisState, redis_server.url, keyPrefix=prefix, serializer=request.param)


class TestRedisHash(BackingMapConformance):
    @pytest.fixture
    def connect(self, redis_server: RedisServer) -> Connect:
        return connecting(RedisState, redis_server.url, dataType="HASH", additionalKey=uuid.uuid4().hex)


class TestRedisExpiring(BackingMapConformance):
    @pytest.fixture
    def connect(self, redis_server: RedisServer) -> Connect:
        return connecting(RedisState, redis_server.url, keyPrefix=uuid.uuid4().hex, expireIntervalSec=1_000)


class TestMemcached(BackingMapConformance):
    @pytest.fixture(params=ONE_LATER)
    def connect(self, request: pytest.FixtureRequest, memcached_server: MemcachedServer) -> Connect:
        host, port = memcached_server.address
        prefix = f"{uuid.uuid4().hex}:"
        return connecting(MemcachedState, f"{host}:{port}", keyPrefix=prefix, serializer=request.param)


class TestMemcachedExpiring(BackingMapConformance):
    @pytest.fixture
    def connect(self, memcached_server: MemcachedServer) -> Connect:
        host, port = memcached_server.address
        # The same server under two names, so that keys are spread.
        return connecting(
            MemcachedState, f"{host}:{port},localhost:{port}", keyPrefix=uuid.uuid4().hex, expiration=1_000
        )


class TestSqlite(BackingMapConformance):
    @pytest.fixture(params=ONE_LATER)
    def connect(self, request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
        return connecting(SqlState, f"sqlite:///{tmp_path}/state.db", serializer=request.param)


class TestPostgres(BackingMapConformance):
    @pytest.fixture(params=ONE_LATER)
    def connect(self, request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Connect:
        url = postgres_server.url.replace("postgresql:", "postgresql+psycopg:")
        table = f"state_{uuid.uuid4().hex}"
        return connecting(SqlState, url, tableName=table, serializer=request.param, expireIntervalSec=1_000)


class TestMariaDB(BackingMapConformance):
    @pytest.fixture
    def connect(self, mariadb_server: MariaDBServer) -> Connect:
        url = mariadb_server.url.replace("mysql:", "mysql+pymysql:")
        return connecting(SqlState, url, tableName=f"state_{uuid.uuid4().hex}", expireIntervalSec=1_000)


class TestDynamoDB(BackingMapConformance):
    MANY = 100

    @pytest.fixture
    def connect(self, dynamodb: str, dynamodb_table: str, monkeypatch: pytest.MonkeyPatch) -> Connect:
        # moto draws the line at 405,000 bytes an item, below DynamoDB.
        monkeypatch.setattr(DynamoDBByteStore, "max_value_bytes", 400_000)
        return connecting(
            DynamoDBState,
            dynamodb_table,
            endpointUrl=dynamodb,
            serializer="msgpack",
            expireIntervalSec=1_000,
        )
