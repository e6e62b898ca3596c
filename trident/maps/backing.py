"""The interfaces of a store for map states: two methods, and two more to keep late tasks out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Generic, TypeVar

from kinesis_trident.trident.errors import StateError
from kinesis_trident.trident.state import Key

V = TypeVar("V")

Version = Any
"""The version of a value that a read returned, for a store to compare: a token, or the bytes themselves."""

Change = Callable[[slice, list[Any]], tuple[Sequence[Any], Collection[int]]]
"""(some of the keys, their values) -> the new values, and the indexes from 0 of unchanged ones.

A value of None removes its key. It may be called again for the same keys, with their newer values.
"""

Stale = Callable[[list[Any]], Sequence[bool]]
"""The values of keys -> whether each is to be removed."""


class _Lost:
    """The type of `LOST`."""

    def __repr__(self) -> str:
        return "LOST"


LOST: Final = _Lost()
"""Returned instead of a version: the key was not written, because another writer had changed it."""


class _Unread:
    """The type of `UNREAD`."""

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Final = _Unread()
"""Returned instead of a version: the key was written, but only a read can return its version."""


class BackingMap(ABC, Generic[V]):
    """A store under a map state. Its values are `OpaqueValue`s, `TransactionalValue`s or plain values.

    These two methods suffice for exactly-once as long as no late task writes; see `VersionedBackingMap`.
    """

    @abstractmethod
    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Return the value of each key, in order; None for none. A key can occur more than once."""

    @abstractmethod
    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Store a value for each key, durably on return. A call that raises an error may have written some of them."""

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove each key. Override it if the store can remove; None reads like a missing key."""
        self.multi_put(keys, [None] * len(keys))  # type: ignore[list-item]

    def keys(self) -> list[Key]:
        """Return all keys, for a store that can list them.

        Raises:
            StateError: it cannot.
        """
        msg = f"a {type(self).__name__} cannot list its keys. Only states in memory and in files can"
        raise StateError(msg)

    def begin_batch(self, txid: int | None) -> int | None:
        """Begin the reads and writes of a batch, or of its replay.

        Returns:
            The number with which its values count it; None: its txid.
        """
        return None

    def check_replay(self, keys: Sequence[Key], *, store: bool = True) -> None:
        """Check that an earlier attempt at the batch was to update the same keys, and store which these are.

        Args:
            keys: all keys that the batch updates in this partition, each once.
            store: False: only check.

        Raises:
            ReplayDiffersError: they were others; nothing was written.
        """
        return

    def end_batch(self, txid: int | None) -> None:
        """End the batch; for stores that write only then."""
        return


class VersionedBackingMap(BackingMap[V]):
    """A store that replaces a value only if it has not changed since it was read."""

    @abstractmethod
    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[V | None], list[Version]]:
        """Return the value of each key and its version; a missing key also has one. A key can occur twice."""

    @abstractmethod
    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[V | None], versions: Sequence[Version]
    ) -> list[Version]:
        """Store a value for each key that still has the given version, each key separately; None removes it.

        Returns:
            For each key its new version, or `LOST`: then the key was not written. After a failed connection a key
            can be `LOST` to this call's own first try, so the caller must read again before it decides.
        """

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        """Read, change, and compare and set; a store may read the next keys while it writes the previous ones.

        Returns:
            As of `multi_compare_and_set`; `UNREAD` if the store does not return it. After an error some keys may
            have been written.
        """
        return exchange_at_once(self, keys, *self.multi_get_versioned(keys), change)

    def multi_forget(self, keys: Sequence[Key], stale: Stale) -> None:
        """Remove the keys whose value is `stale`, unless another writer changes them in the meantime."""
        self._remove_stale(keys, *self.multi_get_versioned(keys), stale)

    def _remove_stale(
        self, keys: Sequence[Key], values: list[V | None], versions: Sequence[Version], stale: Stale
    ) -> None:
        chosen = [i for i, is_old in enumerate(stale(values)) if is_old]
        if chosen:
            self.multi_compare_and_set(
                [keys[i] for i in chosen], [None] * len(chosen), [versions[i] for i in chosen]
            )


class BackingLayer(VersionedBackingMap[V]):
    """A layer over a store: what a layer does not override goes to the store."""

    _backing: BackingMap[V]

    def keys(self) -> list[Key]:
        """See `BackingMap.keys`."""
        return self._backing.keys()

    def begin_batch(self, txid: int | None) -> int | None:
        """See `BackingMap.begin_batch`."""
        return self._backing.begin_batch(txid)

    def check_replay(self, keys: Sequence[Key], *, store: bool = True) -> None:
        """See `BackingMap.check_replay`."""
        self._backing.check_replay(keys, store=store)

    def end_batch(self, txid: int | None) -> None:
        """See `BackingMap.end_batch`."""
        self._backing.end_batch(txid)


class _Unversioned(BackingLayer[V]):
    """An adapter for a store of two methods: it always writes."""

    def __init__(self, backing: BackingMap[V]) -> None:
        self._backing = backing

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        return self._backing.multi_get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        self._backing.multi_put(keys, values)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        self._backing.multi_remove(keys)

    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[V | None], list[Version]]:
        return self._backing.multi_get(keys), [None] * len(keys)

    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[V | None], versions: Sequence[Version]
    ) -> list[Version]:
        removed = [key for key, value in zip(keys, values, strict=True) if value is None]
        if removed:
            self._backing.multi_remove(removed)
        kept = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        if kept:
            self._backing.multi_put([key for key, _ in kept], [value for _, value in kept])
        return [None] * len(keys)


def exchange_at_once(
    backing: VersionedBackingMap[V],
    keys: Sequence[Key],
    values: list[V | None],
    versions: Sequence[Version],
    change: Change,
) -> list[Version]:
    """Change and write all values read."""
    news, left = change(slice(0, len(keys)), values)
    if not left:
        return backing.multi_compare_and_set(keys, news, versions)
    written = list(versions)
    at = [i for i in range(len(keys)) if i not in left]
    if at:
        done = backing.multi_compare_and_set(
            [keys[i] for i in at], [news[i] for i in at], [versions[i] for i in at]
        )
        for i, version in zip(at, done, strict=True):
            written[i] = version
    return written


def find_lost(written: Sequence[Version]) -> list[int]:
    """Return the positions that were not written; nearly always none, which is found without a look at each."""
    if _Lost not in set(map(type, written)):
        return []
    return [i for i, version in enumerate(written) if version is LOST]


def add_versions(backing: BackingMap[V]) -> VersionedBackingMap[V]:
    """Return the store itself, or an adapter of its two methods that never loses."""
    return backing if isinstance(backing, VersionedBackingMap) else _Unversioned(backing)


def in_parts(count: int, size: int) -> list[slice]:
    """Return the parts of a request for at most `size` keys each; 0: all at once."""
    step = size if size > 0 else max(count, 1)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
