"""Answers of servers are cut into columns, and say what boto3 reads in them: each writes its JSON in its own way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import boto3
import pytest

from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.pages.text_columns import columns_of
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


@pytest.fixture(params=["moto", "kinesis-local", "kinesalite", "scripted"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server with nothing in it that this test knows."""
    fixtures = {"moto": "kinesis_server", "kinesis-local": "kinesis_local", "kinesalite": "kinesalite"}
    with ExitStack() as ending:
        if request.param in fixtures:
            yield request.getfixturevalue(fixtures[request.param]).endpoint_url
        else:
            yield ending.enter_context(ScriptedKinesis(quotas=Quotas.none())).endpoint_url


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[tuple[bytes, str]]:
    """Payloads and partition keys; moto writes é as an escape, which is left to a decoder of JSON."""
    letter = "e" if "moto" in request.node.name else "é"
    return [(bytes(range(size)), f"key {size} {letter}") for size in range(100)]


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
    found = columns_of(body)
    assert found is not None, body[:400] + body[-300:]
    assert [(one["Data"], one["PartitionKey"]) for one in answer["Records"]] == rows
    columns, _ = found
    assert columns.data.to_pylist() == [data for data, _ in rows]
    assert columns.keys.to_pylist() == [key for _, key in rows]
    assert columns.sequences.to_pylist() == [one["SequenceNumber"] for one in answer["Records"]]
    assert columns.arrivals.tolist() == pytest.approx(
        [one["ApproximateArrivalTimestamp"].timestamp() for one in answer["Records"]], abs=1e-6
    )
    assert page_of(body).next_iterator == answer["NextShardIterator"]
