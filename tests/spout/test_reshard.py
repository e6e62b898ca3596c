"""Random histories of a stream that reshards while it is read: every record once, the records of a key in order."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.spout.kinesis import AfterShard, IteratorExpiredError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.modes import ShardOrdering
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.shards.lineage import (
    add_new_shards,
    find_readable,
    mark_drained,
    start_lineage,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, Position, parse_position
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

OPTIONS = SourceOptions(stream_name="orders", max_records_per_fetch=4)


class Reader:
    """Batch after batch, as planning and tasks do it, without ZooKeeper: what came, by batch."""

    def __init__(self, kinesis: MemoryKinesis, time: FakeTime, ordering: ShardOrdering) -> None:
        self.kinesis, self.time, self.ordering = kinesis, time, ordering
        self.lineage: dict[str, ShardLineage] = start_lineage(kinesis.list_shards("orders"), TRIM_HORIZON)
        self.positions: dict[str, Position] = {}
        self.came: list[tuple[int, str, int, str]] = []
        self.batches = 0

    def list_shards(self) -> None:
        listed = self.kinesis.list_shards("orders")
        found = add_new_shards(self.lineage, listed)
        self.lineage = {shard.id: found[shard.id] for shard in listed if shard.id in found}

    def list_new(self, *, filters: bool) -> None:
        """As far as the server has filters: else it lists everything."""
        since = AfterShard(max(self.lineage)) if filters else None
        self.lineage = add_new_shards(self.lineage, self.kinesis.list_shards("orders", since))

    def batch(self, records: int) -> None:
        """Read every shard that may be read; what it learns counts from the next batch on."""
        self.batches += 1
        ended = []
        for shard in find_readable(self.lineage, self.ordering):
            limiter = ShardLimiter(
                Budget.of(0, 1e15), clock=self.time, sleep=self.time.sleep, rng=random.Random(1)
            )
            fetcher = ShardFetcher(
                self.kinesis, "orders", shard, OPTIONS, limiter=limiter, wall=self.time.milliseconds
            )
            start = self.positions.get(shard) or parse_position(self.lineage[shard].start)
            turn = fetcher.fetch_new(start, Bounds(records, 10**9, 60))
            for batch in turn.batches:
                rows = zip(
                    batch.column("data").to_pylist(), batch.column("partitionKey").to_pylist(), strict=True
                )
                self.came += [(self.batches, shard, int(data), key) for data, key in rows]
            self.positions[shard] = turn.end
            if turn.closed:
                ended.append(shard)
        self.lineage = mark_drained(self.lineage, ended)

    @property
    def state(self) -> tuple[object, ...]:
        return len(self.came), dict(self.positions), dict(self.lineage)


class History:
    """The changes of the stream, drawn."""

    def __init__(self, data: st.DataObject) -> None:
        self.time = FakeTime()
        self.draw = data.draw
        self.kinesis = MemoryKinesis(shards=self.number(1, 3), clock=self.time.milliseconds)
        self.written = 0

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one(self) -> str:
        return self.draw(st.sampled_from(self.kinesis.open_shards))

    def put(self) -> None:
        last = self.written + self.number(1, 9)
        self.kinesis.put_records("orders", [(b"%d" % n, f"key-{n % 5}") for n in range(self.written, last)])
        self.written = last

    def split(self) -> None:
        self.kinesis.split(self.one())

    def merge(self) -> None:
        pairs = list(pairwise(self.kinesis.open_shards))
        if pairs:
            self.kinesis.merge(*self.draw(st.sampled_from(pairs)))

    def gap(self) -> None:
        self.kinesis.gap(self.one(), self.number(1, 3))

    def fault(self) -> None:
        error = self.draw(st.sampled_from([ThrottledError, Unavailable, IteratorExpiredError]))
        self.kinesis.fail(self.one(), error("scripted"))


@pytest.mark.parametrize("ordering", get_args(ShardOrdering))
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_history_is_read_once_and_in_order(ordering: ShardOrdering, data: st.DataObject) -> None:
    history = History(data)
    reader = Reader(history.kinesis, history.time, ordering)
    happens = [history.put, history.put, history.split, history.merge, history.gap, history.fault]
    reads = [
        lambda: reader.batch(history.number(1, 9)),
        reader.list_shards,
        lambda: reader.list_new(filters=True),
        lambda: reader.list_new(filters=False),
    ]
    for step in data.draw(st.lists(st.integers(0, 10), max_size=40)):
        history.time.sleep(0.01)
        [*happens, *reads, reads[0]][step]()
    # Else a shard that is refused three times in a row would look as if it had nothing more.
    history.kinesis.clear()
    still = 0
    while still < 3:
        before = reader.state
        reader.list_shards()
        reader.batch(5)
        still = still + 1 if reader.state == before else 0
    assert sorted(number for _, _, number, _ in reader.came) == list(range(history.written))
    if ordering == "parentFirst":
        check_order(reader, history.kinesis)


def check_order(reader: Reader, kinesis: MemoryKinesis) -> None:
    """The records of a key come as they were written, and children in a batch after their parents' last."""
    by_key: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    spans: dict[str, list[int]] = defaultdict(list)
    for batch, shard, number, key in reader.came:
        by_key[key].append((batch, number, shard))
        spans[shard].append(batch)
    for found in by_key.values():
        assert [number for _, number, _ in found] == sorted(number for _, number, _ in found)
        assert len({(batch, shard) for batch, _, shard in found}) == len({batch for batch, _, _ in found})
    for shard in kinesis.list_shards("orders"):
        for parent in shard.parents:
            if spans[parent] and spans[shard.id]:
                assert max(spans[parent]) < min(spans[shard.id])
