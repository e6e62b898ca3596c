"""quixstreams: its KinesisSource, with a counter in the place of the producer that writes to Kafka."""

from __future__ import annotations

import os
import sys

from quixstreams.sources.community.kinesis import KinesisSource
from quixstreams.state.memory import MemoryStore

from benchmarks.peers.counting import Count, report


class Counter:
    """The producer's two methods that a source calls."""

    def __init__(self, count: Count) -> None:
        self._count = count

    def produce(self, topic: str, value: bytes, **_: object) -> None:
        self._count.add(value)

    def flush(self, timeout: float | None = None) -> int:
        """Return how many messages are still to be delivered."""
        return 0


def main() -> None:
    source = KinesisSource(
        stream_name="s",
        aws_region=os.environ["AWS_DEFAULT_REGION"],
        aws_endpoint_url=os.environ["AWS_ENDPOINT_URL_KINESIS"],
        auto_offset_reset="earliest",
        max_records_per_shard=10_000,
    )
    count = Count(int(sys.argv[1]), source.stop)
    # Its application does the same in the process of a source, with a changelog in Kafka for the store.
    store = MemoryStore(source.store_name, None)
    source.configure(
        topic=source.default_topic(),
        producer=Counter(count),
        store_partition=store.create_new_partition(0),
    )
    source.start()
    report(count.outcome())


if __name__ == "__main__":
    main()
