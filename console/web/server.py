"""The HTTP server of the page and of the metrics: binds an address, serves until it is asked to end, is held by nobody.

Whoever reaches the address can connect: no connection costs a thread, those that ask for nothing are closed after
`REQUEST_SECONDS`, and where very many come, the one that has waited longest goes first. So the process keeps the files
that it needs for ZooKeeper.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kinesis_trident.common.open_files import share_of_files
from kinesis_trident.console.target import ConsoleError

REQUEST_SECONDS = 10.0
"""The time that a request has to come to its end: whoever sends a half one holds a connection."""

_CONNECTIONS_MOST = 256
_PORT = re.compile("[0-9]{1,5}")


def bind(host: str, port: int, remedy: str) -> socket.socket:
    """Return a socket that listens at an address; port 0 chooses a free one.

    Raises:
        ConsoleError: the address cannot be had; `remedy` says what to do.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, TypeError, UnicodeError) as error:
        # The latter two are of a name that cannot be one of a host.
        why = error.strerror if isinstance(error, OSError) else error
        msg = f"cannot listen at {_netloc(host, port)}: {why}. {remedy}"
        raise ConsoleError(msg) from None


def address_of(listen: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ConsoleError: it is not `host:port`.
    """
    host, colon, port = listen.rpartition(":")
    if not (host and colon and _PORT.fullmatch(port) and int(port) < 2**16):
        msg = f"--listen {listen[:200]!r} is not an address. Give host:port, as 127.0.0.1:9464 or [::1]:9464"
        raise ConsoleError(msg)
    return host.removeprefix("[").removesuffix("]"), int(port)


def url_of(listening: socket.socket) -> str:
    """Return the URL of the root of what is served at a socket."""
    host, port, *_ = listening.getsockname()
    return f"http://{_netloc(host, port)}/"


def serve(app: ASGIApp, listening: socket.socket, end: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal ends this process.

    Args:
        app: what is served.
        listening: a socket of `bind`; it is closed.
        end: ends the answers that come to no end by themselves.
    """
    with listening:
        Server(app, end).run(sockets=[listening])


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _most_connections() -> int:
    """Return how many connections there may be; as many are taken at a time before others are closed for them."""
    return share_of_files(4, _CONNECTIONS_MOST)


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request does not come: idle ones would use up the server's files."""

    seconds = REQUEST_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _heard = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, perhaps in place of the connection that has waited longest."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > _most_connections():
            waiting = [
                one for one in self.connections if isinstance(one, ImpatientProtocol) and not one._is_asked()
            ]
            first = min(waiting, key=lambda one: one._heard)
            # It is told of the end later, when others may have come.
            self.connections.discard(first)
            first.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Wait on, unless the head of a request is complete."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._heard = self.loop.time()
        if self._is_asked():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._end)

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end(self) -> None:
        if not self._is_asked():
            self.transport.close()


class Server(uvicorn.Server):
    """Ends the answers without end before it waits for open connections."""

    def __init__(self, app: ASGIApp, end: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # Others take as many connections at a time as they like.
                loop="asyncio",
                http=ImpatientProtocol,
                log_level="warning",
                server_header=False,
                backlog=_most_connections(),
                timeout_graceful_shutdown=5,
            )
        )
        self._end_answers = end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what would keep the server from ending, then the server."""
        self._end_answers()
        await super().shutdown(sockets)
