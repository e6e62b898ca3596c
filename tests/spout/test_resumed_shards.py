"""A shard that stood, and is read again: its lag was there before, so the query does not fall behind."""

from __future__ import annotations

import math

import pytest
from stepped import SteppedQuery

from kinesis_trident.checkpoint.model.run_status import lag_growth
from kinesis_trident.spout.kinesis import Page, ThrottledError
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

MINUTE = 60


class Refusing:
    """Refuses the reads of one shard as long as it is told to."""

    def __init__(self, kinesis: MemoryKinesis, shard: str) -> None:
        self.describe, self.list_shards, self.put_records = (
            kinesis.describe,
            kinesis.list_shards,
            kinesis.put_records,
        )
        self.iterator, self._get_records = kinesis.iterator, kinesis.get_records
        self._shard = shard
        self.refuses = False

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        if self.refuses and self._shard in iterator:
            msg = "slow down"
            raise ThrottledError(msg)
        return self._get_records(iterator, limit)


@pytest.mark.parametrize("stands", ["refused", "blocked"])
def test_a_query_does_not_fall_behind_because_a_shard_is_read_again(stands: str, time: FakeTime) -> None:
    """It stands for about half an hour, and is read as fast as records come from then on."""
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    first, other = kinesis.open_shards
    refusing = Refusing(kinesis, first)
    query = SteppedQuery(
        refusing,  # type: ignore[arg-type]
        time,
        status_period=5.0,
        minFetchPeriod="0ms",
        maxFetchRecordsPerShard="1",
        maxRetryingRecords="1",
        retryBackoff="30m..30m x1",
    )
    resumed, asked = math.inf, 0
    for step in range(4 * MINUTE):
        refusing.refuses = stands == "refused" and 40 <= step < 160
        kinesis.put(first, b"9" if step == 40 else b"1")
        kinesis.put(other, b"2")
        time.sleep(15)
        query.planned()
        read = len(query.batch(failing=[9] if stands == "blocked" and step < 50 else []))
        if step > 50 and read > 1 and not refusing.refuses:
            resumed = min(resumed, step)
        status = query.store.status.get()
        # There is a sample a minute.
        if step > resumed + 4 and status is not None:
            growth = lag_growth(status.lags, status.reads)
            assert growth is None or growth <= 0, (step, status.lags)
            assert status.lags[-1][1] > 10 * MINUTE * 1000
            asked += growth is not None
    query.end()
    assert asked > 20
