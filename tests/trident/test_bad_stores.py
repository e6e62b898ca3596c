"""Servers that are down, wrong passwords, foreign values, values too large: a clear error, and nothing is lost."""

from __future__ import annotations

import operator
import os
import pickle
import re
import shutil
import socket
import stat
import uuid
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from server_fixtures import _program
from servers import MemcachedServer, PostgresServer, RedisServer
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.schema import CreateTable

from kinesis_trident.trident.errors import (
    ForeignValueError,
    MissingExtraError,
    SerializationError,
    StateBehindError,
    StateOptionsError,
    StoreError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from kinesis_trident.trident.maps.values import OpaqueValue
from kinesis_trident.trident.state import ATTEMPT, Key
from kinesis_trident.trident.stores import (
    JsonSerializer,
    MapStateFactory,
    MemoryMapState,
    Serializer,
    StateType,
)
from kinesis_trident.trident.stores.dynamodb import DynamoDBState
from kinesis_trident.trident.stores.files import FileByteStore, FileState
from kinesis_trident.trident.stores.memcached import MemcachedState, protocol
from kinesis_trident.trident.stores.memcached.connection import MemcachedConnection
from kinesis_trident.trident.stores.options import require, without_secrets
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlByteStore, SqlState

SECRET = "hunter2"


def count(factory: MapStateFactory, txid: int, keys: list[str], number: int) -> list[Any]:
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    counts = state.multi_combine([(key,) for key in keys], operator.add, [number] * len(keys))
    state.commit(txid)
    return counts


@pytest.mark.parametrize(
    "factory",
    [
        lambda port: RedisState.opaque(f"redis://user:{SECRET}@127.0.0.1:{port}/0", requestRetries=1),
        lambda port: MemcachedState.opaque(f"user:{SECRET}@127.0.0.1:{port}", requestRetries=1),
        lambda port: SqlState.opaque(
            f"postgresql+psycopg://user:{SECRET}@127.0.0.1:{port}/x", requestRetries=1
        ),
        lambda port: DynamoDBState.opaque(
            "t", region="eu-west-1", endpointUrl=f"http://127.0.0.1:{port}", requestRetries=0
        ),
    ],
)
def test_a_store_that_is_down_when_the_query_starts(factory: Any, closed_port: int) -> None:
    made = factory(closed_port)
    with pytest.raises(StoreUnavailableError) as caught:
        count(made, 1, ["a"], 1)
    assert str(closed_port) in str(caught.value)
    assert SECRET not in str(caught.value) + repr(made) + repr(caught.value.__cause__)


def test_redis_that_does_not_answer_in_the_middle_of_a_batch(redis_server: RedisServer) -> None:
    """Test that what was written before counts once: the replay starts from what came before the batch."""
    with RedisServer(redis_server._program) as server:
        factory = RedisState.opaque(server.url, requestRetries=0, requestTimeoutMillis=5_000)
        keys = [f"key-{i}" for i in range(2_000)]
        count(factory, 1, keys, 10)
        state = factory.make_state({}, 0, 1)
        state.begin_commit(2)
        state.multi_combine([(key,) for key in keys[:1_500]], operator.add, [1] * 1_500)
        client = redis.Redis.from_url(server.url)
        client.client_pause(60_000, all=False)
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            state.multi_combine([(key,) for key in keys[1_500:]], operator.add, [1] * 500)
        client.client_unpause()
        assert count(factory, 2, keys, 1) == [11] * 2_000


def test_retries_hide_a_connection_that_breaks(redis_server: RedisServer) -> None:
    factory = RedisState.opaque(redis_server.url, keyPrefix=uuid.uuid4().hex)
    count(factory, 1, ["a"], 10)
    client = redis.Redis.from_url(redis_server.url)
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
    assert count(factory, 2, ["a"], 1) == [11]


def test_memcached_that_was_restarted(memcached_server: MemcachedServer) -> None:
    """The connection is made again; what memcached has forgotten counts from nothing."""
    with MemcachedServer(memcached_server._program) as server:
        factory = MemcachedState.opaque("{}:{}".format(*server.address), requestRetries=8)
        count(factory, 1, ["a"], 10)
        server.stop()
        server.start()
        assert count(factory, 2, ["a"], 1) == [1]


def test_a_wrong_password(redis_server: RedisServer) -> None:
    with RedisServer(redis_server._program) as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("requirepass", "right")
        url = server.url.replace("://", f"://:{SECRET}@")
        with pytest.raises(StoreError, match=r"refuses the login.*Check user and password") as caught:
            count(RedisState.opaque(url), 1, ["a"], 1)
        assert SECRET not in str(caught.value)
        assert count(RedisState.opaque(server.url.replace("://", "://:right@")), 1, ["a"], 1) == [1]


def test_a_wrong_password_of_memcached(memcached_server: MemcachedServer) -> None:
    class Guarded(MemcachedServer):
        def _command(self) -> list[str]:
            users = self._folder / "users"
            users.write_text("user:right\n")
            # memcached does not run as root, and must read it.
            self._folder.chmod(0o755)
            return [*super()._command(), "-Y", str(users)]

        def _answers(self) -> bool:
            with closing(socket.create_connection(self.address, 5)) as connection:
                connection.sendall(b"set login 0 0 10\r\nuser right\r\n")
                return connection.recv(100).startswith(b"STORED")

    with Guarded(memcached_server._program) as server:
        address = "{}:{}".format(*server.address)
        with pytest.raises(StoreError, match="refuses the login") as caught:
            count(MemcachedState.opaque(f"user:{SECRET}@{address}"), 1, ["a"], 1)
        assert SECRET not in str(caught.value)
        assert count(MemcachedState.opaque(f"user:right@{address}"), 1, ["a"], 1) == [1]


def test_a_wrong_user_of_postgresql(postgres_server: PostgresServer) -> None:
    url = postgres_server.url.replace("postgresql://postgres@", f"postgresql+psycopg://nobody:{SECRET}@")
    with pytest.raises(StoreError, match="refused") as caught:
        count(SqlState.opaque(url), 1, ["a"], 1)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("foreign", [b"17", b"not json", b"[1,2]", b'["1",2,3]', b"[1,2,3,4]", b""])
@pytest.mark.parametrize("absent", ["before", "after"])
def test_a_foreign_value_is_named_and_not_overwritten(
    redis_server: RedisServer, foreign: bytes, absent: str
) -> None:
    prefix = uuid.uuid4().hex
    client = redis.Redis.from_url(redis_server.url)
    client.set(f"{prefix}theirs", foreign)
    factory = RedisState.opaque(redis_server.url, keyPrefix=prefix)
    keys = ["ours", "theirs"] if absent == "before" else ["theirs", "ours"]
    with pytest.raises(ForeignValueError, match=f"'{prefix}theirs'.*it was not changed"):
        count(factory, 1, keys, 1)
    assert client.get(f"{prefix}theirs") == foreign
    assert client.get(f"{prefix}ours") is None


def test_a_key_of_another_type_in_redis(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    client = redis.Redis.from_url(redis_server.url)
    client.lpush(f"{prefix}theirs", "x")
    with pytest.raises(ForeignValueError, match=f"'{prefix}theirs' holds a b'list'"):
        count(RedisState.opaque(redis_server.url, keyPrefix=prefix), 1, ["theirs"], 1)
    assert client.lrange(f"{prefix}theirs", 0, -1) == [b"x"]


def test_values_that_hold_the_end_mark_of_memcached_are_parsed_once(
    memcached_server: MemcachedServer,
) -> None:
    """The answer is parsed at the first mark, and then as a whole: not at each of half a million marks."""
    host, port = memcached_server.address
    connection = MemcachedConnection(host, port)
    prefix = uuid.uuid4().hex.encode()
    names = [prefix + b"%d" % i for i in range(100)]
    values: list[bytes | None] = [b"MN\r\n" * 5_000 for _ in names]
    connection.ask([(protocol.sets(names, values, b""), len(names))], protocol.stored)
    parsed: list[int] = []

    def parse(answer: bytes, count: int) -> tuple[list[bytes | None], list[Any]]:
        parsed.append(len(answer))
        assert len(parsed) < 10
        return protocol.found(answer, count)

    asked = [(protocol.gets([*names, b"none", names[0]]), 102), (protocol.gets([b"none"]), 1)]
    for wanted, (got, _) in zip(
        [[*values, None, values[0]], [None]], connection.ask(asked, parse), strict=True
    ):
        assert got == wanted
    assert len(parsed) == 3
    connection.close()


def test_a_value_that_is_too_large_for_memcached(memcached_server: MemcachedServer) -> None:
    factory = MemcachedState.opaque("{}:{}".format(*memcached_server.address), keyPrefix=uuid.uuid4().hex)
    keys: list[Key] = [("small",), ("large",)]
    state = factory.make_state({}, 0, 1)
    state.begin_commit(1)
    state.multi_put(keys, ["x", "y"])
    state.commit(1)
    state.begin_commit(2)
    with pytest.raises(
        ValueTooLargeError, match=r"key \('large',\) has 1,1\d\d,\d\d\d bytes.*this key was not written"
    ):
        state.multi_put(keys, ["z", "y" * 1_100_000])
    state.begin_commit(2)
    assert state.multi_get(keys) == ["x", "y"]
    state.multi_put(keys, ["z", "y" * 1_000_000])


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        (1, 2),
        [{"a": (1,)}],
        datetime.now(UTC),
        b"bytes",
        {1: 2},
        [{1}],
        object(),
    ],
)
@pytest.mark.parametrize("kind", StateType)
def test_a_type_that_json_would_change(value: Any, kind: StateType) -> None:
    state = MemoryMapState(kind).make_state({}, 0, 1)
    state.begin_commit(1)
    with pytest.raises(
        SerializationError, match=r"key \('bad',\) cannot be stored.*This key was not written"
    ):
        state.multi_put([("good",), ("bad",)], [1, value])
    state.begin_commit(1)
    assert state.multi_get([("good",), ("bad",)]) == [None, None]


