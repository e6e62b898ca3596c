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
        # So little fits into a plan that most of what is due waits for another one.
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.due_bytes", lambda _: 2_000)
        monkeypatch.setattr("kinesis_trident.spout.planner.plan.waiting_bytes", lambda _: 0)
    rng = random.Random(5)
    kinesis = MemoryKinesis(shards=SHARDS)
    for shard in kinesis.open_shards:
        for number in range(RECORDS):
            kinesis.put(shard, b"%d" % (number + 1000 * int(shard[-2:])))
    fails = {number: rng.choice([0, 0, 1, 2]) for number in range(1000 * SHARDS)}
    done: Counter[int] = Counter()
    wanted = SHARDS * RECORDS

    def some(query: Query) -> None:
        if query.in_hand is None:
            query.planned()
        rows = query.rows()
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
            # Killed, some times with a batch in hand.
            if rng.random() < 0.5 and done.total() < wanted and query.plan() is not None:
                query.rows()
            query.end()
            query = lives.begin(kinesis, query.checkpoint)
    assert set(done.values()) == {1}
    assert query.drain() == []
    report = query.run.report()
    assert (report["inflight"], report["retrying"], report["deadLettered"]) == (0, 0, 0)
