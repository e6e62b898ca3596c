"""The conformance kit on every store."""

from __future__ import annotations

import uuid

import pytest
from servers import MemcachedServer, RedisServer

from trident.maps import BackingMap
from trident.stores import MapStateFactory, StoreMap
from trident.stores.memcached import MemcachedState
from trident.stores.memory import MemoryByteStore
from trident.stores.redis import RedisState
from trident.stores.serializers import JsonSerializer, MsgpackSerializer
from trident.testing import BackingMapConformance
from trident.testing.conformance import Connect

SERIALIZERS = ["json", "msgpack"]


def connecting(factory: type[MapStateFactory], target: str, **options: object) -> Connect:
    """Each connection by a factory of its own, as in another process."""
    return lambda kind: backing_of(factory(kind, target, **options))


def backing_of(factory: MapStateFactory) -> BackingMap[object]:
    return factory.make_backing({})


class TestMemory(BackingMapConformance):
    @pytest.fixture(params=[JsonSerializer, MsgpackSerializer])
    def connect(self, request: pytest.FixtureRequest) -> Connect:
        store = MemoryByteStore("memory")
        return lambda kind: StoreMap(store, request.param(kind))


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
    @pytest.fixture(params=SERIALIZERS)
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
