"""Merges, joins and reduces (Trident's `multiReduce`) several streams of a batch, and checks their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from kinesis_trident.bolt.calls import refuse_returned
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_fields
from kinesis_trident.bolt.steps.border import column
from kinesis_trident.bolt.tagged import Tagged
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.own_copies import fresh_all
from kinesis_trident.trident.aggregators import Aggregator, GroupedMultiReducer, MultiReducer, value_of
from kinesis_trident.trident.build.aggregation_nodes import aggregate_node, function_node
from kinesis_trident.trident.build.checks import check_given
from kinesis_trident.trident.build.fields import Fields, Names, choose_fields, new_fields
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.nodes import JoinNode, MergeNode, TopologyNode
from kinesis_trident.trident.build.user_code import check_operation
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.operations import ArrowFunction
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

_HOW = ("inner", "left", "right", "full")
_WIDER: tuple[tuple[type[DataType], ...], ...] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)
"""Number types that Spark compares as the wider one, without loss."""


def merge_node(nodes: Sequence[TopologyNode], operation: str = "merge") -> MergeNode:
    """Make the node of all tuples of several streams with the same fields and types.

    Raises:
        TopologyError: the fields differ, or the streams come from different spouts.
    """
    first = nodes[0].schema
    ours = [(field.name, field.dataType) for field in first]
    for other in nodes[1:]:
        if ours != [(field.name, field.dataType) for field in other.schema]:
            msg = f"merge: the fields differ: {_said(first)} and {_said(other.schema)}. Use project or map first"
            raise TopologyError(msg)
    if len({spout for node in nodes for spout in node.spouts}) > 1:
        raise TopologyError(_several_spouts("merge"))
    return MergeNode(operation, first, tuple(nodes))


def join_node(
    ours: TopologyNode, fields: Names, theirs: TopologyNode, other_fields: Names, new: Names | None, how: str
) -> JoinNode:
    """Make the node of the tuples of two streams that have the same values in some fields.

    Raises:
        TopologyError: the fields do not match, `how` is unknown, or the streams come from different spouts.
    """
    if how not in _HOW:
        msg = f"join: how={how!r} is unknown. Choose one of {', '.join(_HOW)}"
        raise TopologyError(msg)
    left, right = (
        choose_fields(fields, ours.schema, "join"),
        choose_fields(other_fields, theirs.schema, "join"),
    )
    if len(left) != len(right) or not left:
        msg = f"join: {len(left)} fields cannot be joined on {len(right)} fields. Name as many on both sides"
        raise TopologyError(msg)
    if len({spout for node in (ours, theirs) for spout in node.spouts if spout.in_batches}) > 1:
        raise TopologyError(_several_spouts("join"))
    kinds = [
        *(_key(ours.schema[a], theirs.schema[b]) for a, b in zip(left, right, strict=True)),
        *(field for field in ours.schema if field.name not in left),
        *(field for field in theirs.schema if field.name not in right),
    ]
    names = [field.name for field in kinds] if new is None else list(new_fields(new, "join").names)
    if len(names) != len(kinds):
        said = ", ".join(names)
        msg = f"join: the {len(kinds)} resulting fields need as many names in `new`; there are {said}"
        raise TopologyError(msg)
    check_fields("join: name all resulting fields in `new`", names)
    schema = StructType()
    for name, kind in zip(names, kinds, strict=True):
        schema = schema.add(name, kind.dataType)
    on = tuple(zip(left, right, strict=True))
    return JoinNode("join", schema, (ours, theirs), on, how)


def _key(ours: StructField, theirs: StructField) -> StructField:
    """Return the common field of two joined fields."""
    left, right = ours.dataType, theirs.dataType
    if "map<" in left.simpleString():
        msg = (
            f"join: {ours.name!r} is {left.simpleString()}, which Spark cannot compare. Join on another field"
        )
        raise TopologyError(msg)
    for kinds in _WIDER:
        if isinstance(left, kinds) and isinstance(right, kinds):
            return StructField(ours.name, max(left, right, key=lambda kind: kinds.index(type(kind))))
    if left.simpleString() != right.simpleString():
        msg = (
            f"join: {ours.name!r} is {left.simpleString()} and {theirs.name!r} {right.simpleString()}, so none "
            "would be equal, or not as you expect. Convert one with map or transform"
        )
        raise TopologyError(msg)
    return ours


def _said(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _several_spouts(what: str) -> str:
    return (
        f"{what}: the streams come from different spouts, which have their own batches. Read several Kinesis "
        "streams as one spout (streamName with several names), or let one stream update a state that the other "
        "queries"
    )


def multi_reduce_node(
    parts: Sequence[tuple[TopologyNode, tuple[str, ...], tuple[str, ...]]],
    reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
    new: Fields,
) -> TopologyNode:
    """Make the node of the reduction. `parts`: of each stream its node, its group fields, and the fields to read.

    Raises:
        TopologyError: the group fields differ in number or type, or the streams come from different spouts.
    """
    name = f"multi_reduce({name_of(reducer)})"
    if not isinstance(reducer, GroupedMultiReducer):
        check_given(reducer, MultiReducer, name, "for groups there is GroupedMultiReducer, too")
    check_operation(name, reducer)
    node, keys, _ = parts[0]
    if isinstance(reducer, GroupedMultiReducer) and not keys:
        msg = f"{name}: a GroupedMultiReducer reduces groups. Call group_by on each stream, or give a MultiReducer"
        raise TopologyError(msg)
    kept = StructType([node.schema[key] for key in keys])
    read = Tagged.of(StructType([one.schema[field] for field in fields]) for one, _, fields in parts)
    added = StructType([*kept, *read.schema])
    tagged: list[TopologyNode] = []
    for number, (one, theirs, fields) in enumerate(parts):
        if [one.schema[key].dataType for key in theirs] != [field.dataType for field in kept]:
            msg = f"{name}: the streams are grouped by fields of other types, or by other numbers of them. Convert them"
            raise TopologyError(msg)
        tag = _Tag(read, number, kept.names)
        tagged.append(function_node(one, name, tag, (*theirs, *fields), added, StructType()))
    # All are parts of one operation.
    merged = merge_node(tagged, name)
    inputs = [*read.schema.names, *keys]
    several = _Several(reducer, read, keys)
    return aggregate_node(merged, keys, several, new, inputs, "multi_reduce")


class _Tag(ArrowFunction):
    """Returns the group fields, and the others in the columns of all streams."""

    def __init__(self, read: Tagged, number: int, keys: Sequence[str]) -> None:
        self._read = read
        self._number = number
        self._keys = keys
        self._fields = arrow_schema(read.streams[number])

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the columns."""
        count, first = batch.num_rows, len(self._keys)
        parts = zip(batch.columns[first:], self._fields, strict=True)
        tagged = self._read.tag(self._number, count, (column(part, field)[0] for part, field in parts))
        columns = [*batch.columns[:first], *tagged.columns]
        return pa.RecordBatch.from_arrays(columns, [*self._keys, *tagged.schema.names]), np.arange(count)


