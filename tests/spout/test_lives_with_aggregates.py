"""Lives of a query that are killed at each step, over shards that are split and hold aggregates: each record once.

`tests/model` plays far more of what happens to a query, with plain records.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from by_hand import Row, SparkCheckpoint
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery
from thorough import examples

from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.spout.kinesis import IteratorExpiredError, ThrottledError, Unavailable
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, aggregate

PLANNED, READ_IN_PART, READ, PUBLISHED, COMMITTED, NEVER = range(6)
"""The steps of a batch after which a life is killed."""


class Lives:
    """The lives of a query whose records fail now and then, and what became of each record."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.time = FakeTime()
        self.kinesis = MemoryKinesis(shards=rng.choice([1, 1, 2, 3]), clock=self.time.milliseconds)
        self.retries = rng.choice([0, 1, 2])
        self.put_records = 0
        self.done: dict[str, int] = {}
        self.failures: Counter[str] = Counter()
        self._often = rng.choice([0.0, 0.1, 0.5, 0.9])
        self._read: dict[str, list[Row]] = {}
        self._zookeeper = MemoryZooKeeper(self.time.milliseconds)
        self._checkpoint = SparkCheckpoint()
        self._options = {
            "retryLimit": f"{self.retries}",
            "prefetch": rng.choice(["false", "true"]),
            "maxRecordsPerFetch": rng.choice(["1", "2", "3", "7", "10000"]),
            "maxFetchRecordsPerShard": rng.choice(["1", "3", "10", "100000"]),
            "retryRangesPerShard": rng.choice(["1", "2", "3"]),
            "retryBytesPerShard": rng.choice(["100b", "1KiB", "4MiB"]),
            "maxRetryingRecords": rng.choice(["1", "5", "1000"]),
            "retryBackoff": rng.choice(["1ms..1ms x1", "1s..10s x2"]),
            "shardsPerTask": rng.choice(["1", "3"]),
            "describeShardInterval": "1s",
        }
        self.query = self._begin()

    def _begin(self) -> SteppedQuery:
        return SteppedQuery(self.kinesis, self.time, self._zookeeper, self._checkpoint, **self._options)

    def happen(self) -> None:
        """Write some records, and let happen to their shards what may."""
        rng, kinesis = self.rng, self.kinesis
        for _ in range(rng.choice([0, 1, 2, 6])):
            shard, size = rng.choice(kinesis.open_shards), rng.choice([0, 0, 0, 1, 2, 8])
            users = [(self._data(), rng.choice(["k", "ü" * 5, "😀"])) for _ in range(size)]
            kinesis.put(shard, aggregate(users) if users else self._data())
        if rng.random() < 0.2:
            kinesis.split(rng.choice(kinesis.open_shards))
        elif rng.random() < 0.2 and len(kinesis.open_shards) > 1:
            kinesis.merge(*kinesis.open_shards[:2])
        shard = rng.choice(kinesis.open_shards)
        if rng.random() < 0.2:
            errors = [ThrottledError("slow"), Unavailable("away"), IteratorExpiredError("old")]
            kinesis.fail(shard, *rng.choices(errors, k=rng.choice([1, 2, 5])))
        if rng.random() < 0.2:
            kinesis.break_off(shard, rng.choice([1, 3]))
        kinesis.tells_lag = rng.random() < 0.8
        self.time.sleep(rng.choice([0, 0.1, 2, 15]))

    def _data(self) -> bytes:
        self.put_records += 1
        return b"%d" % self.put_records + b" " * self.rng.choice([0, 0, 5, 1000])

    def live(self, killed: int) -> None:
        """Run a batch up to a step, and kill the life there."""
        if not self._reaches(killed):
            if self.rng.random() < 0.5:
                self.query.end()
            self.query = self._begin()

    def _reaches(self, killed: int) -> bool:
        query = self.query
        if query.in_hand is None and query.plan() is None:
            self.time.sleep(1)
            return True
        plan = query.in_hand
        assert plan is not None
        if killed == READ_IN_PART:
            for part in query.parts():
                if self.rng.random() < 0.5:
                    query.task(part)
        if killed <= READ_IN_PART:
            return False
        rows = query.rows()
        assert rows == self._read.setdefault(plan.plan, rows)
        assert len({row[1] for row in rows}) == len(rows)
        if killed == READ:
            return False
        failed = {row[1] for row in rows if self.rng.random() < self._often}
        valid = query.publish(row for row in rows if row[1] in failed)
        if valid is not None:
            failed = self._names(valid)
        if killed == PUBLISHED:
            return False
        for _, name, attempt, txid in rows:
            assert name not in self.done
            assert attempt == self.failures[name] + 1 <= self.retries + 1
            if name in failed:
                self.failures[name] += 1
            else:
                self.done[name] = txid
        query.commit()
        return killed != COMMITTED

    def _names(self, outcome: BatchOutcome) -> set[str]:
        layout = self.query.run.layout
        return {f"{layout.source_of(s)}:{one.last}" for s, runs in outcome.not_done.items() for one in runs}

    def end_well(self) -> None:
        """Let nothing happen any more until each record is done, or has failed too often."""
        self._often, self.kinesis.tells_lag = 0.0, True
        self.kinesis.clear()
        for _ in range(400):
            self.live(NEVER)
            if len(self.done) + len(self.dead) == self.put_records and self.query.in_hand is None:
                break

    @property
    def dead(self) -> set[str]:
        """Return the records that have failed too often."""
        return {name for name, count in self.failures.items() if count > self.retries}


@pytest.mark.parametrize("seed", range(examples(40)))
def test_each_record_is_done_once_or_has_failed_too_often(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(lives.rng.randrange(4, 14)):
        lives.happen()
        lives.live(lives.rng.choice([PLANNED, READ_IN_PART, READ, PUBLISHED, COMMITTED, *[NEVER] * 4]))
    lives.end_well()
    assert not lives.done.keys() & lives.dead
    assert len(lives.done) + len(lives.dead) == lives.put_records
