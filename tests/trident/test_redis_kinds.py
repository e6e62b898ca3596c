"""Redis over TLS, behind a Sentinel, and as a cluster: what a batch counts, and what happens when keys move."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from harness import eventually
from redis_groups import NODES, SLOTS, Cluster, cluster, watched_primary
from secure_servers import certificates
from server_fixtures import _program
from servers import LOOPBACK, RedisServer
from test_failover import KEYS, count, fails_then_counts
from test_states_doc import NAMES
from test_stores import connecting

from kinesis_trident.checkpoint.embedded import free_port
from kinesis_trident.trident import (
    StateBehindError,
    StateFencedError,
    StateOptionsError,
    StoreError,
    StoreUnavailableError,
)
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.redis.connecting import parse_target
from kinesis_trident.trident.stores.task import TASK, StateTask
from kinesis_trident.trident.testing import BackingMapConformance
from kinesis_trident.trident.testing.conformance import Connect


@contextmanager
def owned(factory: RedisState, txid: int, applied: int, attempt: int = 1) -> Iterator[Any]:
    """A state of a topology's update in which a batch has begun."""
    who = Owner("shop", "lines@1", "counts", frozenset(("counts",)), applied=applied)
    state = factory.make_state({TASK: StateTask(attempt, who)}, 0, 1)
    state.begin_commit(txid)
    yield state


def count_owned(factory: RedisState, txid: int, applied: int, attempt: int = 1) -> Any:
    with owned(factory, txid, applied, attempt) as state:
        counts = state.multi_combine(KEYS, operator.add, [1] * len(KEYS))
        state.commit(txid)
    assert len(set(counts)) == 1
    return counts[0]


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


class TestRedisCluster(BackingMapConformance):
    @pytest.fixture(params=[{"keyPrefix": "{%s}:"}, {"dataType": "HASH", "additionalKey": "%s"}])
    def connect(self, request: pytest.FixtureRequest, redis_cluster: Cluster) -> Connect:
        options = {name: str(value).replace("%s", uuid.uuid4().hex) for name, value in request.param.items()}
        return connecting(RedisState, redis_cluster.url, **options)


@pytest.mark.parametrize("prefix", ["", "{", "counts:", "{}counts", "a}b{c"])
def test_a_state_in_a_cluster_needs_one_slot(prefix: str) -> None:
    with pytest.raises(
        StateOptionsError, match=r"keyPrefix is .*as in keyPrefix='\{counts\}', or use dataType HASH"
    ):
        RedisState.opaque(f"redis+cluster://{LOOPBACK}:1", keyPrefix=prefix)


def test_a_state_is_in_one_node_of_the_cluster(redis_cluster: Cluster) -> None:
    own = f"a{{{uuid.uuid4().hex}}}b"
    factory = RedisState.opaque(redis_cluster.url, keyPrefix=own, expireIntervalSec=1_000)
    assert count(factory, 1, 10) == [10] * len(KEYS)
    assert count(factory, 2, 1) == [11] * len(KEYS)
    assert count(factory, 2, 2, attempt=2) == [12] * len(KEYS)
    # The fence is a key too.
    assert sorted(len(client.keys(f"{own}*")) for client in redis_cluster.clients) == [0, 0, len(KEYS) + 1]


def test_a_node_that_comes_back_empty(redis_cluster: Cluster) -> None:
    """It has lost the fence with the keys, whether between two batches or within one."""
    states: dict[int, RedisState] = {}
    while len(states) < NODES:
        factory = RedisState.opaque(redis_cluster.url, keyPrefix=f"{{{uuid.uuid4().hex}}}")
        slot = redis_cluster.clients[0].execute_command("CLUSTER KEYSLOT", factory.key_prefix)
        states[int(slot) * NODES // SLOTS] = factory
    for factory in states.values():
        assert [count_owned(factory, 1, 0), count_owned(factory, 2, 1)] == [1, 2]
    with owned(states[0], 3, 2) as state:
        redis_cluster.servers[0].kill()
        eventually(lambda: redis_cluster.is_whole(redis_cluster.clients[0]), "the cluster")
        with pytest.raises(
            StoreUnavailableError, match=r"has lost keys during a batch.*the batch is replayed"
        ):
            state.multi_combine(KEYS, operator.add, [1] * len(KEYS))
    with pytest.raises(StateBehindError, match=r"does not know of any batch .* to which batch 2 was applied"):
        count_owned(states[0], 3, 2, attempt=2)
    assert [count_owned(states[node], 3, 2) for node in (1, 2)] == [3, 3]


def test_a_cluster_that_evicts_keys(redis_cluster: Cluster) -> None:
    for client in redis_cluster.clients:
        client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreError, match=r"redis\+cluster://.* has maxmemory-policy allkeys-lru"):
            count(RedisState.opaque(redis_cluster.url, keyPrefix="{a}", requestRetries=0), 1, 1)
    finally:
        for client in redis_cluster.clients:
            client.config_set("maxmemory-policy", "noeviction")


