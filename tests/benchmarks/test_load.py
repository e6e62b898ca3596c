"""Tests of what a load says of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from lives import eventually

from benchmarks.load import SHARDS, STREAM, Samples, many, section

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


def samples(*values: float) -> Samples:
    """A curve of memory, and a process that appears in the middle."""
    seen = Samples()
    for number, value in enumerate(values):
        late = {"late": 5.0} if number >= len(values) // 2 else {}
        seen.add(number / 6, {"new records a second": {"read": 100.0}, "memory": {"ours": value, **late}})
    return seen


def test_a_curve_that_begins_later_was_zero_before() -> None:
    seen = samples(1, 1, 1, 1)
    assert seen.minutes == [0, 1 / 6, 2 / 6, 3 / 6]
    assert seen.curves["memory"] == {"ours": [1, 1, 1, 1], "late": [0, 0, 5, 5]}


def test_what_grows_after_the_first_quarter_is_said_to_miss_its_bound() -> None:
    flat, growing = samples(1, 9, 10, 10, 10, 10, 10, 10), samples(9, 10, 10, 10, 10, 11, 12, 14)
    assert ("memory", "ours", 10, 10) in list(flat.growths())
    assert ("memory", "ours", 10, 13) in list(growing.growths())
    cells = {row[0]: row[3] for row in section("rate", growing).rows}
    assert cells["memory: ours"] == "1.30 (at most 1.1, missed)"
    assert cells["new records a second: read"] == "1.00 (at least 0.91)"
    assert "missed" not in {row[0]: row[3] for row in section("rate", flat).rows}["memory: ours"]


def test_the_endpoint_of_many_shards_serves_them_and_its_producer_writes(tmp_path: Path) -> None:
    with many("nobody:2181", tmp_path) as given:
        client = boto3.client("kinesis", endpoint_url=given["endpointUrl"])
        shards = client.list_shards(StreamName=STREAM, MaxResults=10_000)["Shards"]
        assert len(shards) == SHARDS
        eventually(lambda: any(_records(client, shard["ShardId"]) for shard in shards[:20]), "records")


def _records(client: KinesisClient, shard: str) -> list[Any]:
    began = client.get_shard_iterator(StreamName=STREAM, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    return list(client.get_records(ShardIterator=began["ShardIterator"])["Records"])
