"""Measure how fast states are updated, against plain clients of the same servers: `python -m benchmarks.states`."""

from __future__ import annotations

import operator
import socket
from collections.abc import Callable
from dataclasses import dataclass

import redis
from pymemcache.client.base import Client

from benchmarks.report import Section, best, publish
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.memcached.connection import MemcachedConnection
from kinesis_trident.trident.stores.memcached.protocol import gets, sets
from kinesis_trident.trident.stores.redis import RedisByteStore, RedisState
from tests.server_programs import find
from tests.servers import MemcachedServer, RedisServer

KEYS = 50_000
BATCH = 10_000
ONE_BY_ONE = 2_000
WATCHED = 2_500
IN_REDIS, IN_MEMCACHED = 1000, 500


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    seconds: float
    keys: int
    exact: bool

    @property
    def rate(self) -> float:
        return self.keys / self.seconds


def names() -> list[str]:
    return [f"word-{i}" for i in range(KEYS)]


def updated(factory: MapStateFactory) -> Callable[[], None]:
    """Every key once a batch, each time in a new batch, fenced as a topology does it."""
    keys = [(name,) for name in names()]
    txid = 0

    def run() -> None:
        nonlocal txid
        for start in range(0, KEYS, BATCH):
            txid += 1
            part = keys[start : start + BATCH]
            state = factory.make_state({ATTEMPT: 1}, 0, 1)
            state.begin_commit(txid)
            state.multi_combine(part, operator.add, [1] * len(part))
            state.commit(txid)

    return run


def plain_redis(url: str) -> Callable[[], None]:
    """redis-py's mget and mset: no txid, no protection."""
    client, keys = redis.Redis.from_url(url), names()

    def run() -> None:
        for start in range(0, KEYS, BATCH):
            part = keys[start : start + BATCH]
            client.mset(
                {key: int(value or 0) + 1 for key, value in zip(part, client.mget(part), strict=True)}
            )

    return run


