"""Streams, tables and homes to move from and to."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import boto3
import pytest
from moving_source import Source, at

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient


@pytest.fixture
def make_source(
    kinesis_server: EmbeddedKinesis, kinesis: KinesisClient, make_stream: Callable[..., str]
) -> Callable[..., Source]:
    """`make_source(shards=1)`: a new stream of the local Kinesis."""

    def make(shards: int = 1) -> Source:
        stream = make_stream(shards)
        summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        created = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
        return Source(stream, created, ["--stream", stream, *at(kinesis_server)])

    return make


@pytest.fixture
def source(make_source: Callable[..., Source]) -> Source:
    """A stream of one shard."""
    return make_source()


@pytest.fixture
def dynamodb(kinesis_server: EmbeddedKinesis) -> DynamoDBClient:
    """A client of DynamoDB, which the server of the local Kinesis has too."""
    return boto3.client("dynamodb", endpoint_url=kinesis_server.endpoint_url, region_name="us-east-1")


@pytest.fixture
def table() -> str:
    """The name of a table that no other test uses."""
    return f"table-{uuid.uuid4().hex[:12]}"
