"""The streams of a topology: each call checks its fields and adds a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kinesis_trident.bolt.calls import check_runs
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_fields, check_label
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.bolt.tracking.held import Held
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator, Comparator, FirstN, ReducerAggregator
from kinesis_trident.trident.build.aggregation_nodes import aggregate_node, check_update, persistent_node
from kinesis_trident.trident.build.chained_aggregation import ChainedAggregation
from kinesis_trident.trident.build.checks import check_given
from kinesis_trident.trident.build.fields import (
    Fields,
    Names,
    append_fields,
    check_same_kind,
    choose_fields,
    key_fields,
    new_fields,
)
from kinesis_trident.trident.build.graph import DeclaredNodes
from kinesis_trident.trident.build.hints import resolve_hints, state_hint_node
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.merge_and_join import join_node, merge_node
from kinesis_trident.trident.build.nodes import (
    AnyAggregator,
    PersistentAggregateNode,
    PersistNode,
    TopologyNode,
    TransformNode,
    UpdateNode,
)
from kinesis_trident.trident.build.tuple_operations import TupleOperations
from kinesis_trident.trident.build.user_code import check_function, check_operation
from kinesis_trident.trident.build.windows import KeyedTuples, WindowOperations
from kinesis_trident.trident.operations import MapGet, SnapshotGet
from kinesis_trident.trident.run.attempt import Attempt
from kinesis_trident.trident.run.batch_facts import BatchFacts
from kinesis_trident.trident.state import QueryFunction, StateFactory, StateUpdater
from kinesis_trident.trident.steps.emitting_steps import QueryStep


@dataclass(frozen=True, slots=True)
class TridentState(StormNames):
    """A state in a topology: it can be queried, and, if the topology updates it, its new values are a stream."""

    factory: StateFactory
    node: UpdateNode | None = None
    label: str = ""
    _declared: DeclaredNodes = field(default_factory=DeclaredNodes, repr=False)

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
        return Stream(self.node, self.label, self._declared)

    def parallelism_hint(self, partitions: int) -> TridentState:
        """Update the state in that many partitions; by default in as many as Spark runs in parallel.

        Those of a `partition_persist` are filled as the nearest grouping above it says.

        Raises:
            TopologyError: the state is static, or the nearest grouping cannot have that many.
        """
        if self.node is None:
            msg = (
                f"parallelism_hint({partitions}): this topology does not update a static state. Call it on a state "
                "that it updates"
            )
            raise TopologyError(msg)
        self._declared.add(state_hint_node(self.node, partitions))
        return self


class _Aggregations(StormNames, WindowOperations["Stream"]):
    """The aggregations of all tuples, or of those of each group."""

    __slots__ = ()

    @abstractmethod
    def _group(self) -> tuple[Stream, tuple[str, ...]]:
        """Return the stream of the tuples, and their group fields."""

    def aggregate(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None) -> Stream:
        """Aggregate all tuples of a batch, or those of each group, to one value (or what an `Aggregator` emits).

        Raises:
            TopologyError: a field is unknown, or the number of new ones differs from the aggregator's.
        """
        stream, keys = self._group()
        what = stream._name_of("aggregate")
        return stream._of(aggregate_node(stream.node, keys, aggregator, new, inputs, what))

    def chained_agg(self) -> ChainedAggregation[Stream]:
        """Begin several aggregations of the same groups in one pass: `.aggregate(...)` each, then `.chain_end()`."""
        groups = self._groups()
        return ChainedAggregation(groups.node, groups.keys, groups.made, groups.called)

    def min_by(self, field: str, comparator: Comparator | None = None) -> Stream:
        """Keep the whole tuple with the least value in a field, of all tuples of a batch or of each group.

        `comparator(a, b)` returns a number below, at or above 0 for two values of the field.
        """
        return self._extreme("min_by", field, comparator, reverse=False)

    def max_by(self, field: str, comparator: Comparator | None = None) -> Stream:
        """Keep the whole tuple with the greatest value in a field; see `min_by`."""
        return self._extreme("max_by", field, comparator, reverse=True)

    def min(self, comparator: Comparator) -> Stream:
        """Keep the least tuple, of all tuples of a batch or of each group, where a function compares two tuples.

        The tuples that it gets are without the group fields.
        """
        return self._extreme("min", None, comparator, reverse=False)

    def max(self, comparator: Comparator) -> Stream:
        """Keep the greatest tuple; see `min`."""
        return self._extreme("max", None, comparator, reverse=True)

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
        stream, keys = self._group()
        what = stream._name_of("persistent_aggregate")
        return stream._state(persistent_node(stream.node, keys, state, aggregator, new, inputs, what))

    def _groups(self) -> KeyedTuples[Stream]:
        stream, keys = self._group()
        return KeyedTuples(stream.node, keys, stream._of, stream._name_of)

    def _extreme(
        self, what: str, field: str | None, comparator: Comparator | None, *, reverse: bool
    ) -> Stream:
        stream, keys = self._group()
        name, schema = stream._name_of(what), stream.schema
        if field is not None and (len(choose_fields([field], schema, name)) != 1 or field in keys):
            msg = (
                f"{name}: the tuples are grouped by {field!r}, which is the same in all of a group. Choose "
                "another field"
            )
            raise TopologyError(msg)
        given: object = comparator
        if given is not None and not callable(given):
            msg = f"{name}: the comparator is {comparator!r}. Give a function of two values that returns a number"
            raise TopologyError(msg)
        if comparator is not None:
            check_function(name, comparator, "a", "b")
        others = StructType([one for one in schema if one.name not in keys])
        first = FirstN(1, field, reverse=reverse, comparator=comparator)
        return stream._of(aggregate_node(stream.node, keys, first, others, others.names, name))


@dataclass(frozen=True, slots=True)
class Stream(TupleOperations, _Aggregations):
    """Tuples with named fields. No call changes a stream: each returns a new one, so a stream can have branches."""

    node: TopologyNode
    label: str = ""
    _declared: DeclaredNodes = field(default_factory=DeclaredNodes, repr=False)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(self.node.schema.names)

    @property
    def schema(self) -> StructType:
        """The fields with their types."""
        return self.node.schema

    def name(self, label: str) -> Stream:
        """Name the operations after this call: the label stands before them in messages and in metrics.

        Raises:
            TopologyError: it is not a text of up to 100 visible letters, or has a `#`.
        """
        return Stream(self.node, check_label(label), self._declared)

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
        graph, made = resolve_hints(self._declared.graph)
        return Attempt(graph, {}, facts, Held()).frame(made[self.node]).select(*self.fields)

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
        name = self._name_of(f"state_query({name_of(query)})")
        check_given(query, QueryFunction, name)
        check_given(state, TridentState, name, "make one with new_static_state(factory)")
        check_operation(name, query, travels=not state.factory.driver_local)
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
        values = updated.added if isinstance(updated, PersistentAggregateNode) else StructType()
        added = new_fields(new, name, values.fields if isinstance(query, MapGet | SnapshotGet) else ())
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
        if updated is not None and isinstance(query, MapGet):
            for key, field in zip(keys, inputs, strict=False):
                check_same_kind(name, updated.schema[key], self.schema[field])
        schema = append_fields(self.schema, added, name)
        step = QueryStep(name, state.factory, query, inputs, arrow_schema(added), arrow_schema(self.schema))
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
        what = self._name_of("partition_aggregate")
        return self._of(aggregate_node(self.node, None, aggregator, new, inputs, what))

    def partition_persist(
        self, state: StateFactory, fields: Names, updater: StateUpdater[Any], new: Fields = ()
    ) -> TridentState:
        """Update a state with these fields of the tuples, by partition; the emitted tuples are its new values.

        Raises:
            TopologyError: a field is unknown, or the arguments are not a factory of states and an updater.
        """
        name = self._name_of(f"partition_persist({name_of(updater)})")
        check_given(updater, StateUpdater, name)
        check_update(self.node, state, name)
        check_operation(name, updater, travels=not state.driver_local)
        inputs = choose_fields(fields, self.schema, name)
        return self._state(PersistNode(name, new_fields(new, name), (self.node,), state, inputs, updater))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Apply plain DataFrame code: any function from DataFrame to DataFrame.

        It gets the tuples whose records succeeded. An error in it stops the query, which replays the batch when it
        starts again; a `FailedException` replays the batch in place. The function is called once now, without rows,
        to determine its fields.

        Raises:
            TopologyError: it raises an error, or does not return a DataFrame with fields.
        """
        name = self._name_of(f"transform({name_of(function)})")
        if not all(spout.in_spark for spout in self.node.spouts):
            msg = (
                f"{name} is DataFrame code, which needs Spark. Build the topology with a Spark session, as in "
                "TridentTopology(spark): then kinesis_trident.testing.run_topology runs it there, too"
            )
            raise TopologyError(msg)
        check_runs(name, function)
        try:
            result = function(SparkSession.builder.getOrCreate().createDataFrame([], self.schema))
            schema = result.schema
        except Exception as error:
            msg = f"{name}: the function failed for a DataFrame with the fields {', '.join(self.fields)}: {error}"
            raise TopologyError(msg) from error
        check_fields(name, schema.names)
        return self._of(TransformNode(name, schema, (self.node,), function))

    def merge(self, *others: Stream) -> Stream:
        """Merge all tuples of several streams with the same fields and types.

        Raises:
            TopologyError: the fields differ, or the streams come from different spouts.
        """
        return self._of(merge_node([self.node, *(other.node for other in others)]))

    def join(
        self, fields: Names, other: Stream, other_fields: Names, new: Names | None = None, how: str = "inner"
    ) -> Stream:
        """Join the tuples of a batch with those of another stream of the batch, or of a batch DataFrame.

        The fields joined on come first, then the others of this stream, then those of the other one; `new` names
        them all. `how`: as in Spark, `inner`, `left`, `right` or `full`.

        Raises:
            TopologyError: the fields do not match, or the streams come from different spouts.
        """
        return self._of(join_node(self.node, fields, other.node, other_fields, new, how))

    def _of(self, node: TopologyNode) -> Stream:
        self._declared.add(node)
        return Stream(node, self.label, self._declared)

    def _state(self, node: UpdateNode) -> TridentState:
        self._declared.add(node)
        return TridentState(node.factory, node, self.label, self._declared)

    def _name_of(self, operation: str) -> str:
        return f"{self.label}: {operation}" if self.label else operation

    def _group(self) -> tuple[Stream, tuple[str, ...]]:
        return self, ()


@dataclass(frozen=True, slots=True)
class GroupedStream(_Aggregations):
    """A stream whose tuples are grouped by fields."""

    stream: Stream
    keys: tuple[str, ...]

    def _group(self) -> tuple[Stream, tuple[str, ...]]:
        return self.stream, self.keys
