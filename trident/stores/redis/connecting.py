"""Makes clients of Redis from the URL of a state: one server, the primary that a Sentinel names, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kinesis_trident.trident.errors import StateOptionsError
from kinesis_trident.trident.stores.options import without_secrets

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

__all__ = ["Target", "parse_target"]

_SINGLE = ("redis", "rediss", "unix")
_SCHEMES = (*_SINGLE, "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_PORTS = {"sentinel": 26379, "cluster": 6379}

Hosts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The place of a state: `kind` is that of the scheme, `single`, `sentinel` or `cluster`.

    `hosts` are the sentinels, or some nodes of the cluster. `settings` are redis-py's for each connection.
    """

    url: str
    kind: str
    where: str
    hosts: Hosts
    service: str
    settings: Mapping[str, Any]

    def client(self, limits: Mapping[str, Any]) -> Redis:
        """Return a client of one server, or of the primary; it connects when it is first used."""
        from redis import Redis
        from redis.sentinel import Sentinel

        if self.kind == "single":
            return Redis.from_url(self.url, **limits)
        asked = dict(self.settings)
        # The sentinels have a login of their own.
        own = {name: asked.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        common = {name: value for name, value in asked.items() if name.startswith("ssl")}
        sentinels = Sentinel(self.hosts, sentinel_kwargs={**common, **own, **limits}, **{**asked, **limits})  # type: ignore[no-untyped-call]
        primary: Redis = sentinels.master_for(self.service)  # type: ignore[no-untyped-call]
        return primary

    def cluster(self, limits: Mapping[str, Any]) -> RedisCluster:
        """Connect to a cluster, and read which node has which keys."""
        from redis.cluster import ClusterNode, RedisCluster

        nodes = [ClusterNode(host, port) for host, port in self.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **{**self.settings, **limits})


def parse_target(url: str) -> Target:
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
        return Target(url, "single", without_secrets(url), (), "", {})
    kind = scheme.partition("+")[2]
    try:
        return _of_several(url, scheme, kind)
    except ValueError:
        # The original error can contain the password.
        form = f"{scheme}://host:port,host:port" + ("/name-of-the-primary" if kind == "sentinel" else "")
        msg = f"a URL that begins with {scheme}:// cannot be read. Write it as {form}, with user:password@ if needed"
        raise StateOptionsError(msg) from None


def _names_a_database(url: str) -> bool:
    """Tell whether nothing but a number stands between the host of a URL and its settings."""
    try:
        name = urlsplit(url).path.strip("/")
    except ValueError:
        return False
    return not name or name.isdecimal()


def _of_several(url: str, scheme: str, kind: str) -> Target:
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
    return Target(url, kind, where, hosts, service, settings)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or port
