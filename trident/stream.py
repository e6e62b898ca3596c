"""Streams as a user writes them down: each call checks its fields and adds a node to the topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from trident.errors import TopologyError
from trident.execution import Attempt, BatchFacts
from trident.fields import Fields, appended, chosen, new_fields
from trident.graph import (
    AggregateNode,
    AnyAggregator,
    Grouping,
    JoinNode,
    MergeNode,
    Node,
    PersistentAggregateNode,
    PersistNode,
    RepartitionNode,
    RowNode,
    TransformNode,
    UpdateNode,
)
from trident.operations import ArrowFunction, Filter, Function
from trident.state import QueryFunction, StateFactory, StateUpdater
from trident.steps import ArrowStep, FilterStep, FunctionStep, ProjectStep, QueryStep
from trident.tuples import TridentCollector, TridentTuple

__all__ = ["GroupedStream", "Stream", "TridentState"]

Names = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class TridentState:
    """A state in a topology: to be queried, and, if the topology updates it, the source of its new values."""

    factory: StateFactory
    node: UpdateNode | None = None

    def new_values_stream(self) -> Stream:
        """What the updates emit: of `persistent_aggregate` the group fields and the new value.

        Its consumers run when the states of the batch are updated; where one fails, the batch is replayed.

        Raises:
            TopologyError: the state is static.
        """
        if self.node is None:
            msg = "new_values_stream: a static state is not updated by this topology, so it has no new values"
            raise TopologyError(msg)
        return Stream(self.node)

    def parallelism_hint(self, partitions: int) -> TridentState:
        """Update the state in that many partitions; without it in as many as Spark runs side by side."""
        if self.node is None or partitions < 1:
            msg = f"parallelism_hint({partitions}): at least 1, and of a state that the topology updates"
            raise TopologyError(msg)
        self.node.partitions = partitions
        return self


@dataclass(frozen=True, slots=True)
class Stream:
    """Tuples with named fields. No call changes a stream: each gives a new one, so a stream can have many branches."""

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
        """What comes of a stream over a batch DataFrame.

        Raises:
            TopologyError: the stream is of Kinesis; its rows exist batch by batch, so use `transform`.
        """
        if any(spout.options is not None for spout in self.node.spouts):
            msg = "df: these tuples come batch by batch; use .transform(fn), which sees each batch as a DataFrame"
            raise TopologyError(msg)
        spark = SparkSession.builder.getOrCreate()
        rows = {spout: spout.rows for spout in self.node.spouts}
        facts = BatchFacts(None, {}, int(spark.sparkContext.defaultParallelism))
        return Attempt(rows, facts).frame(self.node).select(*self.fields)

    def each(self, fields: Names, operation: Function | ArrowFunction | Filter, new: Fields = ()) -> Stream:
        """Run a function, whose `new` fields are added, or a filter, which has none, on these fields of each tuple.

        A record whose tuple raises fails: it is not in any state of this batch, and comes back in a later one.

        Raises:
            TopologyError: a field is unknown, or a new one is there already.
        """
        name = f"each({_name(operation)})"
        inputs = chosen(fields, self.schema, name)
        if isinstance(operation, Filter):
            if len(new):
                msg = f"{name}: a filter adds no fields; leave {new!r} out, or make it a Function"
                raise TopologyError(msg)
            return self._row(name, FilterStep(name, operation, inputs, _arrow(self.schema)), self.schema)
        added = new_fields(new, name)
        return self._function(name, operation, inputs, added, self.schema)

    def filter(
        self, condition: Filter | Callable[[TridentTuple], Any], fields: Names | None = None
    ) -> Stream:
        """Keep the tuples for which the condition holds; it sees these fields, or all."""
        keep = condition if isinstance(condition, Filter) else _Keep(condition)
        return self.each(self.fields if fields is None else fields, keep)

    def map(self, function: Callable[[TridentTuple], Sequence[Any]], fields: Fields) -> Stream:
        """One new tuple, a list of values, in the place of each; only the new fields remain."""
        name = f"map({_name(function)})"
        return self._function(name, _One(function), self.fields, new_fields(fields, name), StructType())

    def flat_map(self, function: Callable[[TridentTuple], Sequence[Sequence[Any]]], fields: Fields) -> Stream:
        """Any number of new tuples, a list of lists of values, in the place of each; only the new fields remain."""
        name = f"flat_map({_name(function)})"
        return self._function(name, _Many(function), self.fields, new_fields(fields, name), StructType())

    def project(self, fields: Names) -> Stream:
        """Keep only these fields, in this order."""
        names = chosen(fields, self.schema, "project")
        if not names:
            msg = "project: no fields"
            raise TopologyError(msg)
        schema = StructType([self.schema[name] for name in names])
        return self._row("project", ProjectStep(_arrow(schema)), schema)

    def state_query(
        self, state: TridentState, fields: Names, query: QueryFunction[Any, Any], new: Fields = ()
    ) -> Stream:
        """Ask a state about these fields of each tuple, a batch of tuples at a time, and add the answer's fields.

        The state is read as it is, outside of any transaction. One that this stream's own batches update can be
        queried only from what comes after the verdict of the batch (an aggregation, a transform, new values), which
        sees the batch's own updates of the states declared before.

        Raises:
            TopologyError: a field is unknown, or the answer decides about records and would be another in a replay.
        """
        name = f"state_query({_name(query)})"
        inputs = chosen(fields, self.schema, name)
        updated = state.node
        if updated is not None and self.node.tracked and updated.spouts & self.node.spouts:
            msg = (
                f"{name}: the state is updated by the same batch. Which records succeed is decided before that, and a "
                "replay, which finds the state updated, could decide otherwise. Query it from its new_values_stream(), "
                "after an aggregation or .transform(), or from the stream of another spout"
            )
            raise TopologyError(msg)
        if state.factory.driver_local and self.node.tracked:
            msg = (
                f"{name}: the state lives in the driver, and this stream's records are judged in the executors. Query "
                "it after an aggregation or .transform(), or keep it in a store that executors reach"
            )
            raise TopologyError(msg)
        added = new_fields(new, name)
        schema = appended(self.schema, added, name)
        step = QueryStep(name, state.factory, query, inputs, _arrow(added), _arrow(self.schema))
        return self._row(name, step, schema)

    def group_by(self, fields: Names) -> GroupedStream:
        """Group the tuples that have the same values in these fields."""
        names = chosen(fields, self.schema, "group_by")
        if not names:
            msg = "group_by: no fields; aggregate the stream itself for one value in all"
            raise TopologyError(msg)
        return GroupedStream(self, names)

    def aggregate(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None) -> Stream:
        """One value of all tuples of a batch (or whatever an `Aggregator` emits); only the new fields remain."""
        return Stream(_aggregate(self, (), aggregator, new, inputs, "aggregate"))

    def partition_aggregate(
        self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None
    ) -> Stream:
        """Like `aggregate`, for each partition of a batch by itself."""
        return Stream(_aggregate(self, None, aggregator, new, inputs, "partition_aggregate"))

    def persistent_aggregate(
        self,
        state: StateFactory,
        aggregator: CombinerAggregator | ReducerAggregator,
        new: Fields,
        inputs: Names | None = None,
    ) -> TridentState:
        """Keep one value of all tuples that ever came in a state, which is a `Snapshottable`.

        Raises:
            TopologyError: a field is unknown, or there is not exactly one new one.
        """
        return _persistent(self, (), state, aggregator, new, inputs)

    def partition_persist(
        self, state: StateFactory, fields: Names, updater: StateUpdater[Any], new: Fields = ()
    ) -> TridentState:
        """Update a state with these fields of the tuples, a partition at a time; what is emitted are its new values.

        Raises:
            TopologyError: a field is unknown.
        """
        name = f"partition_persist({_name(updater)})"
        inputs = chosen(fields, self.schema, name)
        return TridentState(
            state, PersistNode(name, new_fields(new, name), (self.node,), state, inputs, updater)
        )

    def shuffle(self) -> Stream:
        """Spread the tuples evenly."""
        return self._repartition(Grouping.SHUFFLE)

    def partition_by(self, fields: Names) -> Stream:
        """Bring the tuples with the same values in these fields to one partition."""
        names = chosen(fields, self.schema, "partition_by")
        if not names:
            msg = "partition_by: no fields; global_() brings all tuples together"
            raise TopologyError(msg)
        return self._repartition(Grouping.FIELDS, names)

    def global_(self) -> Stream:
        """Bring all tuples to one partition."""
        return self._repartition(Grouping.GLOBAL)

    def broadcast(self) -> Stream:
        """Bring every tuple to every partition: `parallelism_hint` of them, or as many as Spark runs side by side."""
        return self._repartition(Grouping.BROADCAST)

    def parallelism_hint(self, partitions: int) -> Stream:
        """How many partitions the last grouping before here makes.

        Raises:
            TopologyError: there is none: the spout's own tasks run the stream, and its options say how many.
        """
        node = self.node
        while len(node.parents) == 1 and not isinstance(node, RepartitionNode):
            node = node.parents[0]
        if not isinstance(node, RepartitionNode) or node.grouping is Grouping.GLOBAL or partitions < 1:
            msg = (
                f"parallelism_hint({partitions}): at least 1, and after a grouping. This stream runs in the spout's "
                "own tasks (its options maxPartitions and shardsPerTask say how many): call shuffle() first"
            )
            raise TopologyError(msg)
        node.partitions = partitions
        return self

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Plain DataFrame code: any function from DataFrame to DataFrame.

        It sees the tuples whose records succeeded; an error in it replays the batch. It is called once now, with no
        rows, to know its fields.

        Raises:
            TopologyError: it raises, or gives something else than a DataFrame with fields.
        """
        name = f"transform({_name(function)})"
        try:
            result = function(SparkSession.builder.getOrCreate().createDataFrame([], self.schema))
            schema = result.schema
        except Exception as error:
            msg = f"{name}: called with a DataFrame of {', '.join(self.fields)} it failed: {error}"
            raise TopologyError(msg) from error
        return Stream(TransformNode(name, schema, (self.node,), function))

    def merge(self, *others: Stream) -> Stream:
        """All tuples of several streams with the same fields and types.

        Raises:
            TopologyError: the fields differ, or the streams come from different spouts.
        """
        for other in others:
            ours = [(field.name, field.dataType) for field in self.schema]
            theirs = [(field.name, field.dataType) for field in other.schema]
            if ours != theirs:
                msg = f"merge: the fields differ: {_said(self.schema)} and {_said(other.schema)}; project or map first"
                raise TopologyError(msg)
        nodes = (self.node, *(other.node for other in others))
        if len({spout for node in nodes for spout in node.spouts}) > 1:
            raise TopologyError(_several_spouts("merge"))
        return Stream(MergeNode("merge", self.schema, nodes))

    def join(
        self, fields: Names, other: Stream, other_fields: Names, new: Names | None = None, how: str = "inner"
    ) -> Stream:
        """Join the tuples of a batch with those of another stream of the batch, or of a batch DataFrame.

        The fields joined on come first, then the others of this stream, then those of the other one; `new` names them
        all. `how` as in Spark: `inner`, `left`, `right`, `full`.

        Raises:
            TopologyError: the fields do not fit together, or the streams come from different spouts.
        """
        left, right = chosen(fields, self.schema, "join"), chosen(other_fields, other.schema, "join")
        if len(left) != len(right) or not left:
            msg = f"join: {len(left)} fields on {len(right)} fields"
            raise TopologyError(msg)
        if len({spout for node in (self.node, other.node) for spout in node.spouts if spout.tracked}) > 1:
            raise TopologyError(_several_spouts("join"))
        kinds = [
            *(self.schema[name] for name in left),
            *(field for field in self.schema if field.name not in left),
            *(field for field in other.schema if field.name not in right),
        ]
        names = [field.name for field in kinds] if new is None else list(new_fields(new, "join").names)
        if len(names) != len(kinds) or len(set(names)) != len(names):
            said = ", ".join(names)
            msg = f"join: {len(kinds)} fields come out and need as many different names, `new`; there are {said}"
            raise TopologyError(msg)
        schema = StructType()
        for name, kind in zip(names, kinds, strict=True):
            schema = schema.add(name, kind.dataType)
        on = tuple(zip(left, right, strict=True))
        return Stream(JoinNode("join", schema, (self.node, other.node), on, how))

    def _row(self, name: str, step: Any, schema: StructType) -> Stream:
        return Stream(RowNode(name, schema, (self.node,), step))

    def _function(
        self,
        name: str,
        operation: Function | ArrowFunction,
        inputs: tuple[str, ...],
        added: StructType,
        kept: StructType,
    ) -> Stream:
        schema = appended(kept, added, name)
        if not schema.fields:
            msg = f"{name}: no fields remain"
            raise TopologyError(msg)
        kind = ArrowStep if isinstance(operation, ArrowFunction) else FunctionStep
        return self._row(name, kind(name, operation, inputs, _arrow(added), _arrow(kept)), schema)  # type: ignore[arg-type]

    def _repartition(self, grouping: Grouping, fields: tuple[str, ...] = ()) -> Stream:
        return Stream(RepartitionNode(grouping.value, self.schema, (self.node,), grouping, fields))