def test_the_keys_of_an_older_release_get_a_hash_tag(redis_cluster: Cluster) -> None:
    """As docs/states.md says: a state that was spread over the nodes counts on."""
    own = uuid.uuid4().hex
    cluster = redis.RedisCluster(LOOPBACK, redis_cluster.servers[0].port)
    old = {f"{own}{key[0]}": b"[7,3,2]" for key in KEYS}
    old[f'{own}["$OWNER$"]'] = b'["shop","lines@1","counts in before",0]'
    old[f'{own}["$FENCE$"]'] = b"[7,12]"
    for key, value in old.items():
        cluster.set(key, value, ex=1_000 if key.endswith("3") else None)
    assert all(client.keys(f"{own}*") for client in redis_cluster.clients)
    for _ in range(2):
        NAMES["add_tag"](cluster, own, f"{{{own}}}")
    factory = RedisState.opaque(redis_cluster.url, keyPrefix=f"{{{own}}}")
    assert count_owned(factory, 7, 0, attempt=13) == 3
    assert count_owned(factory, 8, 7) == 4
    assert cluster.ttl(f"{{{own}}}{KEYS[3][0]}") == -1
    assert cluster.ttl(f"{{{own}}}{KEYS[13][0]}") == -1


def test_a_late_task_writes_nothing_in_a_cluster(redis_cluster: Cluster) -> None:
    factory = RedisState.opaque(redis_cluster.url, keyPrefix=f"{{{uuid.uuid4().hex}}}")
    late = factory.make_state({ATTEMPT: 1}, 0, 1)
    late.begin_commit(1)
    assert count(factory, 1, 5, attempt=2) == [5] * len(KEYS)
    with pytest.raises(StateFencedError, match="attempt 1 at batch 1 is over"):
        late.multi_put(KEYS, [0] * len(KEYS))
    assert factory.make_state({}, 0, 1).multi_get(KEYS) == [5] * len(KEYS)


def test_keys_that_move_to_another_node(redis_cluster: Cluster) -> None:
    """While a slot moves, a batch asks for its replay; afterwards it finds the slot, at once if it may try again."""
    own = f"{{{uuid.uuid4().hex}}}"
    factory = RedisState.opaque(redis_cluster.url, keyPrefix=own, requestRetries=0)
    slot = int(redis_cluster.clients[0].execute_command("CLUSTER KEYSLOT", f"{own}{KEYS[7][0]}"))
    target = 0

    def begin() -> None:
        nonlocal target
        target = redis_cluster.begin_move(slot)[1]

    fails_then_counts(factory, begin, lambda: redis_cluster.end_move(slot, target))
    other = RedisState.opaque(redis_cluster.url, keyPrefix=own)
    assert count(other, 3, 1, attempt=1) == [12] * len(KEYS)
    source = (target + 2) % 3
    for key in redis_cluster.clients[target].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
        redis_cluster.clients[source].execute_command(
            "CLUSTER SETSLOT", slot, "IMPORTING", redis_cluster.ids[target]
        )
        redis_cluster.clients[target].execute_command(
            "MIGRATE", LOOPBACK, redis_cluster.servers[source].port, key, 0, 5_000
        )
    redis_cluster.end_move(slot, source)
    assert count(other, 4, 1, attempt=1) == [13] * len(KEYS)


