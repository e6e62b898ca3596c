"""A TCP proxy on loopback that breaks when it is told to: connections are cut, new ones refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Breakable:
    """In front of a server; `port` is where it listens."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._broken = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_()
        _close(self._listener)

    def break_(self) -> None:
        """Cut every connection, and let no new one through."""
        self._broken = True
        for end in list(self._open):
            _close(end)

    def mend(self) -> None:
        """Let connections through again."""
        self._broken = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._broken:
                    _close(client)
                    continue
                server = socket.create_connection(self._server)
                self._open |= {client, server}
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            self._open.discard(end)
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
