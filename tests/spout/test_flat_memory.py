"""What the planning process keeps does not grow with the batches: thousands, with failures in each."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

from by_hand import Row
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery

from kinesis_trident.spout.query_by_hand import QueryByHand
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

HERE = tracemalloc.Filter(inclusive=False, filename_pattern="*/tests/*")
OURS = [
    tracemalloc.Filter(inclusive=True, filename_pattern=f"*/kinesis_trident/{folder}/*")
    for folder in ("spout/planner", "tracker", "checkpoint")
]


def kept() -> int:
    """The bytes that the planning process has allocated and not freed, without what its servers keep."""
    gc.collect()
    found = tracemalloc.take_snapshot().filter_traces(OURS).filter_traces([HERE])
    return sum(one.size for one in found.statistics("filename"))


class AlikeFailures(SteppedQuery):
    """A life whose records fail for one reason: the log counts reasons, and forgets them once a minute."""

    def publish(self, rows: Iterable[Row] = ()) -> None:
        """See `QueryByHand.publish`."""
        QueryByHand.publish(self, rows)


def test_what_the_planning_process_keeps_is_flat(time: FakeTime, tmp_path: Path) -> None:
    """Each third record fails three times, and is dead-lettered."""
    kinesis, zookeeper = MemoryKinesis(shards=2, clock=time.milliseconds), MemoryZooKeeper(time.milliseconds)
    folder = {"retryLimit": "2", "onExhausted": "deadLetter", "deadLetter": str(tmp_path)}
    query = AlikeFailures(kinesis, time, zookeeper, **folder)
    number = 0

    def run(batches: int) -> None:
        nonlocal number
        for _ in range(batches):
            for shard in kinesis.open_shards * 30:
                kinesis.put(shard, str(number).encode())
                number += 1
            query.batch(failing=range(number % 3, number, 3))
            time.sleep(1)
            zookeeper.forget()

    run(8)
    tracemalloc.start()
    try:
        # What is kept for some batches has to be traced from its start: else its first trace counts as growth.
        run(14)
        before = kept()
        run(6)
        # What the runs of each plan were packed to took 14 KB a batch.
        assert kept() - before < 6 * 4_000
    finally:
        tracemalloc.stop()