class PickleSerializer(Serializer):
    def serialize(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def deserialize(self, data: bytes) -> Any:
        return pickle.loads(data)


def test_ones_own_serializer() -> None:
    state = MemoryMapState.opaque(serializer=PickleSerializer()).make_state({}, 0, 1)
    state.begin_commit(1)
    state.multi_put([("a",)], [Decimal("1.5")])
    state.begin_commit(2)
    assert state.multi_get([("a",)]) == [Decimal("1.5")]


def test_tridents_json_byte_for_byte(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    client = redis.Redis.from_url(redis_server.url)
    for kind, after in [
        (StateType.OPAQUE, [b"[1,10,null]", b"[2,11,10]"]),
        (StateType.TRANSACTIONAL, [b"[1,10]", b"[2,11]"]),
        (StateType.NON_TRANSACTIONAL, [b"10", b"11"]),
    ]:
        factory = RedisState(kind, redis_server.url, keyPrefix=f"{prefix}{kind.value}:")
        for txid, (number, stored) in enumerate(zip([10, 1], after, strict=True), 1):
            count(factory, txid, ["word"], number)
            assert client.get(f"{prefix}{kind.value}:word") == stored


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RedisState.opaque("redis://x", localCachSize=1), "did you mean localCacheSize"),
        (lambda: RedisState.opaque("redis://x", requestRetries="many"), "requestRetries"),
        (lambda: RedisState.opaque("redis://x", expireIntervalSec=-1), "0 or more"),
        (lambda: RedisState.opaque("redis://x", dataType="HASH"), "additionalKey"),
        (lambda: RedisState.opaque("redis://x", serializer="xml"), "'json', 'msgpack'"),
        (lambda: RedisState.opaque("x:1"), "not a Redis URL"),
        (lambda: RedisState.opaque("redis://host:port"), r"not a Redis URL\. Check its port"),
        (lambda: RedisState.opaque("redis://host:70000"), r"not a Redis URL\. Check its port"),
        (
            lambda: RedisState.opaque("redis://x", requestTimeoutMillis=-5),
            r"requestTimeoutMillis is -5\. Give 1 or more",
        ),
        (
            lambda: RedisState.opaque("redis://x", connectTimeoutMillis=0),
            r"connectTimeoutMillis is 0\. Give 1 or more",
        ),
        (lambda: MemoryMapState.opaque(maxSize=-1), "maxSize is -1. Give 0 or more"),
        (lambda: DynamoDBState.opaque("t", parallelRequests=0), "parallelRequests is 0. Give 1 or more"),
        (lambda: FileState.opaque("f", snapshotInterval=0), "snapshotInterval is 0. Give 1 or more"),
        (lambda: MemcachedState.opaque("host:70000"), "host:port"),
        (lambda: MemcachedState.opaque("host:1", requestTimeoutMillis=0), "requestTimeoutMillis is 0"),
        (lambda: MemcachedState.opaque("host:1", maxItemSize=100), "maxItemSize is 100"),
        (lambda: MemcachedState.opaque("host:1", expiration=-1), "expiration is -1. Give 0 or more"),
        (
            lambda: MemcachedState.opaque("host:1", expiration=5, expireIntervalSec=6),
            "two names of one option",
        ),
        (lambda: MemcachedState.opaque("host"), "host:port"),
        (lambda: MemcachedState.opaque("host:1", expiration=10**7), "date"),
        (lambda: SqlState.opaque("nonsense").store(), "not a SQLAlchemy URL"),
        (lambda: FileState.opaque("nonsense://x").store(), "pyarrow.fs"),
    ],
)
def test_options_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(StateOptionsError, match=message):
        make()


