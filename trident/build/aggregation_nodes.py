"""Makes nodes of aggregations: checks their fields, and puts their per-tuple part before them."""

from __future__ import annotations

from pyspark.sql.types import DataType, StringType, StructField, StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Move
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import Aggregator, CombinerAggregator, FirstN, ReducerAggregator
from kinesis_trident.trident.build.checks import check_factory, check_given, check_kind, with_storable_values
from kinesis_trident.trident.build.fields import (
    Fields,
    Names,
    append_fields,
    choose_fields,
    new_fields,
)
from kinesis_trident.trident.build.first_values import check_first_value, type_of_first_value
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    AnyAggregator,
    PersistentAggregateNode,
    RowNode,
    TopologyNode,
)
from kinesis_trident.trident.build.user_code import check_operation
from kinesis_trident.trident.operations import ArrowFunction, Function
from kinesis_trident.trident.state import StateFactory
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep, FunctionStep
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple


def function_node(
    parent: TopologyNode,
    name: str,
    operation: Function | ArrowFunction,
    inputs: tuple[str, ...],
    added: StructType,
    kept: StructType,
) -> RowNode:
    """Make the node of a function on single tuples, with the kept and the added fields.

    Raises:
        TopologyError: it is not a function, a new field exists already, or no fields remain.
    """
    if not isinstance(operation, ArrowFunction):
        check_given(operation, Function, name, "plain functions go to map, flat_map, filter or transform")
    schema = append_fields(kept, added, name)
    if not schema.fields:
        msg = f"{name}: no fields remain. Keep or add at least one"
        raise TopologyError(msg)
    kind = ArrowEachStep if isinstance(operation, ArrowFunction) else FunctionStep
    step = kind(name, operation, inputs, arrow_schema(added), arrow_schema(kept))  # type: ignore[arg-type]
    return RowNode(name, schema, (parent,), step)


def aggregate_node(
    parent: TopologyNode,
    keys: tuple[str, ...] | None,
    aggregator: object,
    new: Fields,
    inputs: Names | None,
    what: str,
) -> AggregateNode:
    """Make the node of a batch's aggregation by group; `keys` None: by partition.

    Raises:
        TopologyError: a field is unknown, or the number of new ones differs from the aggregator's.
    """
    name = f"{what}({name_of(aggregator)})"
    check_aggregator(aggregator, name)
    assert isinstance(aggregator, CombinerAggregator | ReducerAggregator | Aggregator)
    node, read, added = _prepare(parent, keys, aggregator, new, inputs, name, StringType())
    if isinstance(aggregator, FirstN):
        aggregator.check(read, added, name)
    schema = append_fields(StructType([parent.schema[key] for key in keys or ()]), added, name)
    move = None if keys is None else Move.of_groups(keys)
    return AggregateNode(name, schema, (node,), move, read, aggregator, added)


def check_aggregator(aggregator: object, name: str) -> None:
    """Check that an argument is an aggregator.

    Raises:
        TopologyError: it is not.
    """
    if not isinstance(aggregator, CombinerAggregator | ReducerAggregator | Aggregator):
        msg = f"{name}: this is not an aggregator. Give a CombinerAggregator, ReducerAggregator or Aggregator"
        raise TopologyError(msg)
    check_operation(name, aggregator)


def persistent_node(
    parent: TopologyNode,
    keys: tuple[str, ...],
    state: StateFactory,
    aggregator: object,
    new: Fields,
    inputs: Names | None,
    what: str = "persistent_aggregate",
) -> PersistentAggregateNode:
    """Make the node of an aggregation by group, or of all tuples, into a state.

    Raises:
        TopologyError: a field is unknown, there is not exactly one new one, nothing tells its type, or the state
            cannot store it.
    """
    name = f"{what}({name_of(aggregator)})"
    if not isinstance(aggregator, CombinerAggregator | ReducerAggregator):
        msg = (
            f"{name}: this is not a CombinerAggregator or ReducerAggregator. For other updates use "
            "partition_persist"
        )
        raise TopologyError(msg)
    check_update(parent, state, name)
    in_driver = state.driver_local and isinstance(aggregator, ReducerAggregator)
    check_operation(name, aggregator, travels=not in_driver)
    check_first_value(name, state, aggregator)
    node, read, added = _prepare(parent, keys, aggregator, new, inputs, name, None)
    if isinstance(aggregator, CombinerAggregator):
        kind = added.fields[0].dataType
        check_kind(name, state, kind)
        node = with_storable_values(name, state, kind, node, read)
    schema = append_fields(StructType([parent.schema[key] for key in keys]), added, name)
    move = Move.of_groups(keys)
    return PersistentAggregateNode(name, schema, (node,), state, move, read, aggregator, added)


