"""A query at MiniStack through Spark: each record once, over retries and restarts, though it fills its numbers up.

Without Spark this is in tests/spout/test_ministack.py, with dead letters, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import boto3
import pytest
from servers import MiniStack
from stage import AVAILABLE_NOW, Stage, Taken, ended, error_of


@pytest.fixture
def on_ministack(make_stage: Callable[..., Stage], ministack: MiniStack) -> Stage:
    """A stage with a stream of two shards there."""
    one = make_stage()
    one.client = boto3.client("kinesis", endpoint_url=ministack.endpoint_url, region_name="us-east-1")
    one.endpoint = ministack.endpoint_url
    one.stream = f"stream-{uuid.uuid4().hex[:12]}"
    one.client.create_stream(StreamName=one.stream, ShardCount=2)
    return one


def fails_once(record):  # type: ignore[no-untyped-def]
    """Each fourth number fails at its first delivery."""
    text = record.data.decode()
    if record.attempt == 1 and int(text) % 4 == 3:
        raise ValueError(text)
    return text, record.attempt


@pytest.mark.long
def test_every_record_comes_once_over_retries_and_restarts(on_ministack: Stage) -> None:
    stage, taken = on_ministack, Taken()
    for life in range(3):
        for number in range(10 * life, 10 * life + 10):
            stage.client.put_record(StreamName=stage.stream, Data=b"%d" % number, PartitionKey=str(number))
        ended(stage.start(stage.parsed(fails_once), taken, trigger=AVAILABLE_NOW))
    assert sorted(map(int, taken.texts)) == list(range(30))
    # What a reshard drops unread is a loss, and not one of a stream that is seconds old by its retention.
    stage.client.put_record(StreamName=stage.stream, Data=b"30", PartitionKey="30")
    for shard in stage.client.list_shards(StreamName=stage.stream)["Shards"]:
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))  # type: ignore[literal-required]
        stage.client.split_shard(
            StreamName=stage.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
        )
    said = error_of(stage.start(stage.parsed(fails_once), taken, trigger=AVAILABLE_NOW))
    assert "DataLossError" in said
    assert "so this is not its retention: the server has dropped the shard" in said
