"""The nodes of a topology; `trident.run.attempt` runs them.

Nodes are *tracked* from the spout on while every tuple belongs to single records: there a record fails separately,
and failures go into the verdict of the batch. Nodes that combine tuples (aggregations, states, joins, plain
DataFrame code) are not tracked: they see only the records that the verdict keeps, and their failure replays the
batch.

A node never changes. What is above it is known when it is made; what is below it is known to the `Graph` of
all that were declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import Aggregator, CombinerAggregator, ReducerAggregator
from kinesis_trident.trident.order import ORDER, ORDER_FIELD, READ, RecordOrder
from kinesis_trident.trident.state import StateFactory, StateUpdater
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep
from kinesis_trident.trident.steps.tuple_steps import TridentStep

if TYPE_CHECKING:
    from kinesis_trident.spout.options.source import SourceOptions

AnyAggregator = CombinerAggregator | ReducerAggregator | Aggregator


@dataclass(frozen=True, eq=False, slots=True)
class TopologyNode:
    """A node of a topology: `schema` is that of its output, `operation` its name in messages.

    spouts: those of the tuples. tracked: each output tuple belongs to single records that can still fail. has_order:
    the tuples of a batch have an order, which the hidden column `ORDER` can carry. placed: the distribution that says
    where each output tuple is; None if the output no longer tells it. after_update: there are no tuples until a state
    is updated.
    """

    operation: str
    schema: StructType
    parents: tuple[TopologyNode, ...] = field(repr=False)
    spouts: frozenset[SpoutNode] = field(init=False, repr=False)
    tracked: bool = field(init=False, repr=False)
    has_order: bool = field(init=False, repr=False)
    placed: Move | None = field(init=False, repr=False)
    after_update: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Known from above once and for all: asked for later, each node would ask all above it, on every path.
        object.__setattr__(self, "spouts", self._find_spouts())
        object.__setattr__(self, "tracked", self._is_tracked())
        object.__setattr__(self, "has_order", self._is_in_order())
        object.__setattr__(self, "placed", self._find_place())
        object.__setattr__(self, "after_update", self._is_after_update())

    @property
    def reads_order(self) -> bool:
        """True if the node reads the order of its input for itself."""
        return False

    def _find_spouts(self) -> frozenset[SpoutNode]:
        return frozenset().union(*(parent.spouts for parent in self.parents))

    def _is_tracked(self) -> bool:
        return False

    def _is_in_order(self) -> bool:
        return False

    def _is_after_update(self) -> bool:
        return any(parent.after_update for parent in self.parents)

    def _find_place(self) -> Move | None:
        """Return where the input is, if the fields by which it was moved are still there."""
        found = {parent.placed for parent in self.parents}
        only = found.pop() if len(found) == 1 else None
        return only if only is not None and set(only.fields) <= set(self._passed()) else None

    def _passed(self) -> Iterable[str]:
        """Return the fields that have the values of the input."""
        return ()


@dataclass(frozen=True, eq=False, slots=True)
class PassingNode(TopologyNode):
    """A node whose tuples come each from one tuple, and keep their order."""

    def _is_tracked(self) -> bool:
        return all(parent.tracked for parent in self.parents)

    def _is_in_order(self) -> bool:
        return all(parent.has_order for parent in self.parents)

    def _passed(self) -> Iterable[str]:
        return self.schema.names


@dataclass(frozen=True, eq=False, slots=True)
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
    def ordering_step(self) -> TridentStep:
        """The step that adds the order of the records to the columns of the source."""
        added = arrow_schema(StructType([ORDER_FIELD]))
        return ArrowEachStep(self.operation, RecordOrder(), READ, added, arrow_schema(self.schema))

    def _find_spouts(self) -> frozenset[SpoutNode]:
        return frozenset((self,))

    def _is_tracked(self) -> bool:
        return self.in_batches and self.tracking

    def _is_in_order(self) -> bool:
        return self.in_batches

    def _find_place(self) -> Move | None:
        return Move(Grouping.SHUFFLE)


@dataclass(frozen=True, eq=False, slots=True)
class RowNode(PassingNode):
    """An operation on single tuples."""

    step: TridentStep

    @property
    def reads_order(self) -> bool:
        """True if the operation does."""
        return ORDER in getattr(self.step, "inputs", ())

    def _passed(self) -> Iterable[str]:
        kept: Any = getattr(self.step, "kept", None)
        return self.schema.names if kept is None else kept.names


@dataclass(frozen=True, eq=False, slots=True)
class RepartitionNode(PassingNode):
    """A move of tuples to other partitions."""

    move: Move

    def _find_place(self) -> Move | None:
        return replace(self.move, tasks=None)


@dataclass(frozen=True, eq=False, slots=True)
class HintNode(PassingNode):
    """A number of tasks for the operations above, up to their grouping; `of_state`: for the update above.

    `trident.build.hints` turns it into the numbers of other nodes before a topology runs.
    """

    tasks: int
    of_state: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class MergeNode(PassingNode):
    """Several streams as one; `move`: what they have in a task is there together."""

    move: Move | None = None


@dataclass(frozen=True, eq=False, slots=True)
class JoinNode(TopologyNode):
    """Two streams of a batch, joined on fields."""

    on: tuple[tuple[str, str], ...]
    how: str

    def _find_place(self) -> Move | None:
        return Move.of_groups(tuple(self.schema.names[: len(self.on)]))


@dataclass(frozen=True, eq=False, slots=True)
class TransformNode(TopologyNode):
    """The user's own DataFrame code."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, eq=False, slots=True)
