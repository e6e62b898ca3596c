"""Operations on single tuples: functions add fields, filters keep or drop; each record fails by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

__all__ = [
    "ArrowFunction",
    "BaseFilter",
    "BaseFunction",
    "Debug",
    "Filter",
    "FilterNull",
    "Function",
    "Operation",
]


class Operation:
    """What functions and filters share: they are made ready once a task, in the process that runs it.

    A `FailedException` that one raises fails no record: the batch is replayed in place.
    """

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Called before the first tuple of a task."""

    def cleanup(self) -> None:
        """Called after the last tuple of a task, also after an error."""


class Function(Operation):
    """Emits any number of tuples for each one it gets; the new values are added to those it was made from."""

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """One tuple. An exception fails its record, with everything else that came from it."""
        raise NotImplementedError


class ArrowFunction(Operation):
    """A function over whole Arrow batches, for speed."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | pa.Table, np.ndarray]:
        """The new columns, and for each of their rows the row of `batch` it comes from, ascending.

        Where it raises it is called again on halves, so that only the records at fault fail.
        """
        raise NotImplementedError


class Filter(Operation):
    """Keeps tuples or drops them; a dropped one is done."""

    def is_keep(self, tup: TridentTuple) -> bool:
        """Whether the tuple stays. An exception fails its record."""
        raise NotImplementedError


BaseFunction = Function
BaseFilter = Filter


class FilterNull(Filter):
    """Drops tuples with a null among their values."""

    def is_keep(self, tup: TridentTuple) -> bool:
        """Whether there is none."""
        return all(value is not None for value in tup)


class Debug(Filter):
    """Prints each tuple in the worker that has it, and keeps it."""

    def __init__(self, name: str = "DEBUG") -> None:
        self._name = name

    def is_keep(self, tup: TridentTuple) -> bool:
        """Always."""
        print(f"<{self._name}> {list(tup)}", flush=True)
        return True