@dataclass(frozen=True, slots=True)
class GroupedStream:
    """A stream whose tuples are grouped by fields."""

    stream: Stream
    keys: tuple[str, ...]

    def aggregate(self, aggregator: AnyAggregator, new: Fields, inputs: Names | None = None) -> Stream:
        """One value for each group of a batch (or whatever an `Aggregator` emits), after the group fields."""
        return Stream(_aggregate(self.stream, self.keys, aggregator, new, inputs, "aggregate"))

    def persistent_aggregate(
        self,
        state: StateFactory,
        aggregator: CombinerAggregator | ReducerAggregator,
        new: Fields,
        inputs: Names | None = None,
    ) -> TridentState:
        """Keep one value for each group that ever came in a state, which is a `MapState`.

        Raises:
            TopologyError: a field is unknown, or there is not exactly one new one.
        """
        return _persistent(self.stream, self.keys, state, aggregator, new, inputs)


class _Keep(Filter):
    def __init__(self, condition: Callable[[TridentTuple], Any]) -> None:
        self._condition = condition
        self.__name__ = _name(condition)

    def is_keep(self, tup: TridentTuple) -> bool:
        return bool(self._condition(tup))


class _One(Function):
    def __init__(self, function: Callable[[TridentTuple], Sequence[Any]]) -> None:
        self._function = function

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        collector.emit(self._function(tup))