def check_update(parent: TopologyNode, state: object, name: str) -> None:
    """Check that a state can be updated with these tuples.

    Raises:
        TopologyError: it is not a factory of states, or the tuples belong to no batch of a stream.
    """
    check_factory(state, name)
    if not any(spout.in_batches for spout in parent.spouts):
        msg = (
            f"{name}: these tuples come from a batch DataFrame, which is outside of transactions, so no batch "
            "would ever update the state. Update it from a Kinesis stream; a batch DataFrame can query it "
            "(state_query)"
        )
        raise TopologyError(msg)


def combined_node(
    parent: TopologyNode,
    keys: tuple[str, ...],
    aggregator: CombinerAggregator,
    read: tuple[str, ...],
    added: StructType,
    name: str,
) -> AggregateNode:
    """Make the node of a combiner that Spark does not have, with one new field of any name."""
    values = values_node(parent, keys, aggregator, read, added, name)
    move = Move.of_groups(keys)
    return AggregateNode(name, values.schema, (values,), move, tuple(added.names), aggregator, added)


def values_node(
    parent: TopologyNode,
    kept: tuple[str, ...],
    aggregator: CombinerAggregator,
    read: tuple[str, ...],
    added: StructType,
    name: str,
) -> RowNode:
    """Make the node of a combiner's `init`: the value of each tuple, beside the fields that are kept."""
    fields = StructType([parent.schema[key] for key in kept])
    return function_node(parent, name, _Init(aggregator), read, added, fields)


def _prepare(
    parent: TopologyNode,
    keys: tuple[str, ...] | None,
    aggregator: AnyAggregator,
    new: Fields,
    inputs: Names | None,
    name: str,
    otherwise: DataType | None,
) -> tuple[TopologyNode, tuple[str, ...], StructType]:
    """Return the input node of an aggregation, the fields that it reads, and the new ones.

    A combiner that Spark does not have reads the results of its `init`: a separate operation.
    """
    read, added = read_and_added(parent, aggregator, new, inputs, name, otherwise)
    # Spark cannot compute a value for each partition.
    if not isinstance(aggregator, CombinerAggregator) or (aggregator.in_spark and keys is not None):
        return parent, read, added
    return values_node(parent, keys or (), aggregator, read, added, name), tuple(added.names), added


def read_and_added(
    parent: TopologyNode,
    aggregator: AnyAggregator,
    new: Fields,
    inputs: Names | None,
    name: str,
    otherwise: DataType | None,
) -> tuple[tuple[str, ...], StructType]:
    """Return the fields that an aggregator reads, and the new ones.

    `otherwise` is the type of a bare name if nothing tells it; None refuses it.

    Raises:
        TopologyError: a field is unknown, or the number of new ones differs from the aggregator's.
    """
    read = choose_fields(parent.schema.names if inputs is None else inputs, parent.schema, name)
    if isinstance(aggregator, Aggregator):
        return read, new_fields(new, name)
    if isinstance(aggregator, ReducerAggregator):
        return read, _single(_typed_fields(aggregator, new, name, otherwise), name)
    if aggregator.in_spark not in (None, "count") and len(read) != 1:
        msg = f"{name}: the field to aggregate is not known. Name it with inputs=[...]"
        raise TopologyError(msg)
    kind = aggregator.result(StructType([parent.schema[field] for field in read]))
    if kind is None:
        return read, _single(_typed_fields(aggregator, new, name, otherwise), name)
    added = _single(new_fields(new, name), name)
    return read, StructType().add(added.names[0], kind)


def _single(added: StructType, name: str) -> StructType:
    if len(added) != 1:
        msg = f"{name}: gives one value, so it needs one new field, not {len(added)}"
        raise TopologyError(msg)
    return added


def _typed_fields(
    aggregator: CombinerAggregator | ReducerAggregator, new: Fields, name: str, otherwise: DataType | None
) -> StructType:
    """Return the new fields; a bare name has the type of the aggregator's first value."""
    kind = type_of_first_value(aggregator) or otherwise or _Untold()
    added = new_fields(new, name, [StructField("value", kind)])
    if any(isinstance(field.dataType, _Untold) for field in added):
        first = "zero()" if isinstance(aggregator, CombinerAggregator) else "init()"
        field = added.names[0]
        msg = (
            f"{name}: the type of the field {field!r} is not known. Write it beside the name, as in '{field} bigint', "
            f"or let {first} return a value of it"
        )
        raise TopologyError(msg)
    return added


class _Untold(DataType):
    """Marks a bare name whose type nothing tells."""


class _Init(Function):
    """The first half of a combiner aggregator: turns each tuple into a value, or fails its record."""

    def __init__(self, aggregator: CombinerAggregator) -> None:
        self._aggregator = aggregator

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([self._aggregator.init(tup)])
