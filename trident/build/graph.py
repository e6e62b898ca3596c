"""A topology as a graph of nodes, built before it runs; `trident.run.attempt` runs it.

Nodes are *tracked* from the spout on while every tuple belongs to single records: there a record fails separately,
and failures go into the verdict of the batch. Nodes that combine tuples (aggregations, states, joins, plain
DataFrame code) are not tracked: they see only the records that the verdict keeps, and their failure replays the
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.maps.metering import StateMetrics
from kinesis_trident.trident.order import ORDER, ORDER_FIELD, READ, RecordOrder, in_order
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep
from kinesis_trident.trident.steps.tuple_steps import TridentStep

if TYPE_CHECKING:
    from kinesis_trident.spout.options.source import SourceOptions

AnyAggregator = CombinerAggregator | ReducerAggregator | Aggregator


class Grouping(Enum):
    """A distribution of tuples over partitions."""

    SHUFFLE = "shuffle"
    FIELDS = "partition_by"
    GLOBAL = "global_"
    BROADCAST = "broadcast"


@dataclass(eq=False, slots=True)
class TopologyNode:
    """A node of a topology: `schema` is that of its output, `operation` its name in messages.

    `order` rises with each declared node: parents come before their children.
    """

    operation: str
    schema: StructType
    parents: tuple[TopologyNode, ...]
    children: list[TopologyNode] = field(default_factory=list, init=False, repr=False)
    order: int = field(default_factory=itertools.count().__next__, init=False)

    def __post_init__(self) -> None:
        for parent in self.parents:
            parent.children.append(self)

    @property
    def tracked(self) -> bool:
        """True if each output tuple belongs to single records that can still fail."""
        return False

    @property
    def spouts(self) -> frozenset[SpoutNode]:
        """The spouts of the tuples."""
        return frozenset().union(*(parent.spouts for parent in self.parents))

    @property
    def has_order(self) -> bool:
        """True if the tuples of a batch have an order, which the hidden column `ORDER` can carry."""
        return False

    @property
    def reads_order(self) -> bool:
        """True if the node reads the order of its input, for itself or for a node below."""
        return False

    @property
    def ordered(self) -> bool:
        """True if the output carries the column `ORDER`, for a window below."""
        return any(child.reads_order for child in self.children)

    @property
    def columns(self) -> StructType:
        """The fields of the output, and the hidden column `ORDER` if it carries that."""
        return StructType([*self.schema, ORDER_FIELD]) if self.ordered else self.schema

    def read_of(self, parent: TopologyNode) -> list[str]:
        """Return the columns of a whole tuple of a parent: with its order, if the node reads that."""
        return list((parent.columns if self.reads_order else parent.schema).names)


@dataclass(eq=False, slots=True)
class _PassingNode(TopologyNode):
    """A node whose tuples come each from one tuple, and keep their order."""

    @property
    def tracked(self) -> bool:
        """True if all its inputs are."""
        return all(parent.tracked for parent in self.parents)

    @property
    def has_order(self) -> bool:
        """True if all its inputs have one."""
        return all(parent.has_order for parent in self.parents)

    @property
    def reads_order(self) -> bool:
        """True if a node below does."""
        return self.ordered


@dataclass(eq=False, slots=True)
class SpoutNode(TopologyNode):
    """The source of a stream: the `kinesis-trident` DataFrame with its options, or a batch DataFrame without.

    `in_spark` is False in a topology without a session; it has no `rows`.
    `scheme` adds fields to the columns of the source. Without `tracking` a failure fails the batch, not a record.
    """

    name: str
    rows: DataFrame | None
    options: SourceOptions | None
    scheme: Mapping[str, str] = field(default_factory=dict)
    tracking: bool = True
    in_spark: bool = True

    @property
    def in_batches(self) -> bool:
        """True if its tuples come from Kinesis, in batches with txids."""
        return self.options is not None

    @property
    def tracked(self) -> bool:
        """True for Kinesis, unless tracking is turned off."""
        return self.in_batches and self.tracking

    @property
    def has_order(self) -> bool:
        """True for Kinesis: the order of the records."""
        return self.in_batches

    @property
    def ordering_step(self) -> TridentStep:
        """The step that adds the order of the records to the columns of the source."""
        added = arrow_schema(StructType([ORDER_FIELD]))
        return ArrowEachStep(self.operation, RecordOrder(), READ, added, arrow_schema(self.schema))

    @property
    def spouts(self) -> frozenset[SpoutNode]:
        """This node."""
        return frozenset((self,))


@dataclass(eq=False, slots=True)
class RowNode(_PassingNode):
    """An operation on single tuples."""

    step: TridentStep

    @property
    def reads_order(self) -> bool:
        """True if a node below does, or the operation itself."""
        return self.ordered or ORDER in getattr(self.step, "inputs", ())

    @property
    def ordering_step(self) -> TridentStep:
        """The step, which keeps the order of its tuples if the output carries it."""
        return in_order(self.step) if self.ordered else self.step


@dataclass(eq=False, slots=True)
class RepartitionNode(_PassingNode):
    """A move of tuples to other partitions."""

    grouping: Grouping
    fields: tuple[str, ...] = ()
    partitions: int | None = None


@dataclass(eq=False, slots=True)
class MergeNode(_PassingNode):
    """Several streams as one."""


@dataclass(eq=False, slots=True)
class JoinNode(TopologyNode):
    """Two streams of a batch, joined on fields."""

    on: tuple[tuple[str, str], ...]
    how: str


@dataclass(eq=False, slots=True)
class TransformNode(TopologyNode):
    """The user's own DataFrame code."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(eq=False, slots=True)
class AggregateNode(TopologyNode):
    """An aggregation of a batch by group, or by partition if `keys` is None."""

    keys: tuple[str, ...] | None
    inputs: tuple[str, ...]
    aggregator: AnyAggregator
    added: StructType


@dataclass(eq=False, slots=True)
class UpdateNode(TopologyNode):
    """An update of a state; its output is the new values stream. `metrics` are counted while it runs.

    `newest`: the txid that it was last updated with.
    """

    factory: StateFactory
    partitions: int | None = field(default=None, init=False)
    metrics: Accumulator[StateMetrics] | None = field(default=None, init=False, repr=False)
    newest: int | None = field(default=None, init=False, repr=False)


@dataclass(eq=False, slots=True)
class PersistNode(UpdateNode):
    """`partition_persist`: the user's updater sees the tuples of each partition."""

    inputs: tuple[str, ...]
    updater: StateUpdater[Any]

    @property
    def reads_order(self) -> bool:
        """True if the updater does."""
        return ORDER in self.inputs


@dataclass(eq=False, slots=True)
class WindowNode(PersistNode):
    """Windows: the updater emits the order of its tuples, that of the windows' starts, whoever reads it."""

    has_order = ordered = True


@dataclass(eq=False, slots=True)
class PersistentAggregateNode(UpdateNode):
    """`persistent_aggregate`: one value a group in a map state, or one for all tuples if `keys` is empty."""

    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    aggregator: CombinerAggregator | ReducerAggregator
    added: StructType
