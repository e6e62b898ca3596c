"""Test what the query's progress shows, and that a query with an end comes to it, whatever became of its shards."""

from __future__ import annotations

import pytest
from by_hand import Lives, Row

from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

A = "shardId-000000000000"


def numbers(rows: list[Row]) -> list[tuple[int, int]]:
    """(number, attempt) of each row, sorted."""
    return sorted((row[0], row[2]) for row in rows)


def test_progress_shows_lag_and_what_is_in_flight_retried_and_dead_lettered(lives: Lives) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    for number in range(4):
        kinesis.put(A, str(number).encode())
        time.sleep(1)
    query = lives.begin(kinesis, maxFetchRecordsPerShard="2", retryLimit="1")
    assert query.run.report()["shards"][A]["checkpoint"] is None
    query.batch(failing=[0])
    query.planned()
    report = query.run.report()
    assert (report["txid"], report["inflight"], report["retrying"], report["deadLettered"]) == (1, 1, 1, 0)
    # The second of four records, one second apart: the turn ended there, and knows what it left.
    assert report["behindMs"] == report["shards"][A]["behindMs"] > 0
    while (0, 2) not in numbers(query.batch(failing=[0])):
        pass
    query.planned()
    report = query.run.report()
    # Exhausted now, on its way to the dead letter: in flight, but not retried.
    assert (report["inflight"], report["retrying"], report["shards"][A]["dead"]) == (1, 0, 1)
    assert (0, 3) not in numbers(query.batch() + query.drain())
    report = query.run.report()
    assert (report["inflight"], report["retrying"], report["deadLettered"], report["behindMs"]) == (
        0,
        0,
        1,
        0,
    )
    assert report["shards"][A]["deadLettered"] == 1


def test_a_query_with_an_end_reads_closed_shards_their_children_and_all_retries(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    kinesis.put(A, b"0")
    kinesis.put(A, b"1")
    left, right = kinesis.split(A)
    kinesis.put(left, b"2")
    kinesis.put(right, b"3")
    child = kinesis.merge(left, right)
    kinesis.put(child, b"4")
    query = lives.begin(kinesis, retryLimit="2")
    query.run.drain_and_end()
    rows: list[Row] = []
    failing = {0: 2, 2: 1, 4: 1}
    split = False
    while query.in_hand is not None or query.plan() is not None:
        bad = [number for number, times in failing.items() if times > 0]
        came = query.batch(failing=bad)
        for row in came:
            if failing.get(row[0], 0) > 0:
                failing[row[0]] -= 1
        rows += came
        if not split and any(row[0] == 4 for row in came):
            # Resharded while it comes to its end: the children hold nothing yet.
            kinesis.split(child)
            split = True
    assert numbers(rows) == [(0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)]
    assert query.run.report()["inflight"] == 0
    kinesis.put(kinesis.open_shards[0], b"5")
    after = lives.begin(kinesis, query.checkpoint)
    assert numbers(after.drain()) == [(5, 1)]


def test_a_query_with_an_end_comes_to_it_while_more_is_written_than_it_reads(lives: Lives) -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    written = iter(range(10_000))

    def produce() -> None:
        for _ in range(3):
            kinesis.put(A, str(next(written)).encode())
            time.sleep(1)

    produce()
    query = lives.begin(kinesis, maxFetchRecordsPerShard="2")
    query.run.drain_and_end()
    there = 3
    read: list[Row] = []
    while query.plan() is not None:
        read += query.batch(failing=[1])
        produce()
        assert len(read) < 10 * there
    assert {row[0] for row in read} >= set(range(there))
    assert numbers(read).count((1, 2)) == 1


HOUR_MS = 3_600_000


def test_the_lag_of_what_was_never_read_is_that_of_its_oldest_record(lives: Lives) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    kinesis.put(A, b"0")
    time.sleep(3 * 3600)
    query = lives.begin(kinesis)
    assert query.run.report()["behindMs"] is None
    query.planned()
    report = query.run.report()
    assert report["behindMs"] == report["shards"][A]["behindMs"] >= 3 * HOUR_MS
    query.batch()
    assert query.plan() is None
    assert query.run.report()["behindMs"] == 0


@pytest.mark.parametrize("left", [False, True])
def test_a_blocked_shard_lags_by_what_waits_in_it(lives: Lives, left: bool) -> None:
    lives.clock = time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    kinesis.put(A, b"0")
    if left:
        kinesis.put(A, b"1")
    query = lives.begin(
        kinesis, maxFetchRecordsPerShard="1", maxRetryingRecords="1", retryBackoff="1h..1h x1"
    )
    query.batch(failing=[0])
    if not left:
        kinesis.put(A, b"1")
    time.sleep(2 * 3600)
    for _ in range(3):
        assert query.plan() is None
    report = query.run.report()
    assert report["shards"][A]["blocked"]
    assert report["behindMs"] == report["shards"][A]["behindMs"] >= 2 * HOUR_MS


def test_of_very_many_shards_those_are_named_in_which_most_waits(lives: Lives) -> None:
    kinesis = MemoryKinesis(shards=130)
    late = kinesis.open_shards[-1]
    kinesis.put(late, b"129")
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    query.batch(failing=[129])
    assert query.plan() is None
    report = query.run.report()
    assert (len(report["shards"]), report["otherShards"]) == (100, 30)
    assert report["shards"][late]["retrying"] == 1
