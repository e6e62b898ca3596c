"""Operations on tuples: functions add fields, filters keep or drop tuples, queries look into states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.calls import refuse_not_run
from kinesis_trident.common.own_copies import fresh
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.state import Collector, QueryFunction, ReadOnlyMapState, ReadOnlySnapshottable
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
        found: object = self._filter.is_keep(tup)
        if not isinstance(found, bool):
            refuse_not_run("Negate: is_keep()", found, OperationError)
        return not found


class Debug(Filter):
    """Prints each tuple in its worker, and keeps it."""

    def __init__(self, name: str = "DEBUG") -> None:
        self._name = name

    def is_keep(self, tup: TridentTuple) -> bool:
        """Print the tuple and keep it."""
        print(f"<{self._name}> {list(tup)}", flush=True)
        return True


class MapGet(QueryFunction[ReadOnlyMapState[Any], Any]):
    """Looks up the value of the key in the tuple's fields; null if there is none."""

    gives: ClassVar[int | None] = 1

    def batch_retrieve(self, state: ReadOnlyMapState[Any], tuples: Sequence[TridentTuple]) -> list[Any]:
        """One read for all tuples."""
        return state.multi_get([tuple(tup) for tup in tuples])

    def execute(self, tuple_: TridentTuple, result: Any, collector: Collector) -> None:
        """Emit the value."""
        collector.emit([result])


class SnapshotGet(QueryFunction[ReadOnlySnapshottable[Any], Any]):
    """Looks up the value of a global aggregation, for every tuple."""

    gives: ClassVar[int | None] = 1

    def batch_retrieve(self, state: ReadOnlySnapshottable[Any], tuples: Sequence[TridentTuple]) -> list[Any]:
        """One read for all tuples."""
        return _one_each(self, SnapshotGet, state.get(), tuples)

    def execute(self, tuple_: TridentTuple, result: Any, collector: Collector) -> None:
        """Emit the value."""
        collector.emit([result])


class TupleCollection(Protocol):
    """A state that can list what it holds."""

    def tuples(self) -> Iterable[Sequence[Any]]:
        """Return a tuple for each entry; of a map state the values of the key, then the value."""
        ...


class TupleCollectionGet(QueryFunction[Any, Sequence[Sequence[Any]]]):
    """Emits all entries of a state for every tuple: of a map state the fields of the key, then the value.

    Only states in the driver can list their entries: memory and files.
    """

    def batch_retrieve(self, state: TupleCollection, tuples: Sequence[TridentTuple]) -> list[Any]:
        """One listing for all tuples.

        Raises:
            OperationError: the state cannot list its entries.
        """
        if not hasattr(state, "tuples"):
            msg = f"TupleCollectionGet: a {type(state).__name__} has no method tuples(). Query another state"
            raise OperationError(msg)
        return _one_each(self, TupleCollectionGet, list(state.tuples()), tuples)

    def execute(self, tuple_: TridentTuple, result: Sequence[Sequence[Any]], collector: Collector) -> None:
        """Emit each entry."""
        for one in result:
            collector.emit(one)


def _one_each(
    query: QueryFunction[Any, Any], kind: type[QueryFunction[Any, Any]], result: Any, tuples: Sequence[object]
) -> list[Any]:
    """Return a result for each tuple: copies, unless `execute` is that of the kind, which changes none."""
    if type(query).execute is kind.execute:
        return [result] * len(tuples)
    return [fresh(result) for _ in tuples]
