"""Replies of stores, and values in them: right values, or an error of the state that names the store or the key."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
import redis
from answering import PATIENCE, Server
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given, strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from kinesis_trident.trident.errors import StateError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.maps.values import OpaqueValue
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.key_text import FENCE, decode_key, encode_keys
from kinesis_trident.trident.stores.memcached import MemcachedByteStore
from kinesis_trident.trident.stores.memcached.connection import MemcachedConnection
from kinesis_trident.trident.stores.ownership import Owner, StatePlace
from kinesis_trident.trident.stores.redis.store import RedisByteStore
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer
from kinesis_trident.trident.stores.storemap import StoreMap
from kinesis_trident.trident.stores.task import StateTask

# Without a name the client sends nothing before its first request; the other way to say so is of newer releases only.
pytestmark = pytest.mark.filterwarnings("ignore:Call to '__init__' function with deprecated usage")

KEYS = [("a",), ("b",)]
RIGHT = OpaqueValue(3, {"n": Decimal("1.5")}, None)
RAWS = [JsonSerializer(StateType.OPAQUE).serialize(value) for value in (RIGHT, OpaqueValue(1, 7, 5))]
MSGPACKS = [
    MsgpackSerializer(StateType.OPAQUE).serialize(value) for value in (RIGHT, OpaqueValue(1, b"x", 5))
]


def memcached(port: int) -> MemcachedByteStore:
    return MemcachedByteStore({"m:1": MemcachedConnection("127.0.0.1", port, request_timeout=PATIENCE)})


def redis_store(port: int) -> RedisByteStore:
    client = redis.Redis(
        port=port,
        lib_name=None,
        lib_version=None,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=PATIENCE,
    )
    return RedisByteStore(client, "redis r:1")


def get(state: StoreMap) -> list[Any]:
    return state.multi_get(KEYS)


def put(state: StoreMap) -> list[Version]:
    state.multi_put(KEYS, [RIGHT, RIGHT])
    return [b"", b""]


def compare(state: StoreMap) -> list[Version]:
    return state.multi_compare_and_set(KEYS, [RIGHT, RIGHT], [None, b"1"])


def exchange(state: StoreMap) -> list[Version]:
    return list(state.multi_exchange(KEYS, lambda _part, values: (values, ())))


def begin(state: StoreMap) -> list[Any]:
    state.begin_batch(5)
    return [None, None]


CALLS: list[Callable[[StoreMap], list[Any]]] = [get, put, compare, exchange, begin]


def ask(store: ByteStore, call: Callable[[StoreMap], list[Any]], size: int) -> list[Any] | None:
    state = StoreMap(store, JsonSerializer(StateType.OPAQUE), retries=0, task=StateTask(1))
    # The most that a reply is asked for is a buffer of 256 KiB.
    found = read_bounded(
        lambda: call(state), size, StateError, store.where.partition(" ")[0], fixed=4 * 2**20
    )
    if found is not None:
        assert len(found) == 2
        kinds = (OpaqueValue, type(None)) if call is get else (bytes, type(None), type(LOST), object)
        assert all(isinstance(one, kinds) for one in found)
    return found


MEMCACHED = [
    b"VA %d c12\r\n%b\r\nVA %d c13\r\n%b\r\nMN\r\n" % (len(RAWS[0]), RAWS[0], len(RAWS[1]), RAWS[1]),
    b"EN\r\nEN\r\nMN\r\n",
    b"VA 3 c1\r\nMN\r\n\r\nEN\r\nMN\r\n",
    b"HD c1\r\nHD c2\r\nMN\r\n",
    b"HD c1\r\nEX\r\nMN\r\n",
    b"NS ka\r\nMN\r\n",
    b"MN\r\n",
    b"SERVER_ERROR object too large for cache\r\nHD c2\r\nMN\r\n",
]
REDIS = [
    b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(RAWS[0]), RAWS[0], len(RAWS[1]), RAWS[1]),
    b"*2\r\n$-1\r\n$-1\r\n",
    b"*1\r\n:1\r\n",
    b"*0\r\n",
    b"+OK\r\n",
    b"-WRONGTYPE Operation against a key\r\n+string\r\n",
    b"-LOADING Redis is loading\r\n",
    b"*1\r\n$5\r\n[5,2]\r\n",
]


@hostile
@given(reply=st.lists(mutated(MEMCACHED), min_size=1, max_size=2).map(b"".join), call=st.sampled_from(CALLS))
def test_memcached(server: Server, reply: bytes, call: Callable[[StoreMap], list[Any]]) -> None:
    server.reply = reply
    ask(memcached(server.port), call, len(reply))


@hostile
@given(reply=st.lists(mutated(REDIS), min_size=1, max_size=2).map(b"".join), call=st.sampled_from(CALLS))
def test_redis(server: Server, reply: bytes, call: Callable[[StoreMap], list[Any]]) -> None:
    server.reply = reply
    ask(redis_store(server.port), call, len(reply))


def test_the_samples_are_right(server: Server) -> None:
    for store, replies in ((memcached, MEMCACHED), (redis_store, REDIS)):
        server.reply = replies[0]
        assert get(StoreMap(store(server.port), JsonSerializer(StateType.OPAQUE))) == [
            RIGHT,
            OpaqueValue(1, 7, 5),
        ]
        server.reply = replies[1]
        assert get(StoreMap(store(server.port), JsonSerializer(StateType.OPAQUE))) == [None, None]


@pytest.mark.parametrize(
    "reply",
    [
        b"VA -4 c1\r\n" * 3 + b"MN\r\n",
        b"VA -100 c1\r\nMN\r\n",
        b"VA 9999999999999999999 c1\r\n",
        b"VA " + b"9" * 5000 + b" c1\r\nMN\r\n",
        b"VA x\r\nMN\r\n",
        b"VA\r\nMN\r\n",
        b"VA 1\r\nx\r\nEN\r\nMN\r\n",
        b"HD\r\nHD c\xff\r\nMN\r\n",
        b"HD c1\r\nHD c2",
        b"VA 3 c1\r\nMN\r\nVA 3 c2\r\nMN\r\nMN\r\n",
        b"MN\r\n",
        b"EN\r\n" * 50_000 + b"MN\r\n",
        b"VA 200000 c1\r\n" + b"MN\r\n" * 50_000 + b"\r\nEN\r\nMN\r\n",
    ],
)
def test_odd_sizes_and_ends_of_memcached(server: Server, reply: bytes) -> None:
    server.reply = reply
    for call in CALLS:
        ask(memcached(server.port), call, len(reply))


@pytest.mark.parametrize(
    "reply",
    [
        b"*-1\r\n", b"*3\r\n$-1\r\n$-1\r\n$-1\r\n", b"*2\r\n:1\r\n:2\r\n", b":5\r\n", b"$1\r\nx\r\n",
        b"*2\r\n*0\r\n*0\r\n",
        b"*2\r\n+OK\r\n-ERR inner\r\n", b"*1\r\n:99\r\n", b"*1\r\n:-5\r\n", b"*1\r\n$1\r\nx\r\n",
        b"-\r\n", b"-ERR \xff\xfe\r\n",
        b"*10000\r\n", b"$999999999\r\n", b"*1\r\n" * 5000, b"%1\r\n+a\r\n+b\r\n", b"_\r\n",
        b"#t\r\n", b"(9999\r\n",
    ],
)  # fmt: skip
def test_odd_shapes_of_redis(server: Server, reply: bytes) -> None:
    server.reply = reply
    for call in CALLS:
        ask(redis_store(server.port), call, len(reply))


class Holding(ByteStore):
    """A store that holds given bytes under each key."""

    def __init__(
        self, raws: Sequence[bytes | None], fence: bytes | None = None, names: Sequence[str] = ()
    ) -> None:
        self._raws = raws
        self._names = names
        self._fence = fence

    @property
    def where(self) -> str:
        return "store s:1"

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        raws = [*self._raws, None, None]
        found = [self._fence if key.endswith(FENCE) else raws.pop(0) for key in keys]
        return found, list(found)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        self._fence = values[0]
        return list(values)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        raise AssertionError

    def names(self) -> list[str]:
        return [*self._names]


@hostile
@given(
    st.sampled_from(list(StateType)),
    st.booleans(),
    mutated(
        [
            *RAWS,
            *MSGPACKS,
            b'[1,{"$decimal":"x"}]',
            b'[1,{"$decimal":[]},null]',
            b'{"$decimal":"1e999999999999"}',
        ]
    ),
)
def test_damaged_values(kind: StateType, as_json: bool, raw: bytes) -> None:
    serializer = JsonSerializer(kind) if as_json else MsgpackSerializer(kind)
    state = StoreMap(Holding([raw, None]), serializer)
    found = read_bounded(lambda: state.multi_get(KEYS), len(raw), StateError, "store s:1", "key 'a'")
    assert found is None or len(found) == 2


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b"[1," * 50_000, b"\x91" * 100_000, b'{"$decimal":"' + b"9" * 100_000]
)
def test_deep_and_long_values(raw: bytes) -> None:
    for kind in StateType:
        for serializer in (JsonSerializer(kind), MsgpackSerializer(kind)):
            state = StoreMap(Holding([raw, None]), serializer)
            read_bounded(
                lambda state=state: state.multi_get(KEYS), len(raw), StateError, "store s:1", "key 'a'"
            )  # type: ignore[misc]


@hostile
@given(mutated([b"[5,2]", b'["app","orders@1","count",0]', b'["app","orders@1","count"]']), st.booleans())
def test_damaged_fences_and_marks(raw: bytes, fence: bool) -> None:
    owner = Owner("app", "orders@1", "count", frozenset({"count"}))
    place = StatePlace(owner, "store s:1", "p", "$GLOBAL$")
    store = Holding([None], raw) if fence else Holding([raw])
    state = StoreMap(
        store,
        JsonSerializer(StateType.OPAQUE),
        retries=0,
        task=StateTask(1, place=None if fence else place),
        key_prefix="p",
    )
    read_bounded(lambda: state.begin_batch(9), len(raw), StateError, "store s:1")


@hostile
@given(
    mutated_json([["a", 1, 2.5, None], [["x"], "y"], ["$OWNER$"], [""]]).map(json.dumps).map(str.encode)
    | mutated([b'["a",1]', b"a"])
)
def test_names_of_keys(raw: bytes) -> None:
    state = StoreMap(Holding([], names=[raw.decode(errors="replace")]), JsonSerializer(StateType.OPAQUE))
    read_bounded(state.keys, len(raw), StateError, "store s:1", "is not the key of a state")


@given(st.lists(st.text(max_size=5) | st.integers() | st.none(), min_size=1, max_size=3).map(tuple))
def test_a_key_of_ours_comes_back(key: tuple[Any, ...]) -> None:
    assert decode_key(encode_keys([key])[0]) == key


def test_keys_of_numbers_that_json_lacks_come_back() -> None:
    keys = [(float("inf"), "a"), (float("-inf"),), (float("nan"),)]
    assert str([*map(decode_key, encode_keys(keys))]) == str(keys)
