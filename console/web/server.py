"""Runs the web page: binds the port, prints the address, serves until it is asked to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.web.app import REQUEST_SECONDS, Site, make_app
from kinesis_trident.console.web.guard import Guard
from kinesis_trident.console.web.watcher import Watcher

_LOCAL = ("127.0.0.1", "localhost")


def serve_page(
    target: Target,
    host: str,
    port: int,
    names: Sequence[str] = (),
    *,
    allow_changes: bool = False,
    refresh: float = 2.0,
    letters: Sequence[str] = (),
) -> None:
    """Serve the page of all applications below the target's root until a signal ends this process.

    Args:
        target: ZooKeeper and the root.
        host: the address to listen on.
        port: its port; 0 chooses a free one.
        names: more names under which browsers may ask for the page, beside `host` and those of this machine.
        allow_changes: print a token that allows changes.
        refresh: seconds between two looks.
        letters: the dead-letter folders whose payloads are shown.

    Raises:
        ConsoleError: the port cannot be had.
    """
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        msg = f"cannot listen on {host} port {port}: {error.strerror}. Choose others with --host and --port"
        raise ConsoleError(msg) from None
    guard = Guard() if allow_changes else None
    site = Site(Watcher(target, refresh, folders=tuple(letters)), guard)
    address = f"http://{host}:{listening.getsockname()[1]}/"
    if guard is None:
        print(f"the page is at {address}; Ctrl-C ends it", flush=True)
    else:
        print(
            f"the page is at {address}?token={guard.token}; it can change things; Ctrl-C ends it", flush=True
        )
    app = make_app(site, [*_LOCAL, host, *names])
    config = uvicorn.Config(
        app, http=ImpatientProtocol, log_level="warning", server_header=False, timeout_graceful_shutdown=5
    )
    with listening:
        PageServer(config, site.watcher).run(sockets=[listening])


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request does not come: half requests would use up the server's files."""

    seconds = REQUEST_SECONDS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

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
        if self._is_asked():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._end)

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end(self) -> None:
        if not self._is_asked():
            self.transport.close()


class PageServer(uvicorn.Server):
    """Ends the streams of events before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, watcher: Watcher) -> None:
        super().__init__(config)
        self._watcher = watcher

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what would keep the server from ending, then the server."""
        self._watcher.end()
        await super().shutdown(sockets)
