"""One attempt at a batch of a topology: decide, then apply.

First the tracked part of all branches runs to its end, and the rows are held where tracking ends: already
aggregated, for an aggregation that Spark has, or as partial results for a state. Failed records are excluded from
all branches, so these run again without them until nothing more fails; then the verdict is published, once. Only
then are states updated, in the order of their declaration, and the consumers of their new values run last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.tracking.fusion import Promptly
from kinesis_trident.bolt.tracking.tracking import run_frame
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.fields import arrow
from kinesis_trident.trident.build.graph import (
    AggregateNode,
    JoinNode,
    MergeNode,
    Node,
    PersistentAggregateNode,
    PersistNode,
    RepartitionNode,
    RowNode,
    SpoutNode,
    TransformNode,
    UpdateNode,
)
from kinesis_trident.trident.run.arrow_aggregation import Partials, partials_of
from kinesis_trident.trident.run.frames import (
    aggregate_in_spark,
    check_fields,
    from_arrow,
    hold_rows,
    join_frames,
    move_by_key,
    release_rows,
    repartition,
)
from kinesis_trident.trident.run.python_aggregation import GroupAggregation
from kinesis_trident.trident.run.shared_partials import SharedPartials
from kinesis_trident.trident.run.shared_updates import SharedUpdates
from kinesis_trident.trident.run.state_metrics import logged_update
from kinesis_trident.trident.run.state_updates import NOTHING, StateUpdate, work_of
from kinesis_trident.trident.run.tracked import Sections, operates, shared_partials_of
from kinesis_trident.trident.run.untracked import Untracked
from kinesis_trident.trident.steps.emitting_steps import QueryStep
from kinesis_trident.trident.steps.replay import convert_replay_requests
from kinesis_trident.trident.stores.ownership import OWNER, Owner

__all__ = ["Attempt", "BatchFacts"]


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts of a batch that an attempt needs: `txid` is None outside of transactions.

    `one_task`: its few records are read in one task, so that nothing need be moved.
    """

    txid: int | None
    conf: Mapping[str, Any]
    partitions: int
    owners: Mapping[UpdateNode, Owner] = field(default_factory=dict)
    one_task: bool = False


