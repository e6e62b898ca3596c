"""GetRecords answers of up to 10 MiB, read from the socket into memory that is used again, and parsed one at a time.

botocore reads an answer in pieces of 64 KiB through three layers of copies, which costs as much as decoding it. A
`before-send` handler is its way to send a request otherwise: this one has botocore's own HTTP session send it,
with its
connections, proxies and certificates, and reads what comes back by itself.

An answer takes three times its size while it is parsed: as text, as objects, as columns. A task reads many shards side
by side, so at most `_BUFFERS` large answers are in memory as text, and one thread parses them: what malloc keeps for a
thread that has freed its objects, it keeps once.
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

__all__ = ["read_at_once"]

_BUFFERS = 2
"""One is read while the other one is parsed."""

_SMALL = 256 * 1024
"""Bytes of an answer that is not worth waiting for a buffer."""


def read_at_once(client: Any, parse: Callable[[memoryview], Any] = bytes) -> None:
    """Have a boto client of Kinesis read each GetRecords answer at once; its errors stay botocore's.

    Args:
        client: the boto client.
        parse: makes of a whole body of status 200 what the parser of the response gets for it; the memory of the body
            is used again as soon as it returns. Large bodies come one at a time, in a thread of their own.
    """
    session = client._endpoint.http_session
    reading = _Reading()

    def send(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        request.stream_output = True
        answer = session.send(request)
        with _errors_of_botocore(request):
            content = reading.content(answer, parse)
        return _Whole(answer.url, answer.status_code, answer.headers, content)

    client.meta.events.register("before-send.kinesis.GetRecords", send)


class _Whole(AWSResponse):
    """A response whose content was read already; it need not be bytes."""

    @property
    def content(self) -> Any:
        return self.raw


class _Reading:
    """The memory that answers are read into, and the thread that parses them."""

    def __init__(self) -> None:
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        self._free: LifoQueue[bytearray] = LifoQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray())

    def content(self, answer: AWSResponse, parse: Callable[[memoryview], Any]) -> Any:
        """What `parse` makes of the body; the body itself where the status is not 200."""
        size = answer.headers.get("content-length", "")
        if answer.status_code != 200 or not size.isdigit() or answer.raw.chunked:
            body: bytes = answer.raw.read()
            return parse(memoryview(body)) if answer.status_code == 200 else body
        if int(size) <= _SMALL:
            return parse(_filled(bytearray(int(size)), int(size), answer.raw))
        with self._buffer(int(size)) as buffer:
            return self._parser.submit(parse, _filled(buffer, int(size), answer.raw)).result()

    @contextmanager
    def _buffer(self, size: int) -> Iterator[bytearray]:
        buffer = self._free.get()
        try:
            if len(buffer) < size:
                # The old one first: both together would be twice as much.
                buffer = bytearray()
                buffer = bytearray(size)
            yield buffer
        finally:
            self._free.put(buffer)


def _filled(buffer: bytearray, size: int, raw: Any) -> memoryview:
    """The next `size` bytes of a urllib3 response: its own ways to read copy them."""
    body = memoryview(buffer)[:size]
    read = 0
    with raw._error_catcher():
        while read < size:
            more = raw._fp.readinto(body[read:])
            if not more:
                raise IncompleteRead(partial=b"", expected=size - read)
            read += more
        # Else the connection is not used again after an answer without a byte.
        raw._fp.close()
    return body


@contextmanager
def _errors_of_botocore(request: AWSPreparedRequest) -> Iterator[None]:
    """What goes wrong while a body is read as botocore's own session says it."""
    try:
        yield
    except UrllibReadTimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except ProtocolError as error:
        raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
    except HTTPError as error:
        raise HTTPClientError(error=error) from error
