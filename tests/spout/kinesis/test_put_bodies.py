"""Requests with bodies of ours, and the answers of PutRecords: what botocore would have sent and understood."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import boto3
import pytest
from hypothesis import example, given, settings, strategies as st

from kinesis_trident.spout.kinesis import KinesisError, RequestTooLargeError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.put_bodies import encode_put, encode_puts_of, parsed_results
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.testing import Refuse, ScriptedKinesis

HOSTILE = [
    {"Data": b"", "PartitionKey": '"'},
    {"Data": b"\x00", "PartitionKey": "\\"},
    {"Data": b"\xff\xfe", "PartitionKey": '\\u0041\\"', "ExplicitHashKey": "0"},
    {"Data": b'"},{"', "PartitionKey": "".join(map(chr, range(32))) + "\x7f\x80\u2028\u2029\ufeff"},
    {"Data": b"abcd", "PartitionKey": "\U0001f600\U0010ffff/</script>", "ExplicitHashKey": str(2**128 - 1)},
    {"Data": bytes(range(256)) * 4096, "PartitionKey": "k" * 256},
]
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            # Small and large data are encoded differently.
            "Data": st.binary(max_size=50) | st.binary(min_size=1000, max_size=1003),
            "PartitionKey": KEYS,
        },
        optional={"ExplicitHashKey": st.integers(0, 2**128 - 1).map(str)},
    ),
    min_size=1,
    max_size=10,
)
LARGE = [
    {"Data": bytes([at]) * (1000 + at), "PartitionKey": key, "ExplicitHashKey": str(at)}
    for at, key in enumerate(["\n", '\n"\n', '"Data":"', '\\n"', "\r\n\u2028", "\u00e9\U0001f600"])
]
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


VARYING = {"Authorization", "Content-Length", "X-Amz-Date", "amz-sdk-invocation-id"}
"""Headers of the time, of the call, and of the body's bytes."""


