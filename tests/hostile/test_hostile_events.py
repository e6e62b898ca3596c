"""Event streams of subscriptions: pages that can be used, or an error of Kinesis that names the subscription."""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Sequence
from typing import Any

from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given, strategies as st
from test_hostile_pages import ANSWERS, use

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.event_stream import EventStream

WHAT = "the subscription to shard s"
EVENTS = [
    {
        "Records": answer["Records"],
        "ContinuationSequenceNumber": "49" * 28,
        "MillisBehindLatest": 0,
        "ChildShards": answer.get("ChildShards", []),
    }
    for answer in ANSWERS
]
EVENT = {
    ":message-type": "event",
    ":event-type": "SubscribeToShardEvent",
    ":content-type": "application/json",
}
OTHERS: list[tuple[dict[str, str], bytes]] = [
    ({**EVENT, ":event-type": "initial-response"}, b"{}"),
    ({":message-type": "exception", ":exception-type": "ResourceInUseException"}, b'{"message": "replaced"}'),
    ({":message-type": "error", ":error-code": "InternalFailureException", ":error-message": "no"}, b""),
]


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    packed = b"".join(
        struct.pack(">B", len(name))
        + name.encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value.encode()
        for name, value in headers.items()
    )
    return sealed(packed, payload)


def sealed(headers: bytes, payload: bytes) -> bytes:
    """A message with right lengths and checksums, whatever its headers are."""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))


GOOD = [frame(EVENT, json.dumps(event).encode()) for event in EVENTS] + [
    frame(headers, payload) for headers, payload in OTHERS
]
HEADERS = [one[12 : 12 + struct.unpack(">I", one[4:8])[0]] for one in GOOD]
PAYLOADS = [json.dumps(event).encode() for event in EVENTS] + [payload for _, payload in OTHERS]


class Parts:
    """The body of an answer, in parts."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        # An empty one would be the end.
        self._parts = iter([part for part in parts if part])

    def receive(self, _seconds: float) -> bytes:
        return next(self._parts, b"")

    def close(self) -> None:
        pass


def read(parts: Sequence[bytes]) -> None:
    def call() -> None:
        stream = EventStream(Parts(parts), WHAT, "us-east-1 (http://x)", 5)
        while (page := stream.next(5)) is not None:
            use(page)

    read_bounded(call, sum(map(len, parts)), KinesisError, WHAT, "us-east-1")


@hostile
@given(st.lists(mutated(GOOD), min_size=1, max_size=3), st.integers(1, 50))
def test_damaged_streams(frames: list[bytes], step: int) -> None:
    data = b"".join(frames)
    read([data[at : at + len(data) // step + 1] for at in range(0, len(data), len(data) // step + 1)])


@hostile
@given(mutated(HEADERS), mutated(PAYLOADS))
def test_damaged_messages_with_right_checksums(headers: bytes, payload: bytes) -> None:
    read([sealed(headers, payload)])


@hostile
@given(mutated_json(EVENTS))
def test_wrong_events(event: Any) -> None:
    read([frame(EVENT, json.dumps(event).encode())])


def test_a_message_that_claims_to_be_long_takes_no_memory_before_it_comes() -> None:
    prelude = struct.pack(">II", 2**24 + 16, 0)
    read([prelude + struct.pack(">I", binascii.crc32(prelude)), b"x" * 1000])


def test_many_small_parts() -> None:
    data = GOOD[0] * 4
    read([data[at : at + 1] for at in range(len(data))])


def test_deep_events() -> None:
    for deep in (b'{"Records":[],"x":' + b"[" * 100_000, b'{"Records":[],"ChildShards":[' + b"[" * 100_000):
        read([frame(EVENT, deep)])
    read([frame({":message-type": "exception", ":exception-type": "X"}, b'{"message":' + b"[" * 100_000)])


def test_the_samples_are_right() -> None:
    stream = EventStream(Parts(GOOD[:3]), WHAT, "here", 5)
    assert [stream.next(5) is not None for _ in range(4)] == [True, True, True, False]
