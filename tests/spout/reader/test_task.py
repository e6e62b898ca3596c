"""A task of several shards: its rows come in the order of the plan, whichever shard answers first."""

from __future__ import annotations

import dataclasses
import threading

from by_hand import Lives, Query

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.partition import LookedAt, TurnsPartition
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis

SHARDS = 30
FIRST = "shardId-000000000000"


class FirstShardLast(MemoryKinesis):
    """Shards of one record; once `hold` is called, the first one answers last.

    Attributes:
        given: the shards whose rows the test has.
        most_held: the greatest number of turns that had begun and were not given.
    """

    def __init__(self) -> None:
        super().__init__(shards=SHARDS)
        for shard in self.list_shards("orders"):
            self.put(shard.id, b"1")
        self._answered = threading.Condition()
        self._missing: int | None = None
        self._empty = False
        self._begun: set[str] = set()
        self.given: set[str] = set()
        self.most_held = 0

    def hold(self, others: int, *, empty: bool) -> None:
        """Let the first shard wait for so many answers of others, which show no record if `empty`."""
        self._missing, self._empty = others, empty

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `MemoryKinesis.get_records`."""
        page = super().get_records(iterator, limit)
        if self._missing is None:
            return page
        shard = iterator.rsplit("/", 3)[0]
        with self._answered:
            self._begun.add(shard)
            self.most_held = max(self.most_held, len(self._begun - self.given))
            if shard == FIRST:
                assert self._answered.wait_for(lambda: self._missing <= 0, timeout=60)
                return page
            self._missing -= 1
            self._answered.notify_all()
        return dataclasses.replace(page, records=page.records.slice(0, 0)) if self._empty else page


def task(query: Query) -> TurnsPartition:
    """The one task of the batch in hand, which reads everything itself."""
    query.planned()
    assert query.in_hand is not None
    (part,) = query.run.partitions(query.committed, query.in_hand)
    part.turns = tuple(dataclasses.replace(turn, looked_at=LookedAt()) for turn in part.turns)
    return part


def read(query: Query, part: TurnsPartition, kinesis: FirstShardLast) -> list[str]:
    """The shards of a task's rows, in their order."""
    shards: list[str] = []
    for batch in TurnReader(part, kinesis, query.store, look_first=False).rows():
        shards += batch.column("shardId").to_pylist()
        kinesis.given.add(shards[-1])
    return shards


def test_rows_come_in_the_order_of_the_plan_and_few_turns_are_in_memory(lives: Lives) -> None:
    kinesis = FirstShardLast()
    options = {"maxPartitions": "1", "maxFetchBytesPerTask": "40MiB", "maxFetchBytesPerShard": "4MiB"}
    query = lives.begin(kinesis, **options)
    part = task(query)
    # As many as there is room for beside it.
    kinesis.hold(9, empty=False)
    assert read(query, part, kinesis) == [turn.shard for turn in part.turns]
    assert len(part.turns) == SHARDS
    assert kinesis.most_held == 10


def test_a_slow_shard_does_not_keep_those_without_records_waiting(lives: Lives) -> None:
    kinesis = FirstShardLast()
    query = lives.begin(kinesis, maxPartitions="1")
    part = task(query)
    assert len(part.turns) == SHARDS
    kinesis.hold(SHARDS - 1, empty=True)
    assert read(query, part, kinesis) == [FIRST]
