"""States in Redis: strings, or the fields of one hash. One script a few hundred keys compares and sets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kinesis_trident.trident.errors import (
    ForeignValueError,
    StateError,
    StateOptionsError,
    StoreError,
    StoreUnavailableError,
)
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.options import MapOptions, require, without_secrets
from kinesis_trident.trident.stores.overlap import Line
from kinesis_trident.trident.stores.redis.protocol import command, joined, packed, packed_texts
from kinesis_trident.trident.stores.redis.scripts import COMPARE_AND_SET, SET
from kinesis_trident.trident.stores.redis.store import RedisLine

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisByteStore", "RedisOptions", "RedisState"]

_CHUNK = 1000
"""Keys a command: few enough for the stack of Lua, which takes 8000 values."""

_COMMANDS = 32
"""Commands a round trip."""

_UNAVAILABLE = ("LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY")
"""Errors that pass."""


class RedisOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Of a Redis state; with `data_type` HASH all keys are fields of the hash `additional_key`, which expires whole."""

    global_key: str = "$REDIS-MAP-STATE-GLOBAL"
    data_type: Literal["STRING", "HASH"] = "STRING"
    additional_key: str = ""
    connect_timeout_millis: int = 2_000
    request_timeout_millis: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data_type == "HASH") != bool(self.additional_key):
            msg = "dataType HASH and additionalKey, the name of the hash, belong together: set both or none"
            raise ValueError(msg)


