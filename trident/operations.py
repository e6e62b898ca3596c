"""Operations on single tuples: functions add fields, filters keep or drop tuples; each record fails separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kinesis_trident.trident.tuples import TridentCollector, TridentTuple


class Operation:
    """The common part of functions and filters: they are prepared once for each task, in its process.

    A `FailedException` fails no record: it replays the batch in place.
    """

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare for a task: called before its first tuple."""

    def cleanup(self) -> None:
        """Clean up after a task: called after its last tuple, also after an error."""


class Function(Operation):
    """Emits any number of tuples for each input tuple; the new values are added to those of the input tuple."""

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Process one tuple. An exception fails its record, with all other tuples of the record."""
        raise NotImplementedError


class ArrowFunction(Operation):
    """A function over whole Arrow batches, for speed."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | pa.Table, np.ndarray]:
        """Return the new columns, and for each of their rows the input row in `batch`, ascending.

        After an error it is called again on halves, so that only the faulty records fail.
        """
        raise NotImplementedError


class Filter(Operation):
    """Keeps or drops tuples; a dropped tuple is done."""

    def is_keep(self, tup: TridentTuple) -> bool:
        """Return True to keep the tuple. An exception fails its record."""
        raise NotImplementedError


BaseFunction = Function
BaseFilter = Filter


class FilterNull(Filter):
    """Drops tuples with a null among their values."""

    def is_keep(self, tup: TridentTuple) -> bool:
        """Return whether no value is null."""
        return all(value is not None for value in tup)


class Equals(Filter):
    """Keeps tuples whose values are all equal."""

    def is_keep(self, tup: TridentTuple) -> bool:
        """Return whether each value equals the first one."""
        return all(value == tup[0] for value in tup)


class Negate(Filter):
    """Keeps the tuples that another filter drops."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """Prepare the filter."""
        self._filter.prepare(conf)

    def cleanup(self) -> None:
        """Let the filter clean up."""
        self._filter.cleanup()

    def is_keep(self, tup: TridentTuple) -> bool:
        """Return whether the filter does not keep the tuple."""
        return not self._filter.is_keep(tup)


class Debug(Filter):
    """Prints each tuple in its worker, and keeps it."""

    def __init__(self, name: str = "DEBUG") -> None:
        self._name = name

    def is_keep(self, tup: TridentTuple) -> bool:
        """Print the tuple and keep it."""
        print(f"<{self._name}> {list(tup)}", flush=True)
        return True
