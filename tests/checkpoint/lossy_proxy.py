"""A TCP proxy on loopback that understands enough of ZooKeeper's protocol to lose exactly one request or answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

MULTI = 14
PING = 11


class LossyProxy:
    """Passes frames on; on demand it cuts the connection before the next multi, or after it instead of its answer."""

    def __init__(self, hosts: str) -> None:
        host, _, port = hosts.partition(":")
        self.server = hosts
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._lose_request = 0
        self._lose_answer = 0
        self._silent = 0
        self._away_at: int | None = None
        self._is_gone = False
        self.asked = 0
        self._open: set[socket.socket] = set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_requests(self, count: int = 1) -> None:
        """The next multis never reach the server."""
        self._lose_request = count

    def lose_answers(self, count: int = 1) -> None:
        """The next multis reach the server, which answers; nobody hears it."""
        self._lose_answer = count

    def be_silent(self, count: int = 1) -> None:
        """The next connections are accepted, and never answered."""
        self._silent = count

    def go_away(self, before: int, *, silent: bool = False) -> None:
        """Go away before the request of this number from now on, and stay away: refuse, or accept and be `silent`."""
        with self._lock:
            self.asked, self._away_at = 0, before
            if silent:
                self._silent = -1

    def _is_away(self, kind: int) -> bool:
        """Count a request that is no ping; return whether the server is not there for it."""
        with self._lock:
            if kind != PING:
                self.asked += 1
            if self._away_at is not None and self.asked > self._away_at:
                self._is_gone = True
            return self._is_gone

    def cut(self) -> None:
        """Cut every connection."""
        for end in list(self._open):
            _close(end)

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_gone and self._silent != -1:
                    _close(client)
                    continue
                if self._is_gone or self._silent > 0:
                    self._silent -= self._silent > 0
                    self._open.add(client)
                    continue
                server = socket.create_connection(self._server)
                self._open |= {client, server}
                lost: set[int] = set()
                threading.Thread(target=self._requests, args=(client, server, lost), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, server, lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        with contextlib.suppress(OSError, EOFError):
            server.sendall(_frame(client))
            while True:
                frame = _frame(client)
                xid, kind = struct.unpack_from(">ii", frame, 4)
                if self._is_away(kind):
                    if self._silent == -1:
                        # Read on, and answer nothing.
                        continue
                    break
                if kind == MULTI:
                    with self._lock:
                        if self._lose_request:
                            self._lose_request -= 1
                            self.cuts += 1
                            break
                        if self._lose_answer:
                            self._lose_answer -= 1
                            lost.add(xid)
                server.sendall(frame)
        self._end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        with contextlib.suppress(OSError, EOFError):
            client.sendall(_frame(server))
            while True:
                frame = _frame(server)
                (xid,) = struct.unpack_from(">i", frame, 4)
                if xid in lost:
                    self.cuts += 1
                    break
                client.sendall(frame)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            self._open.discard(end)
            _close(end)


def _frame(end: socket.socket) -> bytes:
    head = _exactly(end, 4)
    return head + _exactly(end, struct.unpack(">i", head)[0])


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = end.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
