"""Rows for row functions, whose columns become Python values only when used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.steps.border import Unfit, values

FLUSH_BYTES = 16 << 20
"""The bytes of texts and binaries that are kept as Python objects; more are put into an Arrow batch."""


class Record:
    """One row as a row function sees it: `record.data` or `record["data"]`; columns are converted when first used."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            if name in self._columns.names:
                raise
            raise AttributeError(*error.args) from None

    def __getitem__(self, name: str) -> Any:
        return self._columns.values(name)[self._row]

    def asDict(self) -> dict[str, Any]:
        """Return all columns by name."""
        return {name: self[name] for name in self._columns.names if not name.startswith("__")}

    def __repr__(self) -> str:
        return f"Record({self.asDict()!r})"


class _PartlyRead(list[Any]):
    """The values of a column of which Python cannot have some: asking for one of these is an error, with its reason."""

    def __init__(self, found: list[Any], unfit: Unfit) -> None:
        super().__init__(found)
        self._unfit = unfit

    def __getitem__(self, row: Any) -> Any:
        if row in self._unfit:
            raise ValueError(self._unfit[row])
        return super().__getitem__(row)


class Columns:
    """The columns of a batch as Python lists, each made once and only when needed."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        places: Mapping[str, str] | None = None,
        made: dict[str, list[Any]] | None = None,
    ) -> None:
        self._batch = batch
        self._places = {name: name for name in batch.schema.names} if places is None else places
        self._made: dict[str, list[Any]] = {} if made is None else made
        self._lists: dict[str, list[Any]] = {}

    def rename_columns(self, places: Mapping[str, str]) -> Columns:
        """Return the same columns under other names, and no others: `places` has the column of each name."""
        return Columns(self._batch, places, self._made)

    @property
    def names(self) -> list[str]:
        """The names of all columns, our own included."""
        return list(self._places)

    def values(self, name: str) -> list[Any]:
        """Return the values of one column.

        Raises:
            KeyError: there is no such column; the message names the columns.
        """
        found = self._lists.get(name)
        if found is None:
            place = self._places.get(name)
            if place is None:
                known = ", ".join(one for one in self.names if not one.startswith("__"))
                msg = f"there is no column {name!r}; the columns are {known}"
                raise KeyError(msg)
            found = self._made.get(place)
            if found is None:
                found, unfit = values(self._batch.column(place), name)
                if unfit:
                    found = _PartlyRead(found, unfit)
                self._made[place] = found
            self._lists[name] = found
        return found


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts or binaries, whose sizes count."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def size_of(values: Iterable[Any]) -> int:
    """Return about how many bytes the texts and binaries in some values have."""
    size = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes or kind is bytearray:
            size += len(value)
        elif kind is list or kind is tuple:
            size += size_of(value)
        elif kind is dict:
            size += size_of(value) + size_of(value.values())
    return size