class _Many(Function):
    def __init__(self, function: Callable[[TridentTuple], Sequence[Sequence[Any]]]) -> None:
        self._function = function

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        for values in self._function(tup):
            collector.emit(values)


class _Init(Function):
    """The first half of a combiner aggregator: each tuple becomes a value, or fails its record."""

    def __init__(self, aggregator: CombinerAggregator) -> None:
        self._aggregator = aggregator

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([self._aggregator.init(tup)])


def _aggregate(
    stream: Stream,
    keys: tuple[str, ...] | None,
    aggregator: object,
    new: Fields,
    inputs: Names | None,
    what: str,
) -> AggregateNode:
    name = f"{what}({_name(aggregator)})"
    if not isinstance(aggregator, CombinerAggregator | ReducerAggregator | Aggregator):
        msg = f"{name}: not a CombinerAggregator, ReducerAggregator or Aggregator"
        raise TopologyError(msg)
    node, read, added = _prepared(stream, keys, aggregator, new, inputs, name)
    if not isinstance(aggregator, Aggregator) and len(added) != 1:
        msg = f"{name}: gives one value, so it needs one new field, not {len(added)}"
        raise TopologyError(msg)
    schema = appended(StructType([stream.schema[key] for key in keys or ()]), added, name)
    return AggregateNode(name, schema, (node,), keys, read, aggregator, added)


