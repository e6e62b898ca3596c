"""Stores bytes in Redis: a script compares and sets some hundreds of keys, and reads and writes overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.trident.errors import ForeignValueError, StateError, StoreError, StoreUnavailableError
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.overlap import Exchange, request_parts
from kinesis_trident.trident.stores.redis.scripts import COMPARE_AND_SET, SET

if TYPE_CHECKING:
    from redis import Redis


_encoder = msgspec.msgpack.Encoder()

_BETWEEN = b"\xc1"
"""A byte that never occurs in UTF-8."""


def command(words: Sequence[bytes]) -> bytes:
    """Return a command of RESP, Redis's protocol: an array of strings, each after its length."""
    return b"*%d%b\r\n" % (len(words), _add_heads(words, _RESP, _RESP_HEAD.__mod__))


def pack_items(items: Sequence[bytes | None]) -> bytes:
    """Return an array of msgpack's raw strings, the only ones that Redis's cmsgpack reads; None becomes empty."""
    try:
        # As texts, which msgspec packs at once, and by the same rules.
        texts = b"\0".join(items).decode().split("\0")  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):
        texts = []
    if items and len(texts) == len(items):
        return pack_texts(texts)
    raws = [item or b"" for item in items]
    return b"\xdd" + len(raws).to_bytes(4, "big") + _add_heads(raws, _RAW, _long_raw)


def pack_texts(texts: Sequence[str]) -> bytes:
    """Return the same for texts."""
    return _encoder.encode(texts)


def join_items(items: Sequence[bytes | None]) -> bytes:
    """Return items as one text that can be split again; empty if that is impossible."""
    try:
        text = _BETWEEN.join(items)  # type: ignore[arg-type]
    except TypeError:
        return b""
    return text if text.count(_BETWEEN) == len(items) - 1 else b""


def _add_heads(items: Sequence[bytes], heads: Sequence[bytes], other: Callable[[int], bytes]) -> bytes:
    """Return every item after the head for its length: one of `heads`, or else `other`."""
    sizes = list(map(len, items))
    parts = [b""] * (2 * len(items))
    if max(sizes, default=0) < len(heads):
        parts[0::2] = map(heads.__getitem__, sizes)
    else:
        parts[0::2] = map(other, sizes)
    parts[1::2] = items
    return b"".join(parts)


def _long_raw(size: int) -> bytes:
    return b"\xdb" + size.to_bytes(4, "big")


_RESP_HEAD = b"\r\n$%d\r\n"
_RESP = [_RESP_HEAD % size for size in range(256)]
_RAW = [b"\xd9" + bytes([size]) for size in range(256)]


MAX_KEYS = 1000
"""Keys in one command: few enough for the stack of Lua, which holds 8000 values."""

_MAX_BYTES = 16 * 1024 * 1024
"""Bytes of values, old and new, in one command: far less than Redis takes, `proto-max-bulk-len`, and than Lua holds."""

_VALUES = frozenset({bytes, type(None)})

_COMMANDS = 32
"""Commands in one round trip."""

_UNAVAILABLE = (
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "BUSY",
    "READONLY",
    "NOREPLICAS",
    "MISCONF",
    "used memory > 'maxmemory'",
)
"""The codes of temporary errors: the server starts, is not the primary, or has no memory or disk for now."""


