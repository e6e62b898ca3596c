"""Pages of servers say what boto3 reads in them: each writes its JSON in its own way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import boto3
import pytest
from found_records import as_botocore_reads

from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


@pytest.fixture(params=["moto", "kinesis-local", "kinesalite", "ministack", "scripted"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server with nothing in it that this test knows."""
    fixtures = {
        "moto": "kinesis_server",
        "kinesis-local": "kinesis_local",
        "kinesalite": "kinesalite",
        "ministack": "ministack",
    }
    with ExitStack() as ending:
        if request.param in fixtures:
            yield request.getfixturevalue(fixtures[request.param]).endpoint_url
        else:
            yield ending.enter_context(ScriptedKinesis(quotas=Quotas.none())).endpoint_url


@pytest.fixture
def rows() -> list[tuple[bytes, str]]:
    """Payloads and partition keys."""
    return [(bytes(range(size)), f"key {size} é") for size in range(100)]


def test_the_pages_of_a_server(endpoint: str, rows: list[tuple[bytes, str]]) -> None:
    client: Any = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
    stream = f"pages-{uuid.uuid4().hex}"
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    records = [{"Data": data, "PartitionKey": key} for data, key in rows]
    assert client.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
    (shard,) = client.list_shards(StreamName=stream)["Shards"]
    bodies: list[bytes] = []
    client.meta.events.register(
        "before-parse.kinesis.GetRecords", lambda response_dict, **_: bodies.append(response_dict["body"])
    )
    iterator = client.get_shard_iterator(
        StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    answer = client.get_records(ShardIterator=iterator)
    client.delete_stream(StreamName=stream)
    (body,) = bodies
    assert [(one["Data"], one["PartitionKey"]) for one in answer["Records"]] == rows
    page = page_of(body)
    assert page.records.to_pylist() == as_botocore_reads(body)
    assert page.next_iterator == answer["NextShardIterator"]
