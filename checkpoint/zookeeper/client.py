"""Connections to ZooKeeper: settings that travel to executors, and one shared client for each process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, make_digest_acl

from kinesis_trident.checkpoint.errors import (
    ZooKeeperAccessError,
    ZooKeeperConfigError,
    ZooKeeperUnavailableError,
)
from kinesis_trident.checkpoint.zookeeper.tls import Tls, TlsHandler, explain_tls
from kinesis_trident.common.per_process import PerProcess

__all__ = [
    "NOWHERE",
    "Sasl",
    "ZooKeeperConfig",
    "config_of",
    "connect",
    "is_usable",
    "session_timeout",
    "shared_client",
]

log = logging.getLogger(__name__)

_SESSION_SECONDS = 20.0


class _OneLine(logging.Filter):
    """Lowers kazoo's warnings of lost connections, with their tracebacks, to DEBUG: our own lines say it once.

    It also hides the login, which kazoo logs at DEBUG.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        if isinstance(record.args, tuple):
            # A request to log in shows the password.
            record.args = tuple(
                type(arg).__name__ if isinstance(arg, Auth | SASL) else arg for arg in record.args
            )
        record.levelno = min(record.levelno, logging.DEBUG)
        record.levelname = logging.getLevelName(record.levelno)
        return log.isEnabledFor(record.levelno)


_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.addFilter(_OneLine())


@dataclass(frozen=True, slots=True)
class Sasl:
    """A SASL login, such as mechanism `DIGEST-MD5`."""

    username: str
    password: str = field(repr=False)
    mechanism: str = "DIGEST-MD5"


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """The settings of a connection to ZooKeeper; picklable, and its repr shows no secret.

    Attributes:
        hosts: `host:port,host:port[/chroot]`.
        session_timeout: seconds that an operation waits for a server; also the requested session timeout.
        tls: connect with TLS.
        sasl: log in with SASL, and give only this login access to the nodes it makes.
        digest: `user:password`: log in with it, and give only that user access to the nodes it makes.
    """

    hosts: str
    session_timeout: float = _SESSION_SECONDS
    tls: Tls | None = None
    sasl: Sasl | None = None
    digest: str | None = None

    def __repr__(self) -> str:
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.digest is not None:
            shown["digest"] = f"{self.digest.partition(':')[0]}:***"
        return f"ZooKeeperConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


NOWHERE = ZooKeeperConfig("")
"""The settings of a connection that nobody has described."""


def connect(config: ZooKeeperConfig) -> KazooClient:
    """Return a new client, connected and logged in; the caller stops and closes it.

    Raises:
        ZooKeeperConfigError: the settings cannot be used: hosts, a missing file or library.
        ZooKeeperUnavailableError: no server answered within the session timeout.
        ZooKeeperAccessError: the login was refused.
    """
    client = _client(config)
    connection = _Connection(client, config.hosts)
    client.add_listener(connection)
    client.start_async().wait(config.session_timeout)
    try:
        if not client.connected:
            raise KazooTimeoutError
        # kazoo counts the connection as made before the login is answered: only a request shows if the login
        # succeeded.
        client.exists_async("/").get(timeout=config.session_timeout)
    except (KazooException, KazooTimeoutError) as error:
        refused = isinstance(error, AuthFailedError) or connection.login_refused
        _close(client)
        if refused:
            msg = (
                f"ZooKeeper at {config.hosts} refused the login: check zookeeper.sasl.username, .password "
                "and .mechanism, and the server's JAAS configuration"
            )
            raise ZooKeeperAccessError(msg) from None
        tls = " with TLS (zookeeper.tls.*)" if config.tls else ""
        tls += f" with the SASL login of {config.sasl.username!r}" if config.sasl else ""
        refusal, hint = explain_tls(client)
        msg = (
            f"cannot connect to ZooKeeper at {config.hosts}{tls} within {config.session_timeout:g} s{refusal}: check "
            "the option zookeeper.hosts, that a server listens there, that a majority of the servers runs and that no "
            f"firewall is in between{hint}"
        )
        raise ZooKeeperUnavailableError(msg) from None
    return client


@contextlib.contextmanager
def connected(config: ZooKeeperConfig) -> Iterator[KazooClient]:
    """Connect for as long as the context lasts; raises as `connect`."""
    client = connect(config)
    try:
        yield client
    finally:
        disconnect(client)


