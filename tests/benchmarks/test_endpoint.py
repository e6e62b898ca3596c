"""The prepared endpoint answers as Kinesis does."""

from __future__ import annotations

import base64
import json
from collections import Counter

import boto3

from benchmarks.endpoint import PreparedEndpoint, Records, pages
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, Position
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher


def test_every_record_comes_once_in_order_and_then_the_tip() -> None:
    with PreparedEndpoint(Records(shards=2, pages=3, page=50, size=10)) as endpoint:
        options = SourceOptions(stream_name="s", endpoint_url=endpoint.url, max_records_per_fetch=40)
        client = BotoKinesis(options)
        assert client.describe("s").name == "s"
        shards = [shard.id for shard in client.list_shards("s")]
        assert len(shards) == 2
        limiter = ShardLimiter(Budget.of(period=0, rate=float("inf")))
        fetcher = ShardFetcher(client, "s", shards[1], options, limiter=limiter)
        position: Position = TRIM_HORIZON
        sequences: list[str] = []
        while (turn := fetcher.fetch_new(position, Bounds(70, 10**9, 3600))).count:
            batch = turn.batches[0]
            assert {len(data) for data in batch.column("data").to_pylist()} == {10}
            sequences += [
                text for batch in turn.batches for text in batch.column("sequenceNumber").to_pylist()
            ]
            assert turn.last is not None
            again = fetcher.fetch_until(position, turn.last)
            assert [batch.to_pylist() for batch in again.batches] == [
                batch.to_pylist() for batch in turn.batches
            ]
            position = turn.end
        assert len(sequences) == len(set(sequences)) == 150
        assert sequences == sorted(sequences, key=int)
        assert {len(text) for text in sequences} == {56}
        assert turn.seen is not None


def test_a_stream_is_described_with_its_shards() -> None:
    with PreparedEndpoint(Records(shards=3, pages=1, page=1)) as endpoint:
        client = boto3.client("kinesis", endpoint_url=endpoint.url)
        described = client.describe_stream(StreamName="s")["StreamDescription"]
    assert [shard["ShardId"][-1] for shard in described["Shards"]] == ["0", "1", "2"]
    assert (described["StreamStatus"], described["HasMoreShards"]) == ("ACTIVE", False)


def test_each_word_stands_twice_in_a_page() -> None:
    held = Records(pages=1, page=40, words=5)
    [page] = pages(held, 1)
    sentences = [base64.b64decode(record["Data"]).decode().split() for record in json.loads(page)["Records"]]
    assert {len(words) for words in sentences} == {5}
    counts = Counter(word for words in sentences for word in words)
    assert len(counts) == held.distinct == 100
    assert set(counts.values()) == {2}


def test_what_is_put_is_accepted_by_the_shard_of_its_explicit_hash_key() -> None:
    with PreparedEndpoint(Records(shards=2, pages=1, page=1)) as endpoint:
        client = BotoKinesis(SourceOptions(stream_name="s", endpoint_url=endpoint.url))
        lasts = [last for last, _ in client.open_shards("s")]
        assert lasts == [2**127 - 1, 2**128 - 1]
        results = client.put_entries(
            "s",
            [
                {"Data": b"x", "PartitionKey": "k"},
                *({"Data": b"x", "PartitionKey": "a", "ExplicitHashKey": str(last)} for last in lasts),
            ],
        )
        assert [result["ShardId"][-1] for result in results] == ["0", "0", "1"]
        assert not any(result.get("ErrorCode") for result in results)
