"""What a query writes grows as its work does: bytes and operations at n and 4n."""

from __future__ import annotations

import pytest

from benchmarks.growth import Curve
from benchmarks.planning import measured
from benchmarks.small_server import work_off
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

MOST = 4.6
"""The cost at 4 n, as a multiple of that at n: b is at most 1.1."""


def test_what_is_written_until_all_are_done_grows_as_what_waits(zookeeper: EmbeddedZooKeeper) -> None:
    small, large = (work_off(zookeeper.hosts, 1, records).written for records in (400, 1_600))
    # A slow machine writes its status more often meanwhile.
    assert small < large <= MOST * small


def test_a_batch_of_shards_grows_as_they_do(zookeeper: EmbeddedZooKeeper) -> None:
    small, large = (measured(shards, zookeeper.hosts, batches=2) for shards in (60, 240))
    assert large.operations <= MOST * small.operations
    assert 2 * small.offset < large.offset <= MOST * small.offset


@pytest.mark.parametrize(("power", "verdict"), [(1, "1.00"), (2, "2.00, missed")])
def test_b_is_the_exponent_between_the_last_two_sizes(power: int, verdict: str) -> None:
    curve = Curve("sorting", "records", "ms", (10, 100, 1_000), [10**power, 100**power, 1_000**power])
    assert curve.row[-2:] == [verdict, "+0.00"]


def test_the_bend_is_how_much_faster_a_cost_grows_at_last() -> None:
    assert Curve("sorting", "records", "ms", (10, 100, 1_000), [1, 10, 1_000]).row[-1] == "+1.00"
