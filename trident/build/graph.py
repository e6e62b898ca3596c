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

from kinesis_trident.trident.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.maps.metering import StateMetrics
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.steps.tuple_steps import TridentStep

if TYPE_CHECKING:
    from kinesis_trident.spout.options.source import SourceOptions

__all__ = [
    "AggregateNode",
    "AnyAggregator",
    "Grouping",
    "JoinNode",
    "MergeNode",
    "Node",
    "PersistNode",
    "PersistentAggregateNode",
    "RepartitionNode",
    "RowNode",
    "SpoutNode",
    "TransformNode",
    "UpdateNode",
]

AnyAggregator = CombinerAggregator | ReducerAggregator | Aggregator


class Grouping(Enum):
    """A distribution of tuples over partitions."""

    SHUFFLE = "shuffle"
    FIELDS = "partition_by"
    GLOBAL = "global_"
    BROADCAST = "broadcast"


@dataclass(eq=False, slots=True)
class Node:
    """A node of a topology: `schema` is that of its output, `operation` its name in messages.

    `order` rises with each declared node: parents come before their children.
    """

    operation: str
    schema: StructType
    parents: tuple[Node, ...]
    children: list[Node] = field(default_factory=list, init=False, repr=False)
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


@dataclass(eq=False, slots=True)
class SpoutNode(Node):
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
    def spouts(self) -> frozenset[SpoutNode]:
        """This node."""
        return frozenset((self,))


@dataclass(eq=False, slots=True)
class RowNode(Node):
    """An operation on single tuples."""

    step: TridentStep

    @property
    def tracked(self) -> bool:
        """The same as of its input."""
        return self.parents[0].tracked


@dataclass(eq=False, slots=True)
class RepartitionNode(Node):
    """A move of tuples to other partitions."""

    grouping: Grouping
    fields: tuple[str, ...] = ()
    partitions: int | None = None

    @property
    def tracked(self) -> bool:
        """The same as of its input."""
        return self.parents[0].tracked


@dataclass(eq=False, slots=True)
class MergeNode(Node):
    """Several streams as one."""

    @property
    def tracked(self) -> bool:
        """True if all of them are."""
        return all(parent.tracked for parent in self.parents)


@dataclass(eq=False, slots=True)
class JoinNode(Node):
    """Two streams of a batch, joined on fields."""

    on: tuple[tuple[str, str], ...]
    how: str


@dataclass(eq=False, slots=True)
class TransformNode(Node):
    """The user's own DataFrame code."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(eq=False, slots=True)
class AggregateNode(Node):
    """An aggregation of a batch by group, or by partition if `keys` is None."""

    keys: tuple[str, ...] | None
    inputs: tuple[str, ...]
    aggregator: AnyAggregator
    added: StructType


@dataclass(eq=False, slots=True)
class UpdateNode(Node):
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


@dataclass(eq=False, slots=True)
class PersistentAggregateNode(UpdateNode):
    """`persistent_aggregate`: one value a group in a map state, or one for all tuples if `keys` is empty."""

    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    aggregator: CombinerAggregator | ReducerAggregator
    added: StructType
