"""A server whose answers are whatever a test gives it."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["PATIENCE", "Server", "serving"]

PATIENCE = 60
"""Seconds that a client waits for an answer, which ends by itself: no test is about this."""


class Server(socketserver.ThreadingTCPServer):
    """Answers each connection with given bytes, whatever it asks, and then says no more."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = b""
        self.port: int = self.server_address[1]


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        # The client may have had enough of it before the end.
        with suppress(OSError):
            self.request.recv(1 << 16)
            self.request.sendall(self.server.reply)  # type: ignore[attr-defined]
            self.request.shutdown(socket.SHUT_WR)
            while self.request.recv(1 << 16):
                pass


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server."""
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()
