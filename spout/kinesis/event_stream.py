"""A subscription's events from the socket to Arrow: the messages of a SubscribeToShard answer, each event a page.

botocore signs and sends the call, and its `EventStreamBuffer` takes the messages apart and checks their sums
("Event stream encoding" of the AWS documentation); the payloads bypass its parser, as those of GetRecords do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.exceptions import EventStreamError
from botocore.response import StreamingBody
from urllib3.exceptions import HTTPError

from kinesis_trident.spout.kinesis import Page, Unavailable
from kinesis_trident.spout.kinesis.aws_errors import translated
from kinesis_trident.spout.kinesis.decoding import page_of_event

__all__ = ["Body", "EventStream"]

_LEAST_SECONDS = 0.001
"""A socket with a time-out of 0 does not wait at all, and says so with other errors."""


class Body(Protocol):
    """The body of an answer as urllib3 has it."""

    def stream(self) -> Iterator[bytes]:
        """The parts of the body as they arrive."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class EventStream:
    """One subscription to a shard, for one thread.

    Args:
        body: of the answer to SubscribeToShard.
        what: was subscribed to, for errors.
        where: region and endpoint, for errors.
        answered: when the subscription began by the server's clock (epoch milliseconds): no event says that itself.
    """

    def __init__(self, body: Body, what: str, where: str, answered: int | None) -> None:
        self._body = body
        self._what, self._where = what, where
        self._answered = answered
        self._parts = body.stream()
        # The one of botocore's that knows the way to the socket.
        self._socket = StreamingBody(body, None)  # type: ignore[arg-type]
        # The stubs have its messages wrong.
        self._buffer: Any = EventStreamBuffer()
        # Bytes of a message that has not come whole yet.
        self._begun = 0

    def next(self, seconds: float) -> Page | None:
        """The next event, waited for at most so long; None when the subscription has ended in order.

        After an error the subscription is of no more use.

        Raises:
            Unavailable: the connection broke, perhaps in the middle of an event, or nothing came in time.
            InUseError: another subscription has taken this one over.
            KinesisError: what else ended the subscription.
        """
        deadline = time.monotonic() + seconds
        try:
            while True:
                for message in self._buffer:
                    self._begun -= message.prelude.total_length
                    page = self._page(message)
                    if page is not None:
                        return page
                self._socket.set_socket_timeout(max(_LEAST_SECONDS, deadline - time.monotonic()))
                part = next(self._parts, None)
                if part is None:
                    break
                self._begun += len(part)
                self._buffer.add_data(part)
        except (EventStreamError, HTTPError, OSError, ParserError) as error:
            raise translated(error, self._what, self._where) from error
        if self._begun:
            msg = f"{self._what} in {self._where}: the connection closed in the middle of an event"
            raise Unavailable(msg)
        return None

    def close(self) -> None:
        """End the subscription."""
        self._body.close()

    def _page(self, message: Any) -> Page | None:
        headers = message.headers
        if headers.get(":message-type") != "event":
            raise EventStreamError(_error(message), "SubscribeToShard")  # type: ignore[arg-type]
        if headers.get(":event-type") != "SubscribeToShardEvent":
            return None
        try:
            return page_of_event(message.payload, self._answered)
        except msgspec.MsgspecError as error:
            msg = f"{self._what} in {self._where}: an event cannot be read ({len(message.payload)} bytes): {error}"
            raise Unavailable(msg) from error


def _error(message: Any) -> dict[str, Any]:
    """Code and message of an exception of the API, or of an error of the event stream itself."""
    headers = message.headers
    code = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    text = headers.get(":error-message", "")
    try:
        text = text or msgspec.json.decode(message.payload, type=dict[str, str]).get("message", "")
    except msgspec.MsgspecError:
        text = message.payload.decode(errors="replace")
    return {"Error": {"Code": str(code), "Message": str(text)}}
