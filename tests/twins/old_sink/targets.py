"""A stream to write to: how its rows are collected, packed and sent, and how fast."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from twins.old_sink.busy_shards import BusyShards
from twins.old_sink.put_pools import REQUEST_BYTES, REQUEST_RECORDS, Filling, RequestBound
from twins.old_sink.put_records import Send
from twins.old_sink.shard_map import ROW_BYTES, Aggregation, ShardMap

from kinesis_trident.spout.kinesis.put_entries import Entries

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


class Pacing:
    """The rates of a task, which all its requests share. Thread-safe; times are seconds of any one clock.

    Requests that are refused count too: they were sent. Time that is not used is not saved up for later, because a
    shard refuses bursts.

    Args:
        records: the most records a second, an aggregate being one.
        size: the most bytes a second, payloads and partition keys together.
    """

    @classmethod
    def of(cls, records: float | None, size: float | None) -> Self | None:
        """Return the pacing of a write; a rate is None for no limit, the result if both are."""
        return cls(records or math.inf, size or math.inf) if records or size else None

    def __init__(self, records: float, size: float) -> None:
        self._records = records
        self._size = size
        self._free = -math.inf
        self._lock = threading.Lock()

    def bound(self) -> RequestBound:
        """Return the limits of a request, which contains what may be written in a second, or one record."""
        return RequestBound(
            max(1, int(min(REQUEST_RECORDS, self._records))), max(1, int(min(REQUEST_BYTES, self._size)))
        )

    def reserve(self, records: int, size: int, now: float) -> float:
        """Reserve the time of a request; return how long to wait before it is sent."""
        seconds = max(records / self._records, size / self._size)
        with self._lock:
            start = max(now, self._free)
            self._free = start + seconds
        return start - now
