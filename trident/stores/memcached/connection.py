"""A connection to one memcached server: sends and receives bytes, and handles the loss of the server."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.trident.errors import StoreError, StoreUnavailableError, TridentError

T = TypeVar("T")

_END = b"MN\r\n"
_SIZE = 1 << 18
_DIGITS = 10
_UNDER_WAY = 2
"""Pending pipelines: memcached works on one while the next is made and the previous answer is read."""


class IncompleteError(TridentError):
    """An answer is not complete yet."""


class MemcachedError(TridentError):
    """The answer is an error, or none that memcached gives."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(make_reason(answer.decode(errors="replace")))


def value_size(line: bytes) -> int:
    """Return the size of the value after a line `VA size c...`.

    Raises:
        RefusedError: the line has no size.
    """
    size = line[3:].partition(b" ")[0]
    # No value has more than 10 digits, and Python refuses to read thousands.
    if not size.isdigit() or len(size) > _DIGITS:
        raise MemcachedError(line)
    return int(size)


class MemcachedConnection:
    """Pipelines of meta commands, each ended by `mn`. Not for several threads at once.

    Args:
        host: of the server.
        port: of the server.
        login: `user:password`, or empty.
        connect_timeout: seconds.
        request_timeout: seconds without any byte sent or received.
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
        """Return a new connection to the same server."""
        return self._another()

    def ask(self, pipelines: Iterable[tuple[bytes, int]], parse: Callable[[bytes, int], T]) -> list[T]:
        """Send pipelines and read their answers.

        Args:
            pipelines: the requests of each, with their line ends, and their number; made as they are sent.
            parse: (answer, number of requests) -> result; raises `IncompleteError` if the answer is not complete.

        Returns:
            The parsed answers, in order.

        Raises:
            StoreUnavailableError: no connection, or no answer; a new connection is made at the next call.
            StoreError: the server refuses the login.
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
        """Send a pipeline; `answer` reads the answers in the order of the pipelines. Both raise as `ask` does."""
        with self._talk():
            if self._socket is None:
                self._open()
            self._send(requests + b"mn\r\n")

    def answer(self, count: int, parse: Callable[[bytes, int], T]) -> T:
        """Return the parsed answer to the next pipeline."""
        with self._talk():
            return self._answer(count, parse)

    @contextmanager
    def _talk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            msg = (
                f"memcached {self._name} does not answer ({error}). Check that it runs and that the executors "
                "reach it"
            )
            raise StoreUnavailableError(msg) from None
        except BaseException:
            # Pending answers would be mistaken for the answer to the next pipeline.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection and drop all pending requests."""
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
        while (end := self._received.find(_END, searched)) < 0:
            searched = max(searched, len(self._received) - len(_END) + 1)
            self._receive_more()
        try:
            answer = parse(bytes(self._received[:end]), count)
        except IncompleteError:
            # The end mark of a pipeline can also occur in a value, any number of times.
            end = self._find_end()
            try:
                answer = parse(bytes(self._received[:end]), count)
            except IncompleteError:
                # Nothing follows an end mark that stands outside of values.
                raise MemcachedError(bytes(self._received[:end]) or _END) from None
        del self._received[: end + len(_END)]
        return answer

    def _find_end(self) -> int:
        """Return where the end mark of the next answer is, reading line by line; a value is skipped by its size."""
        at = 0
        while True:
            end = self._received.find(b"\r\n", at)
            if end < 0:
                self._receive_more()
                continue
            line = bytes(self._received[at:end])
            if line == b"MN":
                return at
            at = end + 2
            if line.startswith(b"VA "):
                at += value_size(line) + 2

    def _receive_more(self) -> None:
        self._wait(selectors.EVENT_READ)
        self._receive()

    def _send(self, data: bytes) -> None:
        """Send, and receive meanwhile: a server that cannot send its answers reads nothing more."""
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
        """Wait for one of the events; return those that occurred."""
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
                msg = f"memcached {self._name} refuses the login ({said}). Check user and password before the host"
                raise StoreError(msg)
