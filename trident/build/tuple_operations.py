"""The calls on single tuples, where a failure fails one record, and those that distribute tuples over partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.build.aggregation_nodes import function_node
from kinesis_trident.trident.build.checks import check_given
from kinesis_trident.trident.build.fields import Fields, Names, choose_fields, new_fields
from kinesis_trident.trident.build.hints import hint_node
from kinesis_trident.trident.build.lambdas import Keep, Many, One, Peek, name_of
from kinesis_trident.trident.build.nodes import RepartitionNode, RowNode, TopologyNode
from kinesis_trident.trident.build.user_code import check_function, check_operation
from kinesis_trident.trident.operations import ArrowFunction, Filter, Function, Operation
from kinesis_trident.trident.steps.tuple_steps import FilterStep, ProjectStep
from kinesis_trident.trident.tuples import TridentTuple


class Groupings(ABC):
    """The calls that move tuples: each returns a new stream."""

    __slots__ = ()

    node: TopologyNode

    @abstractmethod
    def _of(self, node: TopologyNode) -> Self:
        """Return the stream of a node."""

    @abstractmethod
    def _name_of(self, operation: str) -> str:
        """Return the name of an operation in messages."""

    def shuffle(self) -> Self:
        """Distribute the tuples evenly."""
        return self._repartition("shuffle", Move(Grouping.SHUFFLE))

    def local_or_shuffle(self) -> Self:
        """Distribute the tuples evenly, as `shuffle` does: Spark knows no tasks that are near."""
        return self._repartition("local_or_shuffle", Move(Grouping.SHUFFLE))

    def partition_by(self, fields: Names) -> Self:
        """Bring the tuples with the same values in these fields to one partition."""
        names = choose_fields(fields, self.node.schema, "partition_by")
        if not names:
            msg = "partition_by: there are no fields. Name some, or use global_() for one partition"
            raise TopologyError(msg)
        return self._repartition("partition_by", Move(Grouping.FIELDS, names))

    def global_(self) -> Self:
        """Bring all tuples to one partition."""
        return self._repartition("global_", Move(Grouping.GLOBAL))

    def batch_global(self) -> Self:
        """Bring all tuples of a batch to one partition: Trident may choose another in each batch, Spark does not."""
        return self._repartition("batch_global", Move(Grouping.GLOBAL))

    def identity_partition(self) -> Self:
        """Leave each tuple in its partition."""
        return self._of(self.node)

    def broadcast(self) -> Self:
        """Bring every tuple to every partition: `parallelism_hint` of them, or as many as Spark runs in parallel."""
        return self._repartition("broadcast", Move(Grouping.ALL))

    def parallelism_hint(self, partitions: int) -> Self:
        """Run the operations since the last grouping, or since the stream branched, in that many partitions.

        The last grouping, that of an aggregation or of a state included, still says which tuple goes where.

        Raises:
            TopologyError: there is none: the spout's own tasks run the stream, and its options set their number; or it
                brings all tuples to one partition; or a field that it needs is gone.
        """
        return self._of(hint_node(self.node, partitions))

    def _repartition(self, operation: str, move: Move) -> Self:
        return self._of(RepartitionNode(self._name_of(operation), self.node.schema, (self.node,), move))


class TupleOperations(Groupings):
    """Functions, filters and projections of a stream's tuples."""

    __slots__ = ()

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.node.schema.names)

    def each(self, fields: Names, operation: Function | ArrowFunction | Filter, new: Fields = ()) -> Self:
        """Run a function, which adds its `new` fields, or a filter, which adds none, on these fields of each tuple.

        An exception for a tuple fails its record: it is in no state of this batch, and comes back in a later one.

        Raises:
            TopologyError: a field is unknown, or a new one exists already.
        """
        name = self._name_of(f"each({name_of(operation)})")
        inputs = choose_fields(fields, self.node.schema, name)
        check_operation(name, operation)
        if isinstance(operation, Filter):
            if len(new):
                msg = f"{name}: a filter adds no fields. Omit {new!r}, or make it a Function"
                raise TopologyError(msg)
            return self._row(
                name, FilterStep(name, operation, inputs, arrow_schema(self.node.schema)), self.node.schema
            )
        added = new_fields(new, name)
        return self._of(function_node(self.node, name, operation, inputs, added, self.node.schema))

    def filter(self, condition: Filter | Callable[[TridentTuple], Any], fields: Names | None = None) -> Self:
        """Keep the tuples for which the condition is true; it gets these fields, or all."""
        if isinstance(condition, type) and issubclass(condition, Operation):
            check_given(condition, Filter, "filter")
        if not isinstance(condition, Filter):
            check_function(self._name_of("filter"), condition, "tup")
        keep = condition if isinstance(condition, Filter) else Keep(condition)
        return self.each(self._names if fields is None else fields, keep)

    def peek(self, function: Callable[[TridentTuple], object], fields: Names | None = None) -> Self:
        """Call a function with each tuple, and keep the tuple; it gets these fields, or all.

        An exception fails the record, as in `each`.
        """
        check_function(self._name_of("peek"), function, "tup")
        return self.each(self._names if fields is None else fields, Peek(function))

    def map(self, function: Callable[[TridentTuple], Sequence[Any]], fields: Fields) -> Self:
        """Replace each tuple by one new tuple, a list of values; only the new fields remain."""
        return self._replace(One, function, fields, f"map({name_of(function)})")

    def flat_map(self, function: Callable[[TridentTuple], Sequence[Sequence[Any]]], fields: Fields) -> Self:
        """Replace each tuple by any number of new ones, a list of lists of values; only the new fields remain."""
        return self._replace(Many, function, fields, f"flat_map({name_of(function)})")

    def project(self, fields: Names) -> Self:
        """Keep only these fields, in this order."""
        called = self._name_of("project")
        names = choose_fields(fields, self.node.schema, called)
        if not names:
            msg = f"{called}: there are no fields. Name at least one"
            raise TopologyError(msg)
        schema = StructType([self.node.schema[name] for name in names])
        return self._row(called, ProjectStep(arrow_schema(schema)), schema)

    def _replace(
        self, kind: type[One | Many], function: Callable[..., Any], fields: Fields, operation: str
    ) -> Self:
        name = self._name_of(operation)
        check_function(name, function, "tup", yields=kind is Many)
        new = new_fields(fields, name)
        return self._of(function_node(self.node, name, kind(function), self._names, new, StructType()))

    def _row(self, name: str, step: Any, schema: StructType) -> Self:
        return self._of(RowNode(name, schema, (self.node,), step))
