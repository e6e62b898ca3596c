"""The non-transactional map: stores only the value, so a replay counts again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kinesis_trident.common.own_copies import fresh
from kinesis_trident.trident.maps.backing import BackingMap
from kinesis_trident.trident.maps.stored_map import GLOBAL, StoredMap, are_different
from kinesis_trident.trident.state import Key, ValueUpdater

T = TypeVar("T")


class NonTransactionalMap(StoredMap[T]):
    """Keeps plain values: at-least-once."""

    def __init__(self, backing: BackingMap[Any], whole: Key = GLOBAL) -> None:
        super().__init__(whole)
        self._backing = backing

    def begin_commit(self, txid: int | None) -> None:
        """Pass it on to the store."""
        self._backing.begin_batch(txid)

    def commit(self, txid: int | None) -> None:
        """Pass it on to the store."""
        self._backing.end_batch(txid)

    def multi_get(self, keys: Sequence[Key]) -> list[T | None]:
        """See `ReadOnlyMapState.multi_get`."""
        return self._backing.multi_get(keys) if len(keys) else []

    @property
    def _listed(self) -> list[Key]:
        return self._backing.keys()

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[T]]) -> list[T | None]:
        """See `MapState.multi_update`."""
        if not len(keys):
            return []
        unique = list(keys) if are_different(keys) else list(dict.fromkeys(keys))
        now: dict[Key, T | None] = dict(zip(unique, self._backing.multi_get(unique), strict=True))
        results: list[T | None] = []
        for key, updater in zip(keys, updaters, strict=True):
            now[key] = updater.update(fresh(now[key]))
            results.append(now[key])
        self._put(unique, [now[key] for key in unique])
        return results

    def multi_combine(
        self, keys: Sequence[Key], combine: Callable[[Any, Any], Any], partials: Sequence[Any]
    ) -> list[T | None]:
        """See `MapState.multi_combine`."""
        if not are_different(keys):
            return super().multi_combine(keys, combine, partials)
        if not len(keys):
            return []
        stored = self._backing.multi_get(keys)
        news = self._updated(
            (
                partial if value is None else combine(value, partial)
                for value, partial in zip(stored, partials, strict=True)
            ),
            keys.__getitem__,
        )
        self._put(keys, news)
        return news

    def _put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        if self._check is not None:
            self._check(values, keys.__getitem__)
        self._backing.multi_put(keys, values)

    def multi_put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        """See `MapState.multi_put`; for a key that occurs twice the last value wins."""
        are_different(keys)
        last = dict(zip(keys, values, strict=True))
        if last:
            self._backing.multi_put(list(last), list(last.values()))

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Remove each key at once and for good; a replay does not bring it back."""
        if len(keys):
            self._backing.multi_remove(list(dict.fromkeys(keys)))
