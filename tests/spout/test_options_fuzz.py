"""Drawn queries: whatever options change at a restart, and however often a task is read, no record is lost.

`make chaos` plays more seeds, from other ones on; a failure names its own: `play(SEED)`.
"""

from __future__ import annotations

from random import Random

import pytest
from by_hand import SparkCheckpoint
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery
from thorough import CHAOS

from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

SEEDS = range(8000, 8200) if CHAOS else range(16)

CHOICES = {
    "maxRecordsPerFetch": ["1", "3", "1000"],
    "maxFetchRecordsPerShard": ["1", "7", "100000"],
    "maxRecordsPerTrigger": ["2", "9", "1000"],
    "maxBytesPerTrigger": ["5", "1MiB"],
    "minFetchPeriod": ["0ms", "200ms"],
    "maxShardSkew": ["auto", "off", "1s"],
    "prefetch": ["true", "false"],
    "shardOrdering": ["parentFirst", "none"],
    "shardsPerTask": ["auto", "1", "3"],
    "maxPartitions": ["1", "5"],
    "retryRangesPerShard": ["1", "4"],
    "retryLimit": ["1", "5"],
    "spout": ["opaque", "nontransactional"],
}


def play(seed: int) -> None:
    """Play some lives of one application over a stream that changes, and drain it."""
    rng, time = Random(seed), FakeTime()
    kinesis = MemoryKinesis(shards=rng.randint(1, 3), clock=time.milliseconds)
    zookeeper, checkpoint = MemoryZooKeeper(time.milliseconds), SparkCheckpoint()
    written, done = 0, []

    def change() -> None:
        nonlocal written
        for _ in range(rng.randint(0, 8)):
            shards = kinesis.open_shards
            match rng.randrange(8):
                case 0 if len(shards) < 5:
                    kinesis.split(rng.choice(shards))
                case 1 if len(shards) > 1:
                    at = rng.randrange(len(shards) - 1)
                    kinesis.merge(*shards[at : at + 2])
                case 2:
                    kinesis.expire_iterators(rng.choice(shards))
                case 3:
                    kinesis.gap(rng.choice(shards), 1)
                case _:
                    kinesis.put(rng.choice(shards), str(written).encode())
                    written += 1
            time.sleep(rng.choice([0.0, 0.1, 1.0]))

    for life in range(rng.randint(2, 4)):
        given = {key: rng.choice(values) for key, values in CHOICES.items() if rng.random() < 0.6}
        query = SteppedQuery(kinesis, time, zookeeper, checkpoint, **given)
        is_last = False
        for _ in range(rng.randint(1, 4)):
            change()
            if query.in_hand is None and query.plan() is None:
                continue
            rows = query.rows()
            if rng.random() < 0.4:
                # A second attempt, or action, gives the same.
                assert query.rows() == rows, f"seed {seed}, life {life}"
            failing = {row[0] for row in rows if row[2] == 1 and rng.random() < 0.2}
            query.publish(row for row in rows if row[0] in failing)
            is_last = rng.random() < 0.2
            if is_last:
                # Spark ends before it has committed: the batch comes again, and the outcome stands.
                break
            query.commit()
            done += [row[0] for row in rows if row[0] not in failing]
        query.end()
        if is_last:
            query = SteppedQuery(kinesis, time, zookeeper, checkpoint, **given)
            rows = query.rows()
            query.publish()
            query.commit()
            done += [row[0] for row in rows]
            query.end()
    query = SteppedQuery(kinesis, time, zookeeper, checkpoint)
    done += [row[0] for row in query.drain()]
    query.end()
    assert set(done) == set(range(written)), f"seed {seed}: lost {set(range(written)) - set(done)}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_is_lost_whatever_options_change(seed: int) -> None:
    play(seed)
