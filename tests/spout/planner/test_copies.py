"""A run keeps copies of its checkpoints in ZooKeeper: at its start, and once a day, a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import Lives, numbers

from kinesis_trident.testing import MemoryKinesis, SparkCheckpoint


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(maxFetchRecordsPerShard="1")


def test_a_start_keeps_a_copy_where_something_was_settled_since(lives: Lives) -> None:
    kinesis, checkpoint = MemoryKinesis(), SparkCheckpoint()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(20)])
    query = lives.begin(kinesis, checkpoint)
    assert query.store.changes.backups() == {}
    for txid in range(1, 15):
        assert numbers(query.batch()) == [txid - 1]
        query.plan()
        query.end()
        # A query that starts in vain pushes out no copy.
        lives.begin(kinesis, checkpoint).end()
        query = lives.begin(kinesis, checkpoint)
        (name, copy), *others = query.store.changes.backups().items()
        assert len(others) == min(txid, 10) - 1
        assert copy.settled == txid
        assert name.endswith(f"-run-{txid}")
        assert copy.checkpoints == query.store.shards.checkpoints()


@pytest.mark.parametrize("stepped", [0.0, -3600.0])
def test_a_copy_is_kept_and_comes_first_whatever_the_clock_says(lives: Lives, stepped: float) -> None:
    """It was ahead while the copies before were made; or stands still, as that of a machine that is restored."""
    kinesis, checkpoint, now = MemoryKinesis(), SparkCheckpoint(), 1_900_000_000.0
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(20)])
    for txid in range(1, 13):
        lives.clock = lambda now=now: now
        query = lives.begin(kinesis, checkpoint)
        query.batch()
        query.plan()
        query.end()
        now += stepped
        life = lives.begin(kinesis, checkpoint)
        copies = [copy.settled for copy in life.store.changes.backups().values()]
        life.end()
        assert copies == list(range(txid, max(0, txid - 10), -1))


def test_a_long_run_keeps_a_copy_each_day(lives: Lives) -> None:
    kinesis, now = MemoryKinesis(), [1_900_000_000.0]
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(5)])
    lives.clock = lambda: now[0]
    query = lives.begin(kinesis)
    for hours in (0, 1, 22, 25, 30):
        now[0] = 1_900_000_000.0 + hours * 3600
        query.batch()
        query.plan()
        query.run.purge()
    assert sorted(copy.settled for copy in query.store.changes.backups().values()) == [1, 4]
