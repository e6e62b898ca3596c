"""A run keeps copies of its checkpoints in ZooKeeper: at its start, and once a day, a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import Lives, Query, numbers
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.codec import encode, read
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.checkpoint.store import changes
from kinesis_trident.testing import MemoryKinesis, SparkCheckpoint
from kinesis_trident.tracker.records import Run

A = "shardId-000000000000"


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(maxFetchRecordsPerShard="1")


def copies_of(query: Query) -> dict[str, BackupNode]:
    """Return the copies once the one that is being kept is there."""
    query.run._purger._executor.submit(lambda: None).result(60)
    return query.store.changes.backups()


def test_a_start_keeps_a_copy_where_something_was_settled_since(lives: Lives) -> None:
    kinesis, checkpoint = MemoryKinesis(), SparkCheckpoint()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(20)])
    query = lives.begin(kinesis, checkpoint)
    assert copies_of(query) == {}
    for txid in range(1, 15):
        assert numbers(query.batch()) == [txid - 1]
        query.plan()
        query.end()
        # A query that starts in vain pushes out no copy.
        lives.begin(kinesis, checkpoint).end()
        query = lives.begin(kinesis, checkpoint)
        (name, copy), *others = copies_of(query).items()
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
        copies = [copy.settled for copy in copies_of(life).values()]
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
    assert sorted(copy.settled for copy in copies_of(query).values()) == [1, 4]


def test_copies_are_packed_as_the_state_is_and_bounded_by_bytes(lives: Lives) -> None:
    query = lives.begin(MemoryKinesis())
    store, epoch = query.store, query.run.epoch
    runs = tuple(Run(str(number), str(number), 1, attempt=2, due=number) for number in range(0, 40_000, 2))
    copy = BackupNode(
        application="a", home="h", time=1, settled=1, inflight={A: InflightNode(txid=1, waiting=runs)}
    )
    assert len(encode(copy)) < 2 * len(encode(copy.inflight[A]))
    assert read(encode(copy), BackupNode) == copy
    for settled in range(1, 12):
        store.changes.keep(replace(copy, settled=settled, time=settled), epoch)
    size = len(encode(copy))
    kept = store.changes.backups()
    assert len(kept) == min(10, max(1, changes._BYTES_OF_RUNS // size))
    assert next(iter(kept.values())).settled == 11


def test_of_copies_that_are_too_large_the_newest_stays(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_BYTES_OF_RUNS", 100)
    query = lives.begin(MemoryKinesis())
    for settled in range(1, 4):
        copy = BackupNode(application="a" * 60, home="h", time=settled, settled=settled)
        query.store.changes.keep(copy, query.run.epoch)
    assert [one.settled for one in query.store.changes.backups().values()] == [3]
