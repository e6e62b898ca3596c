"""The bodies of PutRecords, as botocore would have made them, and the answers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import boto3
import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from kinesis_trident.spout.kinesis import KinesisError, RequestTooLargeError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.put_bodies import encode_put, results_of
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


@pytest.fixture(scope="module")
def botocores() -> Callable[[dict[str, Any]], bytes]:
    """The body that botocore sends to put records."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("kinesis", region_name="us-east-1", **keys)
    sent: list[bytes] = []

    def keep(request: Any, **_: object) -> None:
        sent.append(request.body)
        raise KeyboardInterrupt

    client.meta.events.register("before-send.kinesis.PutRecords", keep)

    def body_of(arguments: dict[str, Any]) -> bytes:
        with pytest.raises(KeyboardInterrupt):
            client.put_records(**arguments)
        return sent.pop()

    return body_of


@settings(deadline=None, max_examples=30)
@given(RECORDS, st.sampled_from([{"StreamName": "orders"}, {"StreamARN": ARN}]))
@example(HOSTILE, {"StreamName": "orders"})
@example(HOSTILE[:-1], {"StreamName": "orders"})
@example(LARGE, {"StreamARN": ARN})
@example([{"Data": b"", "PartitionKey": "\n" * 256}] * 3, {"StreamName": "orders"})
def test_a_body_is_botocores(
    botocores: Callable[[dict[str, Any]], bytes], records: list[dict[str, Any]], stream: dict[str, str]
) -> None:
    ours = encode_put({"Records": Entries.of(records), **stream})
    assert json.loads(ours) == json.loads(botocores({"Records": records, **stream}))


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
    results = results_of(memoryview(body.encode()), 3)
    assert [result.get("ErrorCode") for result in results] == [None, "InternalFailure", None]
    assert [result.get("ShardId") for result in results] == ["shardId-0", None, None]
    for count, other in (
        (2, body.encode()),
        (0, b""),
        (0, b"[]"),
        (0, b"{}"),
        (1, b'{"Records": 1}'),
        (0, b"<"),
    ):
        with pytest.raises(msgspec.MsgspecError):
            results_of(memoryview(other), count)


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
