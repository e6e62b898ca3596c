"""A query at MiniStack, a server that this project did not write, and whose users had LocalStack before.

It fills its sequence numbers up with zeros, compares them as texts, and drops the old shards of a reshard at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from by_hand import Lives, Query, SparkCheckpoint, numbers
from servers import MiniStack

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


class Stream:
    """A stream of numbers on MiniStack."""

    def __init__(self, endpoint: str, shards: int) -> None:
        self.client: Any = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
        self.name = f"stream-{uuid.uuid4().hex[:12]}"
        self.client.create_stream(StreamName=self.name, ShardCount=shards)

    def put(self, some: range) -> None:
        """Put numbers into the stream, each under a key of its own."""
        for number in some:
            self.client.put_record(StreamName=self.name, Data=str(number).encode(), PartitionKey=f"{number}")

    def split(self) -> None:
        """Split the first shard."""
        shard = self.client.list_shards(StreamName=self.name)["Shards"][0]
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.client.split_shard(
            StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )

    def read(self) -> list[Any]:
        """Return all records."""
        found = []
        for shard in self.client.list_shards(StreamName=self.name)["Shards"]:
            iterator = self.client.get_shard_iterator(
                StreamName=self.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            found += self.client.get_records(ShardIterator=iterator)["Records"]
        return found


@pytest.fixture
def stream(ministack: MiniStack) -> Stream:
    """A stream of two shards."""
    return Stream(ministack.endpoint_url, 2)


Begin = Callable[..., Query]


@pytest.fixture
def begin(stream: Stream, ministack: MiniStack, zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Begin]:
    """A life of the query with a checkpoint, and other options."""
    lives = Lives(
        zookeeper.hosts,
        app,
        streamName=stream.name,
        endpointUrl=ministack.endpoint_url,
        minFetchPeriod="20ms",
    )
    yield lambda checkpoint, **options: lives.begin(None, checkpoint, **options)
    lives.end()


def test_every_record_comes_once_through_batches_restarts_and_retries(stream: Stream, begin: Begin) -> None:
    checkpoint = SparkCheckpoint()
    rows = []
    for life in range(3):
        query = begin(checkpoint)
        for batch in range(3):
            first = 30 * life + 10 * batch
            stream.put(range(first, first + 10))
            # One comes again, in this life or in the next one.
            rows += [row for row in query.batch(failing=[first + 3]) if row[0] != first + 3]
        query.end()
    again = begin(checkpoint)
    rows += again.drain()
    assert numbers(rows) == list(range(90))
    assert {row[2] for row in rows} == {1, 2}
    # A messageId has the number as the server wrote it.
    texts = {one["SequenceNumber"] for one in stream.read()}
    assert all(text.startswith("0") for text in texts)
    assert {row[1].rpartition(":")[2] for row in rows} == texts


def test_a_reshard_is_followed(stream: Stream, begin: Begin) -> None:
    checkpoint = SparkCheckpoint()
    query = begin(checkpoint, failOnDataLoss="false")
    stream.put(range(20))
    assert numbers(query.drain()) == list(range(20))
    stream.split()
    stream.put(range(20, 40))
    assert numbers(query.drain()) == list(range(20, 40))
    query.end()
    stream.put(range(40, 50))
    assert numbers(begin(checkpoint, failOnDataLoss="false").drain()) == list(range(40, 50))


def test_records_that_fail_too_often_become_letters_in_a_stream(
    stream: Stream, begin: Begin, ministack: MiniStack
) -> None:
    letters = Stream(ministack.endpoint_url, 1)
    query = begin(SparkCheckpoint(), deadLetter=f"kinesis://{letters.name}", onExhausted="deadLetter")
    stream.put(range(6))
    while not letters.read():
        query.batch(failing=[2, 4])
    query.drain()
    written = [one["Data"] for one in letters.read()]
    assert len(written) == 2
    texts = {one["Data"]: one["SequenceNumber"] for one in stream.read()}
    for number in (b"2", b"4"):
        assert any(f':{texts[number]}"'.encode() in letter for letter in written)
