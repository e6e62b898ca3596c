"""Measure how fast one process reads from a Kinesis endpoint: plain boto3, our client, and a shard's whole turn.

python -m benchmarks.fetch
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlparse

import boto3

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.report import Section, best, publish
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher

SHARD = "shardId-000000000000"
PAGES = 20
BOTO3_PAGES = 5


def read_boto3(url: str, pages: int) -> int:
    client = boto3.client("kinesis", endpoint_url=url)
    iterator = client.get_shard_iterator(StreamName="s", ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
    following, count = iterator["ShardIterator"], 0
    for _ in range(pages):
        answer = client.get_records(ShardIterator=following, Limit=10_000)
        following = answer["NextShardIterator"]
        count += len(answer["Records"])
    return count


def read_client(client: BotoKinesis) -> int:
    following, count = client.iterator("s", SHARD, str(TRIM_HORIZON)), 0
    for _ in range(PAGES):
        page = client.get_records(following, 10_000)
        following = page.next_iterator or ""
        count += page.records.num_rows
    return count


def read_turns(client: BotoKinesis, options: SourceOptions) -> int:
    limiter = ShardLimiter(Budget.of(period=0, rate=float("inf")))
    fetcher = ShardFetcher(client, "s", SHARD, options, limiter=limiter)
    bounds = Bounds(options.max_fetch_records_per_shard, 10**12, 3600)
    position: Any = TRIM_HORIZON
    count = 0
    while (turn := fetcher.fetch_new(position, bounds)).count:
        position = turn.end
        count += turn.count
    return count


def read_raw(url: str) -> int:
    """The same answers, read and thrown away: what the endpoint gives at most."""
    connection = http.client.HTTPConnection(urlparse(url).netloc)
    count = 0
    for page in range(PAGES):
        asked = json.dumps({"ShardIterator": f"0:{page * 10_000}", "Limit": 10_000})
        connection.request("POST", "/", asked, {"X-Amz-Target": "Kinesis_20131202.GetRecords"})
        count += 10_000 if connection.getresponse().read() else 0
    return count


def measured(size: int) -> Iterator[tuple[str, float]]:
    """(what, records a second) for records of `size` bytes."""

    def rate(read: Callable[[], int], expected: int) -> float:
        counts: list[int] = []
        seconds = best(lambda: counts.append(read()), times=3)
        assert set(counts) == {expected}
        return expected / seconds

    with PreparedEndpoint(Records(pages=PAGES, size=size)) as endpoint:
        options = SourceOptions(stream_name="s", endpoint_url=endpoint.url)
        client = BotoKinesis(options)
        total = PAGES * 10_000
        yield (
            "boto3, get_records in a loop",
            rate(lambda: read_boto3(endpoint.url, BOTO3_PAGES), BOTO3_PAGES * 10_000),
        )
        yield "client: pages to Arrow", rate(lambda: read_client(client), total)
        yield "fetcher: turns of 100 k records", rate(lambda: read_turns(client, options), total)
        yield "the endpoint, answers thrown away", rate(lambda: read_raw(endpoint.url), total)


def main() -> None:
    pretend_credentials()
    rows = []
    for size in (200, 1024):
        plain = 0.0
        for what, rate in measured(size):
            plain = plain or rate
            rows.append(
                [
                    f"{size} B, {what}",
                    f"{rate / 1000:,.0f} k",
                    f"{rate * size / 2**20:,.0f}",
                    f"{rate / plain:.1f} x",
                ]
            )
    publish(
        Section(
            name="fetch",
            title="Reading from Kinesis",
            command="python -m benchmarks.fetch",
            columns=["10,000 records a page, one process, one shard", "records/s", "MiB/s", "to boto3"],
            rows=rows,
            note="The shard's limits are lifted: Kinesis itself gives a shard 2 MB/s. The endpoint, in a process of "
            "its own on the other core, is no bottleneck.",
        )
    )


if __name__ == "__main__":
    main()
