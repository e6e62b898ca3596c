"""Consumers with enhanced fan-out, and their subscriptions. Pure; times are epoch milliseconds.

The messages of a subscription are those of "Event stream encoding" of the AWS documentation: the total length and the
length of the headers with their checksum, the headers, the payload, and the checksum of everything before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from kinesis_trident.spout.kinesis import StreamMissingError
from kinesis_trident.spout.testing import requests
from kinesis_trident.spout.testing.quotas import Quotas
from kinesis_trident.spout.testing.shard import Cursor, HeldShard, record_json
from kinesis_trident.spout.testing.stream import HeldStream, children
from kinesis_trident.spout.testing.tokens import RefusedError, cursor_for

_MOST_CONSUMERS = 20
_EVENT_RECORDS = 1_000
_QUIET_MS = 5_000
"""Milliseconds without a record after which an empty event is sent."""


@dataclass(slots=True)
class HeldConsumer:
    """A consumer of one stream.

    Attributes:
        deleted: the time of its deregistration; None before.
        subscribed: the last subscription to each shard.
    """

    name: str
    arn: str
    created: int
    deleted: int | None = None
    subscribed: dict[str, HeldSubscription] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class HeldSubscription:
    """A subscription, with the position of its next event."""

    stream: HeldStream
    consumer: HeldConsumer
    shard: str
    cursor: Cursor
    began: int
    last_event: int | None = None
    over: bool = False


class StreamConsumers:
    """The consumers of all streams.

    `find` returns a stream by its name at a time; it raises StreamMissingError.
    """

    def __init__(self, find: Callable[[str, int], HeldStream], quotas: Callable[[], Quotas]) -> None:
        self._find = find
        self._quotas = quotas
        self._consumers: dict[tuple[str, int], dict[str, HeldConsumer]] = {}
        self.handlers: dict[str, tuple[type[Struct], Callable[..., dict[str, Any]]]] = {
            "RegisterStreamConsumer": (requests.NamedConsumer, self._register),
            "DescribeStreamConsumer": (requests.SomeConsumer, self._describe),
            "DeregisterStreamConsumer": (requests.SomeConsumer, self._deregister),
            "ListStreamConsumers": (requests.ListStreamConsumers, self._list),
        }

    def of(self, stream: HeldStream) -> dict[str, HeldConsumer]:
        """Return a stream's consumers by name."""
        return self._consumers.setdefault((stream.name, stream.created), {})

    def subscribe(self, asked: requests.SubscribeToShard, now: int) -> HeldSubscription:
        """Begin a subscription; it takes over from one that began 5 seconds ago or earlier.

        Raises:
            RefusedError: there is a younger one, or the consumer is not active.
            KinesisError: the consumer, shard or position does not exist.
        """
        stream, consumer = self._resolve(asked.consumer_arn, None, None, now)
        shard = stream.shard(asked.shard_id)
        before = consumer.subscribed.get(shard.name)
        if before is not None and now - before.began < (self._quotas().resubscribe_ms or 0):
            msg = f"Another active subscription exists for this consumer: {shard.name} of {consumer.arn}"
            raise RefusedError(msg, code="ResourceInUseException")
        if self._status(consumer, now) != "ACTIVE":
            msg = f"Consumer {consumer.arn} is not in ACTIVE state."
            raise RefusedError(msg, code="ResourceInUseException")
        cursor = cursor_for(stream, shard, asked.starting_position.as_iterator(shard.name), now)
        made = HeldSubscription(stream, consumer, shard.name, cursor, now)
        consumer.subscribed[shard.name] = made
        return made

    def next(self, subscription: HeldSubscription, now: int) -> dict[str, Any] | None:
        """Return the next event of a subscription; None if there is none now, or the subscription is `over`.

        Raises:
            RefusedError: another subscription has replaced it.
            KinesisError: the stream, the shard or the consumer no longer exists.
        """
        stream, consumer = self._resolve(subscription.consumer.arn, None, None, now)
        if consumer.subscribed.get(subscription.shard) is not subscription:
            msg = f"Another subscription has taken over {subscription.shard} of {consumer.arn}"
            raise RefusedError(msg, code="ResourceInUseException")
        longest = self._quotas().subscription_ms
        if longest is not None and now - subscription.began >= longest:
            subscription.over = True
        if subscription.over:
            return None
        shard = stream.shard(subscription.shard)
        found = shard.read(subscription.cursor, _EVENT_RECORDS, now)
        last = subscription.last_event
        quiet = last is not None and now - last < _QUIET_MS
        if quiet and not found.records and not found.behind and found.following is not None:
            return None
        subscription.last_event = now
        event: dict[str, Any] = {
            "Records": [record_json(record) for record in found.records],
            "MillisBehindLatest": found.behind,
        }
        if found.following is None:
            event["ChildShards"] = children(list(stream.shards.values()), shard.name)
            subscription.over = True
            return event
        subscription.cursor = found.following
        event["ContinuationSequenceNumber"] = stream.number_text(_continuation(shard, found.following))
        return event

    def _register(self, asked: requests.NamedConsumer, now: int) -> dict[str, Any]:
        stream = self._find(asked.stream, now)
        consumers = self.of(stream)
        if asked.consumer_name in consumers:
            msg = f"Consumer {asked.consumer_name} of stream {stream.name} already exists."
            raise RefusedError(msg, code="ResourceInUseException")
        if len(consumers) >= _MOST_CONSUMERS:
            msg = f"Stream {stream.name} has {_MOST_CONSUMERS} consumers already."
            raise RefusedError(msg, code="LimitExceededException")
        arn = f"{stream.arn}/consumer/{asked.consumer_name}:{now // 1000}"
        made = consumers[asked.consumer_name] = HeldConsumer(asked.consumer_name, arn, now)
        return {"Consumer": self._json(made, now)}

    def _describe(self, asked: requests.SomeConsumer, now: int) -> dict[str, Any]:
        stream, found = self._resolve(asked.consumer_arn, asked.stream, asked.consumer_name, now)
        return {"ConsumerDescription": self._json(found, now) | {"StreamARN": stream.arn}}

    def _deregister(self, asked: requests.SomeConsumer, now: int) -> dict[str, Any]:
        stream, found = self._resolve(asked.consumer_arn, asked.stream, asked.consumer_name, now)
        found.deleted = now
        if not self._quotas().deregistration_ms:
            del self.of(stream)[found.name]
        return {}

    def _list(self, asked: requests.ListStreamConsumers, now: int) -> dict[str, Any]:
        consumers = self.of(self._find(asked.stream, now))
        names = [name for name in sorted(consumers) if name > (asked.next_token or "")]
        page = names[: asked.max_results]
        answer: dict[str, Any] = {"Consumers": [self._json(consumers[name], now) for name in page]}
        if len(page) < len(names):
            answer["NextToken"] = page[-1]
        return answer

    def _resolve(
        self, arn: str | None, stream: str | None, name: str | None, now: int
    ) -> tuple[HeldStream, HeldConsumer]:
        """Return a consumer by its ARN, or by its stream's and its own name."""
        if arn is not None:
            stream, _, rest = arn.rpartition(":stream/")[2].partition("/consumer/")
            name = rest.partition(":")[0]
        held = self._find(stream or "", now)
        found = self.of(held).get(name or "")
        if (
            found is not None
            and found.deleted is not None
            and now - found.deleted >= (self._quotas().deregistration_ms or 0)
        ):
            del self.of(held)[found.name]
            found = None
        if found is None or (arn is not None and found.arn != arn):
            msg = f"Consumer {arn or name}, stream {held.arn} not found."
            raise StreamMissingError(msg)
        return held, found

    def _status(self, consumer: HeldConsumer, now: int) -> str:
        if consumer.deleted is not None:
            return "DELETING"
        takes = self._quotas().registration_ms or 0
        return "ACTIVE" if now - consumer.created >= takes else "CREATING"

    def _json(self, consumer: HeldConsumer, now: int) -> dict[str, Any]:
        return {
            "ConsumerName": consumer.name,
            "ConsumerARN": consumer.arn,
            "ConsumerStatus": self._status(consumer, now),
            "ConsumerCreationTimestamp": consumer.created / 1000,
        }


def _continuation(shard: HeldShard, following: Cursor) -> int:
    """Return the sequence number after which another subscription continues at a cursor."""
    if following.walked and following.walked >= shard.gaps.get(following.start, 0):
        # No record has this number, and the empty pages are not repeated.
        return following.start
    # The records of a shard begin after its first number.
    return max(shard.first, following.start - 1)


_JSON = "application/x-amz-json-1.1"
_TEXT = 7
"""The type of a header whose value is text."""


def event_message(kind: str, payload: bytes) -> bytes:
    """Encode an event of a kind with a JSON payload."""
    return _message({":message-type": "event", ":event-type": kind, ":content-type": _JSON}, payload)


def exception_message(code: str, message: str) -> bytes:
    """Encode an API exception; the stream ends after it."""
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": _JSON}
    return _message(headers, msgspec.json.encode({"message": message}))


def _message(headers: Mapping[str, str], payload: bytes) -> bytes:
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    # Two checksums and two lengths of 4 bytes each.
    lengths = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    so_far = lengths + struct.pack("!I", zlib.crc32(lengths)) + head + payload
    return so_far + struct.pack("!I", zlib.crc32(so_far))


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack("!B", len(name)) + name + struct.pack("!BH", _TEXT, len(value)) + value
