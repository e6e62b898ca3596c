"""A stream to write to: how its rows are collected, packed and sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinesis_trident.spout.kinesis.put_pools import (
    REQUEST_BYTES,
    Entry,
    Filling,
    Pool,
    RecordPool,
    RequestBound,
)
from kinesis_trident.spout.kinesis.put_records import Send
from kinesis_trident.spout.sink.aggregates import AggregatePool
from kinesis_trident.spout.sink.shard_map import ShardMap

__all__ = ["Aggregation", "Target"]

_SHARD_BYTES = 256 * 2**10
"""Bytes of a request for each shard, as in the KPL: more would be a burst, which the shard refuses in part."""

_ROW_BYTES = 200
"""The memory of a row in addition to its payload and key."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The settings of aggregates: the shards, and the maximum bytes of one."""

    shards: ShardMap
    most: int


@dataclass(frozen=True, eq=False, slots=True)
class Target:
    """One stream. `where` is for errors, `aggregation` None to send each row as a record of its own."""

    send: Send
    where: str = "the stream"
    bound: RequestBound = field(default_factory=RequestBound)
    aggregation: Aggregation | None = None

    def filling(self) -> Filling:
        """Return an empty collection of rows for one request."""
        if self.aggregation is None:
            return Filling(self.bound)
        return _AggregateFilling(self.bound, self.aggregation.shards)

    def pool(self, request: list[Entry]) -> Pool:
        """Return the pool that sends the collected rows."""
        if self.aggregation is None:
            return RecordPool(request)
        return AggregatePool(request, self.aggregation.shards, self.aggregation.most)


class _AggregateFilling(Filling):
    """Collects the rows of one request; how many records they become is known when they are packed."""

    def __init__(self, bound: RequestBound, shards: ShardMap) -> None:
        super().__init__(bound)
        self._shards = shards

    def add(self, entry: Entry, size: int) -> list[Entry]:
        """See `Filling.add`."""
        full: list[Entry] = []
        most = min(self._bound.bytes, _SHARD_BYTES * len(self._shards))
        is_full = self.size + size > most or self.size + _ROW_BYTES * len(self.entries) > REQUEST_BYTES
        if self.entries and is_full:
            full = self.take()
        self.entries.append(entry)
        self.size += size
        return full
