"""A connection to one memcached server: bytes out, bytes in, and what becomes of it when the server is gone."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from trident.errors import StoreError, StoreUnavailableError

__all__ = ["IncompleteError", "MemcachedConnection"]

T = TypeVar("T")

_END = b"MN\r\n"
_SIZE = 1 << 18


class IncompleteError(Exception):
    """An answer is not yet all there."""


class MemcachedConnection:
    """Pipelines of meta commands, each ended by `mn`. Not for several threads at once.

    Args:
        host: of the server.
        port: of the server.
        login: `user:password`, or nothing.
        connect_timeout: seconds.
        request_timeout: seconds without any byte of an answer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        login: str = "",
        *,
        connect_timeout: float = 2,
        request_timeout: float = 10,
    ) -> None:
        self._address = (host, port)
        self._login = login
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._socket: socket.socket | None = None

    def ask(self, requests: Sequence[bytes], parse: Callable[[bytes, int], list[T]]) -> list[T]:
        """Send a pipeline and read what comes back.

        Args:
            requests: each with its line ends.
            parse: (answer, number of requests) -> one item for each; raises `IncompleteError` where more must come.

        Raises:
            StoreUnavailableError: no connection, or no answer; a new connection is made at the next call.
            StoreError: the server does not let us in.
        """
        try:
            if self._socket is None:
                self._socket = self._connected()
            self._socket.sendall(b"".join(requests) + b"mn\r\n")
            answer = bytearray()
            while True:
                self._read(self._socket, answer)
                # What ends a pipeline can stand in a value, too.
                if answer.endswith(_END):
                    try:
                        return parse(bytes(answer[: -len(_END)]), len(requests))
                    except IncompleteError:
                        continue
        except OSError as error:
            self.close()
            msg = f"memcached {self._name} does not answer ({error}): check that it runs and that executors reach it"
            raise StoreUnavailableError(msg) from None
        except BaseException:
            # What is under way would be taken for the answer to the next pipeline.
            self.close()
            raise

    def close(self) -> None:
        """Give the connection up, with all that is under way."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    @property
    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(self._address, self._connect_timeout)
        try:
            connection.settimeout(self._request_timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._login:
                user, _, password = self._login.partition(":")
                words = f"{user} {password}".encode()
                connection.sendall(b"set login 0 0 %d\r\n%b\r\n" % (len(words), words))
                answer = bytearray()
                while not answer.endswith(b"\r\n"):
                    self._read(connection, answer)
                if answer != b"STORED\r\n":
                    said = answer.decode(errors="replace").strip()
                    msg = f"memcached {self._name} does not let us in ({said}): check user and password before the host"
                    raise StoreError(msg)
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _read(connection: socket.socket, answer: bytearray) -> None:
        data = connection.recv(_SIZE)
        if not data:
            msg = "it closed the connection"
            raise ConnectionError(msg)
        answer += data
