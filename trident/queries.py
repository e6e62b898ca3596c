"""Queries of the states of Trident's own aggregations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.state import Collector, QueryFunction, ReadOnlyMapState, ReadOnlySnapshottable
from kinesis_trident.trident.tuples import TridentTuple


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
        return [state.get()] * len(tuples)

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
        return [list(state.tuples())] * len(tuples)

    def execute(self, tuple_: TridentTuple, result: Sequence[Sequence[Any]], collector: Collector) -> None:
        """Emit each entry."""
        for one in result:
            collector.emit(one)
