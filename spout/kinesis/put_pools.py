"""The records of PutRecords requests: how many fit into one, and which are still to be written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

__all__ = [
    "MAX_RECORD_BYTES",
    "REQUEST_BYTES",
    "REQUEST_RECORDS",
    "SMALLER_REQUEST_BYTES",
    "Entry",
    "Filling",
    "Pool",
    "RecordPool",
    "RequestBound",
    "size_of",
]

REQUEST_RECORDS = 500
REQUEST_BYTES = 10 * 2**20
"""Payloads and partition keys together: the limit of Kinesis since 2025."""

SMALLER_REQUEST_BYTES = 5 * 2**20
"""The limit before 2025, and of emulators."""

MAX_RECORD_BYTES = 10 * 2**20
"""Payload and partition key together; a stream allows 1 MiB by default."""

Entry = dict[str, Any]
"""One record of PutRecords: Data, PartitionKey and, optionally, ExplicitHashKey."""


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes that count towards the limits: payloads and partition keys."""
    return sum(len(entry["Data"]) + len(entry["PartitionKey"].encode()) for entry in entries)


class RequestBound:
    """The limits of a request; its bytes fall when a server has refused a request for its size. Thread-safe.

    Args:
        records: the most records.
        size: the most bytes, payloads and partition keys together; a larger record is sent alone.
    """

    def __init__(self, records: int = REQUEST_RECORDS, size: int = REQUEST_BYTES) -> None:
        self.records = records
        self.bytes = size

    def lower(self, refused: int) -> None:
        """Allow less than the `refused` bytes: 5 MiB, the limit of before 2025, or else half of them."""
        lower = SMALLER_REQUEST_BYTES if refused > SMALLER_REQUEST_BYTES else max(1, refused // 2)
        self.bytes = min(self.bytes, lower)

    def fitting(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the first entries, as many as fit into one request, and at least one."""
        first = entries[: self.records]
        if self.bytes == REQUEST_BYTES:
            return list(first)
        sizes = accumulate(size_of([entry]) for entry in first)
        return list(first[: max(1, sum(size <= self.bytes for size in sizes))])


class Filling:
    """Collects one request of at most the records and bytes of `bound`; a larger record is sent alone."""

    def __init__(self, bound: RequestBound | None = None) -> None:
        self._bound = bound or RequestBound()
        self.entries: list[Entry] = []
        self.size = 0

    def add(self, entry: Entry, size: int) -> list[Entry]:
        """Add one record of `size` bytes; if it does not fit, return the collected request, to be sent first."""
        full: list[Entry] = []
        if self.entries and (
            len(self.entries) >= self._bound.records or self.size + size > self._bound.bytes
        ):
            full = self.take()
        self.entries.append(entry)
        self.size += size
        return full

    def take(self) -> list[Entry]:
        """Return the collected request and start a new one."""
        taken, self.entries, self.size = self.entries, [], 0
        return taken


class Pool(Protocol):
    """The records of a request that are still to be written, in their order."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def take(self, bound: RequestBound) -> list[Entry]:
        """Return what to send next: of the first records, as many as fit into a request."""
        ...

    def is_cut(self) -> bool:
        """Tell whether the last `take` was a single record, which no smaller request could carry."""
        ...

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """Remove the records of the last `take` that were accepted; `results` has one answer for each entry."""
        ...


class RecordPool:
    """A pool whose records are sent as they are."""

    def __init__(self, records: Sequence[Entry]) -> None:
        self._left = list(records)
        self._sent: list[Entry] = []

    def __len__(self) -> int:
        return len(self._left)

    def take(self, bound: RequestBound) -> list[Entry]:
        """See `Pool.take`."""
        self._sent = bound.fitting(self._left)
        return self._sent

    def is_cut(self) -> bool:
        """See `Pool.is_cut`."""
        return len(self._sent) == 1

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Pool.settle`."""
        answers = zip(self._sent, results, strict=True)
        self._left[: len(self._sent)] = [entry for entry, result in answers if result.get("ErrorCode")]
