"""Hundreds of failing records a batch: packed wherever they are kept, and each succeeds in exactly one batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from by_hand import Lives, Query

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import MemoryKinesis

SHARDS = 3
RECORDS = 400


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Lives]:
    held = Lives(zookeeper.hosts, app, retryLimit="9", describeShardInterval="10s")
    yield held
    held.end()


@pytest.mark.parametrize("narrow", [False, True])
def test_each_record_succeeds_in_exactly_one_batch(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, narrow: bool
) -> None:
    if narrow:
        # So little fits into an offset that most of what is due is in the stored plan alone.
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.due_bytes", lambda _: 500)
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.waiting_bytes", lambda _: 0)
    rng = random.Random(5)
    kinesis = MemoryKinesis(shards=SHARDS)
    for shard in kinesis.open_shards:
        for number in range(RECORDS):
            kinesis.put(shard, b"%d" % (number + 1000 * int(shard[-2:])))
    fails = {number: rng.choice([0, 0, 1, 2]) for number in range(1000 * SHARDS)}
    done: Counter[int] = Counter()
    beyond = 0
    wanted = SHARDS * RECORDS

    def some(query: Query) -> None:
        nonlocal beyond
        plan = query.in_hand or query.planned()
        rows = query.rows()
        named = sum(run.count for runs in plan.retries.values() for run in runs)
        beyond += max(0, sum(row[2] > 1 for row in rows) - named)
        bad = [row for row in rows if fails[row[0]] >= row[2]]
        query.publish(bad)
        query.commit()
        done.update(row[0] for row in rows if fails[row[0]] < row[2])

    query = lives.begin(kinesis)
    batches = 0
    while done.total() < wanted:
        some(query)
        batches += 1
        if batches % 3 == 0:
            # Killed, some times with a batch in hand, of which rows were read, or which only Spark knows.
            if (
                rng.random() < 0.7
                and done.total() < wanted
                and query.plan() is not None
                and rng.random() < 0.5
            ):
                query.rows()
            query.end()
            query = lives.begin(kinesis, query.checkpoint)
    assert set(done.values()) == {1}
    assert (beyond > 100) is narrow
    assert query.drain() == []
    report = query.run.report()
    assert (report["inflight"], report["retrying"], report["deadLettered"]) == (0, 0, 0)
