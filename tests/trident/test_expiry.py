"""Keys that expire, and folders in an object store: what the stores themselves do about them."""

from __future__ import annotations

import operator
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
import sqlalchemy as sa
from moto.server import ThreadedMotoServer
from servers import MemcachedServer, RedisServer

from kinesis_trident.trident.maps import OpaqueMap
from kinesis_trident.trident.stores import ByteStore, JsonSerializer, MapStateFactory, StateType, StoreMap
from kinesis_trident.trident.stores.dynamodb import DynamoDBByteStore
from kinesis_trident.trident.stores.files import FileByteStore, FileState
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlByteStore

Clock = Callable[[], float]


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    yield "{}:{}".format(*server.get_host_and_port())
    server.stop()


def count(factory: MapStateFactory, txid: int, key: str) -> Any:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    [result] = state.multi_combine([(key,)], operator.add, [1])
    state.commit(txid)
    return result


@pytest.fixture(params=["memory", "sql", "files", "dynamodb"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], ByteStore]:
    """A store whose keys live for ten seconds of a clock."""
    if request.param == "memory":
        return lambda clock: MemoryByteStore("memory", 10, clock=clock)
    if request.param == "sql":
        engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        return lambda clock: SqlByteStore(engine, "sqlite", "t", expire=10, clock=clock)
    if request.param == "files":
        return lambda clock: FileByteStore(str(tmp_path), 10, clock=clock)
    client = boto3.client(
        "dynamodb", endpoint_url=f"http://{request.getfixturevalue('aws')}", region_name="us-east-1"
    )
    client.create_table(
        TableName="expiring",
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return lambda clock: DynamoDBByteStore(client, "expiring", expire=10, clock=clock)


def test_an_expired_key_counts_from_nothing(make: Callable[[Clock], ByteStore]) -> None:
    now = [1.0]
    store = make(lambda: now[0])
    state = OpaqueMap[int](StoreMap(store, JsonSerializer(StateType.OPAQUE)))
    for txid, at, expected in [(1, 1, 1), (2, 10, 2), (3, 19, 3), (4, 30, 1), (5, 31, 2)]:
        now[0] = at
        state.begin_commit(txid)
        assert state.multi_combine([("a",)], operator.add, [1]) == [expected]
        state.commit(txid)


@pytest.mark.parametrize("server", ["sqlite", "postgres", "mariadb"])
def test_expired_rows_are_deleted(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    if server == "postgres":
        url = request.getfixturevalue("postgres_server").url.replace("postgresql:", "postgresql+psycopg:")
    if server == "mariadb":
        url = request.getfixturevalue("mariadb_server").url.replace("mysql:", "mysql+pymysql:")
    now, table = [1.0], f"t{uuid.uuid4().hex}"
    engine = sa.create_engine(url)
    store = SqlByteStore(engine, server, table, expire=1_000, clock=lambda: now[0])

    def rows() -> int:
        with engine.connect() as connection:
            return int(connection.execute(sa.text(f"select count(*) from {table}")).scalar_one())

    names = [f"key-{i}" for i in range(2_500)]
    store.set_many(names, [b"1"] * len(names))
    now[0] = 500
    store.set_many(["later"], [b"1"])
    store.end_batch(1)
    assert rows() == 2_501
    now[0] = 1_001
    store.end_batch(2)
    assert rows() == 1
    assert store.get_many(["key-1", "later"])[0] == [None, b"1"]
    engine.dispose()


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("kind", StateType)
def test_redis_is_told(redis_server: RedisServer, kind: StateType, hashed: bool) -> None:
    name = uuid.uuid4().hex
    place: dict[str, Any] = {"dataType": "HASH", "additionalKey": name} if hashed else {"keyPrefix": name}
    count(RedisState(kind, redis_server.url, expireIntervalSec=1_000, **place), 1, "word")
    left = redis.Redis.from_url(redis_server.url).ttl(name if hashed else f"{name}word")
    assert isinstance(left, int)
    assert 900 < left <= 1_000


@pytest.mark.parametrize("kind", StateType)
def test_memcached_is_told(memcached_server: MemcachedServer, kind: StateType) -> None:
    prefix = uuid.uuid4().hex
    host, port = memcached_server.address
    count(MemcachedState(kind, f"{host}:{port}", keyPrefix=prefix, expiration=1_000), 1, "word")
    with closing(socket.create_connection((host, port), 60)) as connection:
        connection.sendall(f"mg {prefix}word t\r\n".encode())
        answer = connection.recv(100).split()
    assert answer[0] == b"HD"
    assert 900 < int(answer[1][1:]) <= 1_000


def test_a_folder_in_s3(aws: str) -> None:
    boto3.client("s3", endpoint_url=f"http://{aws}", region_name="us-east-1").create_bucket(Bucket="states")
    folder = f"s3://testing:testing@states/counts?endpoint_override={aws}&scheme=http&region=us-east-1"
    for txid in range(1, 6):
        # Each in a process of its own, as it were.
        assert count(FileState.opaque(folder, snapshotInterval=2), txid, "word") == txid
    assert "testing:" not in FileState.opaque(folder).store().where
