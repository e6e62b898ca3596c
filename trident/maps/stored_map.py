"""The base of the maps of this package: values by key, of which one can be the value of a global aggregation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from kinesis_trident.common.visible_text import shorten
from kinesis_trident.trident.errors import SerializationError, name_group
from kinesis_trident.trident.state import Key, RemovableMapState, Snapshottable, ValueUpdater

T = TypeVar("T")

Check = Callable[[Sequence[Any], Callable[[int], Key]], None]
"""(values, the key of the one at a place) -> an error if one may not be stored."""

GLOBAL: Key = ("$GLOBAL$",)
"""The key of a global aggregate, unless another one is given."""


def are_different(keys: Sequence[Key]) -> bool:
    """Return whether no key occurs twice.

    Raises:
        SerializationError: a value in a key has no equality of its own that a state could go by.
    """
    try:
        return len(set(keys)) == len(keys)
    except TypeError as error:
        msg = (
            f"the keys of a state are values that do not change, but among {shorten(repr(keys[:3]), 200)} one does "
            f"({error}). Give a list as a tuple, and the values of a dict or a set one by one"
        )
        raise SerializationError(msg) from None


class StoredMap(RemovableMapState[T], Snapshottable[T]):
    """A map state that is a snapshottable, too: its one value has the key `whole`."""

    def __init__(self, whole: Key) -> None:
        self._whole = whole
        self._check: Check | None = None

    def check_values(self, check: Check) -> None:
        """Let the results of updates be checked before they are written."""
        self._check = check

    def _updated(self, values: Iterable[Any], key_at: Callable[[int], Key]) -> list[Any]:
        """Return the values that updates make; an error bears the key of the one that raised it."""
        made: list[Any] = []
        try:
            made.extend(values)
        except BaseException as error:
            # A list keeps what came before.
            name_group(error, key_at(len(made)))
            raise
        return made

    @property
    @abstractmethod
    def _listed(self) -> list[Key]:
        """All keys of the store."""

    def tuples(self) -> list[tuple[Any, ...]]:
        """See `MapState.tuples`."""
        keys = self._listed
        return [
            (*key, value) for key, value in zip(keys, self.multi_get(keys), strict=True) if value is not None
        ]

    def get(self) -> T | None:
        """See `ReadOnlySnapshottable.get`."""
        return self.multi_get([self._whole])[0]

    def update(self, updater: ValueUpdater[T]) -> T | None:
        """See `Snapshottable.update`."""
        return self.multi_update([self._whole], [updater])[0]

    def set(self, value: T | None) -> None:
        """See `Snapshottable.set`."""
        self.multi_put([self._whole], [value])