def test_a_cluster_that_is_not_there(closed_port: int) -> None:
    factory = RedisState.opaque(
        f"redis+cluster://user:secret@{LOOPBACK}:{closed_port}", keyPrefix="{t}", requestRetries=0
    )
    with pytest.raises(StoreUnavailableError, match="does not answer") as raised:
        count(factory, 1, 1)
    assert "secret" not in str(raised.value)


def test_a_primary_that_a_sentinel_replaces(closed_port: int) -> None:
    with watched_primary() as (primary, replica, sentinel):
        url = f"redis+sentinel://{LOOPBACK}:{closed_port},{LOOPBACK}:{sentinel.port}/mymaster/2"
        factory = RedisState.opaque(url, requestRetries=0)
        assert count(factory, 1, 10) == [10] * len(KEYS)
        assert redis.Redis(LOOPBACK, primary.port, db=2).dbsize() == len(KEYS) + 1
        copied = redis.Redis(LOOPBACK, replica.port, db=2)
        eventually(lambda: copied.dbsize() == len(KEYS) + 1, "the replica")
        begun = factory.make_state({ATTEMPT: 1}, 0, 1)
        begun.begin_commit(2)
        primary.stop()
        with pytest.raises(
            StoreUnavailableError, match=rf"redis\+sentinel://{LOOPBACK}:.*/mymaster does not answer"
        ):
            begun.multi_combine(KEYS, lambda a, b: a + b, [1] * len(KEYS))

        sentinel.give_up()

        def counted() -> bool:
            try:
                return count(factory, 2, 1, attempt=2) == [11] * len(KEYS)
            except StoreUnavailableError:
                return False

        eventually(counted, "the new primary")
        assert copied.get(KEYS[0][0]) == b"[2,11,10]"


def test_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    port = free_port()
    files = {f"tls_{name}_file": tmp_path / f for name, f in [("cert", "server.pem"), ("key", "server.pem")]}
    with RedisServer(_program("redis-server"), tls_port=port, tls_ca_cert_file=tmp_path / "ca.pem", **files):
        one = f"rediss://{LOOPBACK}:{port}?ssl_ca_certs={tmp_path}/ca.pem&ssl_certfile={tmp_path}/client.pem"
        factory = RedisState.opaque(f"{one}&ssl_keyfile={tmp_path}/client.key")
        assert count(factory, 1, 3) == [3] * len(KEYS)
        unknown = RedisState.opaque(
            f"rediss://{LOOPBACK}:{port}?ssl_certfile={tmp_path}/client.pem&ssl_keyfile={tmp_path}/client.key",
            requestRetries=0,
        )
        with pytest.raises((StoreUnavailableError, StoreError), match=r"(?i)certificate verify failed"):
            count(unknown, 1, 3)


@pytest.mark.parametrize(
    ("url", "hosts", "settings", "where"),
    [
        (
            "redis+sentinel://me:se%40cret@a,b:7/my%2Fmaster/3?sentinel_password=x&health_check_interval=5",
            (("a", 26379), ("b", 7)),
            {
                "username": "me",
                "password": "se@cret",
                "db": 3,
                "sentinel_password": "x",
                "health_check_interval": 5,
            },
            "redis+sentinel://a:26379,b:7/my/master",
        ),
        (
            "rediss+cluster://:secret@[::1]:7000,b?ssl_ca_certs=/ca",
            (("::1", 7000), ("b", 6379)),
            {"password": "secret", "ssl": True, "ssl_ca_certs": "/ca"},
            "rediss+cluster://::1:7000,b:6379",
        ),
    ],
)
def test_what_a_url_says(url: str, hosts: object, settings: object, where: str) -> None:
    target = parse_target(url)
    assert (target.hosts, target.settings, target.where) == (hosts, settings, where)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://secret@host",
        "redis+sentinel://secret@host/a/b",
        "redis+sentinel://secret@host/a/1/2",
        "redis+sentinel://secret@host:x/a",
        "redis+cluster://secret@host/1",
        "redis+cluster://secret@",
        "redis+other://secret@host",
        "redis+cluster:secret@host",
        "redis://user:word@host:6379/secret",
        "rediss://user:word@host/0/user:secret@host",
        "redis://user:word@[host/secret",
    ],
)
def test_a_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(StateOptionsError, match=r"Write it as redis|It begins with redis://, ") as raised:
        RedisState.opaque(url)
    assert "secret" not in str(raised.value)
