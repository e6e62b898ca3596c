"""A state in each of the stores."""

from __future__ import annotations

import functools
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from moto.dynamodb.models import DynamoDBBackend
from moto.server import ThreadedMotoServer

from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.dynamodb import DynamoDBState
from kinesis_trident.trident.stores.files import FileState
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlState

STORES = ["memory", "files", "redis", "memcached", "sqlite", "postgres", "mariadb", "dynamodb"]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and that no server of another test can take."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[str]:
    """A DynamoDB of moto's: its URL.

    It checks a condition and writes in one step, as DynamoDB does; moto's threads come between the two.
    """
    in_turn = threading.Lock()

    def alone(write: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(write)
        def locked(*given: object, **named: object) -> object:
            with in_turn:
                return write(*given, **named)

        return locked

    server = ThreadedMotoServer(port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_item", "delete_item"):
            patch.setattr(DynamoDBBackend, name, alone(getattr(DynamoDBBackend, name)))
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def dynamodb_table(dynamodb: str) -> str:
    """A table of this test's own."""
    table = f"state-{uuid.uuid4().hex}"
    boto3.client("dynamodb", endpoint_url=dynamodb, region_name="us-east-1").create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return table


@pytest.fixture(params=STORES)
def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> MapStateFactory:
    """An opaque state of this test's own in each of the stores."""
    own = uuid.uuid4().hex
    given = request.getfixturevalue
    makers: dict[str, Callable[[], MapStateFactory]] = {
        "memory": MemoryMapState.opaque,
        "files": lambda: FileState.opaque(str(tmp_path / "state")),
        "redis": lambda: RedisState.opaque(given("redis_server").url, keyPrefix=own),
        "memcached": lambda: MemcachedState.opaque(
            "{}:{}".format(*given("memcached_server").address), keyPrefix=own
        ),
        "sqlite": lambda: SqlState.opaque(f"sqlite:///{tmp_path}/state.db"),
        "postgres": lambda: SqlState.opaque(
            given("postgres_server").url.replace("postgresql:", "postgresql+psycopg:"),
            tableName=f"state_{own}",
        ),
        "mariadb": lambda: SqlState.opaque(
            given("mariadb_server").url.replace("mysql:", "mysql+pymysql:"), tableName=f"state_{own}"
        ),
        "dynamodb": lambda: DynamoDBState.opaque(
            given("dynamodb_table"), endpointUrl=given("dynamodb"), region="us-east-1"
        ),
    }
    return makers[request.param]()
