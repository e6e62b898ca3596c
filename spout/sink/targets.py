"""A stream to write to: how its rows are collected, packed and sent, and how fast."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Self

from kinesis_trident.spout.kinesis.put_entries import REQUEST_BYTES, REQUEST_RECORDS, RequestBound
from kinesis_trident.spout.kinesis.put_records import Send
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.known_stream import KnownStream
from kinesis_trident.spout.sink.shard_map import ROW_BYTES

_SHARD_BYTES = 256 * 2**10
"""Bytes of a request for each shard, as in the KPL: more would be a burst, which the shard refuses in part."""


@dataclass(frozen=True, eq=False, slots=True)
class StreamTarget:
    """One stream. `where` is for errors, `busy` has the shards that refuse records.

    `most`: the maximum bytes of an aggregate; None to send each row as a record of its own.

    Raises:
        KinesisError: rows are to be aggregated, and the shards cannot be listed.
    """

    send: Send
    stream: KnownStream
    where: str = "the stream"
    bound: RequestBound = field(default_factory=RequestBound)
    most: int | None = None
    busy: BusyShards = field(default_factory=BusyShards)

    def __post_init__(self) -> None:
        if self.most is not None:
            self.stream.shards()

    def packs(self) -> bool:
        """Return whether rows are sent in aggregates now; it may call Kinesis.

        The Kinesis Client Library drops, without a word, aggregates that are not in the shard of their hash keys.
        """
        return self.most is not None and not self.stream.takes_no_aggregates()

    def filling(self) -> RequestBound:
        """Return the limits of the rows that are collected for one request.

        How many records the rows of aggregates become is known when they are packed.
        """
        if self.most is None:
            return self.bound
        size = min(self.bound.bytes, _SHARD_BYTES * len(self.stream.shards()))
        return RequestBound(REQUEST_BYTES // ROW_BYTES, size)


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

    def seconds(self, records: int, size: int) -> float:
        """Return the time that a request takes up."""
        return max(records / self._records, size / self._size)

    def reserve(self, records: int, size: int, now: float) -> float:
        """Reserve the time of a request; return how long to wait before it is sent."""
        with self._lock:
            start = max(now, self._free)
            self._free = start + self.seconds(records, size)
        return start - now
