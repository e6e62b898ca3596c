"""Reads a subscription's events from the socket to Arrow: each event of a SubscribeToShard answer is a page.

botocore's `EventStreamBuffer` splits the messages and verifies their checksums ("Event stream encoding" of the AWS
documentation); the payloads bypass its parser.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.exceptions import BotoCoreError, EventStreamError

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.visible_text import make_reason
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    ConsumerMissingError,
    KinesisError,
    Page,
    StreamMissingError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.aws_errors import translate_error
from kinesis_trident.spout.kinesis.pages.decoding import page_of_event
from kinesis_trident.spout.patience import Deadline

_LEAST_SECONDS = 0.001
"""A socket with a timeout of 0 does not wait at all, and raises other errors."""


class Body(Protocol):
    """The body of an answer."""

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived, or wait for some, at most so many seconds; empty at the end."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class EventStream:
    """One subscription to a shard, for one thread.

    Args:
        body: of the answer to SubscribeToShard.
        what: the subscription, for errors.
        where: region and endpoint, for errors.
        answered: the start of the subscription by the server's clock (epoch milliseconds): events do not include it.
        clock: seconds that never step back.
    """

    def __init__(
        self,
        body: Body,
        what: str,
        where: str,
        answered: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._body = body
        self._clock = clock
        self._what, self._where = what, where
        self._answered = answered
        # The stubs have its messages wrong.
        self._buffer: Any = EventStreamBuffer()
        # Bytes of a message that is still incomplete.
        self._begun = 0

    def next(self, seconds: float) -> Page | None:
        """Wait at most `seconds` for the next event, longer for a large one; None when the subscription has ended.

        After an error the subscription cannot be used any more.

        Raises:
            Unavailable: the connection broke, possibly within an event, or no event arrived in time, or one trickled.
            InUseError: another subscription has replaced this one.
            ConsumerMissingError: the consumer was deregistered.
            KinesisError: the subscription ended for another reason.
        """
        deadline = Deadline(seconds, self._clock)
        try:
            while True:
                while (message := self._message()) is not None:
                    self._begun -= message.prelude.total_length
                    page = self._page(message)
                    if page is not None:
                        return page
                left = deadline.seconds_left(self._begun)
                part = self._body.receive(max(_LEAST_SECONDS, left))
                if not part:
                    break
                self._begun += len(part)
                self._buffer.add_data(part)
        except (BotoCoreError, EventStreamError, ParserError, TimeoutError) as error:
            raise of_consumer(translate_error(error, self._what, self._where)) from error
        if self._begun:
            msg = f"{self._what} in {self._where}: the connection closed in the middle of an event"
            raise Unavailable(msg)
        return None

    def close(self) -> None:
        """End the subscription."""
        self._body.close()

    def _message(self) -> Any:
        """Return the next message that is complete; None if none is."""
        try:
            return next(self._buffer, None)
        except ParserError:
            raise
        except Exception as error:
            # botocore verifies checksums, and otherwise trusts what is in a message.
            why = make_reason(repr(error))
            msg = f"{self._what} in {self._where}: a message of SubscribeToShard cannot be read: {why}"
            raise Unavailable(msg) from error

    def _page(self, message: Any) -> Page | None:
        headers = message.headers
        if headers.get(":message-type") != "event":
            raise EventStreamError(_error(message), "SubscribeToShard")  # type: ignore[arg-type]
        if headers.get(":event-type") != "SubscribeToShardEvent":
            return None
        try:
            return page_of_event(message.payload, self._answered)
        except msgspec.MsgspecError as error:
            size, why = len(message.payload), make_reason(str(error))
            msg = f"{self._what} in {self._where}: an event of SubscribeToShard cannot be read ({size} bytes): {why}"
            raise Unavailable(msg) from error


def of_consumer(error: KinesisError) -> KinesisError:
    """Return the error of a call about a consumer: what is not found, or not allowed, is the consumer."""
    if isinstance(error, AccessDeniedError):
        return AccessDeniedError(
            f"{error}. The policy of a consumer of another account has to allow the call too (docs/fan-out.md)"
        )
    if not isinstance(error, StreamMissingError):
        return error
    return ConsumerMissingError(
        f"{error}. If the consumer was deregistered, consumerLifecycle=managed registers it at the next start; "
        "consumerARN needs the ARN of the new one"
    )


def _error(message: Any) -> dict[str, Any]:
    """Return code and message of an API exception, or of an error of the event stream itself."""
    headers = message.headers
    code = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    text = headers.get(":error-message", "")
    try:
        text = text or msgspec.json.decode(message.payload, type=dict[str, str]).get("message", "")
    except UNREADABLE:
        text = message.payload.decode(errors="replace")
    return {"Error": {"Code": make_reason(str(code)), "Message": make_reason(str(text))}}
