"""Limits the size of requests to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from kinesis_trident.trident.maps.backing import (
    BackingMap,
    Change,
    Version,
    VersionedBackingMap,
    add_versions,
)
from kinesis_trident.trident.state import Key

__all__ = ["MicroBatchBackingMap"]

V = TypeVar("V")


class MicroBatchBackingMap(VersionedBackingMap[V], Generic[V]):
    """Splits reads and writes into requests with a maximum number of keys; 0: the whole batch at once."""

    def __init__(
        self, backing: BackingMap[V], max_multi_get_batch_size: int = 0, max_multi_put_batch_size: int = 0
    ) -> None:
        self._backing = add_versions(backing)
        self._get_size = max_multi_get_batch_size
        self._put_size = max_multi_put_batch_size

    def keys(self) -> list[Key]:
        """See `BackingMap.keys`."""
        return self._backing.keys()

    def begin_batch(self, txid: int | None) -> None:
        """Pass it on to the store."""
        self._backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        """Pass it on to the store."""
        self._backing.end_batch(txid)

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """See `BackingMap.multi_get`."""
        return [
            value
            for part in _parts(len(keys), self._get_size)
            for value in self._backing.multi_get(keys[part])
        ]

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """See `BackingMap.multi_put`."""
        for part in _parts(len(keys), self._put_size):
            self._backing.multi_put(keys[part], values[part])

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """See `BackingMap.multi_remove`."""
        for part in _parts(len(keys), self._put_size):
            self._backing.multi_remove(keys[part])

    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[V | None], list[Version]]:
        """See `VersionedBackingMap.multi_get_versioned`."""
        values: list[V | None] = []
        versions: list[Version] = []
        for part in _parts(len(keys), self._get_size):
            more, their = self._backing.multi_get_versioned(keys[part])
            values += more
            versions += their
        return values, versions

    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[V | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `VersionedBackingMap.multi_compare_and_set`."""
        return [
            version
            for part in _parts(len(keys), self._put_size)
            for version in self._backing.multi_compare_and_set(keys[part], values[part], versions[part])
        ]

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        """See `VersionedBackingMap.multi_exchange`; the store's own, unless a write takes fewer keys than a read."""
        if 0 < self._put_size < self._get_size:
            return super().multi_exchange(keys, change)
        written: list[Version] = []
        for part in _parts(len(keys), self._get_size or self._put_size):
            start = part.start

            def shifted(inner: slice, found: list[V | None], start: int = start) -> Any:
                return change(slice(start + inner.start, start + inner.stop), found)

            written += self._backing.multi_exchange(keys[part], shifted)
        return written


def _parts(count: int, size: int) -> Iterator[slice]:
    step = size if size > 0 else max(count, 1)
    return (slice(start, start + step) for start in range(0, count, step))