class AggregateNode(TopologyNode):
    """An aggregation of a batch by group, or of each task where its tuples are if `move` is None."""

    move: Move | None
    inputs: tuple[str, ...]
    aggregator: AnyAggregator
    added: StructType

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The fields of the groups; None if it is of each task."""
        return None if self.move is None else self.move.fields

    def _find_place(self) -> Move | None:
        return TopologyNode._find_place(self) if self.move is None else replace(self.move, tasks=None)


@dataclass(frozen=True, eq=False, slots=True)
class UpdateNode(TopologyNode):
    """An update of a state; its output is the new values stream."""

    factory: StateFactory

    def _is_after_update(self) -> bool:
        return True


@dataclass(frozen=True, eq=False, slots=True)
class PersistNode(UpdateNode):
    """`partition_persist`: the user's updater sees the tuples of each partition."""

    inputs: tuple[str, ...]
    updater: StateUpdater[Any]

    @property
    def reads_order(self) -> bool:
        """True if the updater does."""
        return ORDER in self.inputs


@dataclass(frozen=True, eq=False, slots=True)
class WindowNode(PersistNode):
    """Windows: the updater emits the order of its tuples, that of the windows' starts, whoever reads it."""

    def _is_in_order(self) -> bool:
        return True


@dataclass(frozen=True, eq=False, slots=True)
class PersistentAggregateNode(UpdateNode):
    """`persistent_aggregate`: one value a group in a map state, or one for all tuples without groups."""

    move: Move
    inputs: tuple[str, ...]
    aggregator: CombinerAggregator | ReducerAggregator
    added: StructType

    @property
    def keys(self) -> tuple[str, ...]:
        """The fields of the groups."""
        return self.move.fields

    def _find_place(self) -> Move | None:
        return replace(self.move, tasks=None)


def read_to_aggregate(node: AggregateNode | PersistentAggregateNode) -> set[str]:
    """Return the fields of its input that an aggregation reads: those of the groups alone, to count their tuples."""
    keys, aggregator = node.keys, node.aggregator
    if keys is not None and isinstance(aggregator, CombinerAggregator) and aggregator.in_spark == "count":
        return set(keys)
    return {*(keys or ()), *node.inputs}
