"""Makes clients of Redis from the URL of a state: one server, the primary that a Sentinel names, or a cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.trident.errors import StateOptionsError, StoreError
from kinesis_trident.trident.stores.options import without_secrets

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

log = logging.getLogger(__name__)

_SINGLE = ("redis", "rediss", "unix")
_SCHEMES = (*_SINGLE, "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_POLICY = re.compile(rb"^maxmemory_policy:([\w-]+)", re.MULTILINE)
_PORTS = {"sentinel": 26379, "cluster": 6379}

Hosts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """The place of a state: `kind` is that of the scheme, `single`, `sentinel` or `cluster`.

    `hosts` are the sentinels, or some nodes of the cluster. `settings` are redis-py's for each connection.
    """

    url: str
    kind: str
    where: str
    hosts: Hosts
    service: str
    settings: Mapping[str, Any]

    def client(self, limits: Mapping[str, Any], *, expires: bool = False) -> Redis:
        """Return a client of one server, or of the primary; it connects when it is first used.

        Args:
            limits: redis-py's settings that the URL does not change.
            expires: the keys have a time to live.
        """
        from redis import Redis
        from redis.sentinel import Sentinel

        check = EvictionCheck(self.where, expires=expires)

        def prepare(connection: Any) -> None:
            connection.on_connect()
            check(connection)

        if self.kind == "single":
            return Redis.from_url(self.url, redis_connect_func=prepare, **limits)
        asked = dict(self.settings)
        # The sentinels have a login of their own.
        own = {name: asked.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        common = {name: value for name, value in asked.items() if name.startswith("ssl")}
        sentinels = Sentinel(
            self.hosts,
            sentinel_kwargs={**common, **own, **limits},
            redis_connect_func=prepare,
            **{**asked, **limits},
        )  # type: ignore[no-untyped-call]
        primary: Redis = sentinels.master_for(self.service)  # type: ignore[no-untyped-call]
        return primary

    def cluster(self, limits: Mapping[str, Any], *, expires: bool = False) -> RedisCluster:
        """Connect to a cluster, and read which node has which keys; the arguments are those of `client`."""
        from redis.cluster import ClusterNode, RedisCluster

        nodes = [ClusterNode(host, port) for host, port in self.hosts]  # type: ignore[no-untyped-call]
        check = EvictionCheck(self.where, expires=expires)
        return RedisCluster(startup_nodes=nodes, redis_connect_func=check, **{**self.settings, **limits})


class EvictionCheck:
    """Looks at each new connection, so also after a failover, and refuses a server that evicts the keys of a state."""

    def __init__(self, where: str, *, expires: bool) -> None:
        self._where = where
        self._evicts = ("allkeys", "volatile") if expires else ("allkeys",)
        self._is_silent = False

    def __call__(self, connection: Any) -> None:
        """Read `maxmemory-policy`; where the server does not tell it, log that once.

        Raises:
            StoreError: the policy evicts keys.
        """
        from redis.exceptions import ResponseError

        connection.send_command("INFO", "memory")
        try:
            answer = bytes(connection.read_response())
        except ResponseError as error:
            answer = str(error).encode()
        found = _POLICY.search(answer)
        policy = found[1].decode() if found else ""
        if policy.startswith(self._evicts):
            connection.disconnect()
            instead = " (or omit expireIntervalSec)" if policy.startswith("volatile") else ""
            msg = (
                f"{self._where} has maxmemory-policy {policy}: when it is full it evicts keys, and their values begin "
                f"again from nothing. Set it to noeviction, in redis.conf or with CONFIG SET{instead}"
            )
            raise StoreError(msg)
        if not policy and not self._is_silent:
            self._is_silent = True
            log.warning(
                "%s does not tell its maxmemory-policy (%s). Make sure that it is noeviction: others evict values when "
                "the server is full",
                self._where,
                make_reason(answer.decode(errors="replace")) or "INFO memory is empty",
            )


def parse_target(url: str) -> RedisTarget:
    """Parse the URL of a state.

    Raises:
        StateOptionsError: it cannot be used; the message shows no password.
    """
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES or "://" not in url:
        msg = (
            f"{without_secrets(url)[:200]} is not a Redis URL. It begins with redis://, redis+sentinel:// or "
            "redis+cluster://, with rediss for TLS, or with unix://"
        )
        raise StateOptionsError(msg)
    if scheme in _SINGLE:
        if scheme != "unix" and not _names_a_database(url):
            # redis-py would take database 0. What stands there can be a password.
            msg = (
                f"a URL that begins with {scheme}:// has something other than the number of a database after its "
                f"host. Write it as {scheme}://host:port/0, with user:password@ if needed"
            )
            raise StateOptionsError(msg)
        return RedisTarget(url, "single", without_secrets(url), (), "", {})
    kind = scheme.partition("+")[2]
    try:
        return _of_several(url, scheme, kind)
    except ValueError:
        # The original error can contain the password.
        form = f"{scheme}://host:port,host:port" + ("/name-of-the-primary" if kind == "sentinel" else "")
        msg = f"a URL that begins with {scheme}:// cannot be read. Write it as {form}, with user:password@ if needed"
        raise StateOptionsError(msg) from None


def _names_a_database(url: str) -> bool:
    """Return whether nothing but a number stands between the host of a URL and its settings."""
    try:
        name = urlsplit(url).path.strip("/")
    except ValueError:
        return False
    return not name or name.isdecimal()


def _of_several(url: str, scheme: str, kind: str) -> RedisTarget:
    from redis.connection import parse_url

    tls = scheme.partition("+")[0]
    parts = urlsplit(url)
    login, at, named = parts.netloc.rpartition("@")
    hosts = tuple(_host(one, _PORTS[kind]) for one in named.split(","))
    names = [unquote(name) for name in parts.path.split("/") if name]
    if (kind == "sentinel" and not names) or len(names) > (2 if kind == "sentinel" else 0):
        raise ValueError(kind)
    database = names[1] if len(names) > 1 else "0"
    query = f"?{parts.query}" if parts.query else ""
    settings = dict(parse_url(f"{tls}://{login}{at}host/{int(database)}{query}"))  # type: ignore[no-untyped-call]
    settings.pop("host")
    if settings.pop("connection_class", None) is not None:
        settings["ssl"] = True
    if kind == "cluster":
        settings.pop("db", None)
    listed = ",".join(f"{host}:{port}" for host, port in hosts)
    service = names[0] if names else ""
    where = f"{scheme}://{listed}" + (f"/{service}" if service else "")
    return RedisTarget(url, kind, where, hosts, service, settings)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or port
