"""Reads the answers of HTTP/1.1 from a connection as they arrive.

The standard library reads the head of an answer with its parser of e-mails, which takes more time than all else of a
small call (docs/benchmarks.md has what a call costs). Errors are raised as botocore's.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError

_BUFFER = 64 * 1024
"""The bytes that are received at a time, and the limit of a head."""

_PIECE = 256 * 1024
_CUT = "the connection closed before the answer's end"
_TOGETHER = 64 * 1024
"""The size of a request, in bytes, up to which its parts are sent as one."""


class ProtocolError(Exception):
    """What arrives is no answer of HTTP, or only its beginning."""


class AnswerHead(NamedTuple):
    """The beginning of an answer; the names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    stays: bool
    """Whether the server keeps the connection."""


def parse_content_length(header: str) -> int | None:
    """Return the number in a header Content-Length; None if it holds none."""
    return int(header) if header.isascii() and header.isdigit() and len(header) < 20 else None


def error_of(error: Exception, url: str) -> HTTPClientError:
    """Return botocore's error for a connection that broke."""
    if isinstance(error, TimeoutError):
        return ReadTimeoutError(endpoint_url=url, error=error)
    return ConnectionClosedError(endpoint_url=url, error=error)


class Connection:
    """One connection, for one request at a time, and what has arrived on it.

    Args:
        connected: a socket, or what encrypts one.

    Attributes:
        sent: when the last request was, in seconds of `time.monotonic`.
    """

    def __init__(self, connected: Any) -> None:
        self.socket = connected
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.sent = 0.0
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    @property
    def is_silent(self) -> bool:
        """Return whether the other end has neither closed, nor sent what nobody has asked for."""
        pending = getattr(self.socket, "pending", int)()
        return self._start == self._end and not pending and not self._poll.poll(0)

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request."""
        self.sent = time.monotonic()
        # Who refuses a request, for its size maybe, answers and closes before all of it has arrived.
        with suppress(BrokenPipeError, ConnectionResetError):
            if len(body) <= _TOGETHER:
                self.socket.sendall(head + body)
            else:
                self.socket.sendall(head)
                self.socket.sendall(body)

    def read_head(self) -> AnswerHead:
        """Read status and headers of an answer; interim answers before it are skipped.

        Raises:
            ProtocolError: there is none.
            OSError: the connection broke; also the others.
        """
        status = 0
        while status < 200:
            first, *lines = self.read_to(b"\r\n\r\n").decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            code = rest[:3]
            if not (
                version.startswith("HTTP/1.") and code.isascii() and code.isdigit() and rest[3:4] in ("", " ")
            ):
                msg = f"an answer of HTTP does not begin with {first[:40]!r}"
                raise ProtocolError(msg)
            status = int(code)
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), value.strip())
        asked = headers.get("connection", "").lower()
        return AnswerHead(
            status, headers, "close" not in asked and (version != "HTTP/1.0" or "keep-alive" in asked)
        )

    def read_to(self, mark: bytes) -> bytes:
        """Return what comes before `mark`, at most 64 KiB."""
        while (at := self._buffer.find(mark, self._start, self._end)) < 0:
            if self._end == _BUFFER:
                left = self._end - self._start
                if left == _BUFFER:
                    msg = f"the answer has more than {_BUFFER >> 10} KiB before its body"
                    raise ProtocolError(msg)
                self._buffer[:left] = self._buffer[self._start : self._end]
                self._start, self._end = 0, left
            self._fill()
        found = bytes(self._view[self._start : at])
        self._start = at + len(mark)
        return found

    def read_into(self, into: memoryview) -> int:
        """Put what has arrived into memory, or wait for some; return how many bytes, 0 at the end."""
        count = min(self._end - self._start, len(into))
        if not count:
            return int(self.socket.recv_into(into))
        into[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count

    def read(self, most: int) -> bytes:
        """Return what has arrived, or wait for some; empty at the end."""
        count = min(self._end - self._start, most)
        if not count:
            return bytes(self.socket.recv(min(most, _PIECE)))
        self._start += count
        return bytes(self._view[self._start - count : self._start])

    def _fill(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        count = self.socket.recv_into(self._view[self._end :])
        if not count:
            raise ProtocolError(_CUT)
        self._end += count

    def close(self) -> None:
        """Close it, whatever its state is."""
        with suppress(OSError):
            self.socket.close()


class HttpAnswer:
    """An answer whose body is still to be read, and the connection that it comes from.

    Args:
        connection: read up to the body.
        head: of the answer.
        keep: is given the connection after the whole body, if the server keeps it.
        url: of the endpoint, for errors.

    Attributes:
        status: of HTTP.
        headers: by lower-case names.
        size: of the body, in bytes, as the server has announced it; None where it has not.
    """

    def __init__(
        self, connection: Connection, head: AnswerHead, keep: Callable[[Connection], None], url: str
    ) -> None:
        self.status, self.headers, self._stays = head
        self._connection = connection
        self._keep = keep
        self._url = url
        is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self.status in (204, 304):
            self.size: int | None = 0
        else:
            self.size = None if is_chunked else parse_content_length(self.headers.get("content-length", ""))
        self._is_chunked = is_chunked
        self._pieces: Iterator[bytes] | None = None
        self._is_over = False

    def receive_into(self, body: memoryview) -> int:
        """Put what has arrived of a body of known size into memory, or wait for some; return how many bytes.

        Raises:
            botocore.exceptions.HTTPClientError: as `receive`, and where the connection ended.
        """
        try:
            count = self._connection.read_into(body)
        except OSError as error:
            raise error_of(error, self._url) from error
        if not count:
            raise error_of(ProtocolError(_CUT), self._url)
        return count

    def receive(self, seconds: float | None = None) -> bytes:
        """Return what has arrived of the body, or wait for some; empty at its end.

        Args:
            seconds: the longest silence; None for that of the connection.

        Raises:
            botocore.exceptions.HTTPClientError: the connection broke, or nothing came in time.
        """
        if self._pieces is None:
            self._pieces = self._chunks() if self._is_chunked else self._read_plain()
        try:
            if seconds is not None:
                self._connection.socket.settimeout(seconds)
            return next(self._pieces, b"")
        except (OSError, ProtocolError) as error:
            raise error_of(error, self._url) from error

    def _read_plain(self) -> Iterator[bytes]:
        if self.size is not None:
            yield from self._read_exactly(self.size)
            return
        self._stays = False
        while piece := self._connection.read(_PIECE):
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            digits = self._connection.read_to(b"\r\n").partition(b";")[0].strip()
            try:
                size = int(digits, 16) if digits.isalnum() and len(digits) <= 16 else -1
            except ValueError:
                size = -1
            if size < 0:
                msg = f"{digits[:40]!r} is not the size of a chunk"
                raise ProtocolError(msg)
            if not size:
                break
            yield from self._read_exactly(size)
            if self._connection.read_to(b"\r\n"):
                msg = "a chunk is longer than its size"
                raise ProtocolError(msg)
        while self._connection.read_to(b"\r\n"):
            # A trailer.
            pass

    def _read_exactly(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._connection.read(left)
            if not piece:
                raise ProtocolError(_CUT)
            left -= len(piece)
            yield piece

    def finish(self) -> None:
        """Give the connection back after the whole body."""
        if self._stays and not self._is_over:
            self._is_over = True
            self._keep(self._connection)
        self.close()

    def close(self) -> None:
        """Close the connection, unless it was given back."""
        # They refer to this answer.
        self._pieces = None
        if not self._is_over:
            self._is_over = True
            self._connection.close()
