"""A task's memory follows its bound: not how much there is to read, nor how many shards are read side by side."""

from __future__ import annotations

import pytest
from thorough import cases

from benchmarks.endpoint import Records
from benchmarks.task_memory import MIB, SHARDS, taken
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


@pytest.mark.parametrize(
    ("bound", "size", "page"),
    # Of the smaller bound, one answer could be more than all that a shard's turn may hold.
    cases((32 * MIB, 1024 * 1024, 10), long=((64 * MIB, 1024, 10_000), (32 * MIB, 1024, 10_000))),
)
def test_a_task_takes_its_bound_and_no_more_than_150_mb_more(
    zookeeper: EmbeddedZooKeeper, bound: int, size: int, page: int
) -> None:
    pages = bound // 4 // (size * page) + 1

    found = taken(zookeeper.hosts, Records(SHARDS, pages, page, size), bound)

    # Otherwise there was nothing to bound.
    assert found.read >= 1.5 * bound
    # Over what the interpreter with its libraries has before.
    assert found.peak - found.base <= bound + 150_000_000
