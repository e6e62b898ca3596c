"""Queries of the states of Trident's own aggregations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from kinesis_trident.trident.state import Collector, QueryFunction, ReadOnlyMapState, ReadOnlySnapshottable
from kinesis_trident.trident.tuples import TridentTuple

__all__ = ["MapGet", "SnapshotGet"]


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
