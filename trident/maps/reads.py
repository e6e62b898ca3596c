"""A batch reads what it wrote itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trident.errors import ConflictError
from trident.maps.backing import LOST, BackingMap, Version, lost_of, versioned
from trident.state import Key

__all__ = ["CachedBatchReadsMap", "Reads"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Reads(Generic[V]):
    """What was read: `cached` are the positions whose key this batch has written before."""

    values: list[V | None]
    versions: list[Version]
    cached: frozenset[int] = frozenset()


class CachedBatchReadsMap(Generic[V]):
    """Remembers what a batch has written, from its beginning to its end; those keys are not read again.

    What counts as cached decides the truth tables: a value of this very txid that this attempt wrote is built upon, one
    that an earlier attempt wrote is skipped (transactional) or gone back behind (opaque).
    """

    def __init__(self, backing: BackingMap[V]) -> None:
        self._backing = versioned(backing)
        self._written: dict[Key, tuple[V | None, Version]] = {}
        # Most batches write each key once, and read none of them again.
        self._unread: list[tuple[Sequence[Key], Sequence[V | None], Sequence[Version]]] = []

    def begin_batch(self, txid: int | None) -> None:
        """Forget everything, and tell the store."""
        self._forget()
        self._backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        """Tell the store, and forget everything."""
        self._backing.end_batch(txid)
        self._forget()

    def multi_get(self, keys: Sequence[Key]) -> Reads[V]:
        """What stands under each key: for this batch's own from memory, for the others from the store."""
        self._catch_up()
        if self._written:
            cached = frozenset(i for i, key in enumerate(keys) if key in self._written)
            if cached:
                return self._mixed(keys, cached)
        values, versions = self._backing.multi_get_versioned(keys)
        return Reads(values, versions)

    def _mixed(self, keys: Sequence[Key], cached: frozenset[int]) -> Reads[V]:
        others = [i for i in range(len(keys)) if i not in cached]
        found = self._backing.multi_get_versioned([keys[i] for i in others]) if others else ([], [])
        values: list[V | None] = [None] * len(keys)
        versions: list[Version] = [None] * len(keys)
        for i, value, version in zip(others, *found, strict=True):
            values[i], versions[i] = value, version
        for i in cached:
            values[i], versions[i] = self._written[keys[i]]
        return Reads(values, versions, cached)

    def multi_put(self, keys: Sequence[Key], values: Sequence[V], versions: Sequence[Version]) -> list[int]:
        """Write, and remember what was written: after the store has it, never before.

        Returns:
            The positions that lost to another writer and are to be computed again.
        """
        written = self._backing.multi_compare_and_set(keys, values, versions)
        lost = lost_of(written)
        if not lost:
            self._unread.append((keys, values, written))
            return []
        self._catch_up()
        lost = self._settled(keys, values, written, lost)
        self._written.update(
            (key, (value, version))
            for key, value, version in zip(keys, values, written, strict=True)
            if version is not LOST
        )
        return lost

    def _catch_up(self) -> None:
        for keys, values, versions in self._unread:
            self._written.update(zip(keys, zip(values, versions, strict=True), strict=True))
        self._unread.clear()

    def _forget(self) -> None:
        self._written.clear()
        self._unread.clear()

    def _settled(
        self,
        keys: Sequence[Key],
        values: Sequence[V],
        written: list[Version],
        lost: list[int],
    ) -> list[int]:
        """Who lost may have lost to itself, its first try's answer having been lost: then it has won."""
        found, now = self._backing.multi_get_versioned([keys[i] for i in lost])
        still = []
        for i, value, version in zip(lost, found, now, strict=True):
            if value == values[i]:
                written[i] = version
            elif keys[i] in self._written:
                msg = (
                    f"key {keys[i]!r} was changed by another writer after this batch had written it: two attempts at "
                    "one batch run side by side; the newer one begins again"
                )
                raise ConflictError(msg)
            else:
                still.append(i)
        return still

    def multi_forget(self, keys: Sequence[Key], stale: Sequence[bool], versions: Sequence[Version]) -> None:
        """Remove the keys that are `stale` and have not changed since they were read."""
        chosen = [i for i, old in enumerate(stale) if old]
        if chosen:
            self._backing.multi_compare_and_set(
                [keys[i] for i in chosen], [None] * len(chosen), [versions[i] for i in chosen]
            )