class RedisByteStore(ByteStore):
    """Bytes in one Redis server.

    Args:
        client: of redis-py, giving bytes, with no retries of its own.
        where: the server without secrets.
        expire: seconds that a key lives after it was set; 0: for ever.
        hash_name: of the hash that holds all keys; empty: each is a string.
    """

    max_value_bytes = 512 * 1024 * 1024

    def __init__(self, client: Redis, where: str, expire: int = 0, hash_name: str = "") -> None:
        self._client = client
        self._where = where
        self._ttl = b"%d" % expire
        self._hash = hash_name

    @property
    def where(self) -> str:
        """See `ByteStore.where`."""
        return self._where

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        names = list(map(str.encode, keys))
        found: list[bytes | None] = []
        for answer in self._pipelined((self.get(names[part]) for part in _chunks(len(keys))), keys):
            found += answer
        return found, found

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        written: list[Version] = list(values)
        parts = _chunks(len(keys))
        commands = (self.compare_and_set(keys[part], versions[part], values[part]) for part in parts)
        for part, lost in zip(parts, self._pipelined(commands, keys), strict=True):
            for i in lost:
                written[part.start + i - 1] = LOST
        return written

    @property
    def overlaps(self) -> bool:
        """See `ByteStore.overlaps`."""
        return True

    @contextmanager
    def line(self, guard: str | None) -> Iterator[Line[str]]:
        """See `ByteStore.line`."""
        with self.speaking(()):
            connection = self._client.connection_pool.get_connection()
        try:
            yield RedisLine(self, connection, guard, _CHUNK)
        except BaseException:
            # What is under way would be taken for the answers to what comes next.
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            self._client.connection_pool.release(connection)

    def get(self, names: Sequence[bytes]) -> bytes:
        """The command that reads some hundreds of keys."""
        return command([*([b"HMGET", self._hash.encode()] if self._hash else [b"MGET"]), *names])

    def compare_and_set(
        self,
        names: Sequence[str],
        versions: Sequence[bytes | None],
        values: Sequence[bytes | None],
        guard: tuple[bytes, bytes | None] = (b"", None),
    ) -> bytes:
        """The command that does it for some hundreds of keys; none is set where the guard is not as given."""
        text = b"" if None in values else joined(versions)
        arrays = [packed_texts(names), packed(values), *([] if text else [packed(versions)])]
        return self._script(COMPARE_AND_SET, arrays, guard[0], guard[1] or b"", text)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        names = list(map(str.encode, keys))
        parts = _chunks(len(keys))
        if self._hash or self._ttl != b"0" or None in values:
            commands = (self._script(SET, [packed(names[part]), packed(values[part])]) for part in parts)
        else:
            commands = (
                command([b"MSET", *chain.from_iterable(zip(names[part], values[part], strict=True))])  # type: ignore[list-item]
                for part in parts
            )
        for _ in self._pipelined(commands, keys):
            pass

    def _script(self, source: bytes, arrays: Iterable[bytes], *more: bytes) -> bytes:
        # Redis knows a script again by its text; so a restarted server needs nothing from us.
        packs = b"".join(arrays)
        return command([b"EVAL", source, b"0", packs, self._ttl, self._hash.encode(), *more])

    def _pipelined(self, commands: Iterator[bytes], keys: Sequence[str]) -> Iterator[Any]:
        """The answers to commands, of which some are under way at a time."""
        while True:
            with self.speaking(keys):
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
                    # The other answers are still to come, and would be taken for those of the next burst.
                    refused = refused or error
            if refused is not None:
                raise refused
            return answers
        except ResponseError:
            raise
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        finally:
            self._client.connection_pool.release(connection)

    @contextmanager
    def speaking(self, keys: Iterable[str]) -> Iterator[None]:
        """What goes wrong in a talk with Redis about these keys, as the errors of a store."""
        from redis import exceptions

        try:
            yield
        except exceptions.AuthenticationError as error:
            msg = (
                f"{self._where} does not let us in ({error}): check user and password in the URL of the state"
            )
            raise StoreError(msg) from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            msg = f"{self._where} does not answer ({error}): check that it runs and can be reached from the executors"
            raise StoreUnavailableError(msg) from None
        except exceptions.RedisError as error:
            raise self._refused(error, keys) from None

    def _refused(self, error: Exception, keys: Iterable[str]) -> StateError:
        text = str(error)
        if "WRONGTYPE" in text:
            ours = {b"hash" if self._hash else b"string", b"none"}
            names = [self._hash] if self._hash else keys
            name, kind = next(
                ((name, kind) for name in names if (kind := self._client.type(name)) not in ours), ("", b"")
            )
            return ForeignValueError(
                f"{self._where}, key {name!r} holds a {kind!r}, which no state has written. It was not "
                "changed. Use another keyPrefix or additionalKey, or remove it if nobody needs it"
            )
        if any(word in text for word in _UNAVAILABLE):
            return StoreUnavailableError(f"{self._where} is not ready: {text}")
        return StoreError(
            f"{self._where} refused: {text}. Nothing more was written; mend that, the batch is replayed"
        )


class RedisState(MapStateFactory):
    """Makes map states in Redis: `RedisState.opaque("redis://user:password@host:6379/0")`."""

    options_type: ClassVar[type[MapOptions]] = RedisOptions

    def __init__(self, kind: Any, target: str, **options: Any) -> None:
        super().__init__(kind, target, **options)
        if not target.startswith(("redis://", "rediss://", "unix://")):
            msg = f"{without_secrets(target)} is not a URL of Redis: redis://, rediss:// (TLS) or unix://"
            raise StateOptionsError(msg)
        try:
            self._client()
        except ValueError:
            # Which can show the password.
            msg = (
                f"{without_secrets(target)} is not a URL of Redis: check its port, its database and its query"
            )
            raise StateOptionsError(msg) from None

    def _require(self) -> None:
        require("redis", "redis")

    def _connect(self) -> ByteStore:
        options = self._options
        assert isinstance(options, RedisOptions)
        return RedisByteStore(
            self._client(), without_secrets(self._target), options.expire_interval_sec, options.additional_key
        )

    def _client(self) -> Redis:
        """A client, which connects when it is first used."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = self._options
        assert isinstance(options, RedisOptions)
        return Redis.from_url(
            self._target,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=options.connect_timeout_millis / 1e3,
            socket_timeout=options.request_timeout_millis / 1e3,
        )


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, count, _CHUNK)]
