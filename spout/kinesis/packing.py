"""Packs user records into aggregates as the Kinesis Producer Library does. Pure.

The format is the one that `spout.kinesis.aggregation` reads. The library packs records of one shard, as far as it knows
the shards, because the hash key of the first user record routes them all.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kinesis_trident.spout.kinesis.aggregation import MAGIC, AggregatedRecord

__all__ = ["MOST_USERS", "ROUTED_KEY", "Pack", "hash_key"]

MOST_USERS = 50_000
"""The maximum of user records in an aggregate: with the longest keys, so many are within the reader's memory limit."""

ROUTED_KEY = "a"
"""The partition key of an aggregate, which nothing uses: its explicit hash key routes it. The KPL's, too."""

_DIGEST = 16


def hash_key(partition_key: str) -> int:
    """Return the MD5 of a partition key as an integer ("Kinesis Data Streams terminology", Partition key)."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


class Pack:
    """The user records of one aggregate, and its exact size.

    Args:
        hash_key: an explicit hash key for all user records, as text. The Kinesis Client Library drops an aggregate
            with a hash key outside the shard in which it arrived (`spout.kinesis.aggregation`), as some keys of a
            shard are after a reshard; with the hash key that routed the aggregate, each of its records belongs there.
    """

    def __init__(self, hash_key: str | None = None) -> None:
        self.hash_key = hash_key
        self._keys: dict[str, int] = {}
        self._users: list[tuple[int, bytes]] = []
        self._explicit = 0 if hash_key is None else 2
        self.size = len(MAGIC) + _DIGEST + (0 if hash_key is None else 2 + len(hash_key))

    def add(self, data: bytes, key: str, room: int | None = None) -> int:
        """Add a user record if that takes at most `room` bytes; return the bytes, 0 if it was not added."""
        size = len(data)
        index = self._keys.get(key)
        enlarged = 0
        if index is None:
            index = len(self._keys)
            length = len(key.encode())
            enlarged = 1 + _varint(length) + length
        inside = 2 + _varint(index) + self._explicit + _varint(size) + size
        enlarged += 1 + _varint(inside) + inside
        if room is not None and (enlarged > room or len(self._users) == MOST_USERS):
            return 0
        self._keys[key] = index
        self._users.append((index, data))
        self.size += enlarged
        return enlarged

    def packed(self) -> bytes:
        """Return the payload of the aggregate, of `size` bytes."""
        message = AggregatedRecord(partition_key_table=[key.encode() for key in self._keys])
        explicit: dict[str, Any] = {}
        if self.hash_key is not None:
            message.explicit_hash_key_table.append(self.hash_key.encode())
            explicit = {"explicit_hash_key_index": 0}
        add = message.records.add
        for index, data in self._users:
            add(partition_key_index=index, data=data, **explicit)
        body: bytes = message.SerializeToString()
        return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


def _varint(value: int) -> int:
    """Return the bytes of a number in a protobuf message."""
    return (value.bit_length() + 6) // 7 or 1
