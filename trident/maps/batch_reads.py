"""Lets a batch read its own writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kinesis_trident.trident.errors import ConflictError
from kinesis_trident.trident.maps.backing import (
    LOST,
    UNREAD,
    BackingMap,
    Stale,
    Version,
    add_versions,
    exchange_at_once,
    find_lost,
)
from kinesis_trident.trident.state import Key

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Reads(Generic[V]):
    """The values read: `cached` are the positions whose key this batch has written before."""

    values: list[V | None]
    cached: frozenset[int] = frozenset()


class CachedBatchReadsMap(Generic[V]):
    """Caches the writes of a batch, from its beginning to its end; those keys are not read again.

    The truth tables depend on `cached`: an update builds on a value of the same txid that this attempt wrote; one
    that an earlier attempt wrote is skipped (transactional) or reverted (opaque).
    """

    def __init__(self, backing: BackingMap[V]) -> None:
        self._backing = add_versions(backing)
        self._written: dict[Key, tuple[V | None, Version]] = {}
        # Most batches write each key once and do not read it again.
        self._unread: list[tuple[Sequence[Key], Sequence[V | None], Sequence[Version]]] = []
        self._holds = False
        self._held: dict[Key, None] = {}

    def begin_batch(self, txid: int | None) -> int | None:
        """Forget everything, and tell the store; return the number to count with."""
        self._forget()
        number = self._backing.begin_batch(txid)
        return txid if number is None else number

    def check_replay(self, keys: Sequence[Key], *, store: bool) -> None:
        """See `BackingMap.check_replay`."""
        self._backing.check_replay(keys, store=store)

    def hold_writes(self) -> None:
        """Keep the writes from now to the end of the batch in memory: then each key is written once."""
        self._holds = True

    def end_batch(self, txid: int | None) -> None:
        """Write what was held, tell the store, and forget everything.

        Raises:
            ConflictError: another writer has changed a key since it was read. A replay reads it again.
        """
        if self._held:
            self._write_held()
        self._backing.end_batch(txid)
        self._forget()

    def keys(self) -> list[Key]:
        """Return all keys of the store, and those whose writes are held."""
        return list(dict.fromkeys([*self._backing.keys(), *self._held]))

    def multi_get(self, keys: Sequence[Key]) -> Reads[V]:
        """Return the value of each key: its own writes from memory, the others from the store."""
        cached = self._find_cached(keys)
        if not cached:
            return Reads(self._backing.multi_get(keys))
        others = [key for i, key in enumerate(keys) if i not in cached]
        found = iter(self._backing.multi_get(others) if others else ())
        return Reads(
            [self._written[key][0] if i in cached else next(found) for i, key in enumerate(keys)], cached
        )

    def multi_exchange(
        self, keys: Sequence[Key], change: Callable[[slice, Reads[V]], tuple[Sequence[Any], Collection[int]]]
    ) -> list[int]:
        """Read, change and write, and cache the writes: after the store has them, never before.

        Args:
            keys: without duplicates.
            change: see `trident.maps.backing.Change`.

        Returns:
            The positions that lost to another writer and must be computed again.
        """
        if self._holds:
            self._hold(keys, change)
            return []
        cached = self._find_cached(keys)
        values: list[Any] = [None] * len(keys)
        left: dict[int, Collection[int]] = {}

        def note(part: slice, found: list[V | None]) -> tuple[Sequence[Any], Collection[int]]:
            news, stay = change(part, Reads(found, cached))
            values[part], left[part.start] = news, stay
            return news, stay

        if cached:
            written = exchange_at_once(self._backing, keys, *self._mix(keys, cached), note)
        else:
            written = self._backing.multi_exchange(keys, note)
        lost = find_lost(written)
        if not lost and not any(left.values()):
            self._unread.append((keys, values, written))
            return []
        self._catch_up()
        lost = self._settle_lost(keys, values, written, lost)
        stay = {start + i for start, some in left.items() for i in some}
        self._written.update(
            (key, (value, version))
            for i, (key, value, version) in enumerate(zip(keys, values, written, strict=True))
            if version is not LOST and i not in stay
        )
        return lost

    def _hold(
        self, keys: Sequence[Key], change: Callable[[slice, Reads[V]], tuple[Sequence[Any], Collection[int]]]
    ) -> None:
        """Change the values in memory; each key keeps the version that was read."""
        cached = self._find_cached(keys)
        values, versions = self._mix(keys, cached) if cached else self._backing.multi_get_versioned(keys)
        news, left = change(slice(0, len(keys)), Reads(values, cached))
        for i, key in enumerate(keys):
            if i not in left:
                self._written[key] = news[i], versions[i]
                self._held[key] = None

    def _write_held(self) -> None:
        keys = list(self._held)
        values = [self._written[key][0] for key in keys]
        written = self._backing.multi_compare_and_set(keys, values, [self._written[key][1] for key in keys])
        lost = find_lost(written)
        if lost:
            self._settle_lost(keys, values, written, lost)

    def _find_cached(self, keys: Sequence[Key]) -> frozenset[int]:
        self._catch_up()
        if not self._written:
            return frozenset()
        return frozenset(i for i, key in enumerate(keys) if key in self._written)

    def _mix(self, keys: Sequence[Key], cached: frozenset[int]) -> tuple[list[V | None], list[Version]]:
        known = {i for i in cached if self._written[keys[i]][1] is not UNREAD}
        others = [i for i in range(len(keys)) if i not in known]
        found = self._backing.multi_get_versioned([keys[i] for i in others]) if others else ([], [])
        values: list[V | None] = [None] * len(keys)
        versions: list[Version] = [None] * len(keys)
        for i, value, version in zip(others, *found, strict=True):
            if i in cached and value != self._written[keys[i]][0]:
                raise _side_by_side(keys[i])
            values[i], versions[i] = value, version
        for i in known:
            values[i], versions[i] = self._written[keys[i]]
        return values, versions

    def _catch_up(self) -> None:
        for keys, values, versions in self._unread:
            self._written.update(zip(keys, zip(values, versions, strict=True), strict=True))
        self._unread.clear()

    def _forget(self) -> None:
        self._written.clear()
        self._unread.clear()
        self._holds = False
        self._held.clear()

    def _settle_lost(
        self,
        keys: Sequence[Key],
        values: Sequence[V | None],
        written: list[Version],
        lost: list[int],
    ) -> list[int]:
        """Count a lost write as a success if it lost to its own earlier attempt, whose reply never arrived."""
        found, now = self._backing.multi_get_versioned([keys[i] for i in lost])
        still = []
        for i, value, version in zip(lost, found, now, strict=True):
            if value == values[i]:
                written[i] = version
            elif keys[i] in self._written:
                raise _side_by_side(keys[i])
            else:
                still.append(i)
        return still

    def multi_forget(self, keys: Sequence[Key], stale: Stale) -> None:
        """See `VersionedBackingMap.multi_forget`."""
        self._backing.multi_forget(keys, stale)


def _side_by_side(key: Key) -> ConflictError:
    return ConflictError(
        f"another writer changed key {key!r} after this batch had read or written it: two attempts at one batch run at "
        "the same time. Nothing is to be done: the newer one begins again"
    )
