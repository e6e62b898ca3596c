"""Stores bytes in a Redis Cluster: all keys of a state are in one slot, so in the node that has it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kinesis_trident.trident.errors import StoreError, StoreUnavailableError
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.overlap import Exchange
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

    def __init__(
        self,
        connect: Callable[[], RedisCluster],
        where: str,
        root: str,
        hash_name: str,
        make: Callable[[Any, str], RedisByteStore],
    ) -> None:
        self._connect = connect
        self._where = where
        self.root = root
        self._hash = hash_name
        self._make = make
        self._cluster: RedisCluster | None = None
        self._node: RedisByteStore | None = None
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        """See `ByteStore.where`."""
        return self._where

    @property
    def overlaps(self) -> bool:
        """See `ByteStore.overlaps`."""
        return True

    @property
    def guards(self) -> bool:
        """See `ByteStore.guards`."""
        return True

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
            msg = f"{self._where} does not answer ({error}). Check that all its slots have a node, and the login"
            raise StoreUnavailableError(msg) from None

    def _find_node(self) -> RedisByteStore:
        if self._cluster is None:
            self._cluster = self._connect()
        else:
            self._cluster.nodes_manager.initialize()
        slot = self._cluster.keyslot(self._hash or self.root)  # type: ignore[no-untyped-call]
        place = self._cluster.nodes_manager.get_node_from_slot(slot)
        client = self._cluster.get_redis_connection(place)
        return self._make(client, f"{self._where} (node {place.name})")


def tagged_start(prefix: str) -> str:
    """Return a prefix up to the end of its hash tag; empty if it has none, so that its keys are in many slots."""
    head, opened, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return head + opened + tag + closed if tag and closed else ""
