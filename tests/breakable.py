"""A TCP proxy on loopback that breaks when it is told to: connections are cut, new ones refused, or nothing passes."""

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
        self._lock = threading.Lock()
        self._cuts = 0
        self._broken = False
        self._most: int | None = None
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_()
        self.thaw()
        _close(self._listener)

    def break_(self) -> None:
        """Cut every connection, and let no new one through."""
        with self._lock:
            self._broken = True
            self._cut()

    def mend(self) -> None:
        """Let connections through again, as they are."""
        self._broken, self._most = False, None

    def freeze(self) -> None:
        """Keep everything back that either side sends; the connections stay."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what was kept back, and what follows."""
        self._flows.set()

    def shorten(self, most: int) -> None:
        """Cut every connection, and each new one after so many bytes of the client."""
        with self._lock:
            self._most = most
            self._cut()

    def aim(self, port: int) -> None:
        """Cut every connection, and lead new ones to another server of this host."""
        with self._lock:
            self._server = (self._server[0], port)
            self._cut()

    def _cut(self) -> None:
        self._cuts += 1
        for end in list(self._open):
            _close(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    broken, most, cuts = self._broken, self._most, self._cuts
                if broken:
                    _close(client)
                    continue
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    _close(client)
                    continue
                with self._lock:
                    # One that was being made while all were cut is cut too.
                    if cut := cuts != self._cuts:
                        _close(client)
                        _close(server)
                    else:
                        self._open |= {client, server}
                if cut:
                    continue
                for source, sink, limit in ((client, server, most), (server, client, None)):
                    threading.Thread(target=self._pump, args=(source, sink, limit), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, most: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while (most is None or passed < most) and (data := source.recv(1 << 16)):
                self._flows.wait()
                sink.sendall(data[: None if most is None else most - passed])
                passed += len(data)
        for end in (source, sink):
            self._open.discard(end)
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
