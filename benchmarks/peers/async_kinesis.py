"""async-kinesis: `async for` over its Consumer, in its one process."""

from __future__ import annotations

import asyncio
import os
import sys

from kinesis import Consumer
from kinesis.aggregators import SimpleAggregator
from kinesis.processors import Processor

from benchmarks.peers.counting import Count, report


class Bytes(Processor, SimpleAggregator):
    """Hands the data on as it is: the processors that come with it decode JSON or text."""

    def deserialize(self, data: bytes) -> bytes:
        return data


async def read(expected: int) -> None:
    """Read to the tip, where nothing comes for the idle timeout."""
    count = Count(expected)
    async with Consumer(
        stream_name="s",
        endpoint_url=os.environ["AWS_ENDPOINT_URL_KINESIS"],
        processor=Bytes(),
        use_list_shards=True,
        shard_fetch_rate=5,
        sleep_time_no_records=0,
        max_queue_size=100_000,
        idle_timeout=5,
    ) as consumer:
        async for data in consumer:
            count.add(data)
    report(count.outcome())


if __name__ == "__main__":
    asyncio.run(read(int(sys.argv[1])))
