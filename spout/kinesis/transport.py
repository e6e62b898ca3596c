"""Reads answers of up to 10 MiB from the socket into reused memory, and parses them one at a time.

botocore reads an answer in pieces of 64 KiB through three layers of copies, which costs as much as decoding it. Its
hook to send a request differently is a `before-send` handler: this one sends with botocore's own HTTP session, with its
connections, proxies and certificates, and reads the answer itself.

An answer takes up to three times its size while it is parsed: as text, decoded, as columns. A task reads many shards in
parallel, so at most `_BUFFERS` large answers are in memory as text, and one thread parses them: the memory that malloc
keeps for a thread that has freed its objects is kept only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import IncompleteRead
from queue import LifoQueue
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import ReadTimeoutError as UrllibReadTimeoutError

__all__ = ["declared_size", "read_at_once"]

_BUFFERS = 2
"""One is read while the other is parsed."""

_SMALL = 256 * 1024
"""The size of an answer, in bytes, up to which it does not wait for a buffer."""


_LARGEST = 64 * 2**20
"""The limit of an answer, in bytes: the records of one have at most 10 MiB, as base64 with their keys less than 20."""


def declared_size(header: str) -> int | None:
    """Return the number in a header Content-Length; None if it holds none."""
    return int(header) if header.isascii() and header.isdigit() and len(header) < 20 else None


def read_at_once(client: Any, call: str, parse: Callable[[memoryview], Any] = bytes) -> None:
    """Make a boto client of Kinesis read each answer to a call at once; errors stay botocore's.

    Args:
        client: the boto client.
        call: as the service names it.
        parse: converts a complete body of status 200 to the input of the response parser; the body's memory is reused
            as soon as it returns. Large bodies are parsed one at a time, in a separate thread.
    """
    session = client._endpoint.http_session
    reading = _Reading()

    def send(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        request.stream_output = True
        answer = session.send(request)
        with _errors_of_botocore(request):
            content = reading.content(answer, parse)
        return _Whole(answer.url, answer.status_code, answer.headers, content)

    client.meta.events.register(f"before-send.kinesis.{call}", send)


class _Whole(AWSResponse):
    """A response whose content was read already; the content need not be bytes."""

    @property
    def content(self) -> Any:
        return self.raw


class _Reading:
    """Owns the memory that answers are read into, and the thread that parses them."""

    def __init__(self) -> None:
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        self._free: LifoQueue[bytearray] = LifoQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray())

    def content(self, answer: AWSResponse, parse: Callable[[memoryview], Any]) -> Any:
        """Return the result of `parse` for the body; the body itself if the status is not 200."""
        size = declared_size(answer.headers.get("content-length", ""))
        if answer.status_code != 200 or size is None or answer.raw.chunked:
            body = b"".join(_pieces(answer.raw))
            return parse(memoryview(body)) if answer.status_code == 200 else body
        # Before any memory is taken for it.
        _check_size(size)
        if size <= _SMALL:
            return parse(_filled(bytearray(size), size, answer.raw))
        with self._buffer(size) as buffer:
            return self._parser.submit(parse, _filled(buffer, size, answer.raw)).result()

    @contextmanager
    def _buffer(self, size: int) -> Iterator[bytearray]:
        buffer = self._free.get()
        try:
            if len(buffer) < size:
                # Free the old one first: both together would take twice the memory.
                buffer = bytearray()
                buffer = bytearray(size)
            yield buffer
        finally:
            self._free.put(buffer)


def _pieces(raw: Any) -> Iterator[bytes]:
    """Yield a body whose size is not known, as long as it is not larger than any."""
    size = 0
    while piece := raw.read(_SMALL):
        size += len(piece)
        _check_size(size)
        yield piece


def _check_size(size: int) -> None:
    """Refuse an answer that no server of Kinesis gives; its connection is not used again, being half read.

    Raises:
        HTTPError: it is larger than any.
    """
    if size > _LARGEST:
        msg = f"the answer has more than {_LARGEST >> 20} MiB, so it is not one of Kinesis"
        raise HTTPError(msg)


def _filled(buffer: bytearray, size: int, raw: Any) -> memoryview:
    """Read the next `size` bytes of a urllib3 response without the copies of its own methods."""
    body = memoryview(buffer)[:size]
    read = 0
    with raw._error_catcher():
        while read < size:
            more = raw._fp.readinto(body[read:])
            if not more:
                raise IncompleteRead(partial=b"", expected=size - read)
            read += more
        # Otherwise the connection is not reused after an empty answer.
        raw._fp.close()
    return body


@contextmanager
def _errors_of_botocore(request: AWSPreparedRequest) -> Iterator[None]:
    """Raise errors while reading a body as botocore's own session raises them."""
    try:
        yield
    except UrllibReadTimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except ProtocolError as error:
        raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
    except HTTPError as error:
        raise HTTPClientError(error=error) from error
