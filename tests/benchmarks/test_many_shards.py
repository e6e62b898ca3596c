"""Planning very many shards: what it costs grows with their number, not faster."""

from __future__ import annotations

from time import process_time

import pytest

from benchmarks.planning import measured, measured_apart
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


def test_ten_times_the_shards_cost_no_more_than_three_times_that(zookeeper: EmbeddedZooKeeper) -> None:
    # Twice, so that what else this process does now and then, a large collection of garbage say, does not count.
    few, many = (
        [measured(shards, zookeeper.hosts, batches=1, clock=process_time) for _ in range(2)]
        for shards in (100, 1_000)
    )
    for name in ("start", "first", "plan", "cut", "settle"):
        least, most = (min(getattr(cost, name) for cost in costs) for costs in (few, many))
        # What is the same for any number of shards weighs more with few of them.
        assert most < 30 * max(least, 0.01), name
    assert many[0].offset < 11 * few[0].offset


@pytest.mark.long
def test_plans_of_ten_thousand_shards_fit_into_a_small_process(zookeeper: EmbeddedZooKeeper) -> None:
    """Time and size grow with the shards, says the test above; this one measures the memory of a whole process."""
    # The interpreter and its libraries included.
    assert measured_apart(10_000, zookeeper.hosts).peak < 300 * 2**20
