"""A task: its rows come in the order of the plan, whichever shard answers first; its dead letters come once."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from pathlib import Path

import pyarrow as pa
import pytest
from by_hand import Lives, Query, numbers

from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.kinesis import KinesisError, Page, ThrottledError
from kinesis_trident.spout.partition import TurnsPartition
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis

SHARDS = 30
FIRST = "shardId-000000000000"

RECORDS, SIZE = 4, 255 * 2**10
"""Of each shard whose memory is counted: a little less than a MiB, which a turn may read."""


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
    return dataclasses.replace(
        part, turns=tuple(dataclasses.replace(turn, cursor=None) for turn in part.turns)
    )


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


class CountingPool:
    """Counts how often the memory that Arrow keeps for later is returned."""

    def __init__(self) -> None:
        self.released = 0
        self._pool = pa.default_memory_pool()

    def release_unused(self) -> None:
        """See `pyarrow.MemoryPool.release_unused`."""
        self.released += 1
        self._pool.release_unused()


@pytest.mark.parametrize("at_a_time", ["1MiB", "4MiB"], ids=["one turn at a time", "several at a time"])
@pytest.mark.parametrize(("shards", "releases"), [(15, 0), (40, 2)])
def test_memory_is_returned_once_for_16_mib_of_rows(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, at_a_time: str, shards: int, releases: int
) -> None:
    kinesis = MemoryKinesis(shards=shards)
    for shard in kinesis.list_shards("orders"):
        for _ in range(RECORDS):
            kinesis.put(shard.id, bytes(SIZE))
    options = {"maxFetchBytesPerTask": at_a_time, "maxFetchBytesPerShard": "1MiB"}
    query = lives.begin(kinesis, maxPartitions="1", **options)
    part = task(query)
    pool = CountingPool()
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    reader = TurnReader(part, kinesis, query.store, look_first=False)
    assert sum(batch.num_rows for batch in reader.rows()) == shards * RECORDS
    assert pool.released == releases


class Failing(MemoryKinesis):
    """Fails the calls of `get_records` for which there is an error, in order; None lets one through."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: deque[KinesisError | None] = deque()

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `MemoryKinesis.get_records`."""
        error = self.errors.popleft() if self.errors else None
        if error is not None:
            raise error
        return super().get_records(iterator, limit)


def fails(*_: object) -> None:
    """Fail where a turn is to be pinned: its letters are written."""
    msg = "the first task fails before its pin"
    raise KinesisError(msg)


def test_a_task_that_is_repeated_writes_the_same_dead_letters(
    lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there before the pin. What a throttled second task left for a later batch was there twice."""
    kinesis = Failing()
    (shard,) = kinesis.open_shards
    kinesis.put(shard, b"1")
    query = lives.begin(kinesis, onExhausted="deadLetter", deadLetter=str(tmp_path))
    for _ in range(2):
        assert numbers(query.batch({1})) == [1]
    kinesis.put(shard, b"2")
    part = task(query)
    with monkeypatch.context() as patch:
        patch.setattr(type(query.store.batches), "create_pin", fails)
        with pytest.raises(KinesisError, match="the first task fails"):
            query.task(part)
    assert [letter.data for letter in read_dead_letters(tmp_path)] == [b"1"]
    kinesis.errors.append(ThrottledError("the second one has to wait"))
    query.task(part)
    query.publish()
    query.commit()
    query.drain()
    assert [(letter.data, letter.txid) for letter in read_dead_letters(tmp_path)] == [(b"1", part.txid)]


def exhausted(lives: Lives, folder: Path, shards: int) -> tuple[Query, MemoryKinesis]:
    """A life whose next plan has a dead letter of each shard."""
    kinesis = MemoryKinesis(shards=shards)
    for number, shard in enumerate(kinesis.open_shards):
        kinesis.put(shard, str(number).encode())
    query = lives.begin(kinesis, onExhausted="deadLetter", deadLetter=str(folder))
    for _ in range(2):
        assert numbers(query.batch(range(shards))) == list(range(shards))
    query.planned()
    return query, kinesis


def files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def said(folder: Path) -> list[int]:
    return sorted(int(letter.data or b"") for letter in read_dead_letters(folder))


def test_a_task_writes_the_dead_letters_of_its_shards_as_one_file(lives: Lives, tmp_path: Path) -> None:
    query, _ = exhausted(lives, tmp_path, 7)
    (part,) = query.run.partitions(query.committed, query.in_hand)  # type: ignore[arg-type]
    assert query.task(part) == []
    assert (files(tmp_path), said(tmp_path)) == (1, list(range(7)))


@pytest.mark.parametrize("pinned", [0, 3])
def test_a_task_that_is_repeated_or_cut_otherwise_leaves_each_letter_once(
    lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: int
) -> None:
    query, kinesis = exhausted(lives, tmp_path, 7)
    (part,) = query.run.partitions(query.committed, query.in_hand)  # type: ignore[arg-type]
    create, count = type(query.store.batches).create_pin, itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(
            type(query.store.batches),
            "create_pin",
            lambda *given: create(*given) if next(count) < pinned else fails(),
        )
        with pytest.raises(KinesisError, match="before its pin"):
            query.task(part)
    assert (files(tmp_path), said(tmp_path)) == (1, list(range(7)))
    query.end()
    again = lives.begin(
        kinesis, query.checkpoint, shardsPerTask="2", onExhausted="deadLetter", deadLetter=str(tmp_path)
    )
    assert again.rows() == []
    assert (files(tmp_path), said(tmp_path)) == (1, list(range(7)))


def test_a_turn_that_fails_does_not_keep_the_letters_of_others_waiting(lives: Lives, tmp_path: Path) -> None:
    query, kinesis = exhausted(lives, tmp_path, 3)
    (part,) = query.run.partitions(query.committed, query.in_hand)  # type: ignore[arg-type]
    kinesis.fail(kinesis.open_shards[1], KinesisError("this shard cannot be read"))
    with pytest.raises(KinesisError, match="this shard cannot be read"):
        query.task(part)
    # Spark repeats it.
    assert list(TurnReader(part, kinesis, query.store, look_first=True).rows()) == []
    assert said(tmp_path) == [0, 1, 2]
