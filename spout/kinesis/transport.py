"""Reads answers of up to 10 MiB from the socket into reused memory, and parses them one at a time.

botocore reads an answer in pieces of 64 KiB through three layers of copies, which costs as much as decoding it. Its
hook to send a request differently is a `before-send` handler: this one sends with botocore's own HTTP session, with its
connections, proxies and certificates, and reads the answer itself, within a deadline for the whole of it.

An answer takes up to three times its size while it is parsed: as text, decoded, as columns. A task reads many shards in
parallel, so at most `_BUFFERS` large answers are in memory as text, and one thread parses them: the memory that malloc
keeps for a thread that has freed its objects is kept only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import LifoQueue
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError as UrllibReadTimeoutError

from kinesis_trident.common.private_names import MissingNameError, http_session_of
from kinesis_trident.spout.patience import Deadline

_EVENTS = "SubscribeToShard"
"""The call whose answer has no end: `spout.kinesis.event_stream` reads it."""

_BUFFERS = 2
"""One is read while the other is parsed."""

_SMALL = 256 * 1024
"""The size of an answer, in bytes, up to which it does not wait for a buffer."""


_SECONDS = 10.0
"""The time that an answer may take beyond what its size allows."""

_LARGEST = 64 * 2**20
"""The limit of an answer, in bytes: the records of one have at most 10 MiB, as base64 with their keys less than 20."""


def declared_size(header: str) -> int | None:
    """Return the number in a header Content-Length; None if it holds none."""
    return int(header) if header.isascii() and header.isdigit() and len(header) < 20 else None


def parts_of(raw: Any) -> Iterator[bytes]:
    """Yield the parts of a urllib3 response as they arrive."""
    if hasattr(raw, "read1"):
        return iter(partial(raw.read1, _SMALL), b"")
    # urllib3 1.26, which waits until a part is full or the chunk of the server is whole.
    return raw.stream(_SMALL)  # type: ignore[no-any-return]


def read_at_once(
    client: Any,
    parsers: Mapping[str, Callable[[memoryview], Any]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make a boto client of Kinesis read each answer at once, except events; errors stay botocore's.

    Args:
        client: the boto client.
        parsers: by call, as the service names it: converts a complete body of status 200 to the input of the response
            parser; the body's memory is reused as soon as it returns. Large bodies are parsed one at a time, in a
            separate thread.
        clock: seconds that never step back, for the deadline of an answer.
    """
    try:
        through = http_session_of(client)
    except MissingNameError:
        return
    reading = _Reading(clock)
    by_call = parsers or {}

    def send(request: AWSPreparedRequest, event_name: str, **_: object) -> AWSResponse | None:
        call = event_name.rpartition(".")[2]
        if call == _EVENTS:
            return None
        request.stream_output = True
        answer = through(request)
        with _errors_of_botocore(request):
            content = reading.content(answer, by_call.get(call, bytes))
        return _Whole(answer.url, answer.status_code, answer.headers, content)

    client.meta.events.register("before-send.kinesis", send)


class _Whole(AWSResponse):
    """A response whose content was read already; the content need not be bytes."""

    @property
    def content(self) -> Any:
        return self.raw


class _Reading:
    """Owns the memory that answers are read into, and the thread that parses them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        self._free: LifoQueue[bytearray] = LifoQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray())

    def content(self, answer: AWSResponse, parse: Callable[[memoryview], Any]) -> Any:
        """Return the result of `parse` for the body; the body itself if the status is not 200."""
        try:
            return self._content(answer, parse)
        except BaseException:
            # Half read, its connection is not used again.
            answer.raw.close()
            raise

    def _content(self, answer: AWSResponse, parse: Callable[[memoryview], Any]) -> Any:
        size = declared_size(answer.headers.get("content-length", ""))
        if answer.status_code != 200 or size is None or answer.raw.chunked:
            body = b"".join(self._pieces(answer.raw))
            return parse(memoryview(body)) if answer.status_code == 200 else body
        # Before any memory is taken for it.
        _check_size(size)
        if size <= _SMALL:
            return parse(self._filled(bytearray(size), size, answer.raw))
        with self._buffer(size) as buffer:
            return self._parser.submit(parse, self._filled(buffer, size, answer.raw)).result()

    def _filled(self, buffer: bytearray, size: int, raw: Any) -> memoryview:
        """Read the body of a urllib3 response, which has `size` bytes, into a buffer."""
        body = memoryview(buffer)[:size]
        read = 0
        for piece in self._pieces(raw, size):
            body[read : read + len(piece)] = piece
            read += len(piece)
        if read < size:
            msg = f"the connection closed after {read} of {size} bytes"
            raise ProtocolError(msg)
        return body

    def _pieces(self, raw: Any, whole: int | None = None) -> Iterator[bytes]:
        """Yield a body as it arrives, as long as it is not too slow, and not larger than any; `whole`: its size."""
        deadline = Deadline(_SECONDS, self._clock)
        size = 0
        for piece in parts_of(raw):
            yield piece
            size += len(piece)
            _check_size(size)
            if size != whole:
                deadline.left(size)

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


def _check_size(size: int) -> None:
    """Refuse an answer that no server of Kinesis gives.

    Raises:
        HTTPError: it is larger than any.
    """
    if size > _LARGEST:
        msg = f"the answer has more than {_LARGEST >> 20} MiB, so it is not one of Kinesis"
        raise HTTPError(msg)


@contextmanager
def _errors_of_botocore(request: AWSPreparedRequest) -> Iterator[None]:
    """Raise errors while reading a body as botocore's own session raises them."""
    try:
        yield
    except UrllibReadTimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except ProtocolError as error:
        raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
    except (HTTPError, TimeoutError) as error:
        raise HTTPClientError(error=error) from error
