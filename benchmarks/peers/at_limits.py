"""Loops that call each shard once a second until they are ended: `boto3` in threads, or `async-kinesis`.

Each prints, twice a second, how many records it has read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

STREAM = "s"
PERIOD = 1.0
THREADS = 32
TOLD = 0.5
"""Seconds from one line to the next."""


class Read:
    """The records that were read."""

    records = 0


def tell(read: Read) -> None:
    """Print the records, again and again."""
    while True:
        print(read.records, flush=True)
        time.sleep(TOLD)


def poll(client: Any, shards: Sequence[str], read: Read, lock: threading.Lock) -> None:
    """Call some shards in turns, all of them once a period."""
    iterators = {
        shard: client.get_shard_iterator(StreamName=STREAM, ShardId=shard, ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        for shard in shards
    }
    due = time.monotonic()
    while True:
        for shard, iterator in iterators.items():
            answer = client.get_records(ShardIterator=iterator)
            iterators[shard] = answer["NextShardIterator"]
            with lock:
                read.records += len(answer["Records"])
        due = max(due + PERIOD, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def poll_in_threads(read: Read) -> None:
    """Share the shards among threads."""
    import boto3
    from botocore.config import Config

    client = boto3.client("kinesis", config=Config(max_pool_connections=THREADS))
    pages = client.get_paginator("list_shards").paginate(StreamName=STREAM)
    shards = [shard["ShardId"] for page in pages for shard in page["Shards"]]
    lock = threading.Lock()
    for at in range(min(THREADS, len(shards))):
        threading.Thread(target=poll, args=(client, shards[at::THREADS], read, lock), daemon=True).start()


async def consume(read: Read) -> None:
    """Read with the consumer of async-kinesis, which polls each shard in a task."""
    from kinesis import Consumer
    from kinesis.aggregators import SimpleAggregator
    from kinesis.processors import Processor

    class Bytes(Processor, SimpleAggregator):
        def deserialize(self, data: bytes) -> bytes:
            return data

    async with Consumer(
        stream_name=STREAM,
        endpoint_url=os.environ["AWS_ENDPOINT_URL_KINESIS"],
        processor=Bytes(),
        use_list_shards=True,
        iterator_type="LATEST",
        shard_fetch_rate=1 / PERIOD,
        # It sleeps for one shard after another: its throttle of a call a second is enough.
        sleep_time_no_records=0,
        max_queue_size=100_000,
    ) as consumer:
        while True:
            async for _ in consumer:
                read.records += 1


def main() -> None:
    read = Read()
    threading.Thread(target=tell, args=(read,), daemon=True).start()
    if sys.argv[1] == "boto3":
        poll_in_threads(read)
        threading.Event().wait()
    else:
        asyncio.run(consume(read))


if __name__ == "__main__":
    main()
