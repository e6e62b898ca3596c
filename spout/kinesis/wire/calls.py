"""Makes the calls of Kinesis: signs and sends requests, and reads answers of up to 10 MiB into reused memory.

botocore spends more than half a millisecond on each call, whatever is in it. It keeps what is rare or subject to
change: credentials and their renewal, the rules of endpoints, proxies, certificates, and what errors mean.

An answer takes up to three times its size while it is parsed: as text, decoded, as columns. A task reads many shards in
parallel, so at most `_BUFFERS` large answers are in memory as text, and one thread parses them: the memory that malloc
keeps for a thread that has freed its objects is kept only once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import LifoQueue
from typing import Any, TypeVar

import msgspec
from botocore.exceptions import HTTPClientError, NoCredentialsError
from botocore.session import Session

from kinesis_trident.spout.kinesis.answers import read_body, refusal_of, server_time
from kinesis_trident.spout.kinesis.remedies import RequestClock
from kinesis_trident.spout.kinesis.wire.connections import Connections
from kinesis_trident.spout.kinesis.wire.endpoints import CallTargets
from kinesis_trident.spout.kinesis.wire.http_answers import HttpAnswer
from kinesis_trident.spout.kinesis.wire.signing import AccessKeys
from kinesis_trident.spout.patience import Deadline

_BUFFERS = 2
"""One is read while the other is parsed."""

_SMALL = 256 * 1024
"""The size of an answer, in bytes, up to which it does not wait for a buffer."""

_SECONDS = 10.0
"""The time that an answer may take beyond what its size allows."""

_LARGEST = 64 * 2**20
"""The limit of an answer, in bytes: the records of one have at most 10 MiB, as base64 with their keys less than 20."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class KinesisCalls:
    """The calls of one endpoint with the credentials of one session. Thread-safe.

    Args:
        session: has the credentials.
        client: a boto client of it, which knows the endpoints, and sends nothing from now on.
        clock: the time to sign with.
        steady: seconds that never step back, for the deadline of an answer.
    """

    def __init__(
        self,
        session: Session,
        client: Any,
        clock: RequestClock,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = session.get_credentials()
        self._certificates = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        self._targets = CallTargets(client)
        self._clock = clock
        self._connections: dict[str, Connections] = {}
        self._reader = AnswerReader(steady)

    def call(
        self,
        call: str,
        arguments: Mapping[str, Any],
        parse: Callable[[memoryview, int | None], T],
        body: bytes | None = None,
    ) -> T:
        """Make a call once, and return what it was answered.

        Args:
            call: as the service names it.
            arguments: of the call.
            parse: converts the body of the answer, whose memory is reused as soon as it returns; the second argument is
                the server's time, in epoch milliseconds, if it is known. It raises a `msgspec.MsgspecError` if the
                body is not what it expects.
            body: of the request, if it is more than the arguments as JSON.

        Raises:
            botocore.exceptions.ClientError: the call was refused.
            botocore.exceptions.BotoCoreError: there are no credentials, or no whole answer.
            botocore.parsers.ResponseParserError: the answer cannot be read.
        """
        return self.read(call, self.begin(call, arguments, body), parse)

    def begin(
        self, call: str, arguments: Mapping[str, Any], body: bytes | None = None
    ) -> Callable[[], HttpAnswer]:
        """Send a call; return what waits for its answer, once: so others can be sent before.

        Raises:
            botocore.exceptions.BotoCoreError: it was not sent. What is returned raises as `open`.
        """
        if self._credentials is None:
            raise NoCredentialsError
        found = self._credentials.get_frozen_credentials()
        keys = AccessKeys(found.access_key or "", found.secret_key or "", found.token)
        target = self._targets.find(call, arguments)
        sent = _encode(arguments) if body is None else body
        headers = target.headers + target.signer.sign(keys, self._clock.now(), sent)
        connections = self._open_connections(target.origin)
        connection = connections.send(target.path, headers, sent, target.url)

        def wait() -> HttpAnswer:
            answer = connections.receive(connection, target.url)
            if answer.status != 200:
                refusal = self._reader.read(answer, bytes)
                raise refusal_of(call, answer.status, answer.headers, refusal)
            return answer

        return wait

    def read(
        self, call: str, begun: Callable[[], HttpAnswer], parse: Callable[[memoryview, int | None], T]
    ) -> T:
        """Wait for the answer to a call that was begun; the rest is as for `call`."""
        answer = begun()
        answered = server_time(answer.headers)
        return self._reader.read(
            answer, lambda found: read_body(call, partial(parse, found, answered), found)
        )

    def open(self, call: str, arguments: Mapping[str, Any], body: bytes | None = None) -> HttpAnswer:
        """Make a call once, and return its answer, of which nothing was read but the head.

        Raises:
            botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError: as `call`.
        """
        return self.begin(call, arguments, body)()

    def _open_connections(self, origin: str) -> Connections:
        found = self._connections.get(origin)
        if found is None:
            found = self._connections.setdefault(origin, Connections(origin, self._certificates))
        return found


class AnswerReader:
    """Owns the memory that answers are read into, and the thread that parses large ones. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers")
        self._free: LifoQueue[bytearray] = LifoQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray())

    def read(self, answer: HttpAnswer, parse: Callable[[memoryview], T]) -> T:
        """Return the result of `parse` for the body of an answer.

        Raises:
            botocore.exceptions.HTTPClientError: the connection broke, or the answer is too slow, or larger than any.
        """
        try:
            size = answer.size
            if size is None:
                return parse(self._read_unsized(answer))
            # Before any memory is taken for it.
            _check_size(size)
            if size <= _SMALL:
                return parse(self._read_sized(bytearray(size), size, answer))
            with self._buffer(size) as buffer:
                return self._parser.submit(parse, self._read_sized(buffer, size, answer)).result()
        except BaseException:
            # Half read, its connection is not used again.
            answer.close()
            raise

    def _read_sized(self, buffer: bytearray, size: int, answer: HttpAnswer) -> memoryview:
        """Read a body of `size` bytes into a buffer."""
        body = memoryview(buffer)[:size]
        deadline = Deadline(_SECONDS, self._clock)
        read = 0
        while read < size:
            read += answer.receive_into(body[read:])
            if read < size:
                self._check(deadline, read)
        answer.finish()
        return body

    def _read_unsized(self, answer: HttpAnswer) -> memoryview:
        """Read a body of any size."""
        deadline = Deadline(_SECONDS, self._clock)
        body = bytearray()
        while piece := answer.receive():
            body += piece
            _check_size(len(body))
            self._check(deadline, len(body))
        answer.finish()
        return memoryview(body)

    def _check(self, deadline: Deadline, size: int) -> None:
        try:
            deadline.seconds_left(size)
        except TimeoutError as error:
            raise HTTPClientError(error=error) from error

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
    """Refuse an answer that no server of Kinesis gives."""
    if size > _LARGEST:
        msg = f"the answer has more than {_LARGEST >> 20} MiB, so it is not one of Kinesis"
        raise HTTPClientError(error=msg)
