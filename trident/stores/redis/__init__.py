"""States in Redis: strings, or the fields of one hash."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from kinesis_trident.trident.errors import StateOptionsError
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.options import MapOptions, require
from kinesis_trident.trident.stores.redis.cluster import RedisClusterStore, tagged_start
from kinesis_trident.trident.stores.redis.connecting import parse_target
from kinesis_trident.trident.stores.redis.store import RedisByteStore

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
