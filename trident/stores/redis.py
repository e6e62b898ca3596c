"""States in Redis: strings, or the fields of one hash. One script a few hundred keys compares and sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trident.errors import ForeignValueError, StateError, StateOptionsError, StoreError, StoreUnavailableError
from trident.maps.backing import LOST, Version
from trident.stores.bytestore import ByteStore
from trident.stores.extras import require, without_secrets
from trident.stores.factory import MapStateFactory
from trident.stores.options import MapOptions
from trident.stores.redis_wire import command, packed

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisByteStore", "RedisOptions", "RedisState"]

_CHUNK = 500
"""Keys a command: few enough for Lua's stack, and for the processor's cache."""

_COMMANDS = 32
"""Commands a round trip."""

_UNAVAILABLE = ("LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY")
"""Errors that pass."""

# Redis takes a whole script as one step. MGET reads what is no string as nothing, hence EXISTS.
_COMPARE_AND_SET = b"""
local keys, old, new = cmsgpack.unpack(ARGV[1])
local ttl, hash = ARGV[2], ARGV[3]
local now
if hash == '' then now = redis.call('MGET', unpack(keys)) else now = redis.call('HMGET', hash, unpack(keys)) end
local sets, gone, fresh, lost = {}, {}, {}, {}
local m = 0
for i = 1, #keys do
  local value = now[i] or ''
  if value ~= old[i] then
    lost[#lost + 1] = i
  else
    if value == '' then fresh[#fresh + 1] = keys[i] end
    if new[i] == '' then
      gone[#gone + 1] = keys[i]
    else
      sets[m + 1] = keys[i]
      sets[m + 2] = new[i]
      m = m + 2
    end
  end
end
if hash == '' then
  if #fresh > 0 and redis.call('EXISTS', unpack(fresh)) > 0 then
    for i = 1, #fresh do redis.call('GET', fresh[i]) end
  end
  if m > 0 then
    if ttl == '0' then
      redis.call('MSET', unpack(sets))
    else
      for i = 1, m, 2 do redis.call('SET', sets[i], sets[i + 1], 'EX', ttl) end
    end
  end
  if #gone > 0 then redis.call('DEL', unpack(gone)) end
else
  if m > 0 then redis.call('HSET', hash, unpack(sets)) end
  if #gone > 0 then redis.call('HDEL', hash, unpack(gone)) end
  if ttl ~= '0' then redis.call('EXPIRE', hash, ttl) end
end
return lost
"""

# The same, whatever was there.
_SET = b"""
local keys, new = cmsgpack.unpack(ARGV[1])
local ttl, hash = ARGV[2], ARGV[3]
for i = 1, #keys do
  if hash ~= '' then
    if new[i] == '' then redis.call('HDEL', hash, keys[i]) else redis.call('HSET', hash, keys[i], new[i]) end
  elseif new[i] == '' then redis.call('DEL', keys[i])
  elseif ttl == '0' then redis.call('SET', keys[i], new[i])
  else redis.call('SET', keys[i], new[i], 'EX', ttl) end
end
if hash ~= '' and ttl ~= '0' then redis.call('EXPIRE', hash, ttl) end
return {}
"""


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
        self._encoded: tuple[Sequence[str], list[bytes]] = ((), [])

    @property
    def where(self) -> str:
        """See `ByteStore.where`."""
        return self._where

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        words = [b"HMGET", self._hash.encode()] if self._hash else [b"MGET"]
        names = self._names(keys)
        found: list[bytes | None] = []
        for answer in self._pipelined((command([*words, *names[part]]) for part in _chunks(len(keys))), keys):
            found += answer
        return found, found

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        written: list[Version] = list(values)
        parts = _chunks(len(keys))
        names = self._names(keys)
        commands = (self.compare_and_set(names[part], versions[part], values[part]) for part in parts)
        for part, lost in zip(parts, self._pipelined(commands, keys), strict=True):
            for i in lost:
                written[part.start + i - 1] = LOST
        return written

    def compare_and_set(
        self, names: Sequence[bytes], versions: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> bytes:
        """The command that does it for some hundreds of keys."""
        return self._script(_COMPARE_AND_SET, names, versions, values)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        names = self._names(keys)
        parts = _chunks(len(keys))
        if self._hash or self._ttl != b"0" or None in values:
            commands = (self._script(_SET, names[part], values[part]) for part in parts)
        else:
            commands = (
                command([b"MSET", *chain.from_iterable(zip(names[part], values[part], strict=True))])  # type: ignore[list-item]
                for part in parts
            )
        for _ in self._pipelined(commands, keys):
            pass

    def _names(self, keys: Sequence[str]) -> list[bytes]:
        # An update writes the keys that it has just read: a tuple cannot have changed since.
        last, names = self._encoded
        if keys is not last or not isinstance(keys, tuple):
            names = list(map(str.encode, keys))
            self._encoded = keys, names
        return names

    def _script(self, source: bytes, *arrays: Sequence[bytes | None]) -> bytes:
        # Redis knows a script again by its text; so a restarted server needs nothing from us.
        return command([b"EVAL", source, b"0", b"".join(map(packed, arrays)), self._ttl, self._hash.encode()])

    def _pipelined(self, commands: Iterator[bytes], keys: Sequence[str]) -> Iterator[Any]:
        """The answers to commands, of which some are under way at a time."""
        while burst := self._asked(lambda: self._burst(islice(commands, _COMMANDS)), keys):
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

    def _asked(self, request: Callable[[], Any], keys: Sequence[str]) -> Any:
        from redis import exceptions

        try:
            return request()
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

    def _refused(self, error: Exception, keys: Sequence[str]) -> StateError:
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

    def _require(self) -> None:
        require("redis", "redis")

    def _connect(self) -> ByteStore:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = self._options
        assert isinstance(options, RedisOptions)
        client = Redis.from_url(
            self._target,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=options.connect_timeout_millis / 1e3,
            socket_timeout=options.request_timeout_millis / 1e3,
        )
        return RedisByteStore(
            client, without_secrets(self._target), options.expire_interval_sec, options.additional_key
        )


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, count, _CHUNK)]
