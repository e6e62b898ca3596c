"""The tuples that operations get, and the collector that they emit to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from reprlib import repr as short_repr
from typing import Any

from kinesis_trident.trident.errors import OperationError

_NO_LIST = -1


class TridentTuple:
    """The values of the fields that an operation asked for: `tup[0]`, `tup["word"]`, `len(tup)`, iteration."""

    __slots__ = ("_fields", "values")

    def __init__(self, fields: Sequence[str], values: Sequence[Any]) -> None:
        self._fields = fields
        self.values = values

    @property
    def fields(self) -> Sequence[str]:
        """The names of the fields, in the order of the values."""
        return self._fields

    def __getitem__(self, which: int | str) -> Any:
        if isinstance(which, int):
            return self.values[which]
        try:
            return self.values[self._fields.index(which)]
        except ValueError:
            msg = f"there is no field {which!r}; the operation reads {', '.join(self._fields)}"
            raise KeyError(msg) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TridentTuple):
            return NotImplemented
        return list(self._fields) == list(other._fields) and list(self.values) == list(other.values)

    def __hash__(self) -> int:
        return hash(tuple(self.values))

    def __repr__(self) -> str:
        return f"TridentTuple({dict(zip(self._fields, self.values, strict=True))!r})"


class TridentCollector:
    """Receives the values that an operation emits: each time one for each of its new fields.

    `refused` is the error about the last values that were not; of an operation on single tuples it fails the record,
    even if the operation has caught it.
    """

    __slots__ = ("_operation", "_width", "refused", "rows")

    def __init__(self, operation: str, width: int) -> None:
        self._operation = operation
        self._width = width
        self.rows: list[tuple[Any, ...]] = []
        self.refused: OperationError | None = None

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one tuple.

        Raises:
            OperationError: the number of values differs from that of the fields.
        """
        try:
            width = _NO_LIST if isinstance(values, str | bytes) else len(values)
        except TypeError:
            width = _NO_LIST
        if width != self._width:
            count = "no list" if width == _NO_LIST else f"{width} values"
            msg = (
                f"{self._operation}: emitted {count}, {short_repr(values)}, but declares {self._width} new fields. "
                "Emit a list with one value for each"
            )
            self.refused = OperationError(msg)
            raise self.refused
        self.rows.append(tuple(values))


def tuples_of(fields: Sequence[str], columns: Sequence[Sequence[Any]], count: int) -> list[TridentTuple]:
    """Make tuples of columns; there are `count` rows, even if an operation reads no field."""
    if not columns:
        return [TridentTuple(fields, ()) for _ in range(count)]
    return [TridentTuple(fields, values) for values in zip(*columns, strict=True)]
