"""The values of a tuple by their names, for tuples of bolts and of Trident."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any


class NamedValues:
    """Values with names, `tup["word"]`."""

    __slots__ = ()

    fields: Sequence[str]
    """The names of the values."""

    @abstractmethod
    def __getitem__(self, field: Any) -> Any: ...

    def get(self, field: str, default: Any = None) -> Any:
        """Return a value by its name; `default` if there is no such field."""
        return self[field] if field in self.fields else default

    def contains(self, field: str) -> bool:
        """Return whether the tuple has a field of this name."""
        return field in self.fields

    def select(self, *fields: str) -> list[Any]:
        """Return the values of these fields, in this order."""
        return [self[name] for name in fields]

    def field_index(self, field: str) -> int:
        """Return the place of a field among the values.

        Raises:
            ValueError: there is no such field.
        """
        return list(self.fields).index(field)
