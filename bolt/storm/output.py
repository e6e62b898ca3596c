"""The emitted tuples of one stream of a bolt's task: kept as Python values, then put into Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.steps.columns import batch_of
from kinesis_trident.bolt.storm.received import HeldTuple, anchors_of_children
from kinesis_trident.bolt.tracking.anchors import Anchors

__all__ = ["Output", "Parents"]

_FLUSH_ROWS = 10_000
_FLUSH_BYTES = 16 << 20
"""The bytes of emitted texts and binaries that are kept as Python objects; more are put into an Arrow batch."""

Parents = HeldTuple | Sequence[HeldTuple]
"""The anchors of one emitted tuple."""

Refuse = Callable[[Parents, Exception], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """Emitted tuples as an Arrow batch; `anchors` None if nothing is tracked."""

    rows: pa.RecordBatch
    anchors: Anchors | None


class Output:
    """The emitted tuples of one stream.

    `schema`: their fields. `salt`: that of their ids; None if nothing is tracked. `taken` False: no component takes
    them, so they are only checked. `refuse` is called with the parents of a tuple whose values do not fit, and the
    error.
    """

    def __init__(self, schema: pa.Schema, salt: int | None, refuse: Refuse, *, taken: bool) -> None:
        self.schema = schema
        self.width = len(schema)
        self._salt = salt
        self._refuse = refuse
        self._taken = taken
        self._values: list[tuple[Any, ...]] = []
        self._parents: list[Parents] = []
        self._size = 0
        self._parts: list[_Part] = []
        # What the current tuple has emitted begins here.
        self._first_value = self._first_part = 0

    def add(self, values: Iterable[Any], parents: Parents) -> None:
        """Add a tuple."""
        row = tuple(values)
        self._values.append(row)
        self._parents.append(parents)
        self._size += _size(row)
        if self._size >= _FLUSH_BYTES:
            self._pack()

    @property
    def is_full(self) -> bool:
        """True if enough is emitted for a `flush`."""
        return bool(self._parts) or len(self._values) >= _FLUSH_ROWS

    def begin_tuple(self) -> None:
        """Begin to keep what is emitted apart, so that `drop` can drop it."""
        self._first_value, self._first_part = len(self._values), len(self._parts)

    def end_tuple(self) -> None:
        """End what `begin_tuple` began."""
        self._first_value = self._first_part = 0

    def drop(self) -> None:
        """Drop what was emitted since `begin_tuple`."""
        del self._values[self._first_value :], self._parents[self._first_value :]
        del self._parts[self._first_part :]

    def flush(self) -> Iterator[tuple[pa.RecordBatch, Anchors | None]]:
        """Yield the tuples emitted since the last call, with their anchors."""
        self._pack()
        parts, self._parts = self._parts[::-1], []
        while parts:
            part = parts.pop()
            yield part.rows, part.anchors

    def _pack(self) -> None:
        """Put the emitted values into Arrow batches: those of the current tuple, which may still fail, into one."""
        values, parents = self._values, self._parents
        self._values, self._parents, self._size = [], [], 0
        first, self._first_value = self._first_value, 0
        if first:
            self._pack_rows(values[:first], parents[:first])
            self._first_part = len(self._parts)
        if len(values) > first:
            self._pack_rows(values[first:], parents[first:])

    def _pack_rows(self, values: list[tuple[Any, ...]], parents: list[Parents]) -> None:
        fitting: list[int] | None = None
        try:
            rows = batch_of(values, self.schema)
        except Exception:
            fitting = []
            for at, value in enumerate(values):
                try:
                    batch_of([value], self.schema)
                except Exception as error:
                    self._refuse(parents[at], error)
                else:
                    fitting.append(at)
            rows = batch_of([values[at] for at in fitting], self.schema)
            parents = [parents[at] for at in fitting]
        if self._taken:
            anchors = None if self._salt is None else anchors_of_children(parents, self._salt)
            self._parts.append(_Part(rows, anchors))


def _size(values: Iterable[Any]) -> int:
    """Return about how many bytes the texts and binaries in some values have."""
    size = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes or kind is bytearray:
            size += len(value)
        elif kind is list or kind is tuple:
            size += _size(value)
        elif kind is dict:
            size += _size(value) + _size(value.values())
    return size
