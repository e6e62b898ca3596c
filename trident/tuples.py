"""The tuples that operations get, and the collector that they emit to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from reprlib import repr as short_repr
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from kinesis_trident.bolt.steps.fits import by_name
from kinesis_trident.bolt.storm.named_values import NamedValues
from kinesis_trident.bolt.storm.unsupported import refuse_storm_names
from kinesis_trident.common.own_copies import fresh_all
from kinesis_trident.trident.errors import OperationError


@refuse_storm_names("ITuple", refusal=OperationError)
class TridentTuple(NamedValues):
    """The values of the fields that an operation asked for: `tup[0]`, `tup["word"]`, `len(tup)`, iteration."""

    __slots__ = ("fields", "values")

    def __init__(self, fields: Sequence[str], values: Sequence[Any]) -> None:
        self.fields = fields
        self.values = values

    def __getitem__(self, which: int | str) -> Any:
        if isinstance(which, int):
            return self.values[which]
        try:
            return self.values[self.fields.index(which)]
        except ValueError:
            msg = f"there is no field {which!r}; the operation reads {', '.join(self.fields)}"
            raise KeyError(msg) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TridentTuple):
            return NotImplemented
        return list(self.fields) == list(other.fields) and list(self.values) == list(other.values)

    def __hash__(self) -> int:
        return hash(tuple(self.values))

    def __repr__(self) -> str:
        return f"TridentTuple({dict(zip(self.fields, self.values, strict=True))!r})"


@refuse_storm_names("TridentCollector", refusal=OperationError)
class TridentCollector:
    """Receives the values that an operation emits: each time one for each of its new fields.

    `refused` is the error about the last values that were not; of an operation on single tuples it fails the record,
    even if the operation has caught it.
    """

    __slots__ = ("_fields", "_operation", "_thread", "refused", "rows")

    def __init__(self, operation: str, fields: Sequence[str]) -> None:
        self._operation = operation
        self._fields = fields
        self._thread: int | None = get_ident()
        self.rows: list[tuple[Any, ...]] = []
        self.refused: OperationError | None = None

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one tuple; of a value that has names, such as a dict or a Row, the parts go by the names of the fields.

        Raises:
            OperationError: the number of values differs from that of the fields, a field is missing, or the call for
                which the collector was given is over, or is that of another thread.
        """
        if get_ident() != self._thread:
            self._refuse_late()
        if type(values) is not list and type(values) is not tuple:
            values = self._in_order(values)
        if len(values) != len(self._fields):
            self._refuse(f"{len(values)} values, {short_repr(values)}")
        self.rows.append(tuple(values))

    def open(self) -> None:
        """Take what this thread emits, until `close`."""
        self._thread = get_ident()

    def close(self) -> list[tuple[Any, ...]]:
        """Return what was emitted, and refuse what is emitted from now on: the call is over."""
        self._thread = None
        return self.rows

    def _in_order(self, values: Any) -> Sequence[Any]:
        try:
            named = by_name(values, self._fields)
        except KeyError as error:
            self._refuse(f"{short_repr(values)}, which has no {error.args[0]!r}")
        if named is not None:
            return named
        in_order = isinstance(values, Sequence | np.ndarray | TridentTuple) and not isinstance(
            values, str | bytes
        )
        if not in_order:
            self._refuse(f"no list, {short_repr(values)}")
        found: Sequence[Any] = values
        return found

    def _refuse(self, emitted: str) -> NoReturn:
        names = f" ({', '.join(self._fields)})" if self._fields else ""
        msg = (
            f"{self._operation}: emitted {emitted}, but declares {len(self._fields)} new fields{names}. Emit a list "
            "with one value for each"
        )
        self.refused = OperationError(msg)
        raise self.refused

    def _refuse_late(self) -> NoReturn:
        msg = (
            f"{self._operation}: emitted outside of the call that was given the collector: after its end, or in "
            "another thread. Emit before the call returns, in its own thread"
        )
        raise OperationError(msg)


def copied(tup: TridentTuple) -> TridentTuple:
    """Return a tuple whose values a user's function may change in place, while this one is used again."""
    values = fresh_all(tup.values)
    return tup if values is tup.values else TridentTuple(tup.fields, values)


def tuples_of(fields: Sequence[str], columns: Sequence[Sequence[Any]], count: int) -> list[TridentTuple]:
    """Make tuples of columns; there are `count` rows, even if an operation reads no field."""
    if not columns:
        return [TridentTuple(fields, ()) for _ in range(count)]
    return list(map(TridentTuple, repeat(fields), zip(*columns, strict=True)))
