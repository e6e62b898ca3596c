"""boto3: get_records in a loop, its shards in turns, or with --processes in a process each."""

from __future__ import annotations

import sys
from multiprocessing import get_context

import boto3

from benchmarks.peers.counting import Count, Outcome, report

STREAM = "s"
LIMIT = 10_000


def read(shards: list[str], expected: int) -> Outcome:
    """Read shards to their tips, a page of each in turns."""
    count = Count(expected)
    client = boto3.client("kinesis")
    iterators = {
        shard: client.get_shard_iterator(StreamName=STREAM, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        for shard in shards
    }
    while iterators:
        for shard, iterator in list(iterators.items()):
            answer = client.get_records(ShardIterator=iterator, Limit=LIMIT)
            for record in answer["Records"]:
                count.add(record["Data"])
            iterators[shard] = answer["NextShardIterator"]
            if not answer["MillisBehindLatest"]:
                del iterators[shard]
    return count.outcome()


def main() -> None:
    expected = int(sys.argv[1])
    shards = [shard["ShardId"] for shard in boto3.client("kinesis").list_shards(StreamName=STREAM)["Shards"]]
    if "--processes" not in sys.argv:
        report(read(shards, expected))
        return
    with get_context("spawn").Pool(len(shards)) as pool:
        report(*pool.starmap(read, [([shard], expected // len(shards)) for shard in shards], chunksize=1))


if __name__ == "__main__":
    main()
