"""An ensemble whose servers lag: what another process has made durable counts, whichever server is asked.

The families `lagging...` of tests/model/test_model.py play it without servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from by_hand import Lives, Query, Row
from ensemble import Ensemble
from kazoo.client import KazooClient
from thorough import cases

from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.position_keys import keys_of, pack_in_parts

pytestmark = [pytest.mark.chaos, pytest.mark.long]

LAGS = cases(0, 250, chaos=(50, 1000))
SHARDS = ("shardId-000000000000", "shardId-000000000001")
RECORDS = 31


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis(shards=2)
    for number in range(RECORDS):
        kinesis.put(SHARDS[number % 2], str(number).encode())
    return kinesis


@pytest.fixture
def lives(ensemble: Ensemble, app: str) -> Iterator[Lives]:
    """Lives whose planning process is at the server that lags, and that read eight records of a shard at a time."""
    lives = Lives(ensemble.follower, app, maxFetchRecordsPerShard="8", retryLimit="3")
    yield lives
    lives.end()


def drained(query: Query, judge: Callable[[Query, list[Row]], set[int]]) -> Counter[int]:
    """Run a query to its end: how often each record succeeded; `judge` publishes and says what failed."""
    done: Counter[int] = Counter()
    query.run.drain_and_end()
    while query.plan() is not None:
        rows = query.rows()
        failed = judge(query, rows)
        done.update(number for number, *_ in rows if number not in failed)
        query.commit()
    return done


def judge_once_failed(query: Query, rows: list[Row]) -> set[int]:
    """Each record fails the first time."""
    CurrentBatch.newest(query.store).say_judging()
    failed = [row for row in rows if row[2] == 1]
    query.publish(failed)
    return {row[0] for row in failed}


def judge_nothing(_query: Query, _rows: list[Row]) -> set[int]:
    return set()


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("judge", [judge_nothing, judge_once_failed])
def test_a_reader_that_lags_loses_nothing_and_counts_nothing_twice(
    ensemble: Ensemble,
    lives: Lives,
    kinesis: MemoryKinesis,
    make_client: Callable[..., KazooClient],
    lag: int,
    judge: Callable[[Query, list[Row]], set[int]],
) -> None:
    with ensemble.lagging(lag):
        query = lives.begin(kinesis)
        # The driver and the executors are at a server that does not lag.
        query.store = SourceStore(make_client(ensemble.leader), query.run.layout)
        assert drained(query, judge) == Counter(range(RECORDS))


@pytest.mark.parametrize("lag", LAGS)
def test_a_driver_that_lags_takes_the_batch_at_hand(
    ensemble: Ensemble, kinesis: MemoryKinesis, app: str, make_client: Callable[..., KazooClient], lag: int
) -> None:
    lives = Lives(ensemble.leader, app, maxFetchRecordsPerShard="8", retryLimit="3")
    try:
        with ensemble.lagging(lag):
            query = lives.begin(kinesis)
            driver = SourceStore(make_client(ensemble.follower), query.run.layout)

            def judge(query: Query, rows: list[Row]) -> set[int]:
                batch = CurrentBatch.newest(driver)
                assert query.in_hand is not None
                assert {row[3] for row in rows} <= {batch.txid} == {query.in_hand.txid}
                assert sum(pin.count for pin in batch.pins().values()) == len(rows)
                return judge_once_failed(query, rows)

            assert drained(query, judge) == Counter(range(RECORDS))
    finally:
        lives.end()


@pytest.mark.parametrize("lag", LAGS)
def test_an_ack_in_time_holds_where_the_reader_hears_of_it_late(
    ensemble: Ensemble,
    kinesis: MemoryKinesis,
    app: str,
    make_client: Callable[..., KazooClient],
    lag: int,
) -> None:
    # What is not acked comes back at once, so an ack that is not seen is seen to be missing.
    lives = Lives(
        ensemble.follower, app, ackMode="explicit", messageTimeout="1ms", maxFetchRecordsPerShard="8"
    )
    try:
        with ensemble.lagging(lag):
            query = lives.begin(kinesis)
            store = query.store = SourceStore(make_client(ensemble.leader), query.run.layout)

            def ack(_query: Query, rows: list[Row]) -> set[int]:
                for shard in SHARDS:
                    texts = [row[1].rpartition(":")[2] for row in rows if f"/{shard}:" in row[1]]
                    if texts:
                        keys = keys_of(np.array(texts), np.full(len(texts), -1))
                        for positions in pack_in_parts(keys):
                            store.external.add(shard, ExternalNode(op="ack", positions=positions))
                return set()

            assert drained(query, ack) == Counter(range(RECORDS))
            assert sum(query.run.report()["acks"].values()) == RECORDS
            assert query.run.report()["acks"]["acked"] == RECORDS
    finally:
        lives.end()
