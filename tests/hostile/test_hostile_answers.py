"""Answers of whatever stands at the endpoint: right values, or an error of Kinesis with the call and the region."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from answering import PATIENCE, Server
from exploring import explore, explores
from hostility import read_bounded
from test_hostile_events import GOOD
from test_hostile_pages import BODIES, use
from test_hostile_put_answers import BODIES as PUTS

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.kinesis.answers import server_time
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.records import RecordPosition

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
SHARD = {
    "ShardId": "shardId-000000000001",
    "ParentShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
    "SequenceNumberRange": {"StartingSequenceNumber": str(10**55), "EndingSequenceNumber": str(10**55 + 9)},
}
OPEN = {
    **SHARD,
    "ShardId": "shardId-000000000002",
    "SequenceNumberRange": {"StartingSequenceNumber": "7"},
    "AdjacentParentShardId": "s-2",
}
REFUSALS = [
    b'{"__type":"ResourceNotFoundException","message":"Stream orders under account 1 not found."}',
    b'{"__type":"com.amazonaws.kinesis#ProvisionedThroughputExceededException","Message":"Rate exceeded"}',
    b"<html><body><h1>503 Service Unavailable</h1></body></html>",
]
Call = Callable[[BotoKinesis], object]


def subscribed(kinesis: BotoKinesis) -> None:
    stream = kinesis.subscribe(f"{ARN}/consumer/c:1", "shardId-0", "TRIM_HORIZON")
    try:
        while (page := stream.next(PATIENCE)) is not None:
            use(page)
    finally:
        stream.close()


def listed(kinesis: BotoKinesis) -> None:
    for shard in kinesis.list_shards("orders"):
        assert shard.id
        assert shard.sequences is not None
        assert all(isinstance(one, RecordPosition | None) for one in shard.sequences)


CALLS: dict[str, tuple[Call, list[bytes]]] = {
    "describe": (
        lambda kinesis: hash(kinesis.describe("orders")),
        [
            json.dumps(
                {
                    "StreamDescriptionSummary": {
                        "StreamName": "orders",
                        "StreamARN": ARN,
                        "StreamStatus": "ACTIVE",
                        "StreamCreationTimestamp": 1_700_000_000.123,
                        "RetentionPeriodHours": 24,
                        "MaxRecordSizeInKiB": 1024,
                    }
                }
            ).encode()
        ],
    ),
    "list": (listed, [json.dumps({"Shards": [SHARD, OPEN]}).encode(), b'{"Shards":[],"NextToken":"t"}']),
    "open": (
        lambda kinesis: [hash(one) for one in kinesis.open_shards("orders")],
        [json.dumps({"Shards": [OPEN, SHARD]}).encode()],
    ),
    "iterator": (
        lambda kinesis: kinesis.iterator("orders", "shardId-0", "TRIM_HORIZON").encode(),
        [b'{"ShardIterator":"AAAA"}'],
    ),
    "get": (lambda kinesis: use(kinesis.get_records("AAAA", 10)), BODIES),
    "put": (lambda kinesis: kinesis.put_entries("orders", [{"Data": b"a", "PartitionKey": "k"}] * 2), PUTS),
    "consumer": (
        lambda kinesis: kinesis.describe_consumer(ARN, "app").status.encode(),
        [
            json.dumps(
                {"ConsumerDescription": {"ConsumerARN": f"{ARN}/c", "ConsumerStatus": "ACTIVE"}}
            ).encode()
        ],
    ),
    "register": (lambda kinesis: kinesis.register_consumer(ARN, "app"), [b'{"Consumer":{}}']),
    "subscribe": (subscribed, [b"".join(GOOD[:3]), *GOOD]),
}


def answer(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.1\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"x-amzn-RequestId: c1\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)
    )


@cache
def client(port: int) -> BotoKinesis:
    given = {
        "streamName": "orders",
        "applicationName": "app",
        "zookeeper.hosts": "zk:2181",
        "clientNumRetries": "0",
        "endpointUrl": f"http://127.0.0.1:{port}",
    }
    return BotoKinesis(SourceOptions.parse(given))


@pytest.fixture(scope="module")
def ask(server: Server) -> Callable[[str, bytes], None]:
    kinesis = client(server.port)
    for call, bodies in CALLS.values():
        # What is loaded at the first call, as the rules of endpoints, is no cost of an answer.
        server.reply = answer(bodies[0])
        call(kinesis)

    def ask(name: str, reply: bytes) -> None:
        server.reply = reply
        call = CALLS[name][0]
        # A refusal is read by botocore.
        read_bounded(
            lambda: call(kinesis),
            len(reply),
            KinesisError,
            "us-east-1",
            steps=1000,
            least=200_000,
            fixed=2**21,
        )

    return ask


@explores
@pytest.mark.parametrize("name", CALLS)
def test_bodies(name: str, ask: Callable[[str, bytes], None]) -> None:
    explore(lambda body: ask(name, answer(body)), CALLS[name][1], times=0.25)


@explores
@pytest.mark.parametrize("name", CALLS)
def test_refusals(name: str, ask: Callable[[str, bytes], None]) -> None:
    for status in (b"400 Bad Request", b"503 Service Unavailable"):
        explore(lambda body, status=status: ask(name, answer(body, status)), REFUSALS, times=0.1)  # type: ignore[misc]


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_whose_type_is_no_text(name: str, ask: Callable[[str, bytes], None]) -> None:
    """botocore looks for it in a table."""
    ask(name, answer(b'{"__type":{"a":["InternalFailure"]},"message":"no"}', b"400 Bad Request"))


@explores
@pytest.mark.parametrize("name", ["describe", "get", "put", "subscribe"])
def test_whole_answers(name: str, ask: Callable[[str, bytes], None]) -> None:
    body = CALLS[name][1][0]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        9,
        body[:9],
        len(body) - 9,
        body[9:],
    )
    samples = [
        answer(body),
        chunked,
        answer(REFUSALS[0], b"400 Bad Request"),
        answer(b"", b"301 Moved", b"Location: http://127.0.0.1:1/\r\n"),
        b"HTTP/1.0 200 OK\r\n\r\n" + body,
    ]
    explore(lambda reply: ask(name, reply), samples, times=0.25)


@pytest.mark.parametrize("name", ["get", "put"])
@pytest.mark.parametrize(
    "size",
    [b"99999999999999", b"9" * 30, b"9" * 5000, b"\xb2", b"-1", b"1_0", b"68719476736", b"5, 5", b"", b"0"],
)
def test_claimed_sizes_take_no_memory(name: str, size: bytes, ask: Callable[[str, bytes], None]) -> None:
    body = CALLS[name][1][0]
    ask(name, b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n%b" % (size, body))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "body", [b"null", b"7", b"[]", b'"x"', b"", b"{}", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_other_bodies(name: str, body: bytes, ask: Callable[[str, bytes], None]) -> None:
    ask(name, answer(body))
    ask(name, answer(body, b"400 Bad Request"))


def test_a_refusal_of_any_length_is_a_short_error(ask: Callable[[str, bytes], None]) -> None:
    ask("describe", answer(b'{"__type":"X","message":"%b"}' % (b"a\\u001b" * 50_000), b"400 Bad Request"))


def test_a_listing_that_never_ends(server: Server) -> None:
    server.reply = answer(json.dumps({"Shards": [SHARD] * 3, "NextToken": "again"}).encode())
    with pytest.raises(KinesisError, match="NextToken 'again' has come before; check that the endpoint"):
        client(server.port).list_shards("orders")


def test_an_answer_larger_than_any(server: Server) -> None:
    server.reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{}" % (65 * 2**20)
    with pytest.raises(KinesisError, match="more than 64 MiB"):
        client(server.port).get_records("AAAA", 10)


DATES = [b"Tue, 14 Nov 2023 22:13:20 GMT", b"Sunday, 06-Nov-94 08:49:37 GMT", b"Sun Nov  6 08:49:37 1994"]


@explores
def test_dates() -> None:
    def read(data: bytes) -> None:
        headers: dict[str, Any] = {"date": data.decode("latin-1")}
        found = read_bounded(lambda: server_time(headers), len(data), ())
        assert found is None or abs(found) < 10**15

    explore(read, DATES)
    for data in (b"1 Jan 0001 00:00:00 -0000", b"1 Jan 9999 00:00:00 -9999", b"9" * 5000, b"a, " * 20_000):
        read(data)
