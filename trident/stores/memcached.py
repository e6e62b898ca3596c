"""States in memcached: meta commands in pipelines, each key replaced by compare and set.

memcached forgets: what it evicts, or loses in a restart, counts from nothing again. Keep in it what can be computed
again.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from trident.errors import StateOptionsError, StoreError, ValueTooLargeError
from trident.maps.backing import LOST, Version
from trident.stores.bytestore import ByteStore
from trident.stores.factory import MapStateFactory
from trident.stores.ketama import Ketama
from trident.stores.memcached_connection import IncompleteError, MemcachedConnection
from trident.stores.options import MapOptions

__all__ = ["MemcachedByteStore", "MemcachedOptions", "MemcachedState"]

T = TypeVar("T")

_CHUNK = 1_000
"""Keys in flight: their requests fit into the sockets' buffers, so neither side waits for the other for ever."""

_PLAIN = re.compile(rb"(?!~)[^\x00-\x20\x7f]{1,250}")
_ALL_PLAIN = re.compile(rb"[^\x00-\x20\x7f~]*")
_FOUND = re.compile(rb"VA (\d+) c(\d+)\r\n([^\r]*)\r\n|EN\r\n")
_STORED = re.compile(rb"(HD|EX|NS|NF) c(\d+)\r\n")
_ITEM_OVERHEAD = 512
_MONTH = 30 * 24 * 60 * 60


class MemcachedOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Of a memcached state; `expiration` is Trident's name for `expire_interval_sec`."""

    expiration: int = 0
    connect_timeout_millis: int = 2_000
    request_timeout_millis: int = 10_000
    max_item_size: int = 1024 * 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.expiration, self.expire_interval_sec) > _MONTH:
            msg = f"memcached takes an expiration of more than {_MONTH:,} seconds for a date; use less, or 0 for none"
            raise ValueError(msg)


class MemcachedByteStore(ByteStore):
    """Bytes in one or several memcached servers, the keys spread as all ketama clients do.

    Args:
        connections: one a server, by its name `host:port`.
        expire: seconds that a key lives after it was set; 0: for ever.
        max_item_size: of the servers' setting `-I`, in bytes.
    """

    def __init__(
        self, connections: dict[str, MemcachedConnection], expire: int = 0, max_item_size: int = 1024 * 1024
    ) -> None:
        self._connections = connections
        self._ring = Ketama(list(connections))
        self._ttl = b" T%d" % expire if expire else b""
        self._lock = threading.Lock()
        # One that is too large would not only be refused: memcached drops the value that it should replace.
        self.max_value_bytes = max_item_size - _ITEM_OVERHEAD

    @property
    def where(self) -> str:
        """See `ByteStore.where`."""
        return f"memcached {','.join(self._connections)}"

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is memcached's own cas."""
        found = self._spread(
            _wire(keys), lambda names, _: [b"mg " + name + b" v c\r\n" for name in names], _found
        )
        return [value for value, _ in found], [cas for _, cas in found]

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        ttl = self._ttl

        def requests(names: Sequence[bytes], at: Sequence[int]) -> list[bytes]:
            return [
                _delete(name, versions[i])
                if (value := values[i]) is None
                else b"ms %b %d c ME%b\r\n%b\r\n" % (name, len(value), ttl, value)
                if (cas := versions[i]) is None
                else b"ms %b %d c C%b%b\r\n%b\r\n" % (name, len(value), cas, ttl, value)
                for name, i in zip(names, at, strict=True)
            ]

        return self._spread(_wire(keys), requests, _stored)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        ttl = self._ttl

        def requests(names: Sequence[bytes], at: Sequence[int]) -> list[bytes]:
            return [
                b"md %b\r\n" % name
                if (value := values[i]) is None
                else b"ms %b %d c%b\r\n%b\r\n" % (name, len(value), ttl, value)
                for name, i in zip(names, at, strict=True)
            ]

        self._spread(_wire(keys), requests, _stored)

    def _spread(
        self,
        names: Sequence[bytes],
        requests: Callable[[Sequence[bytes], Sequence[int]], list[bytes]],
        parse: Callable[[bytes, int], list[T]],
    ) -> list[T]:
        """Ask each server for its keys."""
        results: list[Any] = [None] * len(names)
        with self._lock:
            for server, at in self._ring.spread(names).items():
                for start in range(0, len(at), _CHUNK):
                    now = at[start : start + _CHUNK]
                    found = self._asked(
                        self._connections[server], requests([names[i] for i in now], now), parse
                    )
                    if len(now) == len(names):
                        return found
                    for i, item in zip(now, found, strict=True):
                        results[i] = item
        return results

    def _asked(
        self,
        connection: MemcachedConnection,
        requests: Sequence[bytes],
        parse: Callable[[bytes, int], list[T]],
    ) -> list[T]:
        try:
            return connection.ask(requests, parse)
        except _Refused as refused:
            if "too large" in str(refused):
                msg = (
                    f"{self.where} refused a value ({refused}): set the option maxItemSize to the server's -I"
                )
                raise ValueTooLargeError(msg) from None
            msg = f"{self.where} refused: {refused}. It must be memcached 1.6 or newer, with memory left (-m)"
            raise StoreError(msg) from None


