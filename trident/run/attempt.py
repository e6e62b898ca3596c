"""One attempt at a batch of a topology: decide, then apply.

First the tracked part of all branches runs to its end, and the rows are held where tracking ends: already
aggregated, for an aggregation that Spark has, or as partial results for a state. Failed records are excluded from
all branches, so these run again without them until nothing more fails; then the verdict is published, once. Only
then are states updated, in the order of their declaration, and the consumers of their new values run last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeGuard

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.bolt.steps.time_zones import in_session, zone_of
from kinesis_trident.bolt.tracking.fusion import Promptly
from kinesis_trident.bolt.tracking.held import Held
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.bolt.tracking.tracking import run_frame
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    JoinNode,
    MergeNode,
    PersistentAggregateNode,
    PersistNode,
    RepartitionNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    TransformNode,
    UpdateNode,
    WindowNode,
    read_to_aggregate,
)
from kinesis_trident.trident.run.arrow_aggregation import Partials, partials_of
from kinesis_trident.trident.run.batch_facts import BatchFacts
from kinesis_trident.trident.run.frames import (
    add_tasks,
    aggregate_in_spark,
    check_fields,
    from_arrow,
    join_frames,
    move_by_key,
    move_to_tasks,
    repartition,
    run_partitions,
)
from kinesis_trident.trident.run.python_aggregation import GroupAggregation
from kinesis_trident.trident.run.shared_partials import SharedPartials
from kinesis_trident.trident.run.state_updates import NOTHING, StateUpdate, work_of
from kinesis_trident.trident.run.tracked import Sections, operates, shared_partials_of
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.steps.emitting_steps import QueryStep
from kinesis_trident.trident.steps.replay import convert_replay_requests
from kinesis_trident.trident.steps.tuple_steps import Pipeline, TridentStep, judge
from kinesis_trident.trident.stores.task import TASK, StateTask
from kinesis_trident.trident.windowing.updater import WindowUpdater


@dataclass(slots=True)
class Attempt:
    """Turns the nodes of one spout's part of a topology into DataFrames over the rows of a batch."""

    graph: Graph
    rows: Mapping[SpoutNode, DataFrame]
    facts: BatchFacts
    held: Held
    """Frees, at the end, what the attempt has computed for several jobs."""
    sections: Sections | None = None
    updated: set[UpdateNode] = field(default_factory=set, init=False)
    """The updates that this attempt has applied tuples of the batch to."""
    _starts: dict[TopologyNode, DataFrame] = field(default_factory=dict, init=False)
    _given: dict[tuple[TopologyNode, TopologyNode], DataFrame] = field(default_factory=dict, init=False)
    """The tuples that a node takes from one above it, beside new values of a state."""
    _made: dict[TopologyNode, DataFrame] = field(default_factory=dict, init=False)
    """The tuples of nodes with several consumers, or their groups, and the new values of states."""
    _together: dict[tuple[TopologyNode, bool], tuple[SharedUpdates, DataFrame]] = field(
        default_factory=dict, init=False
    )
    """The updates of states from the shared groups of a node, and their plan."""

    def judge(self, nodes: Sequence[TopologyNode]) -> None:
        """Run the tracked part to its end, and hold its output, or that of a spout without tracking."""
        for node in nodes:
            if node.tracked and not self.graph.children(node) and not isinstance(node, SpoutNode):
                run_frame(self._section(node, node.schema.names))
            elif self._is_updated_together(node):
                self._shared_groups(node.parents[0])
            elif node.after_update and not isinstance(node, UpdateNode):
                # Of what it takes, only this is there before states are updated.
                for parent in filter(_is_held, node.parents):
                    self._given[node, parent] = self.held.store(
                        self._input(parent, self.graph.read_of(node, parent))
                    )
            elif not node.tracked and any(_is_held(parent) for parent in node.parents):
                entry = self._entry(node)
                if not shared_partials_of(self.graph, node.parents[0]):
                    entry = self.held.store(entry, adaptive=self._partials(node) is None)
                self._starts[node] = entry

    def apply(self, nodes: Sequence[TopologyNode]) -> None:
        """Update the states in their order, then run their consumers and all nodes without a state.

        Args:
            nodes: all of the spout's.
        """
        for node in nodes:
            if isinstance(node, UpdateNode):
                with self.facts.metrics.log_update(node, self.facts.run):
                    self._update(node)
        for node in nodes:
            is_end = not node.tracked and not self.graph.children(node)
            if is_end and not isinstance(node, UpdateNode | SpoutNode):
                run_frame(self.frame(node))

    def frame(self, node: TopologyNode) -> DataFrame:
        """Return the tuples of a node that is not tracked; those for several consumers are computed once."""
        if isinstance(node, SpoutNode):
            rows = self.rows.get(node, node.rows)
            assert rows is not None
            return self._operate(node, rows) if self.graph.is_ordered(node) else rows
        if isinstance(node, UpdateNode) or node in self._made:
            return self._made[node]
        frame = self._finish(node, self._start(node))
        if len(self.graph.children(node)) > 1:
            frame = self._made[node] = self.held.store(frame)
        return frame

    def _start(self, node: TopologyNode) -> DataFrame:
        return self._starts[node] if node in self._starts else self._entry(node)

    def _entry(self, node: TopologyNode) -> DataFrame:
        """Return the start of a node: its input, already aggregated if that makes it small."""
        if isinstance(node, AggregateNode | PersistentAggregateNode):
            return self._partial(node)
        if isinstance(node, PersistNode):
            return self._input(node.parents[0], node.inputs)
        inputs = [
            self._given[node, parent]
            if (node, parent) in self._given
            else self._input(parent, self.graph.read_of(node, parent))
            for parent in node.parents
        ]
        if isinstance(node, MergeNode):
            inputs = [frame.select(*self.graph.columns(node).names) for frame in inputs]
            if node.move is not None:
                tasks = node.move.tasks or self.facts.partitions
                placed = [parent.placed for parent in node.parents]
                inputs = [add_tasks(frame, move, tasks) for frame, move in zip(inputs, placed, strict=True)]
            merged = reduce(lambda one, other: one.unionAll(other), inputs)
            return merged if node.move is None else move_to_tasks(merged, tasks)
        if isinstance(node, JoinNode):
            left, right = inputs
            return join_frames(left, right, node)
        return inputs[0]

    def _partial(self, node: AggregateNode | PersistentAggregateNode) -> DataFrame:
        aggregator = node.aggregator
        if node.keys is not None and isinstance(aggregator, CombinerAggregator) and aggregator.in_spark:
            return self._in_spark(node, node.keys, aggregator)
        frame = self._input(node.parents[0], read_to_aggregate(node))
        return self._aggregate_rows(node, frame) if isinstance(aggregator, CombinerAggregator) else frame

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
            if consumers := shared_partials_of(self.graph, parent):
                shared, held = self._shared_groups(parent)
                moved = shared.of(held, list(consumers).index(node))
            else:
                moved = self.sections.rows(parent, partials.wanted, partials)
            if not (self.facts.one_task or (isinstance(node, UpdateNode) and node.factory.driver_local)):
                # There are hardly more rows than groups: if moved first, they are moved only once.
                moved = move_by_key(moved, keys, partitions)
            if isinstance(node, PersistentAggregateNode):
                return moved
            return aggregate_in_spark(moved, node, partial=True)
        frame = self._input(parent, read_to_aggregate(node))
        if isinstance(node, AggregateNode) and node.move is not None and node.move.tasks is not None:
            frame = move_by_key(frame, keys, node.move.tasks)
        groups = aggregate_in_spark(frame, node)
        return move_by_key(groups, keys, partitions) if isinstance(node, PersistentAggregateNode) else groups

    def _shared_groups(self, parent: TopologyNode) -> tuple[SharedPartials, DataFrame]:
        """Return the partial results of all consumers of a node: they are computed once, and held."""
        assert self.sections is not None
        found = shared_partials_of(self.graph, parent)
        counts = [
            self._partitions(node) if isinstance(node, UpdateNode) and self._is_updated_together(node) else 0
            for node in found
        ]
        shared = SharedPartials(tuple(found.values()), tuple(counts))
        if parent not in self._made:
            groups = self.sections.shared_groups(parent, shared)
            self._made[parent] = self.held.store(groups, adaptive=False)
        return shared, self._made[parent]

    def _partials(self, node: TopologyNode) -> Partials | None:
        """Return what aggregates the tuples of groups in place; None if Spark gets them first."""
        if not node.parents or not node.parents[0].tracked:
            return None
        parent = node.parents[0]
        aggregates = operates(self.graph, parent) or shared_partials_of(self.graph, parent)
        return partials_of(node) if aggregates else None

    def _partitions(self, node: AggregateNode | PersistentAggregateNode) -> int:
        if isinstance(node, PersistentAggregateNode) and not node.keys:
            return 1
        return (node.move.tasks if node.move is not None else None) or self.facts.partitions

    def _input(self, parent: TopologyNode, wanted: Iterable[str]) -> DataFrame:
        if not parent.tracked:
            return self.frame(parent)
        return self._section(parent, wanted)

    def _section(self, node: TopologyNode, wanted: Iterable[str]) -> DataFrame:
        assert self.sections is not None
        return self.sections.rows(node, wanted)

    def _finish(self, node: TopologyNode, frame: DataFrame) -> DataFrame:
        """Return the output of a node that starts from `frame`."""
        if isinstance(node, TransformNode):
            with convert_replay_requests(node.operation):
                return check_fields(node.function(frame.select(*node.parents[0].schema.names)), node)
        if isinstance(node, RowNode):
            rows = frame.select(*self.graph.read_of(node, node.parents[0]))
            return self._operate(node, rows)
        if isinstance(node, RepartitionNode):
            return repartition(frame, node.move, self.facts.partitions)
        if isinstance(node, AggregateNode):
            return self._aggregate(node, frame)
        return frame

    def _operate(self, node: RowNode | SpoutNode, rows: DataFrame) -> DataFrame:
        step, columns = self.graph.step_of(node), self.graph.columns(node)
        untracked = WholeBatchStep(node.operation, step, self.facts.conf)
        if isinstance(step, QueryStep) and step.factory.driver_local:
            return from_arrow(
                rows, untracked(in_session(zone_of(rows), rows.toArrow().to_batches())), columns
            )
        return rows.mapInArrow(Promptly(untracked, zone_of(rows)), columns)

    def _aggregate(self, node: AggregateNode, frame: DataFrame) -> DataFrame:
        aggregator = node.aggregator
        if isinstance(aggregator, CombinerAggregator) and (node.keys is None or aggregator.in_spark):
            return frame
        return self._aggregate_rows(
            node, frame if node.keys is None else move_by_key(frame, node.keys, self._partitions(node))
        )

    def _aggregate_rows(self, node: AggregateNode | PersistentAggregateNode, frame: DataFrame) -> DataFrame:
        keys = node.keys or ()
        aggregation = GroupAggregation(
            node.operation, keys, node.inputs, node.aggregator, arrow_schema(node.schema), self.facts.txid
        )
        return frame.mapInArrow(Promptly(aggregation, zone_of(frame)), node.schema)

    def _is_updated_together(self, node: TopologyNode) -> TypeGuard[PersistentAggregateNode]:
        """Return whether a state is updated from the shared groups of its parent, in executors, for nobody to read."""
        return (
            isinstance(node, PersistentAggregateNode)
            and not self.graph.children(node)
            and not node.factory.driver_local
            and bool(shared_partials_of(self.graph, node.parents[0]))
        )

    def _update(self, node: UpdateNode) -> None:
        """Update one state with the tuples of the batch."""
        changed = self._update_together(node) if self._is_updated_together(node) else self._update_alone(node)
        if changed:
            self.updated.add(node)

    def _update_together(self, node: PersistentAggregateNode) -> bool:
        """Update one of the states that are updated from the shared groups of a node."""
        if self._checks_replay(node):
            self._run_together(node, check=True)
        return self._run_together(node)

    def _checks_replay(self, node: UpdateNode) -> bool:
        run = self.facts.run
        may_be_applied = run is not None and run.again
        return may_be_applied and node.factory.checks_replays and isinstance(node, PersistentAggregateNode)

    def _run_together(self, node: PersistentAggregateNode, *, check: bool = False) -> bool:
        parent = node.parents[0]
        if (parent, check) not in self._together:
            shared, held = self._shared_groups(parent)
            updates = {
                number: self._state_update(child, self._partitions(child), StructType(), check=check)
                for number, child in enumerate(shared_partials_of(self.graph, parent))
                if self._is_updated_together(child)
            }
            together = SharedUpdates(shared, updates)
            self._together[parent, check] = together, together.planned(held)
        together, planned = self._together[parent, check]
        return together.run(planned, list(shared_partials_of(self.graph, parent)).index(node))

    def _update_alone(self, node: UpdateNode) -> bool:
        frame = self._start(node)
        if isinstance(node, PersistentAggregateNode):
            partitions = self._partitions(node)
            frame = self._group(node, frame, partitions)
        else:
            partitions = frame.rdd.getNumPartitions()
        if self._checks_replay(node):
            # Held, so that what is checked is what is written.
            frame = self.held.store(frame, adaptive=False)
            local = node.factory.driver_local
            check = self._state_update(node, 1 if local else partitions, StructType(), check=True)
            if local:
                list(check(in_session(zone_of(frame), frame.toArrow().to_batches())))
            else:
                frame.mapInArrow(Promptly(check, zone_of(frame)), NOTHING).collect()
        # The output of a state without consumers is not read.
        is_read = bool(self.graph.children(node))
        schema = self.graph.columns(node) if is_read else StructType()
        if node.factory.driver_local:
            emitted = list(
                self._state_update(node, 1, schema)(in_session(zone_of(frame), frame.toArrow().to_batches()))
            )
            if is_read:
                self._made[node] = from_arrow(frame, emitted, schema)
            return bool(emitted)
        update = Promptly(self._state_update(node, partitions, schema), zone_of(frame))
        if is_read:
            result = self._made[node] = self.held.store(frame.mapInArrow(update, schema))
            return not result.isEmpty()
        return bool(frame.mapInArrow(update, NOTHING).collect())

    def _group(self, node: PersistentAggregateNode, frame: DataFrame, partitions: int) -> DataFrame:
        """Return the frame with each group in one partition."""
        if not isinstance(node.aggregator, CombinerAggregator):
            return move_by_key(frame, node.keys, partitions)
        if node.aggregator.in_spark is None:
            return self._aggregate_rows(node, move_by_key(frame, node.keys, partitions))
        return frame

    def _task(self, node: UpdateNode, partitions: int) -> StateTask:
        facts = self.facts
        updater = node.updater if isinstance(node, WindowNode) else None
        shape = updater.shape if isinstance(updater, WindowUpdater) else None
        is_first = facts.run is not None and not facts.run.again
        attempt, owner = facts.conf.get(ATTEMPT), facts.owners.get(node)
        return StateTask(attempt, owner, partitions=partitions, is_first=is_first, shape=shape)

    def _state_update(
        self, node: UpdateNode, partitions: int, schema: StructType, *, check: bool = False
    ) -> StateUpdate:
        return StateUpdate(
            node.operation,
            node.factory,
            work_of(node, self.facts.conf, self.graph.columns(node), check=check),
            {**self.facts.conf, TASK: self._task(node, partitions)},
            self.facts.txid,
            arrow_schema(schema),
            self._partials(node),
            None if check else self.facts.metrics.of(node),
        )


