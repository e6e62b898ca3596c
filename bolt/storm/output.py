"""The emitted tuples of one stream of a bolt's task: kept as Python values, then put into Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.steps.border import rows_that_fit
from kinesis_trident.bolt.steps.columns import FLUSH_BYTES, is_text, size_of
from kinesis_trident.bolt.storm.received import HeldTuple, anchors_of_children
from kinesis_trident.bolt.storm.redelivery import Deliveries
from kinesis_trident.bolt.storm.streams import StreamOutput
from kinesis_trident.bolt.tracking.anchors import Anchors

_FLUSH_ROWS = 10_000

Parents = HeldTuple | Sequence[HeldTuple]
"""The anchors of one emitted tuple."""

Refuse = Callable[[Parents, str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """Emitted tuples as an Arrow batch.

    `anchors`: None if nothing is tracked. `tasks`: those to which the tuples of a direct stream go. `marks`: of their
    deliveries, if the batch has others than the first.
    """

    rows: pa.RecordBatch
    anchors: Anchors | None
    tasks: list[int]
    marks: np.ndarray | None = None


class Output:
    """The emitted tuples of one stream.

    `salt`: that of their ids; None if nothing is tracked. `refuse` is called with the parents of a tuple whose values
    do not fit, and the reason.
    """

    def __init__(
        self, stream: StreamOutput, salt: int | None, refuse: Refuse, deliveries: Deliveries | None = None
    ) -> None:
        self.stream = stream
        self.width = len(stream.schema)
        self._schema = stream.schema
        # The bolt may change what it emitted before it is packed.
        kinds = (pa.types.is_nested, pa.types.is_binary)
        self._changeable = any(is_kind(one.type) for one in stream.schema for is_kind in kinds)
        # Numbers have no size, and a text outside of others needs no search.
        nested = any(map(pa.types.is_nested, stream.schema.types))
        self._texts = None if nested else [at for at, one in enumerate(stream.schema) if is_text(one.type)]
        self._salt = salt
        self._refuse = refuse
        self._deliveries = deliveries
        self._values: list[tuple[Any, ...]] = []
        self._parents: list[Parents] = []
        self._tasks: list[int] = []
        self._size = 0
        self._parts: list[Part] = []
        # What the current tuple has emitted begins here.
        self._first_value = self._first_part = 0

    def add(self, values: Iterable[Any], parents: Parents, task: int | None = None) -> None:
        """Add a tuple; `task`: that to which it goes."""
        row = tuple(map(_copy_value, values)) if self._changeable else tuple(values)
        self._values.append(row)
        self._parents.append(parents)
        if task is not None:
            self._tasks.append(task)
        if self._texts is None:
            self._size += size_of(row)
        else:
            for at in self._texts:
                value = row[at]
                if type(value) is str or type(value) is bytes:
                    self._size += len(value)
        if self._size >= FLUSH_BYTES:
            self.pack()

    @property
    def is_full(self) -> bool:
        """True if enough is emitted to be passed on."""
        return bool(self._parts) or len(self._values) >= _FLUSH_ROWS

    def begin_tuple(self) -> None:
        """Begin to keep what is emitted apart, so that `drop` can drop it."""
        self._first_value, self._first_part = len(self._values), len(self._parts)

    def end_tuple(self) -> None:
        """End what `begin_tuple` began."""
        self._first_value = self._first_part = 0

    def drop(self) -> None:
        """Drop what was emitted since `begin_tuple`."""
        for kept in (self._values, self._parents, self._tasks):
            del kept[self._first_value :]
        del self._parts[self._first_part :]

    def next_part(self) -> Part | None:
        """Return the first Arrow batch, which is not kept; None if there is none. Call `pack` before."""
        return self._parts.pop(0) if self._parts else None

    def pack(self) -> None:
        """Put the emitted values into Arrow batches: those of the current tuple, which may still fail, into one."""
        values, parents, tasks = self._values, self._parents, self._tasks
        self._values, self._parents, self._tasks, self._size = [], [], [], 0
        first, self._first_value = self._first_value, 0
        if first:
            self._pack_rows(values[:first], parents[:first], tasks[:first])
            self._first_part = len(self._parts)
        if len(values) > first:
            self._pack_rows(values[first:], parents[first:], tasks[first:])

    def _pack_rows(self, values: list[tuple[Any, ...]], parents: list[Parents], tasks: list[int]) -> None:
        rows, fitting, unfit = rows_that_fit(values, self._schema)
        if fitting is not None:
            for at in sorted(unfit):
                self._refuse(parents[at], unfit[at])
            parents = [parents[at] for at in fitting]
            tasks = [tasks[at] for at in fitting] if tasks else tasks
        if self.stream.taken:
            anchors = None if self._salt is None else anchors_of_children(parents, self._salt)
            self._parts.append(Part(rows, anchors, tasks, self._marks_of(parents)))

    def _marks_of(self, parents: Sequence[Parents]) -> np.ndarray | None:
        if self._deliveries is None:
            return None
        several = ((one,) if isinstance(one, HeldTuple) else one for one in parents)
        emitted = self._deliveries.emitted
        return np.array([emitted(tup.given.mark_at(tup.row) for tup in some) for some in several], np.int32)


def _copy_value(value: Any) -> Any:
    """Return a value that no longer changes with the one that was emitted."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_copy_value, value))
    if kind is dict:
        return {key: _copy_value(one) for key, one in value.items()}
    return value.copy() if kind is bytearray or kind is np.ndarray else value
