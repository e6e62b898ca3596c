"""A connection to one memcached server: bytes out, bytes in, and what becomes of it when the server is gone."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kinesis_trident.trident.errors import StoreError, StoreUnavailableError, TridentError

__all__ = ["IncompleteError", "MemcachedConnection"]

T = TypeVar("T")

_END = b"MN\r\n"
_SIZE = 1 << 18
_UNDER_WAY = 2
"""Pipelines without an answer: memcached works on one while the next is made and the one before is read."""


class IncompleteError(TridentError):
    """An answer is not yet all there."""


class MemcachedConnection:
    """Pipelines of meta commands, each ended by `mn`. Not for several threads at once.

    Args:
        host: of the server.
        port: of the server.
        login: `user:password`, or nothing.
        connect_timeout: seconds.
        request_timeout: seconds in which nothing can be sent and nothing comes.
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
        self._another = partial(
            MemcachedConnection,
            host,
            port,
            login,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
        )
        self._address = (host, port)
        self._login = login
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._received = bytearray()

    def another(self) -> MemcachedConnection:
        """A new connection to the same server."""
        return self._another()

    def ask(self, pipelines: Iterable[tuple[bytes, int]], parse: Callable[[bytes, int], T]) -> list[T]:
        """Send pipelines and read what comes back.

        Args:
            pipelines: the requests of each, with their line ends, and how many they are; made as they are sent.
            parse: (answer, number of requests) -> what it says; raises `IncompleteError` where more must come.

        Returns:
            What each answer said, in order.

        Raises:
            StoreUnavailableError: no connection, or no answer; a new connection is made at the next call.
            StoreError: the server does not let us in.
        """
        waiting: deque[int] = deque()
        answers: list[T] = []
        for requests, count in pipelines:
            self.send(requests)
            waiting.append(count)
            if len(waiting) >= _UNDER_WAY:
                answers.append(self.answer(waiting.popleft(), parse))
        return answers + [self.answer(count, parse) for count in waiting]

    def send(self, requests: bytes) -> None:
        """Send a pipeline; `answer` takes what comes back, in the order of the pipelines. Both raise as `ask` does."""
        with self._talking():
            if self._socket is None:
                self._open()
            self._send(requests + b"mn\r\n")

    def answer(self, count: int, parse: Callable[[bytes, int], T]) -> T:
        """What the answer to the next pipeline says."""
        with self._talking():
            return self._answer(count, parse)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
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
        if self._selector is not None:
            self._selector.close()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._selector = None
        self._received.clear()

    @property
    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _answer(self, count: int, parse: Callable[[bytes, int], T]) -> T:
        searched = 0
        while True:
            end = self._received.find(_END, searched)
            if end < 0:
                searched = max(searched, len(self._received) - len(_END) + 1)
                self._wait(selectors.EVENT_READ)
                self._receive()
                continue
            try:
                answer = parse(bytes(self._received[:end]), count)
            except IncompleteError:
                # What ends a pipeline can stand in a value, too.
                searched = end + 1
                continue
            del self._received[: end + len(_END)]
            return answer

    def _send(self, data: bytes) -> None:
        """Send, and take what comes meanwhile: a server that cannot get rid of its answers reads nothing more."""
        assert self._socket is not None
        rest = memoryview(data)
        while True:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                if self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE) & selectors.EVENT_READ:
                    self._receive()
            if not rest:
                return

    def _receive(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(_SIZE)
        if not data:
            msg = "it closed the connection"
            raise ConnectionError(msg)
        self._received += data

    def _wait(self, events: int) -> int:
        """Wait for one of the events: those that have come."""
        assert self._selector is not None
        assert self._socket is not None
        self._selector.modify(self._socket, events)
        ready = self._selector.select(self._request_timeout)
        if not ready:
            msg = f"nothing within {self._request_timeout:g} s"
            raise TimeoutError(msg)
        return ready[0][1]

    def _open(self) -> None:
        self._socket = socket.create_connection(self._address, self._connect_timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        if self._login:
            user, _, password = self._login.partition(":")
            words = f"{user} {password}".encode()
            self._send(b"set login 0 0 %d\r\n%b\r\n" % (len(words), words))
            while not self._received.endswith(b"\r\n"):
                self._wait(selectors.EVENT_READ)
                self._receive()
            said = self._received.decode(errors="replace").strip()
            self._received.clear()
            if said != "STORED":
                msg = f"memcached {self._name} does not let us in ({said}): check user and password before the host"
                raise StoreError(msg)
