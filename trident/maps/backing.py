"""What a store must be able to do to keep a map state: two methods, and two more to keep late tasks out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Generic, TypeVar

from kinesis_trident.trident.state import Key

__all__ = [
    "LOST",
    "UNREAD",
    "BackingMap",
    "Change",
    "Version",
    "VersionedBackingMap",
    "at_once",
    "lost_of",
    "versioned",
]

V = TypeVar("V")

Version = Any
"""What a read saw under a key, for a store to compare: its own token, or the bytes themselves."""

Change = Callable[[slice, list[Any]], tuple[Sequence[Any], Collection[int]]]
"""(some of the keys, what stands under them) -> what is to stand there, and which of these, from 0, stay as they are.

A value of None removes its key. It may be called again for keys that it has seen, with what then stands there.
"""


class _Lost:
    """The type of `LOST`."""

    def __repr__(self) -> str:
        return "LOST"


LOST: Final = _Lost()
"""In the place of a version: the key was not written, another writer had changed it."""


class _Unread:
    """The type of `UNREAD`."""

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Final = _Unread()
"""In the place of a version: the key was written, and only a read can tell its version."""


class BackingMap(ABC, Generic[V]):
    """A store under a map state. What it keeps is an `OpaqueValue`, a `TransactionalValue` or the plain value.

    These two methods are enough for exactly-once as long as no late task writes; see `VersionedBackingMap`.
    """

    @abstractmethod
    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """What is kept under each key, in order; None where there is nothing. A key can come more than once."""

    @abstractmethod
    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Keep a value under each key, durably on return. A call that raises may have written some of them."""

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Forget each key. Override where the store can; None is what nothing reads as."""
        self.multi_put(keys, [None] * len(keys))  # type: ignore[list-item]

    def begin_batch(self, txid: int | None) -> None:
        """The reads and writes of a batch, or of its replay, follow."""
        return

    def end_batch(self, txid: int | None) -> None:
        """The batch is over; for a store that does not write before."""
        return


class VersionedBackingMap(BackingMap[V]):
    """A store that replaces a value only while it is still the one that was read."""

    @abstractmethod
    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[V | None], list[Version]]:
        """What is kept under each key, and its version; there is one for nothing, too. A key can come twice."""

    @abstractmethod
    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[V | None], versions: Sequence[Version]
    ) -> list[Version]:
        """Keep a value under each key that still has the version given, each key by itself; None removes it.

        Returns:
            For each key its new version, or `LOST`: then the key was not written. After a failed connection a key
            can be `LOST` to this call's own first try, so who gets it reads again before deciding.
        """

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        """Read, change and compare and set; a store may have read the next keys while it writes the ones before.

        Returns:
            As of `multi_compare_and_set`; `UNREAD` where the store does not say. After an error some keys may have
            been written.
        """
        return at_once(self, keys, *self.multi_get_versioned(keys), change)


class _Unversioned(VersionedBackingMap[V]):
    """A store of two methods: it writes always."""

    def __init__(self, backing: BackingMap[V]) -> None:
        self._backing = backing

    def begin_batch(self, txid: int | None) -> None:
        self._backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        self._backing.end_batch(txid)

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


def at_once(
    backing: VersionedBackingMap[V],
    keys: Sequence[Key],
    values: list[V | None],
    versions: Sequence[Version],
    change: Change,
) -> list[Version]:
    """Change and write all of what was read."""
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


def lost_of(written: Sequence[Version]) -> list[int]:
    """The positions that were not written; nearly always none, which takes no look at each."""
    if _Lost not in set(map(type, written)):
        return []
    return [i for i, version in enumerate(written) if version is LOST]


def versioned(backing: BackingMap[V]) -> VersionedBackingMap[V]:
    """The store itself, or one of two methods that stands for it and never loses."""
    return backing if isinstance(backing, VersionedBackingMap) else _Unversioned(backing)