class Bodies:
    """A boto client that sends nothing and keeps the bodies of its requests."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        self.client = boto3.client("kinesis", region_name="us-east-1", **keys)
        for call in ("GetRecords", "PutRecords", "DescribeStreamSummary"):
            self.client.meta.events.register(f"before-send.kinesis.{call}", self._keep)
        self.sent: list[Any] = []

    def _keep(self, request: Any, **_: object) -> None:
        headers = {name: value for name, value in request.headers.items() if name not in VARYING}
        self.sent.append((json.loads(request.body), request.method, request.url, headers))
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def clients() -> tuple[Bodies, Bodies]:
    ours, botocores = Bodies(), Bodies()
    encode_puts_of(ours.client)
    return ours, botocores


@settings(deadline=None, max_examples=30)
@given(RECORDS, st.sampled_from([{"StreamName": "orders"}, {"StreamARN": ARN}]))
@example(HOSTILE, {"StreamName": "orders"})
@example(HOSTILE[:-1], {"StreamName": "orders"})
@example(LARGE, {"StreamARN": ARN})
@example([{"Data": b"", "PartitionKey": "\n" * 256}] * 3, {"StreamName": "orders"})
def test_a_body_is_botocores(
    clients: tuple[Bodies, Bodies], records: list[dict[str, Any]], stream: dict[str, str]
) -> None:
    for each, given_records in zip(clients, (Entries.of(records), records), strict=True):
        with pytest.raises(KeyboardInterrupt):
            each.client.put_records(Records=given_records, **stream)
    assert clients[0].sent.pop() == clients[1].sent.pop()


@settings(deadline=None, max_examples=20)
@given(KEYS, st.fixed_dictionaries({}, optional={"Limit": st.integers(1, 10_000), "StreamARN": st.just(ARN)}))
def test_a_request_for_records_is_botocores(
    clients: tuple[Bodies, Bodies], iterator: str, given_too: dict[str, Any]
) -> None:
    for each in clients:
        with pytest.raises(KeyboardInterrupt):
            each.client.get_records(ShardIterator=iterator, **given_too)
    assert clients[0].sent.pop() == clients[1].sent.pop()


def test_other_calls_are_built_by_botocore(clients: tuple[Bodies, Bodies]) -> None:
    for each in clients:
        for stream in ("orders", "others"):
            with pytest.raises(KeyboardInterrupt):
                each.client.describe_stream_summary(StreamName=stream)
    assert clients[0].sent[-2:] == clients[1].sent[-2:]


def test_each_request_has_a_signature_of_its_own_and_of_its_body() -> None:
    bodies = Bodies()
    encode_puts_of(bodies.client)
    signed: list[tuple[str, str]] = []

    def keep(request: Any, **_: object) -> None:
        signature = request.headers["Authorization"]
        signed.append(
            (signature.decode() if isinstance(signature, bytes) else signature, request.body.decode())
        )

    bodies.client.meta.events.register_first("before-send.kinesis.PutRecords", keep)
    for data in (b"a", b"b"):
        with pytest.raises(KeyboardInterrupt):
            bodies.client.put_records(StreamName="orders", Records=[{"Data": data, "PartitionKey": "k"}])
    (first, body), (second, other) = signed
    assert first != second
    assert body != other


def test_a_large_body_takes_the_memory_of_one() -> None:
    entries = Entries.of({"Data": bytes([at]) * 40_000, "PartitionKey": f"key-{at}"} for at in range(200))
    tracemalloc.start()
    try:
        body = encode_put({"StreamName": "orders", "Records": entries})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) > 10 * 2**20
    assert most < 1.1 * len(body)


def test_an_answer_is_read_as_far_as_it_is_used() -> None:
    found = {"ShardId": "shardId-0", "SequenceNumber": "1"}
    refused = {"ErrorCode": "InternalFailure", "ErrorMessage": "oh"}
    nulls = {"ShardId": None, "SequenceNumber": None, "ErrorCode": None, "ErrorMessage": None}
    body = json.dumps({"FailedRecordCount": 1, "Records": [found, refused, nulls], "EncryptionType": "KMS"})
    results = parsed_results(memoryview(body.encode()))
    assert isinstance(results, list)
    assert [result.get("ErrorCode") for result in results] == [None, "InternalFailure", None]
    assert [result.get("ShardId") for result in results] == ["shardId-0", None, None]
    for other in (b"", b"[]", b"{}", b'{"Records": 1}', b"<html>"):
        assert parsed_results(memoryview(other)) == other


def client_of(server: ScriptedKinesis) -> BotoKinesis:
    given = {"endpointUrl": server.endpoint_url, "region": "us-east-1"}
    keys = {"awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
    return BotoKinesis(WriteOptions.parse({"streamName": "orders", "clientNumRetries": "0", **given, **keys}))


def test_what_is_refused_for_its_size_is_told_from_what_is_wrong(server: ScriptedKinesis) -> None:
    client = client_of(server)
    entries: list[dict[str, Any]] = [{"Data": b"x", "PartitionKey": "k"}] * 3
    # As a proxy answers, and Kinesis before it looks at a request.
    server.script("PutRecords", Refuse("413", "Request Entity Too Large", 413))
    with pytest.raises(RequestTooLargeError, match="HTTP 413"):
        client.put_entries("orders", entries)
    server.script("PutRecords", Refuse("InvalidArgumentException", "no"))
    with pytest.raises(KinesisError, match="no") as error:
        client.put_entries("orders", entries)
    assert not isinstance(error.value, RequestTooLargeError)
    # Each half, and its half.
    server.script("PutRecords", Refuse("413", "Request Entity Too Large", 413), times=3)
    client.put_records("orders", [(b"%d" % n, f"key-{n}") for n in range(40)])
    shard = server.shards("orders")[0]
    page = client.get_records(client.iterator("orders", shard, "TRIM_HORIZON"), 100)
    assert page.records.column("data").to_pylist() == [b"%d" % n for n in range(40)]