def _is_held(parent: TopologyNode) -> bool:
    """Return whether a consumer holds the tuples of a node: a batch is read once, and judged once."""
    return parent.tracked or (isinstance(parent, SpoutNode) and parent.in_batches)


@dataclass(frozen=True, slots=True)
class SharedUpdates:
    """Updates the states of some consumers, by their numbers, each in the consumer's own partitions."""

    shared: SharedPartials
    updates: Mapping[int, StateUpdate]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a task of one consumer; yield one row if its state was updated."""
        consumer, partition = self.shared.consumer_of(current_place().partition)
        yield from self.updates[consumer].at(self.shared.groups(batches, consumer), partition)

    def planned(self, frame: DataFrame) -> DataFrame:
        """Return the frame of all updates, from the rows of all consumers: for `run`."""
        return self.shared.move(frame).mapInArrow(Promptly(self, zone_of(frame)), NOTHING)

    def run(self, planned: DataFrame, consumer: int) -> bool:
        """Update the state of one consumer; return True if there was something to update it with."""
        return run_partitions(planned, self.shared.partitions_of(consumer))


@dataclass(frozen=True, slots=True)
class WholeBatchStep:
    """An operation on tuples that belong to no single record: its failure fails the batch."""

    operation: str
    step: TridentStep
    conf: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            BatchFailedError: the operation failed for a tuple, or requested a replay.
        """
        pipeline = Pipeline((self.step,))
        pipeline.prepare(self.conf)
        try:
            for batch in batches:
                for judged in judge(self.step, batch) if batch.num_rows else ():
                    if judged.failed:
                        reason = judged.failed[min(judged.failed)].reason
                        msg = (
                            f"{self.operation} failed ({reason}) for a tuple that belongs to no single record"
                        )
                        raise BatchFailedError(msg)
                    yield judged.rows
        finally:
            pipeline.cleanup()
