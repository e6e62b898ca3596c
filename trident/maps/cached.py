"""Caches the values of frequent keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TypeVar

from kinesis_trident.trident.errors import StateOptionsError
from kinesis_trident.trident.maps.backing import (
    LOST,
    UNREAD,
    BackingLayer,
    BackingMap,
    Change,
    Stale,
    Version,
    VersionedBackingMap,
    add_versions,
)
from kinesis_trident.trident.state import Key

V = TypeVar("V")

Remembered = OrderedDict[Key, tuple[V | None, Version]]
"""The value of each key, the last used at the end."""


class CachedMap(BackingLayer[V]):
    """Remembers the values of the last used keys, and that a key had none.

    It is updated after the store, never before, and forgets keys that a failed write may have changed. If another
    task takes over its keys, it becomes stale: over a store with versions an update notices that and reads again, a
    query does not. Over a store of two methods an update does not notice it either, so keep one writer per key
    there.

    Args:
        backing: the store.
        size: the number of remembered keys.
        shared: the memory of several objects of a process, one after the other. Then only updates that compare use
            it: another process may have changed a value since, so plain reads go to the store.

    Raises:
        StateOptionsError: `size` is below 1.
    """

    _backing: VersionedBackingMap[V]

    def __init__(self, backing: BackingMap[V], size: int, shared: Remembered[V] | None = None) -> None:
        if size < 1:
            msg = f"a cache of {size} keys is not possible. Give 1 or more, or omit it"
            raise StateOptionsError(msg)
        self._backing = add_versions(backing)
        self._size = size
        self._is_shared = shared is not None
        self._cache: Remembered[V] = OrderedDict() if shared is None else shared

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """See `BackingMap.multi_get`."""
        return self._backing.multi_get(keys) if self._is_shared else self.multi_get_versioned(keys)[0]

    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[V | None], list[Version]]:
        """See `VersionedBackingMap.multi_get_versioned`; only the keys that are not remembered are read."""
        missing = [key for key in keys if key not in self._cache]
        read = zip(missing, *self._backing.multi_get_versioned(missing), strict=True) if missing else ()
        found = {key: (value, version) for key, value, version in read}
        pairs = [found[key] if key in found else self._hit(key) for key in keys]
        for key, (value, version) in found.items():
            self._remember(key, value, version)
        return [value for value, _ in pairs], [version for _, version in pairs]

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """See `BackingMap.multi_put`. The store's new versions are unknown, so the keys are forgotten."""
        self._forget(keys)
        self._backing.multi_put(keys, values)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """See `BackingMap.multi_remove`."""
        self._forget(keys)
        self._backing.multi_remove(keys)

    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[V | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `VersionedBackingMap.multi_compare_and_set`."""
        self._forget(keys)
        written = self._backing.multi_compare_and_set(keys, values, versions)
        for key, value, version in zip(keys, values, written, strict=True):
            if version is not LOST and value is not None:
                self._remember(key, value, version)
        return written

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        """See `VersionedBackingMap.multi_exchange`; the store's own, if none of the keys is remembered."""
        if any(key in self._cache for key in keys):
            return super().multi_exchange(keys, change)
        values: list[V | None] = [None] * len(keys)
        unchanged: set[int] = set()

        def note(part: slice, found: list[V | None]) -> tuple[Sequence[V | None], Collection[int]]:
            news, left = change(part, found)
            values[part] = news
            unchanged.difference_update(range(part.start, part.stop))
            for i in left:
                values[part.start + i] = found[i]
                unchanged.add(part.start + i)
            return news, left

        written = self._backing.multi_exchange(keys, note)
        for i, (key, value, version) in enumerate(zip(keys, values, written, strict=True)):
            if version is not LOST and version is not UNREAD and (value is not None or i in unchanged):
                self._remember(key, value, version)
        return written

    def multi_forget(self, keys: Sequence[Key], stale: Stale) -> None:
        """See `VersionedBackingMap.multi_forget`; what is remembered of the keys is forgotten."""
        self._forget(keys)
        self._backing.multi_forget(keys, stale)

    def _hit(self, key: Key) -> tuple[V | None, Version]:
        self._cache.move_to_end(key)
        return self._cache[key]

    def _remember(self, key: Key, value: V | None, version: Version) -> None:
        self._cache[key] = value, version
        self._cache.move_to_end(key)
        if len(self._cache) > self._size:
            self._cache.popitem(last=False)

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._cache.pop(key, None)