@dataclass(slots=True)
class Attempt:
    """Turns the nodes of one spout's part of a topology into DataFrames over the rows of a batch."""

    rows: Mapping[SpoutNode, DataFrame]
    facts: BatchFacts
    sections: Sections | None = None
    updated: set[UpdateNode] = field(default_factory=set, init=False)
    """The updates that this attempt has applied tuples of the batch to."""
    _held: dict[Node, DataFrame] = field(default_factory=dict, init=False)
    _shared: dict[Node, DataFrame] = field(default_factory=dict, init=False)
    _updated: dict[Node, DataFrame] = field(default_factory=dict, init=False)
    _together: dict[Node, tuple[SharedUpdates, DataFrame]] = field(default_factory=dict, init=False)
    """The updates of states from the shared groups of a node, and their plan."""

    def judge(self, nodes: Sequence[Node]) -> None:
        """Run the tracked part to its end, and hold its output, or that of a spout without tracking."""
        for node in nodes:
            if node.tracked and not node.children and not isinstance(node, SpoutNode):
                run_frame(self._section(node, node.schema.names))
            elif _is_updated_together(node):
                self._shared_groups(node.parents[0])
            elif not node.tracked and any(_is_held(parent) for parent in node.parents):
                entry = self._entry(node)
                if not shared_partials_of(node.parents[0]):
                    entry = hold_rows(entry, adaptive=self._partials(node) is None)
                self._held[node] = entry

    def apply(self, nodes: Sequence[Node]) -> None:
        """Update the states in their order, then run their consumers and all nodes without a state."""
        for node in nodes:
            if isinstance(node, UpdateNode):
                with logged_update(node, self.facts.txid):
                    self._update(node)
        for node in nodes:
            if not node.tracked and not node.children and not isinstance(node, UpdateNode | SpoutNode):
                run_frame(self.frame(node))

    def release(self) -> None:
        """Free the held rows."""
        for frame in (*self._held.values(), *self._shared.values(), *self._updated.values()):
            release_rows(frame)
        self._held.clear()
        self._shared.clear()
        self._updated.clear()
        self._together.clear()

    def frame(self, node: Node) -> DataFrame:
        """Return the tuples of a node that is not tracked; those for several consumers are computed once."""
        if isinstance(node, SpoutNode):
            rows = self.rows.get(node, node.rows)
            assert rows is not None
            return rows
        if isinstance(node, UpdateNode):
            return self._updated[node]
        if node in self._shared:
            return self._shared[node]
        start = self._held[node] if node in self._held else self._entry(node)
        frame = self._finished(node, start)
        if len(node.children) > 1:
            frame = self._shared[node] = hold_rows(frame)
        return frame

    def _entry(self, node: Node) -> DataFrame:
        """Return the start of a node: its input, already aggregated if that makes it small."""
        if isinstance(node, AggregateNode | PersistentAggregateNode):
            return self._partial(node)
        if isinstance(node, PersistNode):
            return self._input(node.parents[0], node.inputs)
        inputs = [self._input(parent, parent.schema.names) for parent in node.parents]
        if isinstance(node, MergeNode):
            return reduce(
                lambda one, other: one.unionAll(other), [frame.select(*node.schema.names) for frame in inputs]
            )
        if isinstance(node, JoinNode):
            left, right = inputs
            return join_frames(left, right, node)
        return inputs[0]

    def _partial(self, node: AggregateNode | PersistentAggregateNode) -> DataFrame:
        aggregator = node.aggregator
        if node.keys is not None and isinstance(aggregator, CombinerAggregator) and aggregator.in_spark:
            return self._in_spark(node, node.keys, aggregator)
        frame = self._input(node.parents[0], {*(node.keys or ()), *node.inputs})
        return self._aggregated(node, frame) if isinstance(aggregator, CombinerAggregator) else frame

    def _in_spark(
        self,
        node: AggregateNode | PersistentAggregateNode,
        keys: tuple[str, ...],
        aggregator: CombinerAggregator,
    ) -> DataFrame:
        """Return one row a group, or few for a state, in its partitions, so that they need not be moved again."""
        parent, partitions = node.parents[0], self._partitions(node)
        partials = self._partials(node)
        if partials is not None:
            assert self.sections is not None
            if shared_partials_of(parent):
                shared, held = self._shared_groups(parent)
                moved = shared.of(held, _number(node))
            else:
                moved = self.sections.rows(parent, partials.wanted, partials)
            if not (self.facts.one_task or (isinstance(node, UpdateNode) and node.factory.driver_local)):
                # There are hardly more rows than groups: if moved first, they are moved only once.
                moved = move_by_key(moved, keys, partitions)
            if isinstance(node, PersistentAggregateNode):
                return moved
            return aggregate_in_spark(moved, keys, node.inputs, aggregator, node.added, partial=True)
        counts = aggregator.in_spark == "count"
        frame = self._input(parent, {*keys, *(() if counts else node.inputs)})
        groups = aggregate_in_spark(frame, keys, node.inputs, aggregator, node.added)
        return move_by_key(groups, keys, partitions) if isinstance(node, PersistentAggregateNode) else groups

    def _shared_groups(self, parent: Node) -> tuple[SharedPartials, DataFrame]:
        """Return the partial results of all consumers of a node: they are computed once, and held."""
        assert self.sections is not None
        found = shared_partials_of(parent)
        counts = [
            self._partitions(node) if isinstance(node, UpdateNode) and _is_updated_together(node) else 0
            for node in found
        ]
        shared = SharedPartials(tuple(found.values()), tuple(counts))
        if parent not in self._shared:
            self._shared[parent] = hold_rows(self.sections.shared_groups(parent, shared), adaptive=False)
        return shared, self._shared[parent]

    def _partials(self, node: Node) -> Partials | None:
        """Return what aggregates the tuples of groups in place; None if Spark gets them first."""
        if not node.parents or not node.parents[0].tracked:
            return None
        parent = node.parents[0]
        return partials_of(node) if operates(parent) or shared_partials_of(parent) else None

    def _partitions(self, node: AggregateNode | UpdateNode) -> int:
        if isinstance(node, PersistentAggregateNode) and not node.keys:
            return 1
        partitions = node.partitions if isinstance(node, UpdateNode) else None
        return partitions or self.facts.partitions

    def _input(self, parent: Node, wanted: Iterable[str]) -> DataFrame:
        if not parent.tracked:
            return self.frame(parent)
        return self._section(parent, wanted)

    def _section(self, node: Node, wanted: Iterable[str]) -> DataFrame:
        assert self.sections is not None
        return self.sections.rows(node, wanted)

    def _finished(self, node: Node, frame: DataFrame) -> DataFrame:
        """Return the output of a node that starts from `frame`."""
        if isinstance(node, TransformNode):
            with convert_replay_requests(node.operation):
                return check_fields(node.function(frame.select(*node.parents[0].schema.names)), node)
        if isinstance(node, RowNode):
            return self._operated(node, frame.select(*node.parents[0].schema.names))
        if isinstance(node, RepartitionNode):
            return repartition(frame, node, self.facts.partitions)
        if isinstance(node, AggregateNode):
            return self._aggregate(node, frame)
        return frame

    def _operated(self, node: RowNode, rows: DataFrame) -> DataFrame:
        untracked = Untracked(node.operation, node.step, self.facts.conf)
        if isinstance(node.step, QueryStep) and node.step.factory.driver_local:
            return from_arrow(rows, untracked(iter(rows.toArrow().to_batches())), node.schema)
        return rows.mapInArrow(Promptly(untracked), node.schema)

    def _aggregate(self, node: AggregateNode, frame: DataFrame) -> DataFrame:
        aggregator = node.aggregator
        if isinstance(aggregator, CombinerAggregator) and (node.keys is None or aggregator.in_spark):
            return frame
        return self._aggregated(
            node, frame if node.keys is None else move_by_key(frame, node.keys, self.facts.partitions)
        )

    def _aggregated(self, node: AggregateNode | PersistentAggregateNode, frame: DataFrame) -> DataFrame:
        keys = node.keys or ()
        aggregation = GroupAggregation(
            node.operation, keys, node.inputs, node.aggregator, arrow(node.schema), self.facts.txid
        )
        return frame.mapInArrow(Promptly(aggregation), node.schema)

    def _update(self, node: UpdateNode) -> None:
        """Update one state with the tuples of the batch."""
        changed = self._update_together(node) if _is_updated_together(node) else self._update_alone(node)
        if changed:
            self.updated.add(node)

    def _update_together(self, node: UpdateNode) -> bool:
        """Update one of the states that are updated from the shared groups of a node."""
        parent = node.parents[0]
        if parent not in self._together:
            shared, held = self._shared_groups(parent)
            updates = {
                number: self._state_update(child, self._partitions(child), StructType())
                for number, child in enumerate(shared_partials_of(parent))
                if isinstance(child, UpdateNode) and _is_updated_together(child)
            }
            together = SharedUpdates(shared, updates)
            self._together[parent] = together, together.planned(held)
        together, planned = self._together[parent]
        return together.run(planned, _number(node))

    def _update_alone(self, node: UpdateNode) -> bool:
        frame = self._held[node] if node in self._held else self._entry(node)
        partitions = self._partitions(node)
        if isinstance(node, PersistentAggregateNode):
            frame = self._grouped(node, frame, partitions)
        elif node.partitions is not None:
            frame = frame.repartition(partitions)
        else:
            partitions = frame.rdd.getNumPartitions()
        # The output of a state without consumers is not read.
        schema = node.schema if node.children else StructType()
        if node.factory.driver_local:
            emitted = list(self._state_update(node, 1, schema)(frame.toArrow().to_batches()))
            if node.children:
                self._updated[node] = from_arrow(frame, emitted, node.schema)
            return bool(emitted)
        update = Promptly(self._state_update(node, partitions, schema))
        if node.children:
            result = self._updated[node] = hold_rows(frame.mapInArrow(update, schema))
            return not result.isEmpty()
        return bool(frame.mapInArrow(update, NOTHING).collect())

    def _grouped(self, node: PersistentAggregateNode, frame: DataFrame, partitions: int) -> DataFrame:
        """Return the frame with each group in one partition."""
        if not isinstance(node.aggregator, CombinerAggregator):
            return move_by_key(frame, node.keys, partitions)
        if node.aggregator.in_spark is None:
            return self._aggregated(node, move_by_key(frame, node.keys, partitions))
        return frame

    def _state_update(self, node: UpdateNode, partitions: int, schema: StructType) -> StateUpdate:
        return StateUpdate(
            node.operation,
            node.factory,
            work_of(node, self.facts.conf),
            {**self.facts.conf, OWNER: self.facts.owners.get(node)},
            self.facts.txid,
            partitions,
            arrow(schema),
            self._partials(node),
            node.metrics,
        )


def _is_updated_together(node: Node) -> bool:
    """Return True if a state is updated from the shared groups of its parent, in the executors, for nobody to read."""
    return (
        isinstance(node, PersistentAggregateNode)
        and not node.children
        and not node.factory.driver_local
        and bool(shared_partials_of(node.parents[0]))
    )


def _number(consumer: Node) -> int:
    """Return the number of a consumer among those that share the groups of their parent."""
    return list(shared_partials_of(consumer.parents[0])).index(consumer)


def _is_held(parent: Node) -> bool:
    """Return True if a consumer holds the tuples of a node: a batch is read once, and judged once."""
    return parent.tracked or (isinstance(parent, SpoutNode) and parent.in_batches)
