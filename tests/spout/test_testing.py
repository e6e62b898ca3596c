from __future__ import annotations

import pytest

from kinesis_trident.spout.kinesis import IteratorExpiredError, KinesisError, Shard, StreamMissingError
from kinesis_trident.spout.positions import TRIM_HORIZON, After, AtTimestamp
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition

FIRST = "shardId-000000000000"


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def kinesis(time: FakeTime) -> MemoryKinesis:
    return MemoryKinesis(clock=time.milliseconds)


def read(
    kinesis: MemoryKinesis, shard: str, position: object = TRIM_HORIZON, limit: int = 100
) -> list[bytes]:
    page = kinesis.get_records(kinesis.iterator("orders", shard, str(position)), limit)
    return page.records.column("data").to_pylist()


def test_resharding_closes_parents_and_names_them(kinesis: MemoryKinesis) -> None:
    left, right = kinesis.split(FIRST)
    child = kinesis.merge(left, right)
    assert kinesis.list_shards("orders") == [
        Shard(FIRST, (), True),
        Shard(left, (FIRST,), True),
        Shard(right, (FIRST,), True),
        Shard(child, (left, right), False),
    ]
    kinesis.forget(FIRST)
    assert [shard.id for shard in kinesis.list_shards("orders")] == [left, right, child]
    assert kinesis.split(child)[0] not in (FIRST, left, right, child)
    with pytest.raises(KinesisError, match="closed"):
        kinesis.put(child, b"x")


def test_a_closed_shard_ends_and_an_open_one_does_not(kinesis: MemoryKinesis) -> None:
    kinesis.put(FIRST, b"x")
    iterator = kinesis.iterator("orders", FIRST, "TRIM_HORIZON")
    assert kinesis.get_records(iterator, 10).next_iterator is not None
    kinesis.close(FIRST)
    assert kinesis.get_records(iterator, 10).next_iterator is None


def test_a_key_always_goes_to_the_same_shard() -> None:
    kinesis = MemoryKinesis(shards=3)
    kinesis.put_records("orders", [(b"%d" % n, f"key-{n % 20}") for n in range(100)])
    homes: dict[str, set[str]] = {}
    for shard in kinesis.list_shards("orders"):
        page = kinesis.get_records(kinesis.iterator("orders", shard.id, "TRIM_HORIZON"), 1000)
        for key in page.records.column("partitionKey").to_pylist():
            homes.setdefault(key, set()).add(shard.id)
    assert len(homes) == 20
    assert all(len(found) == 1 for found in homes.values())
    assert len(set().union(*homes.values())) == 3


def test_positions_and_trimming(kinesis: MemoryKinesis, time: FakeTime) -> None:
    first = kinesis.put(FIRST, b"a")
    time.sleep(10)
    now = time.milliseconds()
    kinesis.put(FIRST, b"b")
    assert len(str(first)) == 56
    assert read(kinesis, FIRST, AtTimestamp(now)) == [b"b"]
    assert read(kinesis, FIRST, After(RecordPosition(first))) == [b"b"]
    kinesis.trim(FIRST, first)
    assert read(kinesis, FIRST) == [b"b"]


def test_a_page_has_at_most_ten_mebibytes(kinesis: MemoryKinesis) -> None:
    for _ in range(3):
        kinesis.put(FIRST, bytes(4 * 2**20))
    page = kinesis.get_records(kinesis.iterator("orders", FIRST, "TRIM_HORIZON"), 100)
    assert page.records.num_rows == 2
    assert page.behind_ms > 0


def test_scripted_faults_come_once(kinesis: MemoryKinesis) -> None:
    kinesis.put(FIRST, b"a")
    iterator = kinesis.iterator("orders", FIRST, "TRIM_HORIZON")
    kinesis.fail(FIRST, KinesisError("once"))
    with pytest.raises(KinesisError, match="once"):
        kinesis.get_records(iterator, 1)
    assert kinesis.get_records(iterator, 1).records.num_rows == 1
    kinesis.expire_iterators(FIRST)
    with pytest.raises(IteratorExpiredError):
        kinesis.get_records(iterator, 1)
    assert read(kinesis, FIRST) == [b"a"]


def test_a_gap_is_walked_through_by_each_reader(kinesis: MemoryKinesis) -> None:
    kinesis.put(FIRST, b"a")
    kinesis.gap(FIRST, 2)
    kinesis.put(FIRST, b"b")
    for _ in range(2):
        iterator: str | None = kinesis.iterator("orders", FIRST, "TRIM_HORIZON")
        pages = []
        while iterator is not None and len(pages) < 4:
            page = kinesis.get_records(iterator, 10)
            pages.append((page.records.num_rows, page.behind_ms > 0))
            iterator = page.next_iterator
        assert pages == [(1, True), (0, True), (0, True), (1, False)]


def test_another_stream_is_missing(kinesis: MemoryKinesis) -> None:
    with pytest.raises(StreamMissingError):
        kinesis.describe("other")
    assert kinesis.describe("orders").name == "orders"