def watched_redis(url: str) -> Callable[[], None]:
    """redis-py's WATCH and MULTI: a change of any key in between undoes the batch. It slows with the keys watched."""
    client, keys = redis.Redis.from_url(url), names()[:WATCHED]

    def run() -> None:
        for start in range(0, WATCHED, WATCHED // 5):
            part = keys[start : start + WATCHED // 5]
            with client.pipeline() as pipeline:
                pipeline.watch(*part)  # type: ignore[no-untyped-call]
                found = pipeline.mget(part)
                pipeline.multi()
                for key, value in zip(part, found, strict=True):
                    pipeline.set(key, int(value or 0) + 1)
                pipeline.execute()

    return run


def plain_memcached(address: tuple[str, int]) -> Callable[[], None]:
    """With pymemcache's get_many and set_many: no txid, no protection."""
    client, keys = Client(address), names()

    def run() -> None:
        for start in range(0, KEYS, BATCH):
            part = keys[start : start + BATCH]
            found = client.get_many(part)
            client.set_many({key: int(found.get(key, 0)) + 1 for key in part})

    return run


def compared_memcached(address: tuple[str, int]) -> Callable[[], None]:
    """With pymemcache's gets and cas: one key at a time is all that it offers."""
    client, keys = Client(address), names()[:ONE_BY_ONE]
    for key in keys:
        client.set(key, 0)

    def run() -> None:
        for key in keys:
            value, cas = client.gets(key)
            client.cas(key, int(value) + 1, cas)

    return run


def prepared_redis(server: RedisServer) -> Callable[[], None]:
    """Return what the server alone takes: the requests of an opaque state made beforehand, the answers thrown away."""
    store = RedisByteStore(redis.Redis.from_url(server.url), server.url)
    keys = [f"prepared-{name}".encode() for name in names()]
    values: list[bytes | None] = [b"[1,1,null]"] * IN_REDIS
    store.set_many([key.decode() for key in keys], [b"[1,1,null]"] * KEYS)
    parts = [keys[start : start + IN_REDIS] for start in range(0, KEYS, IN_REDIS)]
    requests = [
        store.get(part) + store.compare_and_set([key.decode() for key in part], values, values)
        for part in parts
    ]
    connection = socket.create_connection(("127.0.0.1", server.port))

    def run() -> None:
        a_batch = BATCH // IN_REDIS
        for start in range(0, len(parts), a_batch):
            connection.sendall(b"".join(requests[start : start + a_batch]) + b"PING\r\n")
            answer = b""
            while not answer.endswith(b"+PONG\r\n"):
                answer = answer[-7:] + connection.recv(1 << 18)

    return run


def prepared_memcached(address: tuple[str, int]) -> Callable[[], None]:
    """The same for memcached; what is written is not compared, as its versions cannot be known beforehand."""
    keys = [f"prepared-{name}".encode() for name in names()]
    values: list[bytes | None] = [b"[1,1,null]"] * IN_MEMCACHED
    connection = MemcachedConnection(*address)
    parts = [keys[start : start + IN_MEMCACHED] for start in range(0, KEYS, IN_MEMCACHED)]
    connection.ask([(sets(part, values, b""), IN_MEMCACHED) for part in parts], lambda _, count: count)
    requests = [(gets(part) + sets(part, values, b" q"), IN_MEMCACHED) for part in parts]

    def run() -> None:
        a_batch = BATCH // IN_MEMCACHED
        for start in range(0, len(parts), a_batch):
            connection.ask(requests[start : start + a_batch], lambda _, count: count)

    return run


def run() -> list[list[Row]]:
    """Measure everything; first of each group is what the others are compared with."""

    def row(what: str, measured: Callable[[], None], keys: int = KEYS, *, exact: bool = True) -> Row:
        measured()
        return Row(what, best(measured, 12), keys, exact)

    redis_program, memcached_program = find("redis-server").path, find("memcached").path
    if redis_program is None or memcached_program is None:
        msg = "this measures redis-server and memcached: install them with make servers"
        raise SystemExit(msg)
    with RedisServer(redis_program) as server:
        url = server.url
        in_redis = [
            row("redis-py, mget and mset", plain_redis(url), exact=False),
            row("the server alone: prepared requests", prepared_redis(server), exact=False),
            row("redis-py, WATCH and MULTI", watched_redis(url), WATCHED, exact=False),
            row(
                "RedisState.non_transactional",
                updated(RedisState.non_transactional(url, keyPrefix="n")),
                exact=False,
            ),
            row("RedisState.transactional", updated(RedisState.transactional(url, keyPrefix="t"))),
            row("RedisState.opaque", updated(RedisState.opaque(url, keyPrefix="o"))),
            row(
                "RedisState.opaque, msgpack",
                updated(RedisState.opaque(url, keyPrefix="m", serializer="msgpack")),
            ),
        ]
    with MemcachedServer(memcached_program) as memcached:
        where = "{}:{}".format(*memcached.address)
        in_memcached = [
            row("pymemcache, get_many and set_many", plain_memcached(memcached.address), exact=False),
            row("the server alone: prepared requests", prepared_memcached(memcached.address), exact=False),
            row("pymemcache, gets and cas", compared_memcached(memcached.address), ONE_BY_ONE, exact=False),
            row("MemcachedState.transactional", updated(MemcachedState.transactional(where, keyPrefix="t"))),
            row("MemcachedState.opaque", updated(MemcachedState.opaque(where, keyPrefix="o"))),
            row(
                "MemcachedState.opaque, msgpack",
                updated(MemcachedState.opaque(where, keyPrefix="m", serializer="msgpack")),
            ),
        ]
    in_memory = [row("MemoryMapState.opaque", updated(MemoryMapState.opaque()))]
    return [in_redis, in_memcached, in_memory]


def main() -> None:
    """Measure, print, and write the section."""
    groups = run()
    publish(
        Section(
            "states",
            "Updating states",
            "python -m benchmarks.states",
            [f"{BATCH // 1000} k keys a batch, one worker", "exactly once", "keys/s", "to the plain client"],
            [
                [
                    row.what,
                    "yes" if row.exact else "no",
                    f"{row.rate / 1e3:,.0f} k",
                    f"{row.rate / group[0].rate:.2f} x" if len(group) > 1 and row is not group[0] else "",
                ]
                for group in groups
                for row in group
            ],
            note="Every key is read, counted up and written. Ours are compared and set key by key, and fenced. "
            "The server alone: the same requests, made beforehand. It runs on the same cores.",
        )
    )


if __name__ == "__main__":
    main()
