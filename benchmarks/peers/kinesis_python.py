"""kinesis-python: iteration over its KinesisConsumer, which has a process for each shard."""

from __future__ import annotations

import sys

from kinesis.consumer import KinesisConsumer

from benchmarks.peers.counting import Count, report


class Beginning:
    """A state of one application that keeps nothing: without one it reads only what comes after its start."""

    def lock_shard(self, shard: str, seconds: int) -> bool:
        return True

    def get_iterator_args(self, shard: str) -> dict[str, str]:
        return {"ShardIteratorType": "TRIM_HORIZON"}

    def checkpoint(self, shard: str, sequence: str) -> None:
        pass


def main() -> None:
    # Between two calls; it takes 0 for its default of a second.
    consumer = KinesisConsumer("s", state=Beginning(), reader_sleep_time=0.001)

    def stop() -> None:
        consumer.run = False

    count = Count(int(sys.argv[1]), stop)
    for message in consumer:
        count.add(message["Data"])
    report(count.outcome())


if __name__ == "__main__":
    main()