def disconnect(client: KazooClient) -> None:
    """End a client's session, and close it."""
    client.stop()
    client.close()


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client with what it keeps to itself.

    Attributes:
        config: the settings with which it was made.
        is_stopped: somebody has closed it.
    """

    def __init__(self, config: ZooKeeperConfig, **settings: Any) -> None:
        super().__init__(hosts=config.hosts, timeout=config.session_timeout, **settings)
        self.config = config
        self.is_stopped = False

    def start_async(self) -> Any:
        """Begin to connect."""
        live = super().start_async()
        # At its end a process waits for kazoo's threads, and one of them may wait for an answer, for ever where the
        # servers are gone. What was registered last comes first.
        atexit.register(self.stop)
        return live

    def stop(self) -> None:
        """Close the connection."""
        atexit.unregister(self.stop)
        self.is_stopped = True
        super().stop()


class _Connection:
    """Says in the log when the connection is lost, and when it is back: kazoo's threads call it.

    Attributes:
        login_refused: ZooKeeper has refused the login. kazoo's own state tells it only for a moment, then it is
            CLOSED as after any other end; and a request made then gets `ConnectionClosedError`.
    """

    def __init__(self, client: _Client, hosts: str) -> None:
        self.login_refused = False
        self._client = client
        self._hosts = hosts
        self._lost_at: float | None = None

    def __call__(self, state: str) -> None:
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self.login_refused = True
        if self._client.is_stopped:
            return
        if state == KazooState.CONNECTED:
            if self._lost_at is not None:
                seconds = time.monotonic() - self._lost_at
                log.info("ZooKeeper at %s is back after %.1f s", self._hosts, seconds)
            self._lost_at = None
        elif state == KazooState.SUSPENDED and self._lost_at is None:
            self._lost_at = time.monotonic()
            log.warning("lost the connection to ZooKeeper at %s; connecting again", self._hosts)
        elif state == KazooState.LOST and self._lost_at is not None:
            log.warning("the session with ZooKeeper at %s has expired; opening another one", self._hosts)


def session_timeout(client: KazooClient) -> float:
    """Return the session timeout with which `connect` has made a client, in seconds; the default for another client."""
    return float(config_of(client).session_timeout)


def config_of(client: KazooClient) -> ZooKeeperConfig:
    """Return the settings with which `connect` has made a client; `NOWHERE` for another client."""
    return getattr(client, "config", NOWHERE)


_clients: PerProcess[ZooKeeperConfig, KazooClient] = PerProcess()


def shared_client(config: ZooKeeperConfig) -> KazooClient:
    """Return this process's client for `config`, connected; it lives as long as the process does.

    Raises:
        ZooKeeperConfigError, ZooKeeperUnavailableError, ZooKeeperAccessError: as `connect`.
    """
    return _clients.get(config, lambda: connect(config), is_usable=is_usable)


def is_usable(client: KazooClient) -> bool:
    """Return whether a client is connected, or will be: one that has ended stays so."""
    return client.client_state not in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)


def _client(config: ZooKeeperConfig) -> _Client:
    if "@" in config.hosts.partition("/")[0]:
        # What stands before it may be a password.
        msg = (
            "zookeeper.hosts holds an @: a login is no part of it. Give host:port,host:port[/chroot], and the login as "
            "zookeeper.digest.password or zookeeper.sasl.*"
        )
        raise ZooKeeperConfigError(msg)
    handler = SequentialThreadingHandler() if config.tls is None else TlsHandler(config.tls)
    handler.select = partial(_select_in_time, handler.select, config.session_timeout / 3)
    settings: dict[str, Any] = {"handler": handler}
    if config.sasl is not None:
        if find_spec("puresasl") is None:
            msg = "zookeeper.sasl.* needs pure-sasl, on executors too: pip install 'kinesis-trident[sasl]'"
            raise ZooKeeperConfigError(msg)
        settings["sasl_options"] = {
            "mechanism": config.sasl.mechanism,
            "username": config.sasl.username,
            "password": config.sasl.password,
        }
    if config.digest is not None:
        user, colon, password = config.digest.partition(":")
        if not (user and colon and password):
            msg = "zookeeper.digest.password is not of the form user:password"
            raise ZooKeeperConfigError(msg)
        settings["auth_data"] = [("digest", config.digest)]
        settings["default_acl"] = [make_digest_acl(user, password, all=True)]
    if config.sasl is not None:
        # Every identity of this connection, by any login.
        settings["default_acl"] = CREATOR_ALL_ACL
    try:
        return _Client(
            config,
            # By default kazoo lets the pause between two attempts grow to an hour.
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            logger=_kazoo_log,
            **settings,
        )
    except ValueError as error:
        msg = f"zookeeper.hosts {config.hosts!r} is not host:port,host:port[/chroot]: {error}"
        raise ZooKeeperConfigError(msg) from None


def _select_in_time(
    select: Callable[..., Any],
    longest: float,
    read: list[Any],
    write: list[Any],
    bad: list[Any],
    seconds: float,
) -> Any:
    """Wait at most `longest` for the rest of an answer, for which kazoo selects the connection alone.

    A server that is starting may accept a connection and lose the request for a session. With one host kazoo waits for
    that answer as long as an operation is tried.
    """
    return select(read, write, bad, min(seconds, longest) if len(read) == 1 else seconds)


def _close(client: KazooClient) -> None:
    # It never connected: an error here must not hide the reason.
    with contextlib.suppress(Exception):
        disconnect(client)
