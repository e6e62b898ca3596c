"""Finds or registers a query's enhanced fan-out consumers, and waits until they are active."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kinesis_trident.spout.kinesis import (
    ConsumerMissingError,
    InUseError,
    KinesisError,
    StreamInfo,
    ThrottledError,
)
from kinesis_trident.spout.options.source import SourceOptions

log = logging.getLogger(__name__)

_PATIENCE = 300.0
"""Seconds that a consumer may take to become active; registration takes about a minute."""

_PERIOD = 1.0
"""Seconds between two checks, with as much jitter: a stream allows 20 DescribeStreamConsumer calls a second."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered consumer; `status` is CREATING, ACTIVE or DELETING."""

    arn: str
    status: str


class ConsumerCalls(Protocol):
    """The calls about consumers. Every method may raise any KinesisError."""

    def describe(self, stream: str) -> StreamInfo:
        """See `spout.kinesis.Kinesis`."""
        ...

    def describe_consumer(self, stream_arn: str, name: str) -> Consumer:
        """Return a stream's consumer by name, or any one by its ARN; raise ConsumerMissingError if there is none."""
        ...

    def register_consumer(self, stream_arn: str, name: str) -> None:
        """Begin to register a consumer; raise InUseError if one of that name exists."""
        ...


def ready_consumers(
    calls: ConsumerCalls,
    options: SourceOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> dict[str, str]:
    """Return the ARNs of the consumers that `options` name, all active, by stream in the options' order.

    With `consumerLifecycle=managed` a missing one is registered. None is ever deregistered: a newer run may use it
    already, and the next start needs it. Those of `consumerARN` are only looked at.

    Raises:
        ConsumerMissingError: `consumerLifecycle=external`, and none of that name or ARN exists, or it is being deleted.
        KinesisError: one cannot be registered, or was not active within 5 minutes.
    """
    given = (
        dict(zip(options.streams, options.consumer_arn.split(","), strict=True))
        if options.consumer_arn
        else {}
    )
    name = options.consumer_arn or options.consumer_name or options.application_name
    jitter = rng or random.Random()
    given_up = clock() + _PATIENCE
    arns = options.arns if given else {stream: calls.describe(stream).arn for stream in options.streams}
    ready: dict[str, str] = {}
    while True:
        waiting = {}
        for stream in [stream for stream in arns if stream not in ready]:
            found = (
                _find_shared(calls, arns[stream], given[stream])
                if given
                else _find(calls, arns[stream], name, register=options.consumer_lifecycle == "managed")
            )
            if found is not None and found.status == "ACTIVE":
                ready[stream] = found.arn
            else:
                waiting[stream] = found.status if found else "CREATING"
        if not waiting:
            return {stream: ready[stream] for stream in arns}
        if clock() > given_up:
            states = ", ".join(f"{status} on {stream!r}" for stream, status in sorted(waiting.items()))
            msg = f"consumer {name!r} is {states}, and was not ACTIVE within {_PATIENCE:g} s. Try again later"
            raise KinesisError(msg)
        sleep(_PERIOD * (1 + jitter.random()))


def _find_shared(calls: ConsumerCalls, stream: str, arn: str) -> Consumer:
    """Find a consumer by its ARN; a new one of the same name has another ARN."""
    try:
        found = calls.describe_consumer(stream, arn)
    except ConsumerMissingError as error:
        msg = f"{error}. It was deregistered, or never existed: ask the stream's owner for the consumer's present ARN"
        raise ConsumerMissingError(msg) from error
    if found.status == "DELETING":
        msg = f"consumer {arn} is DELETING. Ask the stream's owner for the ARN of another one"
        raise ConsumerMissingError(msg)
    return found


def _find(calls: ConsumerCalls, stream: str, name: str, *, register: bool) -> Consumer | None:
    """Find a stream's consumer; None if its registration has just begun."""
    try:
        return calls.describe_consumer(stream, name)
    except ConsumerMissingError as error:
        if not register:
            msg = (
                f"{error}. Register it (aws kinesis register-stream-consumer --stream-arn {stream} "
                f"--consumer-name {name}), or set consumerLifecycle=managed"
            )
            raise ConsumerMissingError(msg) from error
    _register(calls, stream, name)
    return None


def _register(calls: ConsumerCalls, stream: str, name: str) -> None:
    try:
        calls.register_consumer(stream, name)
    except InUseError:
        # Another process was faster: the next check finds the consumer.
        return
    except ThrottledError as error:
        msg = (
            f"consumer {name!r} cannot be registered: {error}. A stream has at most 20 consumers and 5 registrations "
            "at a time. Deregister one, set consumerName to an existing one, or set consumerMode=polling"
        )
        raise KinesisError(msg) from error
    log.warning(
        "consumer %r is registered with %s for enhanced fan-out. AWS bills it by the hour and shard until you "
        "deregister it: aws kinesis deregister-stream-consumer --stream-arn %s --consumer-name %s",
        name,
        stream,
        stream,
        name,
    )
