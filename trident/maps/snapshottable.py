"""Makes a global aggregate of a map: it has one key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kinesis_trident.trident.maps.nontransactional import NonTransactionalMap
from kinesis_trident.trident.maps.transactions import TransactionMap
from kinesis_trident.trident.state import Key, RemovableMapState, Snapshottable, ValueUpdater

T = TypeVar("T")


class SnapshottableMap(RemovableMapState[T], Snapshottable[T]):
    """A map state that is also a snapshottable: its value has one fixed key.

    Args:
        state: the map.
        key: the key of the value.
    """

    def __init__(self, state: TransactionMap[T] | NonTransactionalMap[T], key: Key) -> None:
        self._state = state
        self._key = key

    def begin_commit(self, txid: int | None) -> None:
        """See `State.begin_commit`."""
        self._state.begin_commit(txid)

    def check_replay(self, keys: Sequence[Key] | None, *, store: bool = True) -> None:
        """See `TransactionMap.check_replay`, for None of the one value; a non-transactional map counts twice anyway."""
        if isinstance(self._state, TransactionMap):
            self._state.check_replay([self._key] if keys is None else keys, store=store)

    def hold_writes(self) -> None:
        """See `TransactionMap.hold_writes`; a non-transactional map counts a replay again in any case."""
        if isinstance(self._state, TransactionMap):
            self._state.hold_writes()

    def commit(self, txid: int | None) -> None:
        """See `State.commit`."""
        self._state.commit(txid)

    def multi_get(self, keys: Sequence[Key]) -> list[T | None]:
        """See `ReadOnlyMapState.multi_get`."""
        return self._state.multi_get(keys)

    def tuples(self) -> list[tuple[Any, ...]]:
        """See `TransactionMap.tuples`."""
        return self._state.tuples()

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[ValueUpdater[T]]) -> list[T | None]:
        """See `MapState.multi_update`."""
        return self._state.multi_update(keys, updaters)

    def multi_combine(
        self, keys: Sequence[Key], combine: Callable[[Any, Any], Any], partials: Sequence[Any]
    ) -> list[T | None]:
        """See `MapState.multi_combine`."""
        return self._state.multi_combine(keys, combine, partials)

    def multi_put(self, keys: Sequence[Key], values: Sequence[T | None]) -> None:
        """See `MapState.multi_put`."""
        self._state.multi_put(keys, values)

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """See `RemovableMapState.multi_remove`."""
        self._state.multi_remove(keys)

    def get(self) -> T | None:
        """See `ReadOnlySnapshottable.get`."""
        return self._state.multi_get([self._key])[0]

    def update(self, updater: ValueUpdater[T]) -> T | None:
        """See `Snapshottable.update`."""
        return self._state.multi_update([self._key], [updater])[0]

    def set(self, value: T | None) -> None:
        """See `Snapshottable.set`."""
        self._state.multi_put([self._key], [value])
