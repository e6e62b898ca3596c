"""Packs user records into aggregates as the Kinesis Producer Library does. Pure.

The format is the one that `spout.kinesis.aggregation` reads. The library packs records of one shard, as far as it knows
the shards, because the hash key of the first user record routes them all.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from kinesis_trident.spout.kinesis.aggregation import MAGIC

MOST_USERS = 50_000
"""The maximum of user records in an aggregate: with the longest keys, so many are within the reader's memory limit."""

ROUTED_KEY = "a"
"""The partition key of an aggregate, which nothing uses: its explicit hash key routes it. The KPL's, too."""

_DIGEST = 16


def _hash_of_python() -> Callable[[bytes], Any]:
    """Return Python's own MD5: for a key OpenSSL's takes twice as long, to look up the algorithm."""
    try:
        found: Callable[[bytes], Any] = import_module("_md5").md5
    except ModuleNotFoundError:
        return partial(hashlib.md5, usedforsecurity=False)
    return found


_md5 = _hash_of_python()

User = tuple[bytes, str]
"""A user record: its payload and partition key."""


def digests_of(partition_keys: list[str]) -> list[bytes]:
    """Return the hash key of each partition key, as 16 bytes ("Kinesis Data Streams terminology", Partition key)."""
    return [_md5(key).digest() for key in map(str.encode, partition_keys)]


def hash_key(partition_key: str) -> int:
    """Return the hash key of a partition key, as an integer."""
    return int.from_bytes(digests_of([partition_key])[0])


class Pack:
    """The user records of one aggregate, and its exact size.

    It writes the message itself, because a protobuf object for each record would take longer than everything else.

    Args:
        hash_key: an explicit hash key for all user records, as text. The Kinesis Client Library drops an aggregate
            with a hash key outside the shard in which it arrived (`spout.kinesis.aggregation`), as some keys of a
            shard are after a reshard; with the hash key that routed the aggregate, each of its records belongs there.
    """

    def __init__(self, hash_key: str | None = None) -> None:
        self.hash_key = hash_key
        self._keys: dict[str, int] = {}
        self._tables: list[bytes] = []
        self._parts: list[bytes] = []
        # For each length of a key's index, by the length of the data.
        self._frames: tuple[dict[int, tuple[bytes, bytes, int]], ...] = ({}, {}, {}, {})
        self._users = 0
        self._explicit, self._data = b"", _DATA
        if hash_key is not None:
            # All user records refer to the first, and only, entry of the table.
            self._explicit = b"".join((_EXPLICIT_KEY, _varint(len(hash_key)), hash_key.encode()))
            self._data = _FIRST_EXPLICIT_KEY + _DATA
        self.size = len(MAGIC) + len(self._explicit) + _DIGEST

    def add(self, data: bytes, key: str, room: int | None = None) -> int:
        """Add a user record if that takes at most `room` bytes; return the bytes, 0 if it was not added."""
        before = self.size
        self.extend([(data, key)], sys.maxsize if room is None else before + room)
        return self.size - before

    def extend(self, users: Iterable[User], most: int) -> tuple[int, User | None]:
        """Add user records in their order, up to a size of `most` bytes.

        Returns:
            The number of those added, and the one after them, which was taken from `users` and not added.
        """
        keys, tables, parts = self._keys, self._tables, self._parts
        size, before = self.size, self._users
        count, left = before, None
        for data, key in users:
            index = keys.get(key)
            at = len(keys) if index is None else index
            key_index = _VARINTS[at] if at < _SMALL else _varint(at)
            frames = self._frames[len(key_index)]
            frame = frames.get(len(data))
            if frame is None:
                frame = frames[len(data)] = self._frame(len(data), len(key_index))
            head, tail, more = frame
            if index is None:
                text = key.encode()
                text_length = _VARINTS[len(text)] if len(text) < _SMALL else _varint(len(text))
                more += 1 + len(text_length) + len(text)
            if size + more > most or count == MOST_USERS:
                left = data, key
                break
            if index is None:
                keys[key] = at
                tables += (_KEY, text_length, text)
            parts += (head, key_index, tail, data)
            count += 1
            size += more
        self.size, self._users = size, count
        return count - before, left

    def _frame(self, length: int, key_index: int) -> tuple[bytes, bytes, int]:
        """Return what stands before the key's index, and before the data, and the size of such a user record."""
        tail = self._data + _varint(length)
        inside = _varint(1 + key_index + len(tail) + length)
        head = _RECORD + inside + _KEY_INDEX
        return head, tail, len(head) + key_index + len(tail) + length

    def pack(self) -> bytes:
        """Return the payload of the aggregate, of `size` bytes."""
        body = b"".join([*self._tables, self._explicit, *self._parts])
        return b"".join((MAGIC, body, hashlib.md5(body, usedforsecurity=False).digest()))


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL = 4096
_VARINTS = [_varint(value) for value in range(_SMALL)]

_KEY, _EXPLICIT_KEY, _RECORD = b"\x0a", b"\x12", b"\x1a"
"""Begin a partition key, an explicit hash key, and a user record; its length follows."""

_KEY_INDEX, _FIRST_EXPLICIT_KEY, _DATA = b"\x08", b"\x10\x00", b"\x1a"
"""Begin a partition key's index, say that the explicit hash key is the first one, and begin the data."""