@pytest.mark.parametrize("dialect", [mysql.dialect(), MariaDBDialect()])
def test_mysql_compares_keys_byte_by_byte(dialect: Any) -> None:
    """Its usual collations take `a` for `A`, and a text for the same with spaces after it."""
    table = SqlByteStore(sa.create_engine("sqlite://"), "here", "counts")._table
    made = str(CreateTable(table).compile(dialect=dialect))
    assert re.search(r"`?key`? VARBINARY\(1020\) NOT NULL", made)
    kind = table.c.key.type.dialect_impl(dialect)
    bind, result = kind.bind_processor(dialect), kind.result_processor(dialect, None)
    assert bind is not None
    assert result is not None
    assert bind("né ") == "né ".encode()
    assert [result("né ".encode()), result("old"), result(None)] == ["né ", "old", None]


def test_option_names_in_any_case() -> None:
    factory = MemoryMapState.opaque(LOCALCACHESIZE=3, globalkey="g")
    assert factory.make_state({}, 0, 1).get() is None


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'kinesis-trident\[sql\]'"):
        require("no_such_package", "sql")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:pw@host:1/0?password=pw", "redis://host:1/0"),
        ("postgresql+psycopg://u:p@h/db", "postgresql+psycopg://h/db"),
        ("s3://key:secret@bucket/path?secret_key=x", "s3://bucket/path"),
        ("s3://key:12/cret@bucket/path", "s3://***"),
        ("redis://:12#cret@host/0", "redis://***"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/local/path", "/local/path"),
        ("user:pw@host:11211", "user:pw@host:11211".rpartition("@")[2]),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    "folder",
    [
        "s3://key:hunter2/x@bucket/path",
        "nowhere://user:hunter2@host/path",
        "hdfs://user:hunter2@host:99999/path",
        "s3://bucket/path?hunter2=hunter2",
    ],
)
def test_no_error_about_a_folder_shows_a_secret(folder: str) -> None:
    factory = FileState.opaque(folder)
    with pytest.raises(StateOptionsError, match="is not a folder that pyarrow") as raised:
        factory.store()
    assert "hunter2" not in f"{raised.value} {raised.value.__cause__} {factory!r} {factory}"
    assert "hunter2" not in repr(factory._options)