class _Several(Aggregator):
    """Gives each tuple to the reducer, with the number of its stream, and the group if it wants that."""

    def __init__(
        self,
        reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
        read: Tagged,
        keys: Sequence[str],
    ) -> None:
        self._reducer = reducer if isinstance(reducer, GroupedMultiReducer) else _OfAnyGroup(reducer)
        self._read = read
        self._keys = keys
        self.__name__ = name_of(reducer)
        self._operation = f"multi_reduce({self.__name__})"

    def init(self, batch_id: int | None, collector: TridentCollector) -> None:
        """Return None: the first tuple of a group tells which it is."""

    def aggregate(self, value: Any, tup: TridentTuple, collector: TridentCollector) -> Any:
        if value is None:
            group = tup.select(*self._keys)
            made = value_of(self._operation, "init", self._reducer.init(collector, self._tuple_of(group)))
            value = made, group
        made, group = value
        number = tup[0]
        given = TridentTuple(self._read.streams[number].names, self._read.values_of(number, tup.values))
        returned: object = self._reducer.execute(made, number, self._tuple_of(group), given, collector)  # type: ignore[func-returns-value]
        if returned is not None:
            refuse_returned(f"{self._operation}: execute()", returned, OperationError)
        return value

    def complete(self, value: Any, collector: TridentCollector) -> None:
        made, group = value
        returned: object = self._reducer.complete(made, self._tuple_of(group), collector)  # type: ignore[func-returns-value]
        refuse_returned(f"{self._operation}: complete()", returned, OperationError)

    def _tuple_of(self, group: list[Any]) -> TridentTuple:
        # The next call gets it again.
        return TridentTuple(self._keys, tuple(fresh_all(group)))


class _OfAnyGroup(GroupedMultiReducer[Any]):
    """A reducer that is not told the group."""

    def __init__(self, reducer: MultiReducer[Any]) -> None:
        self._reducer = reducer

    def init(self, collector: TridentCollector, group: TridentTuple) -> Any:
        return self._reducer.init(collector)

    def execute(
        self, value: Any, stream: int, group: TridentTuple, tup: TridentTuple, collector: TridentCollector
    ) -> None:
        return self._reducer.execute(value, stream, tup, collector)

    def complete(self, value: Any, group: TridentTuple, collector: TridentCollector) -> None:
        return self._reducer.complete(value, collector)
