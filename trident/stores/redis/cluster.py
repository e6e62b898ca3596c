"""Stores bytes in a Redis Cluster: each request holds keys of one slot, and goes to the node that has it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.redis.store import MAX_KEYS, RedisByteStore

if TYPE_CHECKING:
    from redis.cluster import RedisCluster

__all__ = ["RedisClusterStore"]

Group = list[int]
"""The positions of keys that are in one slot; few enough for one command."""


class RedisClusterStore(ByteStore):
    """Bytes in the nodes of a cluster.

    The fence is in one slot, so a script that writes to another cannot compare it: a task reads it after its keys and
    before its writes, as in the stores without scripts.

    Args:
        connect: connects to the cluster; called when it is first used.
        where: the cluster without secrets.
        expire: seconds that a key lives after it was set; 0: forever.
        hash_name: the name of the hash that holds all keys, so in one node; empty: each key is a string.
    """

    max_value_bytes = RedisByteStore.max_value_bytes

    def __init__(
        self, connect: Callable[[], RedisCluster], where: str, expire: int = 0, hash_name: str = ""
    ) -> None:
        self._connect = connect
        self._where = where
        self._expire = expire
        self._hash = hash_name
        self._cluster: RedisCluster | None = None
        self._is_stale = False
        self._nodes: dict[str, RedisByteStore] = {}
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        """See `ByteStore.where`."""
        return self._where

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        found: list[bytes | None] = [None] * len(keys)

        def command(node: RedisByteStore, group: Group) -> bytes:
            return node.get([keys[i].encode() for i in group])

        for group, answer in self._asked(keys, command):
            for i, value in zip(group, answer, strict=True):
                found[i] = value
        return found, found

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        written: list[Version] = list(values)

        def command(node: RedisByteStore, group: Group) -> bytes:
            chosen = ([some[i] for i in group] for some in (keys, versions, values))
            return node.compare_and_set(*chosen)  # type: ignore[arg-type]

        for group, lost in self._asked(keys, command):
            for i in lost:
                written[group[i - 1]] = LOST
        return written

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""

        def command(node: RedisByteStore, group: Group) -> bytes:
            return node.put([keys[i].encode() for i in group], [values[i] for i in group])

        for _ in self._asked(keys, command):
            pass

    def _asked(
        self, keys: Sequence[str], command: Callable[[RedisByteStore, Group], bytes]
    ) -> Iterator[tuple[Group, Any]]:
        """Send a command for each slot to its node; yield the positions of its keys, and the answer."""
        cluster = self._current()
        with self._following():
            for node, groups in self._by_node(cluster, keys):
                commands = (command(node, group) for group in groups)
                yield from zip(groups, node.pipelined(commands, keys), strict=True)

    def _by_node(
        self, cluster: RedisCluster, keys: Sequence[str]
    ) -> list[tuple[RedisByteStore, list[Group]]]:
        slots: dict[int, Group] = {}
        for i, key in enumerate(keys):
            slot = cluster.keyslot(self._hash or key)  # type: ignore[no-untyped-call]
            slots.setdefault(slot, []).append(i)
        nodes: dict[str, tuple[RedisByteStore, list[Group]]] = {}
        for slot, group in slots.items():
            place = cluster.nodes_manager.get_node_from_slot(slot)
            node = self._nodes.get(place.name)
            if node is None:
                client = cluster.get_redis_connection(place)
                node = self._nodes[place.name] = RedisByteStore(
                    client, f"{self._where} (node {place.name})", self._expire, self._hash, in_cluster=True
                )
            groups = nodes.setdefault(place.name, (node, []))[1]
            groups += [group[at : at + MAX_KEYS] for at in range(0, len(group), MAX_KEYS)]
        return list(nodes.values())

    def _current(self) -> RedisCluster:
        """Return the cluster, connected; after an error with the nodes as they are now.

        Raises:
            StoreUnavailableError: no node answers, or some slots have no node.
        """
        with self._lock, self._following():
            if self._cluster is None:
                self._cluster = self._connect()
            elif self._is_stale:
                self._nodes.clear()
                self._cluster.nodes_manager.initialize()
            self._is_stale = False
            return self._cluster

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Let the next request ask for the nodes again after an error: the keys may be in other ones."""
        from redis import exceptions

        try:
            yield
        except StoreUnavailableError:
            self._is_stale = True
            raise
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
            self._is_stale = True
            msg = f"{self._where} does not answer ({error}). Check that all its slots have a node, and the login"
            raise StoreUnavailableError(msg) from None