def _persistent(
    stream: Stream,
    keys: tuple[str, ...],
    state: StateFactory,
    aggregator: object,
    new: Fields,
    inputs: Names | None,
) -> TridentState:
    name = f"persistent_aggregate({_name(aggregator)})"
    if not isinstance(aggregator, CombinerAggregator | ReducerAggregator):
        msg = f"{name}: not a CombinerAggregator or ReducerAggregator; what else updates states is partition_persist"
        raise TopologyError(msg)
    node, read, added = _prepared(stream, keys, aggregator, new, inputs, name)
    if len(added) != 1:
        msg = f"{name}: gives one value, so it needs one new field, not {len(added)}"
        raise TopologyError(msg)
    schema = appended(StructType([stream.schema[key] for key in keys]), added, name)
    return TridentState(
        state, PersistentAggregateNode(name, schema, (node,), state, keys, read, aggregator, added)
    )


def _prepared(
    stream: Stream,
    keys: tuple[str, ...] | None,
    aggregator: AnyAggregator,
    new: Fields,
    inputs: Names | None,
    name: str,
) -> tuple[Node, tuple[str, ...], StructType]:
    """What an aggregation reads, which of its fields, and the new ones.

    A combiner that Spark does not know reads what its `init` makes of each tuple: an operation of its own.
    """
    read = chosen(stream.fields if inputs is None else inputs, stream.schema, name)
    given = StructType([stream.schema[field] for field in read])
    if not isinstance(aggregator, CombinerAggregator):
        return stream.node, read, new_fields(new, name)
    if aggregator.in_spark not in (None, "count") and len(read) != 1:
        msg = f"{name}: aggregates one field; name it with inputs=[...]"
        raise TopologyError(msg)
    kind = aggregator.result(given)
    added = new_fields(new, name)
    if kind is not None and len(added) == 1:
        added = StructType().add(added.names[0], kind)
    # A partition's own value is nothing that Spark can be asked for.
    if (aggregator.in_spark is not None and keys is not None) or len(added) != 1:
        return stream.node, read, added
    kept = StructType([stream.schema[key] for key in keys or ()])
    values = stream._function(name, _Init(aggregator), read, added, kept)
    return values.node, tuple(added.names), added


def _name(operation: object) -> str:
    return str(getattr(operation, "__name__", type(operation).__name__))


def _arrow(schema: StructType) -> Any:
    return to_arrow_schema(schema, timezone="UTC")


def _said(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _several_spouts(what: str) -> str:
    return (
        f"{what}: the streams come from different spouts, which have batches of their own. Read several Kinesis "
        "streams as one spout (streamName with several names), or let one stream update a state that the other queries"
    )
