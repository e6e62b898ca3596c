"""States in Redis: strings, or the fields of one hash; in a Redis Cluster all keys of a state are in one slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kinesis_trident.trident.errors import StateOptionsError, StoreError, StoreUnavailableError
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.options import MapOptions, require
from kinesis_trident.trident.stores.overlap import Exchange
from kinesis_trident.trident.stores.redis.connecting import parse_target
from kinesis_trident.trident.stores.redis.store import RedisByteStore

if TYPE_CHECKING:
    from redis.cluster import RedisCluster


class RedisClusterStore(ByteStore):
    """Bytes in the node of a cluster that has their slot.

    A node that comes back empty has lost the fence with the keys, and each script compares it.

    Args:
        connect: connects to the cluster; called when it is first used.
        where: the cluster without secrets.
        root: the start of all keys, with their hash tag; empty if a hash holds them.
        hash_name: the name of that hash.
        make: makes the store of a node from its client and its name for errors.
    """

    max_value_bytes = RedisByteStore.max_value_bytes
    where = ""
    resends = False
    overlaps = guards = True

    def __init__(
        self,
        connect: Callable[[], RedisCluster],
        where: str,
        root: str,
        hash_name: str,
        make: Callable[[Any, str], RedisByteStore],
    ) -> None:
        self._connect = connect
        self.where = where
        self.root = root
        self._hash = hash_name
        self._make = make
        self._cluster: RedisCluster | None = None
        self._node: RedisByteStore | None = None
        self._lock = threading.Lock()

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        with self._follow_slot() as node:
            return node.get_many(keys)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        with self._follow_slot() as node:
            return node.compare_and_set_many(keys, values, versions)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        with self._follow_slot() as node:
            node.set_many(keys, values)

    @contextmanager
    def exchange(self, guard: str | None) -> Iterator[Exchange[str]]:
        """See `ByteStore.exchange`."""
        with self._follow_slot() as node, node.exchange(guard) as exchange:
            yield exchange

    @contextmanager
    def _follow_slot(self) -> Iterator[RedisByteStore]:
        """Yield the node of the keys; after an error the next request asks for it again: the slot may have moved."""
        from redis import exceptions

        try:
            with self._lock:
                node = self._node = self._node or self._find_node()
            yield node
        except StoreUnavailableError:
            self._node = None
            raise
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
            self._node = None
            if isinstance(error.__cause__, StoreError):
                raise error.__cause__ from None
            msg = (
                f"{self.where} does not answer ({error}). Check that all its slots have a node, and the login"
            )
            raise StoreUnavailableError(msg) from None

    def _find_node(self) -> RedisByteStore:
        if self._cluster is None:
            self._cluster = self._connect()
        else:
            self._cluster.nodes_manager.initialize()
        slot = self._cluster.keyslot(self._hash or self.root)  # type: ignore[no-untyped-call]
        place = self._cluster.nodes_manager.get_node_from_slot(slot)
        client = self._cluster.get_redis_connection(place)
        return self._make(client, f"{self.where} (node {place.name})")


def tagged_start(prefix: str) -> str:
    """Return a prefix up to the end of its hash tag; empty if it has none, so that its keys are in many slots."""
    head, opened, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return head + opened + tag + closed if tag and closed else ""


__all__ = ["RedisByteStore", "RedisOptions", "RedisState"]


class RedisOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of a Redis state; with `data_type` HASH all keys are fields of one hash, `additional_key`."""

    global_key: str = "$REDIS-MAP-STATE-GLOBAL"
    data_type: Literal["STRING", "HASH"] = "STRING"
    additional_key: str = ""
    connect_timeout_millis: int = 2_000
    request_timeout_millis: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data_type == "HASH") != bool(self.additional_key):
            msg = "dataType HASH and additionalKey, the name of the hash, belong together. Set both or none"
            raise ValueError(msg)


class RedisState(MapStateFactory):
    """Makes map states in Redis: `RedisState.opaque("redis://user:password@host:6379/0")`.

    `redis+sentinel://host:26379,other:26379/mymaster` is the primary that Sentinels name, `redis+cluster://host:6379` a
    cluster; with `rediss` instead of `redis` the connections use TLS.
    """

    options_type: ClassVar[type[MapOptions]] = RedisOptions

    def __init__(self, kind: Any, target: str, **options: Any) -> None:
        super().__init__(kind, target, **options)
        place = parse_target(target)
        if place.kind == "cluster":
            self._check_slot(place.where)
            return
        try:
            place.client(self._limits)
        except (ValueError, TypeError):
            # The original error can contain the password.
            msg = f"{place.where} is not a Redis URL. Check its port, its database and its query"
            raise StateOptionsError(msg) from None

    def _require(self) -> None:
        require("redis", "redis")

    def _connect(self) -> ByteStore:
        options = self._options
        assert isinstance(options, RedisOptions)
        place, limits = parse_target(self._target), self._limits
        expire, name = options.expire_interval_sec, options.additional_key
        if place.kind == "cluster":
            return RedisClusterStore(
                lambda: place.cluster(limits, expires=expire > 0),
                place.where,
                "" if name else tagged_start(options.key_prefix),
                name,
                lambda client, where: RedisByteStore(client, where, expire, name, in_cluster=True),
            )
        return RedisByteStore(place.client(limits, expires=expire > 0), place.where, expire, name)

    def _check_slot(self, where: str) -> None:
        """Check that all keys are in one slot.

        Raises:
            StateOptionsError: they are in many, where no script can compare the fence.
        """
        options = self._options
        assert isinstance(options, RedisOptions)
        if not (options.additional_key or tagged_start(options.key_prefix)):
            msg = (
                f"{where}: the keys of a state in a cluster must be in one slot, so that a node which lost its keys is "
                f"noticed, but keyPrefix is {options.key_prefix!r}. Give it a hash tag, as in keyPrefix='{{counts}}', "
                "or use dataType HASH; docs/states.md says how the keys of an older release get one"
            )
            raise StateOptionsError(msg)

    @property
    def _limits(self) -> dict[str, Any]:
        """redis-py's settings that no URL changes: it returns bytes, and leaves retries to the state."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = self._options
        assert isinstance(options, RedisOptions)
        return {
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": options.connect_timeout_millis / 1e3,
            "socket_timeout": options.request_timeout_millis / 1e3,
        }
