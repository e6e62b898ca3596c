"""The streams of a topology: each call checks its fields and adds a node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.aggregators import CombinerAggregator, FirstN, ReducerAggregator
from kinesis_trident.trident.build.aggregation_nodes import (
    aggregate_node,
    check_update,
    function_node,
    persistent_node,
)
from kinesis_trident.trident.build.checks import check_given
from kinesis_trident.trident.build.fields import (
    Fields,
    Names,
    append_fields,
    arrow,
    choose_fields,
    key_fields,
    new_fields,
)
from kinesis_trident.trident.build.graph import (
    AnyAggregator,
    Node,
    PersistentAggregateNode,
    PersistNode,
    RowNode,
    TransformNode,
    UpdateNode,
)
from kinesis_trident.trident.build.lambdas import Keep, Many, One, name_of
from kinesis_trident.trident.build.merge_and_join import join_node, merge_node
from kinesis_trident.trident.build.repartitioning import Groupings
from kinesis_trident.trident.operations import ArrowFunction, Filter, Function, Operation
from kinesis_trident.trident.queries import MapGet
from kinesis_trident.trident.run.attempt import Attempt, BatchFacts
from kinesis_trident.trident.state import QueryFunction, StateFactory, StateUpdater
from kinesis_trident.trident.steps.emitting_steps import QueryStep
from kinesis_trident.trident.steps.tuple_steps import FilterStep, ProjectStep
from kinesis_trident.trident.tuples import TridentTuple

__all__ = ["GroupedStream", "Stream", "TridentState"]


@dataclass(frozen=True, slots=True)
class TridentState:
    """A state in a topology: it can be queried, and, if the topology updates it, its new values are a stream."""

    factory: StateFactory
    node: UpdateNode | None = None

    def new_values_stream(self) -> Stream:
        """Return the stream that the updates emit: for `persistent_aggregate` the group fields and the new value.

        Its consumers run when the states of the batch are updated: a failure there fails the batch, not a record.

        Raises:
            TopologyError: the state is static.
        """
        if self.node is None:
            msg = (
                "new_values_stream: this topology does not update a static state, so it has no new values. Query "
                "it instead"
            )
            raise TopologyError(msg)
        return Stream(self.node)

    def parallelism_hint(self, partitions: int) -> TridentState:
        """Update the state in that many partitions; by default in as many as Spark runs in parallel."""
        if self.node is None or partitions < 1:
            msg = (
                f"parallelism_hint({partitions}) is not valid here. Give at least 1, for a state that the "
                "topology updates"
            )
            raise TopologyError(msg)
        self.node.partitions = partitions
        return self


class _Aggregations(ABC):
    """The aggregations of all tuples, or of those of each group."""

    __slots__ = ()

    @abstractmethod
    def _grouped(self) -> tuple[Node, tuple[str, ...]]:
        """Return the tuples and their group fields."""

    def aggregate(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None) -> Stream:
        """Aggregate all tuples of a batch, or those of each group, to one value (or what an `Aggregator` emits).

        Raises:
            TopologyError: a field is unknown, or the number of new ones differs from the aggregator's.
        """
        return Stream(aggregate_node(*self._grouped(), aggregator, new, inputs, "aggregate"))

    def min_by(self, field: str) -> Stream:
        """Keep the whole tuple with the least value in a field, of all tuples of a batch or of each group."""
        return self._extreme("min_by", field, reverse=False)

    def max_by(self, field: str) -> Stream:
        """Keep the whole tuple with the greatest value in a field, of all tuples of a batch or of each group."""
        return self._extreme("max_by", field, reverse=True)

    def persistent_aggregate(
        self,
        state: StateFactory,
        aggregator: CombinerAggregator | ReducerAggregator,
        new: Fields,
        inputs: Names | None = None,
    ) -> TridentState:
        """Keep a value in a state: of each group that ever came (a `MapState`), or of all tuples (a `Snapshottable`).

        Raises:
            TopologyError: a field is unknown, or there is not exactly one new one.
        """
        return TridentState(state, persistent_node(*self._grouped(), state, aggregator, new, inputs))

    def _extreme(self, name: str, field: str, *, reverse: bool) -> Stream:
        node, keys = self._grouped()
        if len(choose_fields([field], node.schema, name)) != 1 or field in keys:
            msg = (
                f"{name}: the tuples are grouped by {field!r}, which is the same in all of a group. Choose "
                "another field"
            )
            raise TopologyError(msg)
        others = StructType([one for one in node.schema if one.name not in keys])
        first = FirstN(1, field, reverse=reverse)
        return Stream(aggregate_node(node, keys, first, others, others.names, name))


@dataclass(frozen=True, slots=True)
class Stream(Groupings, _Aggregations):
    """Tuples with named fields. No call changes a stream: each returns a new one, so a stream can have branches."""

    node: Node

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(self.node.schema.names)

    @property
    def schema(self) -> StructType:
        """The fields with their types."""
        return self.node.schema

    @property
    def df(self) -> DataFrame:
        """The result of a stream over a batch DataFrame.

        Raises:
            TopologyError: the stream reads Kinesis; its rows come batch by batch, so use `transform`.
        """
        if any(spout.in_batches for spout in self.node.spouts):
            msg = "df: these tuples come batch by batch. Use .transform(fn), which gets each batch as a DataFrame"
            raise TopologyError(msg)
        spark = SparkSession.builder.getOrCreate()
        facts = BatchFacts(None, {}, int(spark.sparkContext.defaultParallelism))
        return Attempt({}, facts).frame(self.node).select(*self.fields)

    def each(self, fields: Names, operation: Function | ArrowFunction | Filter, new: Fields = ()) -> Stream:
        """Run a function, which adds its `new` fields, or a filter, which adds none, on these fields of each tuple.

        An exception for a tuple fails its record: it is in no state of this batch, and comes back in a later one.

        Raises:
            TopologyError: a field is unknown, or a new one exists already.
        """
        name = f"each({name_of(operation)})"
        inputs = choose_fields(fields, self.schema, name)
        if isinstance(operation, Filter):
            if len(new):
                msg = f"{name}: a filter adds no fields. Omit {new!r}, or make it a Function"
                raise TopologyError(msg)
            return self._row(name, FilterStep(name, operation, inputs, arrow(self.schema)), self.schema)
        added = new_fields(new, name)
        return Stream(function_node(self.node, name, operation, inputs, added, self.schema))

    def filter(
        self, condition: Filter | Callable[[TridentTuple], Any], fields: Names | None = None
    ) -> Stream:
        """Keep the tuples for which the condition is true; it gets these fields, or all."""
        if isinstance(condition, type) and issubclass(condition, Operation):
            check_given(condition, Filter, "filter")
        keep = condition if isinstance(condition, Filter) else Keep(condition)
        return self.each(self.fields if fields is None else fields, keep)

    def map(self, function: Callable[[TridentTuple], Sequence[Any]], fields: Fields) -> Stream:
        """Replace each tuple by one new tuple, a list of values; only the new fields remain."""
        name = f"map({name_of(function)})"
        return Stream(
            function_node(self.node, name, One(function), self.fields, new_fields(fields, name), StructType())
        )

    def flat_map(self, function: Callable[[TridentTuple], Sequence[Sequence[Any]]], fields: Fields) -> Stream:
        """Replace each tuple by any number of new ones, a list of lists of values; only the new fields remain."""
        name = f"flat_map({name_of(function)})"
        return Stream(
            function_node(
                self.node, name, Many(function), self.fields, new_fields(fields, name), StructType()
            )
        )

    def project(self, fields: Names) -> Stream:
        """Keep only these fields, in this order."""
        names = choose_fields(fields, self.schema, "project")
        if not names:
            msg = "project: there are no fields. Name at least one"
            raise TopologyError(msg)
        schema = StructType([self.schema[name] for name in names])
        return self._row("project", ProjectStep(arrow(schema)), schema)

    def state_query(
        self, state: TridentState, fields: Names, query: QueryFunction[Any, Any], new: Fields = ()
    ) -> Stream:
        """Query a state with these fields of each tuple, a batch of tuples at a time, and add the answer's fields.

        The state is read outside of any transaction. A state that this stream's own batches update can be queried
        only after the verdict of the batch (in an aggregation, a transform, new values), which sees the batch's own
        updates of the states declared before.

        Raises:
            TopologyError: a field is unknown, their number does not fit the query, or the answer decides about
                records and would differ in a replay.
        """
        name = f"state_query({name_of(query)})"
        check_given(query, QueryFunction, name)
        check_given(state, TridentState, name, "make one with new_static_state(factory)")
        inputs = choose_fields(fields, self.schema, name)
        updated = state.node
        if updated is not None and self.node.tracked and updated.spouts & self.node.spouts:
            msg = (
                f"{name}: the state is updated by the same batch. Which records succeed is decided before that, "
                "and a replay, which finds the state updated, could decide differently. Query it from its "
                "new_values_stream(), after an aggregation or .transform(), or from the stream of another spout"
            )
            raise TopologyError(msg)
        if state.factory.driver_local and self.node.tracked:
            msg = (
                f"{name}: the state lives in the driver, and this stream's records are judged in the executors. Query "
                "it after an aggregation or .transform(), or keep it in a store that executors reach"
            )
            raise TopologyError(msg)
        added = new_fields(new, name)
        if query.gives is not None and len(added) != query.gives:
            msg = (
                f"{name}: the query returns {query.gives} values, but there are {len(added)} new fields. Give one "
                "field for each"
            )
            raise TopologyError(msg)
        keys = updated.keys if isinstance(updated, PersistentAggregateNode) else ()
        if isinstance(query, MapGet) and (not inputs or (keys and len(inputs) != len(keys))):
            what = f"its keys have {len(keys)} ({', '.join(keys)})" if keys else "name those that are the key"
            msg = f"{name}: there are {len(inputs)} key fields for the state; {what}"
            raise TopologyError(msg)
        schema = append_fields(self.schema, added, name)
        step = QueryStep(name, state.factory, query, inputs, arrow(added), arrow(self.schema))
        return self._row(name, step, schema)

    def group_by(self, fields: Names) -> GroupedStream:
        """Group the tuples that have the same values in these fields.

        Raises:
            TopologyError: a field is unknown, or holds maps or structs, which cannot be keys.
        """
        names = key_fields(fields, self.schema, "group_by")
        if not names:
            msg = "group_by: there are no fields. Aggregate the stream itself for one value of all tuples"
            raise TopologyError(msg)
        return GroupedStream(self, names)

    def partition_aggregate(
        self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None
    ) -> Stream:
        """Aggregate as `aggregate` does, but each partition of a batch separately."""
        return Stream(aggregate_node(self.node, None, aggregator, new, inputs, "partition_aggregate"))

    def partition_persist(
        self, state: StateFactory, fields: Names, updater: StateUpdater[Any], new: Fields = ()
    ) -> TridentState:
        """Update a state with these fields of the tuples, by partition; the emitted tuples are its new values.

        Raises:
            TopologyError: a field is unknown, or the arguments are not a factory of states and an updater.
        """
        name = f"partition_persist({name_of(updater)})"
        check_given(updater, StateUpdater, name)
        check_update(self.node, state, name)
        inputs = choose_fields(fields, self.schema, name)
        return TridentState(
            state, PersistNode(name, new_fields(new, name), (self.node,), state, inputs, updater)
        )

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Apply plain DataFrame code: any function from DataFrame to DataFrame.

        It gets the tuples whose records succeeded. An error in it stops the query, which replays the batch when it
        starts again; a `FailedException` replays the batch in place. The function is called once now, without rows,
        to determine its fields.

        Raises:
            TopologyError: it raises an error, or does not return a DataFrame with fields.
        """
        name = f"transform({name_of(function)})"
        if any(spout.rows is None for spout in self.node.spouts):
            msg = (
                f"{name} is DataFrame code, which needs Spark. Build the topology with a Spark session, as in "
                "TridentTopology(spark): then kinesis_trident.testing.run_topology runs it there, too"
            )
            raise TopologyError(msg)
        try:
            result = function(SparkSession.builder.getOrCreate().createDataFrame([], self.schema))
            schema = result.schema
        except Exception as error:
            msg = f"{name}: the function failed for a DataFrame with the fields {', '.join(self.fields)}: {error}"
            raise TopologyError(msg) from error
        return Stream(TransformNode(name, schema, (self.node,), function))

    def merge(self, *others: Stream) -> Stream:
        """Merge all tuples of several streams with the same fields and types.

        Raises:
            TopologyError: the fields differ, or the streams come from different spouts.
        """
        return Stream(merge_node([self.node, *(other.node for other in others)]))

    def join(
        self, fields: Names, other: Stream, other_fields: Names, new: Names | None = None, how: str = "inner"
    ) -> Stream:
        """Join the tuples of a batch with those of another stream of the batch, or of a batch DataFrame.

        The fields joined on come first, then the others of this stream, then those of the other one; `new` names
        them all. `how`: as in Spark, `inner`, `left`, `right` or `full`.

        Raises:
            TopologyError: the fields do not match, or the streams come from different spouts.
        """
        return Stream(join_node(self.node, fields, other.node, other_fields, new, how))

    def _of(self, node: Node) -> Stream:
        return Stream(node)

    def _grouped(self) -> tuple[Node, tuple[str, ...]]:
        return self.node, ()

    def _row(self, name: str, step: Any, schema: StructType) -> Stream:
        return Stream(RowNode(name, schema, (self.node,), step))


@dataclass(frozen=True, slots=True)
class GroupedStream(_Aggregations):
    """A stream whose tuples are grouped by fields."""

    stream: Stream
    keys: tuple[str, ...]

    def _grouped(self) -> tuple[Node, tuple[str, ...]]:
        return self.stream.node, self.keys