def test_a_folder_is_read_again_after_a_crash(tmp_path: Path) -> None:
    """All batches that were committed, and not the one that was under way."""
    for run in range(3):
        factory = FileState.opaque(str(tmp_path), snapshotInterval=2)
        for batch in range(5):
            count(factory, 5 * run + batch + 1, ["a", f"b{batch}"], 1)
        state = factory.make_state({}, 0, 1)
        state.begin_commit(99)
        state.multi_combine([("a",)], operator.add, [1_000])
    found = FileState.opaque(str(tmp_path)).make_state({}, 0, 1)
    assert found.multi_get([("a",), ("b0",), ("c",)]) == [15, 3, None]
    found.begin_commit(99)
    found.multi_put([("c",)], [1])
    assert len(list(tmp_path.iterdir())) == 1


def test_incomplete_files_do_not_stay(tmp_path: Path) -> None:
    """Neither of a process that was killed while it wrote, nor of a write that failed."""
    folder = tmp_path / "state"
    count(FileState.opaque(str(folder)), 1, ["a"], 1)
    killed = folder / f".{uuid.uuid4().hex}"
    killed.write_bytes(b"half")
    others = folder / ".hidden"
    others.write_bytes(b"not ours")
    store = FileByteStore(str(folder))
    assert killed.exists(), "who only reads deletes nothing"
    store.set_many(["b"], [b"1"])
    store.end_batch(2)
    assert not killed.exists()
    assert others.exists()
    names = {path.name for path in folder.iterdir()}
    # The next batch's name is taken, by a folder: its file cannot be renamed.
    newest = max(folder.glob("*.batch"))
    (folder / newest.name.replace("000002.", "000003.")).mkdir()
    store.set_many(["c"], [b"1"])
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.end_batch(3)
    assert {path.name for path in folder.iterdir() if path.is_file()} == names


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    store = FileByteStore(str(tmp_path))
    store.set_many(["a"], [b"1"])
    store.end_batch(1)
    [broken] = tmp_path.glob("*.batch")
    broken.write_bytes(broken.read_bytes()[:-10])
    with pytest.raises(ForeignValueError, match=broken.name):
        FileByteStore(str(tmp_path))
    assert broken.exists()


