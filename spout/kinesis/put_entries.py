"""The records of PutRecords requests, in columns, so that most steps are one call for many; their limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np

from kinesis_trident.spout.kinesis import RequestTooLargeError

REQUEST_RECORDS = 500
REQUEST_BYTES = 10 * 2**20
"""Payloads and partition keys together: the limit of Kinesis since 2025."""

SMALLER_REQUEST_BYTES = 5 * 2**20
"""The limit before 2025, and of emulators."""

MAX_RECORD_BYTES = 10 * 2**20
"""Payload and partition key together; a stream allows 1 MiB by default."""

Entry = dict[str, Any]
"""One record of PutRecords: Data and, optionally, PartitionKey and ExplicitHashKey."""

Column = np.ndarray[Any, np.dtype[np.object_]]

Rows = np.ndarray[Any, np.dtype[np.int64]] | np.ndarray[Any, np.dtype[np.bool_]]
"""Some of the records: their indexes, or for each record whether it is one of them."""


def column_of(values: Iterable[Any]) -> Column:
    """Return a column of Python objects."""
    given = list(values)
    column = np.empty(len(given), dtype=np.object_)
    column[:] = given
    return column


@dataclass(frozen=True, eq=False, slots=True)
class Entries(Sequence[Entry]):
    """Records in columns; as a sequence, each is an entry as botocore takes it.

    Args:
        data: the payloads, bytes.
        keys: the partition keys, text; None for a record without one, which only some streams take.
        sizes: the bytes that count towards the limits: payloads and partition keys.
        hashes: the explicit hash keys, None for a record without one; None if no record has one.
    """

    data: Column
    keys: Column
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    hashes: Column | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Return entries in columns; those that are stay as they are."""
        if isinstance(entries, cls):
            return entries
        given = list(entries)
        hashes = [entry.get("ExplicitHashKey") for entry in given]
        return cls(
            column_of(entry["Data"] for entry in given),
            column_of(entry.get("PartitionKey") for entry in given),
            np.array(
                [len(entry["Data"]) + len((entry.get("PartitionKey") or "").encode()) for entry in given],
                dtype=np.int64,
            ),
            column_of(hashes) if any(one is not None for one in hashes) else None,
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the records of all parts, of which there is at least one."""
        if len(parts) == 1:
            return parts[0]
        hashes = None
        if any(part.hashes is not None for part in parts):
            hashes = np.concatenate(
                [column_of([None] * len(part)) if part.hashes is None else part.hashes for part in parts]
            )
        return cls(
            np.concatenate([part.data for part in parts]),
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            hashes,
        )

    @property
    def size(self) -> int:
        """The bytes that count towards the limits."""
        return int(self.sizes.sum())

    @property
    def lack_keys(self) -> bool:
        """Return whether a record has no partition key."""
        return None in self.keys.tolist()

    def pick(self, rows: Rows | slice) -> Self:
        """Return some of the records, in the order given."""
        hashes = None if self.hashes is None else self.hashes[rows]
        return type(self)(self.data[rows], self.keys[rows], self.sizes[rows], hashes)

    def count_fitting(self, size: int) -> int:
        """Return how many of the first records have at most `size` bytes together."""
        return int(np.searchsorted(np.cumsum(self.sizes), size, side="right"))

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> Entry | Self:
        if isinstance(at, slice):
            return self.pick(at)
        entry = {"Data": self.data[at]}
        if self.keys[at] is not None:
            entry["PartitionKey"] = self.keys[at]
        if self.hashes is not None and self.hashes[at] is not None:
            entry["ExplicitHashKey"] = self.hashes[at]
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return (self[at] for at in range(len(self)))


class RequestBound:
    """The limits of a request; its bytes fall when a server has refused a request for its size. Thread-safe.

    Args:
        records: the most records.
        size: the most bytes, payloads and partition keys together; a larger record is sent alone.
    """

    def __init__(self, records: int = REQUEST_RECORDS, size: int = REQUEST_BYTES) -> None:
        self.records = records
        self.bytes = size

    def shrink(self, error: RequestTooLargeError, refused: Entries, *, is_alone: bool) -> None:
        """Allow less than a request that was refused: 5 MiB, the limit of before 2025, or else half of its bytes.

        Raises:
            RequestTooLargeError: it `is_alone`, a single record: no smaller request could carry it.
        """
        size = refused.size
        if is_alone:
            msg = (
                f"{error}; it was one record alone, of {size} bytes with its partition key "
                f"{str(refused.keys[0])[:64]!r}"
            )
            raise RequestTooLargeError(msg) from error
        lower = SMALLER_REQUEST_BYTES if size > SMALLER_REQUEST_BYTES else max(1, size // 2)
        self.bytes = min(self.bytes, lower)

    def is_full(self, records: int, size: int) -> bool:
        """Return whether so many records and bytes leave no room in a request."""
        return records >= self.records or size >= self.bytes

    def take_fitting(self, entries: Entries) -> Entries:
        """Return the first entries, as many as fit into one request, and at least one."""
        first = entries[: self.records]
        return first[: max(1, first.count_fitting(self.bytes))]


def is_refused(results: Sequence[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each result whether its record was refused."""
    return np.array([bool(result.get("ErrorCode")) for result in results], dtype=np.bool_)
