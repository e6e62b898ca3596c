"""States in memcached: meta commands in pipelines, each key replaced by compare and set.

memcached forgets: a key that it evicts, or loses in a restart, counts from nothing again. Keep only values in it
that can be computed again. Several servers share the keys by consistent hashing, as in libketama.
"""

from __future__ import annotations

import bisect
import hashlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from kinesis_trident.trident.errors import (
    StateOptionsError,
    StoreError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from kinesis_trident.trident.maps.backing import LOST, UNREAD, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.memcached.connection import MemcachedConnection
from kinesis_trident.trident.stores.memcached.protocol import (
    MemcachedError,
    compare_and_sets,
    found,
    gets,
    not_stored,
    sets,
    stored,
    wire_keys,
)
from kinesis_trident.trident.stores.options import MapOptions
from kinesis_trident.trident.stores.overlap import Exchange

__all__ = ["MemcachedByteStore", "MemcachedOptions", "MemcachedState"]

T = TypeVar("T")

_PORT = re.compile("[0-9]{1,5}")

_CHUNK = 500
"""Keys in one pipeline."""

_ITEM_OVERHEAD = 512
_MONTH = 30 * 24 * 60 * 60


class MemcachedOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of a memcached state; `expiration` is Trident's name for `expire_interval_sec`."""

    expiration: int = 0
    connect_timeout_millis: int = 2_000
    request_timeout_millis: int = 10_000
    max_item_size: int = 1024 * 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expiration and self.expire_interval_sec not in (0, self.expiration):
            msg = (
                f"expiration is {self.expiration} and expireIntervalSec is {self.expire_interval_sec}, but these "
                "are two names of one option. Set one of them"
            )
            raise ValueError(msg)
        if self.max_item_size <= _ITEM_OVERHEAD:
            msg = f"maxItemSize is {self.max_item_size}. Give the server's -I, which is 1024 or more"
            raise ValueError(msg)
        if max(self.expiration, self.expire_interval_sec) > _MONTH:
            msg = (
                f"memcached reads an expiration of more than {_MONTH:,} seconds as a date. Give less, or 0 for "
                "none"
            )
            raise ValueError(msg)


class MemcachedByteStore(ByteStore):
    """Bytes in one or several memcached servers; keys are distributed as by all ketama clients.

    Args:
        connections: one for each server, by its name `host:port`.
        expire: seconds that a key lives after it was set; 0: forever.
        max_item_size: the servers' setting `-I`, in bytes.
    """

    where = ""
    resends = False

    def __init__(
        self, connections: dict[str, MemcachedConnection], expire: int = 0, max_item_size: int = 1024 * 1024
    ) -> None:
        self._connections = connections
        self.where = f"memcached {','.join(connections)}"
        self._ring = Ketama(list(connections))
        self._ttl = b" T%d" % expire if expire else b""
        self._lock = threading.RLock()
        self._idle: list[MemcachedConnection] = []
        # memcached not only refuses a value that is too large: it also drops the value that it should replace.
        self.max_value_bytes = max_item_size - _ITEM_OVERHEAD

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is memcached's own cas."""
        answers = self._spread([wire_keys(keys)], gets, found)
        count = len(keys)
        return (
            _place(count, [(at, values) for at, (values, _) in answers]),
            _place(count, [(at, cases) for at, (_, cases) in answers]),
        )

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""

        def requests(names: Sequence[bytes], ours: Sequence[bytes | None], cases: Sequence[Version]) -> bytes:
            return compare_and_sets(names, ours, cases, self._ttl)

        return _place(len(keys), self._spread([wire_keys(keys), values, versions], requests, stored))

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        self._spread([wire_keys(keys), values], lambda names, ours: sets(names, ours, self._ttl), stored)

    @property
    def overlaps(self) -> bool:
        """See `ByteStore.overlaps`: with several servers the order of the reads of the guard and a key is unknown."""
        return len(self._connections) == 1

    @contextmanager
    def exchange(self, guard: str | None) -> Iterator[Exchange[bytes]]:
        """See `ByteStore.exchange`."""
        [server] = self._connections.values()
        with self._lock:
            connection = self._idle.pop() if self._idle else server.another()
        try:
            yield _MemcachedExchange(self, connection, self._ttl, guard)
        except BaseException:
            # Pending answers would be mistaken for those of the next requests.
            connection.close()
            raise
        finally:
            with self._lock:
                self._idle.append(connection)

    def _spread(
        self,
        columns: Sequence[Sequence[Any]],
        requests: Callable[..., bytes],
        parse: Callable[[bytes, int], T],
    ) -> list[tuple[Sequence[int], T]]:
        """Send each server its keys, the first column, with the other columns.

        Returns:
            Positions with their answers.
        """
        answers: list[tuple[Sequence[int], T]] = []
        with self._lock:
            for server, at in self._ring.spread(columns[0]).items():
                mine = columns if isinstance(at, range) else [[column[i] for i in at] for column in columns]
                parts = [slice(start, start + _CHUNK) for start in range(0, len(at), _CHUNK)]
                pipelines = ((requests(*(column[part] for column in mine)), len(at[part])) for part in parts)
                asked = self._ask(self._connections[server], pipelines, parse)
                answers += zip((at[part] for part in parts), asked, strict=True)
        return answers

    def _ask(
        self,
        connection: MemcachedConnection,
        pipelines: Iterable[tuple[bytes, int]],
        parse: Callable[[bytes, int], T],
    ) -> list[T]:
        with self.convert_errors():
            return connection.ask(pipelines, parse)

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Convert memcached's refusals to errors of a store; of a server that is gone, drop all connections."""
        try:
            yield
        except StoreUnavailableError:
            with self._lock:
                for connection in (*self._connections.values(), *self._idle):
                    connection.close()
            raise
        except MemcachedError as refused:
            if "too large" in str(refused):
                msg = (
                    f"{self.where} refused a value ({refused}). Set the option maxItemSize to the server's -I"
                )
                raise ValueTooLargeError(msg) from None
            msg = f"{self.where} refused: {refused}. It must be memcached 1.6 or newer, with memory left (-m)"
            raise StoreError(msg) from None


class _MemcachedExchange(Exchange[bytes]):
    """An exchange with memcached: each read includes the guard. Successful writes are not answered: half the work."""

    part_size = _CHUNK

    def __init__(
        self, store: MemcachedByteStore, connection: MemcachedConnection, ttl: bytes, guard: str | None
    ) -> None:
        self._store = store
        self._connection = connection
        self._ttl = ttl
        self._guard = [] if guard is None else wire_keys([guard])
        self._written: deque[tuple[Sequence[bytes], bool]] = deque()

    def ask(self, names: Sequence[str]) -> list[bytes]:
        """See `Exchange.ask`."""
        encoded = wire_keys(names)
        with self._store.convert_errors():
            self._connection.send(gets(encoded + self._guard))
        return encoded

    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        """See `Exchange.read`; a version is memcached's own cas."""
        with self._store.convert_errors():
            values, cases = self._connection.answer(count + len(self._guard), found)
        if not self._guard:
            return values, cases, None
        cases.pop()
        return values, cases, values.pop()

    def write(
        self,
        names: Sequence[bytes],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        """See `Exchange.write`; the guard is not checked again."""
        silent = None not in values
        said = b"k q" if silent else b"c"
        with self._store.convert_errors():
            self._connection.send(compare_and_sets(names, values, versions, self._ttl, said))
        self._written.append((names, silent))

    def written(self, count: int) -> list[Version]:
        """See `Exchange.written`."""
        names, silent = self._written.popleft()
        with self._store.convert_errors():
            if not silent:
                return self._connection.answer(count, stored)
            lost = self._connection.answer(count, lambda answer, _: not_stored(answer))
        return [LOST if name in lost else UNREAD for name in names] if lost else [UNREAD] * count


class MemcachedState(MapStateFactory):
    """Makes map states in memcached: `MemcachedState.opaque("host:11211,other:11211")`.

    A host may be preceded by `user:password@`, for a server that was started with `-Y`.
    """

    lasting: ClassVar[bool] = False
    weakness: ClassVar[str] = (
        "memcached evicts values when it is full, and forgets them in a restart: they begin again from nothing, and "
        "nobody notices. Use another store, unless they can be computed again"
    )
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
            if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
                msg = (
                    f"{address[:200]!r} is not the address of a memcached server. Its form is "
                    "host:port[,host:port...]"
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


def _place(count: int, answers: Iterable[tuple[Sequence[int], Sequence[T]]]) -> list[T]:
    """Return every item at its position."""
    items: list[Any] = [None] * count
    for at, answered in answers:
        if isinstance(at, range):
            items[at.start : at.stop] = answered
        else:
            for i, item in zip(at, answered, strict=True):
                items[i] = item
    return items


_DIGESTS = 40
_POINTS = 4


class Ketama:
    """A ring of 160 points for each server; a key belongs to the next point. Adding a server moves few keys.

    Args:
        servers: `host:port` of each; the port 11211 is not hashed, as in other users of libketama.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        points = sorted(
            (int.from_bytes(digest[4 * point : 4 * point + 4], "little"), server)
            for server in servers
            for i in range(_DIGESTS)
            for digest in [hashlib.md5(f"{server.removesuffix(':11211')}-{i}".encode()).digest()]
            for point in range(_POINTS)
        )
        self._hashes = [point for point, _ in points]
        self._servers = [server for _, server in points]
        self._only = servers[0] if len(servers) == 1 else None

    def server(self, key: bytes) -> str:
        """Return the server of a key."""
        point = int.from_bytes(hashlib.md5(key).digest()[:4], "little")
        return self._servers[bisect.bisect_left(self._hashes, point) % len(self._servers)]

    def spread(self, keys: Sequence[bytes]) -> Mapping[str, Sequence[int]]:
        """Return the positions of the keys of each server."""
        if self._only is not None:
            return {self._only: range(len(keys))} if keys else {}
        where: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            where.setdefault(self.server(key), []).append(i)
        return where