@pytest.mark.parametrize("missing", ["000001.snapshot", "000003.batch"])
def test_a_file_that_is_missing_between_others(tmp_path: Path, missing: str) -> None:
    folder, kept = tmp_path / "state", tmp_path / "kept"
    factory = FileState.opaque(str(folder))

    def batch(factory: MapStateFactory, txid: int, keys: list[str]) -> list[Any]:
        state = factory.make_state({ATTEMPT: 1}, 0, 1)
        state.begin_commit(txid)
        counts = state.multi_combine([(key,) for key in keys], operator.add, [1] * len(keys))
        state.commit(txid)
        return counts

    for txid, keys in [(1, ["a", "b"]), (2, ["a"]), (3, ["b", "a"]), (4, ["a"])]:
        batch(factory, txid, keys)
    [path] = folder.glob(f"*{missing}")
    path.rename(kept)
    names = {path.name for path in folder.iterdir()}
    for accepted in (0, 3):
        again = FileState.opaque(str(folder), acceptLossUpTo=accepted)
        with pytest.raises(
            StateBehindError, match=rf"{missing} is missing, but later .*acceptLossUpTo=4 of this state"
        ):
            again.make_state({}, 0, 1)
    assert {path.name for path in folder.iterdir()} == names
    shutil.copytree(folder, tmp_path / "accepted")
    accepting = FileState.opaque(str(tmp_path / "accepted"), acceptLossUpTo=4)
    # What later files hold of a key is right.
    assert batch(accepting, 5, ["a", "b"]) == [5, 3]
    assert batch(FileState.opaque(str(tmp_path / "accepted")), 6, ["a"]) == [6]
    kept.rename(path)
    assert batch(FileState.opaque(str(folder)), 5, ["a", "b"]) == [5, 3]


def test_the_name_of_a_file_is_flushed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the batch is committed: else a crash of the machine could take back the name."""
    flushed: list[set[str]] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        fsync(file)
        if stat.S_ISDIR(os.fstat(file).st_mode):
            assert os.path.samestat(os.fstat(file), tmp_path.stat())
            flushed.append({path.name for path in tmp_path.iterdir()})

    store = FileByteStore(str(tmp_path))
    store.set_many(["a"], [b"1"])
    monkeypatch.setattr(os, "fsync", watched)
    store.end_batch(1)
    assert flushed == [{"000001-000000000001.snapshot", "000001-000000000002.batch"}]


def test_integers_of_any_size() -> None:
    assert JsonSerializer(StateType.OPAQUE).serialize(OpaqueValue(1, 2**70, None)) == b"[1,%d,null]" % 2**70


@pytest.mark.parametrize("options", [{}, {"maxMultiGetBatchSize": 60, "maxMultiPutBatchSize": 30}])
def test_values_that_are_together_more_than_redis_takes_in_a_request(options: dict[str, int]) -> None:
    """Here 32 MB; without a setting 512 MB. Each request ends the connection, and so would each replay."""
    keys: list[Key] = [(f"{i}",) for i in range(60)]
    with RedisServer(_program("redis-server"), proto_max_bulk_len="32mb") as server:
        factory = RedisState.opaque(server.url, requestRetries=0, **options)
        for txid in (1, 2):
            state = factory.make_state({ATTEMPT: 1}, 0, 1)
            state.begin_commit(txid)
            if options:
                state.hold_writes()
            state.multi_combine(keys, max, [f"{txid}{'x' * 600_000}"] * len(keys))
            state.commit(txid)
        store = factory.store()
        values = factory.make_state({}, 0, 1).multi_get(keys)
        store.set_many([key for (key,) in keys], [str(value).encode() for value in values])
        assert store.get_many(["7"])[0][0] == b"2" + b"x" * 600_000
    assert values == [f"2{'x' * 600_000}"] * len(keys)
