"""Several aggregations of the same groups in one pass: Trident's `chainedAgg`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from kinesis_trident.bolt.calls import refuse_returned
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Move
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.common.arrow_columns import booleans, values_of
from kinesis_trident.common.own_copies import fresh
from kinesis_trident.trident.aggregators import (
    Aggregator,
    CombinerAggregator,
    FirstN,
    ReducerAggregator,
    value_of,
)
from kinesis_trident.trident.build.aggregation_nodes import (
    check_aggregator,
    combined_node,
    function_node,
    read_and_added,
)
from kinesis_trident.trident.build.fields import Fields, Names, append_fields
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.nodes import AggregateNode, AnyAggregator, TopologyNode
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.operations import ArrowFunction
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

S = TypeVar("S")

_CHAIN = "__chain"
"""The field that holds the values of all combiners of a chain."""


@dataclass(frozen=True, slots=True)
class Link:
    """One aggregation of a chain: the fields that it reads and adds."""

    aggregator: AnyAggregator
    read: tuple[str, ...]
    added: StructType

    def seen(self, tup: TridentTuple) -> TridentTuple:
        """Return the tuple with only the fields that the aggregator reads."""
        # The next one of the chain gets the same tuple.
        return TridentTuple(self.read, [fresh(tup[name]) for name in self.read])


@dataclass(frozen=True, slots=True)
class ChainedAggregation(StormNames, Generic[S]):
    """The aggregations so far; each call returns a new chain.

    If each aggregator emits one tuple, the chain emits one with all their fields; if some emit several or none, it
    emits every combination, as in Trident. Combiners alone are combined in the workers that have the tuples.
    """

    _parent: TopologyNode
    _keys: tuple[str, ...]
    _made: Callable[[TopologyNode], S]
    _called: Callable[[str], str]
    _links: tuple[Link, ...] = ()
    _by_partition: bool | None = None

    def aggregate(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None) -> Self:
        """Add an aggregation of all tuples of a batch, or of those of each group.

        Raises:
            TopologyError: a field is unknown, or the number of new ones differs from the aggregator's.
        """
        return self._with(aggregator, new, inputs, by_partition=False)

    def partition_aggregate(
        self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None
    ) -> Self:
        """Add an aggregation of each partition of a batch; a chain has either these or `aggregate`.

        Raises:
            TopologyError: a field is unknown, the tuples are grouped, or the chain has `aggregate`.
        """
        return self._with(aggregator, new, inputs, by_partition=True)

    def chain_end(self) -> S:
        """Return the stream of the group fields and the fields of all aggregations.

        Raises:
            TopologyError: the chain is empty.
        """
        name = self._called(f"chained_agg({', '.join(name_of(link.aggregator) for link in self._links)})")
        if not self._links:
            msg = f"{name}: the chain is empty. Call aggregate before chain_end"
            raise TopologyError(msg)
        if not self._by_partition and all(
            isinstance(one.aggregator, CombinerAggregator) for one in self._links
        ):
            return self._made(_together(self._parent, self._keys, self._links, name))
        read = tuple(dict.fromkeys(field for link in self._links for field in link.read))
        move = None if self._by_partition else Move.of_groups(self._keys)
        chain = InTurn(name, self._links)
        return self._made(
            AggregateNode(name, self._schema, (self._parent,), move, read, chain, _fields(self._links))
        )

    @property
    def _schema(self) -> StructType:
        kept = StructType([self._parent.schema[key] for key in self._keys])
        return StructType([*kept, *_fields(self._links)])

    def _with(
        self, aggregator: AnyAggregator, new: Fields, inputs: Names | None, *, by_partition: bool
    ) -> Self:
        name = self._called(f"chained_agg({name_of(aggregator)})")
        check_aggregator(aggregator, name)
        if by_partition and self._keys:
            msg = f"{name}: the tuples are grouped, so partition_aggregate is not possible. Call aggregate"
            raise TopologyError(msg)
        if self._by_partition not in (None, by_partition):
            msg = f"{name}: a chain has aggregate or partition_aggregate, not both. Make two chains"
            raise TopologyError(msg)
        read, added = read_and_added(self._parent, aggregator, new, inputs, name, StringType())
        if isinstance(aggregator, FirstN):
            aggregator.check(read, added, name)
        append_fields(self._schema, added, name)
        links = (*self._links, Link(aggregator, read, added))
        return type(self)(self._parent, self._keys, self._made, self._called, links, by_partition)


class Together(CombinerAggregator):
    """Combines the values of several combiners, as one struct with a field for each."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._names = [link.added.names[0] for link in links]
        self._combines = [combine_of(link.aggregator) for link in links]

    def init(self, tup: TridentTuple) -> dict[str, Any]:
        """Return the value of each combiner."""
        return {
            name: link.aggregator.init(link.seen(tup))  # type: ignore[call-arg,arg-type]
            for name, link in zip(self._names, self._links, strict=True)
        }

    def combine(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        """Combine the values of each."""
        return {
            name: combine(left[name], right[name])
            for name, combine in zip(self._names, self._combines, strict=True)
        }

    def zero(self) -> None:
        """Return None: `result` tells the type."""

    def result(self, _inputs: StructType) -> DataType:
        """Return the struct of all values."""
        return _fields(self._links)


class _Apart(ArrowFunction):
    """Makes columns of the fields of a struct; `drops_nulls`: a struct of nulls only is dropped."""

    def __init__(self, *, drops_nulls: bool) -> None:
        self._drops_nulls = drops_nulls

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the fields."""
        struct = batch.column(0)
        rows = pa.RecordBatch.from_arrays(struct.flatten(), names=[field.name for field in struct.type])
        if not self._drops_nulls:
            return rows, np.arange(batch.num_rows)
        known = np.logical_or.reduce([values_of(column.is_valid()) for column in rows.columns])
        return rows.filter(booleans(known)), np.flatnonzero(known)


class InTurn(Aggregator):
    """Gives each tuple to several aggregators; emits every combination of what they emit."""

    def __init__(self, operation: str, links: Sequence[Link]) -> None:
        self._operation = operation
        self._links = [Link(as_aggregator(link.aggregator), link.read, link.added) for link in links]
        self._drops_nulls = _drops_nulls(links)

    def init(self, batch_id: int | None, collector: TridentCollector) -> list[tuple[TridentCollector, Any]]:
        """Return each aggregator's own collector and its initial value."""
        collectors = [TridentCollector(self._operation, link.added.names) for link in self._links]
        return [
            (own, value_of(self._operation, "init", link.aggregator.init(batch_id, own)))  # type: ignore[call-arg,arg-type]
            for own, link in zip(collectors, self._links, strict=True)
        ]

    def aggregate(self, value: Any, tup: TridentTuple, collector: TridentCollector) -> Any:
        """Give the tuple to each."""
        changed = [
            link.aggregator.aggregate(current, link.seen(tup), own)  # type: ignore[union-attr]
            for (own, current), link in zip(value, self._links, strict=True)
        ]
        return [
            (own, current if new is None else new) for (own, current), new in zip(value, changed, strict=True)
        ]

    def complete(self, value: Any, collector: TridentCollector) -> None:
        """Emit the combinations."""
        for (own, current), link in zip(value, self._links, strict=True):
            value_of(self._operation, "aggregate", current)
            returned = link.aggregator.complete(current, own)  # type: ignore[union-attr]
            refuse_returned(f"{self._operation}: complete()", returned, OperationError)
        for rows in product(*(own.close() for own, _ in value)):
            values = [one for row in rows for one in row]
            if not (self._drops_nulls and all(one is None for one in values)):
                collector.emit(values)


class _OfOneValue(Aggregator):
    """A combiner or reducer as an aggregator that emits its one value."""

    def __init__(self, aggregator: CombinerAggregator | ReducerAggregator) -> None:
        self._aggregator = aggregator
        self.__name__ = name_of(aggregator)

    def init(self, batch_id: int | None, collector: TridentCollector) -> list[Any]:
        return [] if isinstance(self._aggregator, CombinerAggregator) else [self._aggregator.init()]

    def aggregate(self, value: list[Any], tup: TridentTuple, collector: TridentCollector) -> list[Any]:
        aggregator = self._aggregator
        if isinstance(aggregator, ReducerAggregator):
            return [aggregator.reduce(value[0], tup)]
        first = aggregator.init(tup)
        return [combine_of(aggregator)(value[0], first)] if value else [first]

    def complete(self, value: list[Any], collector: TridentCollector) -> None:
        collector.emit(value)


def _together(parent: TopologyNode, keys: tuple[str, ...], links: Sequence[Link], name: str) -> TopologyNode:
    """Make the node of combiners: one value for all of them, then a field for each."""
    both = Together(links)
    read = tuple(dict.fromkeys(field for link in links for field in link.read))
    added = StructType([StructField(_CHAIN, both.result(parent.schema))])
    combined = combined_node(parent, keys, both, read, added, name)
    kept = StructType([parent.schema[key] for key in keys])
    return function_node(
        combined, name, _Apart(drops_nulls=_drops_nulls(links)), (_CHAIN,), _fields(links), kept
    )


def combine_of(aggregator: AnyAggregator) -> Callable[[Any, Any], Any]:
    """Return the function that combines two values; those that Spark also has ignore nulls, as there."""
    assert isinstance(aggregator, CombinerAggregator)
    combine = aggregator.combine
    if aggregator.in_spark is None:
        return combine
    return lambda left, right: right if left is None else left if right is None else combine(left, right)


def as_aggregator(aggregator: AnyAggregator) -> Aggregator:
    """Return the aggregator, or one that emits the single value of a combiner or reducer."""
    return aggregator if isinstance(aggregator, Aggregator) else _OfOneValue(aggregator)


def _drops_nulls(links: Sequence[Link]) -> bool:
    """Return whether a tuple of nulls only is dropped, as each of the aggregations would drop it alone."""
    return all(getattr(link.aggregator, "in_spark", None) not in (None, "count") for link in links)


def _fields(links: Sequence[Link]) -> StructType:
    return StructType([field for link in links for field in link.added])