class MemcachedState(MapStateFactory):
    """Makes map states in memcached: `MemcachedState.opaque("host:11211,other:11211")`.

    Before a host can stand `user:password@`, for a server that was started with `-Y`.
    """

    options_type: ClassVar[type[MapOptions]] = MemcachedOptions

    def __init__(self, kind: Any, target: str | Sequence[str], **options: Any) -> None:
        servers = target if isinstance(target, str) else ",".join(target)
        super().__init__(kind, servers, **options)
        self._addresses()

    def _addresses(self) -> list[tuple[str, int, str]]:
        found = []
        for server in self._target.split(","):
            login, _, address = server.strip().rpartition("@")
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                msg = (
                    f"{address!r} is not the address of a memcached server: expected host:port[,host:port...]"
                )
                raise StateOptionsError(msg)
            found.append((host, int(port), login))
        return found

    def _connect(self) -> ByteStore:
        options = self._options
        assert isinstance(options, MemcachedOptions)
        connections = {
            f"{host}:{port}": MemcachedConnection(
                host,
                port,
                login,
                connect_timeout=options.connect_timeout_millis / 1e3,
                request_timeout=options.request_timeout_millis / 1e3,
            )
            for host, port, login in self._addresses()
        }
        return MemcachedByteStore(
            connections, options.expiration or options.expire_interval_sec, options.max_item_size
        )


class _Refused(Exception):
    """An answer that is an error."""


def _wire(keys: Sequence[str]) -> list[bytes]:
    """Keys as memcached takes them: at most 250 bytes without spaces and control characters, as they are.

    Others become `~b` and base64, or, when that is too long, `~h` and a hash; so does what starts with `~` itself.
    """
    names = list(map(str.encode, keys))
    if max(map(len, names), default=0) <= 250 and all(names) and _ALL_PLAIN.fullmatch(b"".join(names)):
        return names
    plain = _PLAIN.fullmatch
    return [name if plain(name) else _odd(name) for name in names]


def _odd(name: bytes) -> bytes:
    encoded = b"~b" + base64.urlsafe_b64encode(name)
    return encoded if len(encoded) <= 250 else b"~h" + hashlib.sha256(name).hexdigest().encode()


def _delete(name: bytes, cas: bytes | None) -> bytes:
    # Nothing was there: an add that dies at once fails if something is there now.
    return b"ms %b 0 c ME T-1\r\n\r\n" % name if cas is None else b"md %b C%b\r\n" % (name, cas)


def _found(answer: bytes, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Values and their cas. At once where no value holds a carriage return, else one by one."""
    matches = _FOUND.findall(answer)
    if len(matches) == count:
        sizes, cases, values = zip(*matches, strict=True)
        hits = count - sizes.count(b"")
        if [int(size or 0) for size in sizes] == list(map(len, values)) and sum(map(len, sizes)) + sum(
            map(len, cases)
        ) + sum(map(len, values)) + 9 * hits + 4 * (count - hits) == len(answer):
            return [(value, cas) if cas else (None, None) for cas, value in zip(cases, values, strict=True)]
    found: list[tuple[bytes | None, bytes | None]] = []
    at = 0
    for _ in range(count):
        end = answer.find(b"\r\n", at)
        if end < 0:
            raise IncompleteError
        words = answer[at:end].split()
        if words == [b"EN"]:
            found.append((None, None))
            at = end + 2
        elif words[:1] == [b"VA"]:
            start = end + 2
            at = start + int(words[1]) + 2
            if len(answer) < at:
                raise IncompleteError
            found.append((answer[start : at - 2], words[2][1:]))
        else:
            raise _Refused(answer[at:end].decode(errors="replace"))
    return found


def _stored(answer: bytes, count: int) -> list[Version]:
    """The new cas of each key, or `LOST`."""
    matches = _STORED.findall(answer)
    if len(matches) == count:
        return [cas if state == b"HD" else LOST for state, cas in matches]
    written: list[Version] = []
    for line in answer.split(b"\r\n")[:count]:
        words = line.split()
        if not words or words[0] not in {b"HD", b"EX", b"NS", b"NF"}:
            raise _Refused(line.decode(errors="replace"))
        # A deleted key has no cas: its version is that of nothing.
        cas = words[1][1:] if len(words) > 1 else None
        written.append(cas if words[0] == b"HD" else LOST)
    return written