class RedisByteStore(ByteStore):
    """Bytes in one Redis server.

    Args:
        client: a redis-py client that returns bytes and does not retry.
        where: the server without secrets.
        expire: seconds that a key lives after it was set; 0: forever.
        hash_name: the name of the hash that holds all keys; empty: each key is a string.
        in_cluster: the server is a node of a cluster: scripts name their keys, which are of one slot.
    """

    max_value_bytes = 512 * 1024 * 1024
    where = ""
    overlaps = guards = True
    resends = False

    def __init__(
        self,
        client: Redis,
        where: str,
        expire: int = 0,
        hash_name: str = "",
        *,
        in_cluster: bool = False,
    ) -> None:
        self._client = client
        self._in_cluster = in_cluster
        self.where = where
        self._ttl = b"%d" % expire
        self._hash = hash_name

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        names = list(map(str.encode, keys))
        found: list[bytes | None] = []
        parts = _chunks(len(keys))
        for part, answer in zip(
            parts, self.pipeline((self.get(names[part]) for part in parts), keys), strict=True
        ):
            found += self.check_values(answer, len(names[part]))
        return found, found

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        written: list[Version] = list(values)
        parts = request_parts(MAX_KEYS, _MAX_BYTES, values, versions)
        commands = (self.compare_and_set(keys[part], versions[part], values[part]) for part in parts)
        for part, lost in zip(parts, self.pipeline(commands, keys), strict=True):
            for i in self.check_lost(lost, len(keys[part])):
                written[part.start + i - 1] = LOST
        return written

    def check_values(self, answer: Any, count: int) -> list[bytes | None]:
        """Return the answer to a read of `count` keys.

        Raises:
            StoreError: it is not one.
        """
        if type(answer) is not list or len(answer) != count or not _VALUES.issuperset(map(type, answer)):
            raise self._odd(answer)
        return answer

    def check_lost(self, answer: Any, count: int) -> list[int]:
        """Return the answer to a write of `count` keys: the numbers from 1 of those that were not set, or [0].

        Raises:
            StoreError: it is not one.
        """
        if type(answer) is not list or not all(type(i) is int and 0 <= i <= count for i in answer):
            raise self._odd(answer)
        return answer

    def _odd(self, answer: Any) -> StoreError:
        said = make_reason(repr(answer))
        return StoreError(f"{self.where} gave an answer that Redis does not give: {said}. Check the address")

    @contextmanager
    def exchange(self, guard: str | None) -> Iterator[Exchange[str]]:
        """See `ByteStore.exchange`."""
        with self.convert_errors(()):
            connection = self._client.connection_pool.get_connection()
        try:
            yield RedisExchange(self, connection, guard, MAX_KEYS)
        except BaseException:
            # Pending answers would be mistaken for those of the next requests.
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            self._client.connection_pool.release(connection)

    def get(self, names: Sequence[bytes]) -> bytes:
        """Return the command that reads some hundreds of keys."""
        return command([*([b"HMGET", self._hash.encode()] if self._hash else [b"MGET"]), *names])

    def compare_and_set(
        self,
        names: Sequence[str],
        versions: Sequence[bytes | None],
        values: Sequence[bytes | None],
        guard: tuple[bytes, bytes | None] = (b"", None),
    ) -> bytes:
        """Return the command for some hundreds of keys; it sets none if the guard differs."""
        text = b"" if None in values else join_items(versions)
        arrays = [pack_texts(names), pack_items(values), *([] if text else [pack_items(versions)])]
        more = (guard[0], guard[1] or b"", text)
        return self._script(COMPARE_AND_SET, map(str.encode, names), arrays, *more)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        names = list(map(str.encode, keys))
        parts = request_parts(MAX_KEYS, _MAX_BYTES, values)
        commands = (self.put(names[part], values[part]) for part in parts)
        for _ in self.pipeline(commands, keys):
            pass

    def put(self, names: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
        """Return the command that sets some hundreds of keys unconditionally."""
        if self._hash or self._ttl != b"0" or None in values:
            return self._script(SET, names, [pack_items(names), pack_items(values)])
        return command([b"MSET", *chain.from_iterable(zip(names, values, strict=True))])  # type: ignore[list-item]

    def _script(self, source: bytes, names: Iterable[bytes], arrays: Iterable[bytes], *more: bytes) -> bytes:
        # Redis identifies a script by its text, so a restarted server needs nothing from us.
        packs = b"".join(arrays)
        keys = list(names) if self._in_cluster and not self._hash else []
        if self._in_cluster and self._hash:
            keys = [self._hash.encode()]
        count = b"%d" % len(keys)
        return command([b"EVAL", source, count, *keys, packs, self._ttl, self._hash.encode(), *more])

    def pipeline(self, commands: Iterator[bytes], keys: Sequence[str]) -> Iterator[Any]:
        """Yield the answers to commands about some keys, several of which are in flight at a time."""
        while True:
            with self.convert_errors(keys):
                burst = self._burst(islice(commands, _COMMANDS))
            if not burst:
                return
            yield from burst

    def _burst(self, commands: Iterable[bytes]) -> list[Any]:
        """Send each command as soon as it is made, so that Redis works on it while the next one is made."""
        from redis.exceptions import ResponseError

        connection = self._client.connection_pool.get_connection()
        try:
            sent = 0
            for made in commands:
                connection.send_packed_command([made])  # type: ignore[no-untyped-call]
                sent += 1
            answers: list[Any] = []
            refused: ResponseError | None = None
            for _ in range(sent):
                try:
                    answers.append(connection.read_response())
                except ResponseError as error:
                    # The other answers are still to come, and would be mistaken for those of the next burst.
                    refused = refused or error
            if refused is not None:
                raise refused
            return answers
        except ResponseError as error:
            if _is_temporary(error):
                connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            self._client.connection_pool.release(connection)

    @contextmanager
    def convert_errors(self, keys: Iterable[str]) -> Iterator[None]:
        """Convert Redis errors about these keys to errors of a store."""
        from redis import exceptions

        try:
            yield
        except exceptions.AuthenticationError as error:
            why = make_reason(str(error))
            msg = f"{self.where} refuses the login ({why}). Check user and password in the URL of the state"
            raise StoreError(msg) from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            self._drop_idle()
            why = make_reason(str(error))
            msg = f"{self.where} does not answer ({why}). Check that it runs and that the executors reach it"
            raise StoreUnavailableError(msg) from None
        except exceptions.RedisError as error:
            raise self._refusal(error, keys) from None

    def _refusal(self, error: Exception, keys: Iterable[str]) -> StateError:
        from redis.exceptions import RedisError

        text = make_reason(str(error))
        if "WRONGTYPE" in text:
            ours: set[object] = {b"hash" if self._hash else b"string", b"none"}
            names = [self._hash] if self._hash else keys
            found: tuple[str, object] = ("", b"")
            # The error is about the key, whether the server tells its type or not.
            with suppress(RedisError, OSError):
                kinds = ((name, self._client.type(name)) for name in names)
                found = next((one for one in kinds if one[1] not in ours), found)
            name, kind = found
            return ForeignValueError(
                f"{self.where}, key {name!r} holds a {kind!r}, which no state has written; it was not changed. "
                "Use another keyPrefix or additionalKey, or remove the key if nobody needs it"
            )
        if _is_temporary(error):
            self._drop_idle()
            return StoreUnavailableError(f"{self.where} is not ready: {text}")
        return StoreError(
            f"{self.where} refused: {text}. Nothing more was written. Fix the cause; the batch is replayed"
        )

    def _drop_idle(self) -> None:
        """Close the idle connections: after a failover the name of the server may be another one's."""
        self._client.connection_pool.disconnect(inuse_connections=False)


def _is_temporary(error: Exception) -> bool:
    """Return True for an error that a replay may not meet; redis-py drops the code of those that it has a class for."""
    from redis import exceptions

    known = (
        exceptions.ReadOnlyError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
        # The slot is being moved to another node, or was.
        exceptions.AskError,
    )
    return isinstance(error, known) or any(word in str(error) for word in _UNAVAILABLE)


class RedisExchange(Exchange[str]):
    """An exchange with Redis: each read includes the guard, and the script of each write compares it."""

    def __init__(self, store: RedisByteStore, connection: Any, guard: str | None, part_size: int) -> None:
        self.part_size = part_size
        self._store = store
        self._connection = connection
        self._guard = b"" if guard is None else guard.encode()
        self._asked: list[Sequence[str]] = []
        self._written: deque[tuple[Sequence[bytes | None], list[slice]]] = deque()

    def ask(self, names: Sequence[str]) -> Sequence[str]:
        """See `Exchange.ask`."""
        self._asked.append(names)
        encoded = list(map(str.encode, names))
        self._send(self._store.get([*encoded, self._guard] if self._guard else encoded))
        return names

    def read(self, count: int) -> tuple[list[bytes | None], Sequence[Version], bytes | None]:
        """See `Exchange.read`; a version is the bytes themselves."""
        found = self._store.check_values(self._take(), count + bool(self._guard))
        guard = found.pop() if self._guard else None
        return found, found, guard

    def write(
        self,
        names: Sequence[str],
        values: Sequence[bytes | None],
        versions: Sequence[Version],
        guard: bytes | None,
    ) -> None:
        """See `Exchange.write`."""
        parts = request_parts(MAX_KEYS, _MAX_BYTES, values, versions)
        for part in parts:
            request = names[part], versions[part], values[part], (self._guard, guard)
            self._send(self._store.compare_and_set(*request))
        self._written.append((values, parts))

    def written(self, count: int) -> Sequence[Version]:
        """See `Exchange.written`."""
        values, parts = self._written.popleft()
        lost: list[int] = []
        for part in parts:
            here = part.stop - part.start
            numbers = self._store.check_lost(self._take(), here)
            lost += [part.start + i for i in (range(1, here + 1) if numbers == [0] else numbers)]
        if not lost:
            return values
        versions: list[Version] = [*values]
        for i in lost:
            versions[i - 1] = LOST
        return versions

    def _send(self, request: bytes) -> None:
        with self._store.convert_errors(chain.from_iterable(self._asked)):
            self._connection.send_packed_command([request])

    def _take(self) -> Any:
        with self._store.convert_errors(chain.from_iterable(self._asked)):
            return self._connection.read_response()


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + MAX_KEYS) for start in range(0, count, MAX_KEYS)]
