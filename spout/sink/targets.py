"""A stream to write to: how its rows are collected, packed and sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.kinesis.put_pools import REQUEST_BYTES, Filling, RequestBound
from kinesis_trident.spout.kinesis.put_records import Send
from kinesis_trident.spout.sink.aggregates import ROW_BYTES, Aggregation
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.shard_map import ShardMap

_SHARD_BYTES = 256 * 2**10
"""Bytes of a request for each shard, as in the KPL: more would be a burst, which the shard refuses in part."""


@dataclass(frozen=True, eq=False, slots=True)
class StreamTarget:
    """One stream. `where` is for errors, `aggregation` None to send each row as a record of its own.

    `busy`: the shards that refuse records.
    """

    send: Send
    busy: BusyShards
    where: str = "the stream"
    bound: RequestBound = field(default_factory=RequestBound)
    aggregation: Aggregation | None = None

    def filling(self) -> Filling:
        """Return an empty collection of rows for one request."""
        if self.aggregation is None:
            return Filling(self.bound)
        return _AggregateFilling(self.bound, self.aggregation.shards)


class _AggregateFilling(Filling):
    """Collects the rows of one request; how many records they become is known when they are packed."""

    def __init__(self, bound: RequestBound, shards: ShardMap) -> None:
        super().__init__(bound)
        self._shards = shards

    def _count_fitting(self, entries: Entries) -> int:
        most = min(self._bound.bytes, _SHARD_BYTES * len(self._shards.known))
        # The memory of the rows before each one.
        payloads = self.size + np.cumsum(entries.sizes) - entries.sizes
        memory = payloads + ROW_BYTES * (len(self) + np.arange(len(entries)))
        return min(
            entries.count_fitting(most - self.size), int(np.searchsorted(memory, REQUEST_BYTES, side="right"))
        )
