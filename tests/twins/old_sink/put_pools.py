"""The records of PutRecords requests: how many fit into one, and which are still to be written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kinesis_trident.spout.kinesis.put_entries import Entries, Entry

REQUEST_RECORDS = 500
REQUEST_BYTES = 10 * 2**20
"""Payloads and partition keys together: the limit of Kinesis since 2025."""

SMALLER_REQUEST_BYTES = 5 * 2**20
"""The limit before 2025, and of emulators."""

MAX_RECORD_BYTES = 10 * 2**20
"""Payload and partition key together; a stream allows 1 MiB by default."""


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

    def take_fitting(self, entries: Entries) -> Entries:
        """Return the first entries, as many as fit into one request, and at least one."""
        first = entries[: self.records]
        return first[: max(1, first.count_fitting(self.bytes))]


class Filling:
    """Collects one request of at most the records and bytes of `bound`; a larger record is sent alone.

    Attributes:
        size: the bytes collected.
    """

    def __init__(self, bound: RequestBound | None = None) -> None:
        self._bound = bound or RequestBound()
        self._parts: list[Entries] = []
        self._count = 0
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entries: Entries) -> list[Entries]:
        """Add records in their order; return the requests that they complete, to be sent first."""
        full: list[Entries] = []
        while len(entries):
            count = self._count_fitting(entries) or int(not self._count)
            if part := entries[:count]:
                self._parts.append(part)
                self._count += count
                self.size += part.size
            if entries := entries[count:]:
                full.append(self.take())
        return full

    def _count_fitting(self, entries: Entries) -> int:
        """Return how many of the first entries fit."""
        return min(self._bound.records - self._count, entries.count_fitting(self._bound.bytes - self.size))

    def take(self) -> Entries:
        """Return the collected request, of at least one record, and start a new one."""
        taken, self._parts, self._count, self.size = self._parts, [], 0, 0
        return Entries.join(taken)


def is_refused(results: Sequence[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each result whether its record was refused."""
    return np.array([bool(result.get("ErrorCode")) for result in results], dtype=np.bool_)


class Pool(Protocol):
    """The records of a request that are still to be written, in their order."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def take(self, bound: RequestBound) -> Entries:
        """Return what to send next: of the first records, as many as fit into a request."""
        ...

    def is_cut(self) -> bool:
        """Return whether the last `take` was a single record, which no smaller request could carry."""
        ...

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """Remove the records of the last `take` that were accepted; `results` has one answer for each entry."""
        ...

    def pause(self) -> float:
        """Return the seconds until something may be sent."""
        ...

    @property
    def goes_on(self) -> bool:
        """Return whether the other records need not wait for the refused ones."""
        ...


class RecordPool:
    """A pool whose records are sent as they are."""

    goes_on = False

    def __init__(self, records: Sequence[Entry]) -> None:
        self._left = Entries.of(records)
        self._sent = 0

    def __len__(self) -> int:
        return len(self._left)

    def take(self, bound: RequestBound) -> Entries:
        """See `Pool.take`."""
        taken = bound.take_fitting(self._left)
        self._sent = len(taken)
        return taken

    def is_cut(self) -> bool:
        """See `Pool.is_cut`."""
        return self._sent == 1

    def settle(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Pool.settle`."""
        refused, rest = is_refused(results), self._left[self._sent :]
        self._left = Entries.join([self._left[: self._sent].pick(refused), rest]) if refused.any() else rest

    def pause(self) -> float:
        """See `Pool.pause`."""
        return 0.0
