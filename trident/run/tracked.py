"""The tracked half of an attempt: tuples of single records, from the spout to where tracking ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.bolt.steps.poison import unreadable_within
from kinesis_trident.bolt.storm.addressing import PlaceRows
from kinesis_trident.bolt.storm.bolt_task import TASK
from kinesis_trident.bolt.tracking.coverage import SOURCE
from kinesis_trident.bolt.tracking.fusion import Operator
from kinesis_trident.bolt.tracking.operators import StepOperator
from kinesis_trident.bolt.tracking.tracked import Tracked
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID
from kinesis_trident.trident.build.graph import Graph
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    MergeNode,
    PersistentAggregateNode,
    PersistNode,
    RepartitionNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    TransformNode,
    read_to_aggregate,
)
from kinesis_trident.trident.order import ORDER, READ
from kinesis_trident.trident.run.arrow_aggregation import Partials, partials_of
from kinesis_trident.trident.run.batch_facts import BatchFacts
from kinesis_trident.trident.run.frames import add_tasks, move_to_tasks, repartition
from kinesis_trident.trident.run.shared_partials import SharedPartials
from kinesis_trident.trident.steps.emitting_steps import ArrowEachStep, FunctionStep, QueryStep
from kinesis_trident.trident.steps.tuple_steps import (
    FilterStep,
    FiniteStep,
    Pipeline,
    ProjectStep,
    ReadableStep,
    TridentStep,
)

_IDENTITY = (MESSAGE_ID, ANCHORS)
"""The columns of the source by which an operator on it knows a record."""

_PLACE = ("stream", "shardId", "sequenceNumber", "subSequenceNumber")
"""The columns by which it finds the records that a verdict excludes, and the shards of those that it keeps."""


_READABLE = frozenset({MESSAGE_ID, *_PLACE[:3]})
"""The texts of the source that it has made or checked."""


@dataclass(slots=True)
class Sections:
    """Applies a topology's operations to a batch's rows as tracked operators, one for each chain of operations.

    The tuples of a node with several consumers are computed once, and held: a batch is read once, and a function is
    called once a tuple, however many branches and states there are.
    """

    graph: Graph
    tracking: Tracking
    facts: BatchFacts
    _operators: int = field(default=0, init=False)
    _source: Tracked | None = field(default=None, init=False)
    _shared: dict[TopologyNode, Tracked] = field(default_factory=dict, init=False)
    _read: dict[TopologyNode, set[str]] = field(init=False)
    """The fields of each node's tuples that its consumers read: only these are held."""

    def __post_init__(self) -> None:
        self._read = _find_read(self.graph)

    def rows(
        self, node: TopologyNode, wanted: Iterable[str], partials: Partials | SharedPartials | None = None
    ) -> DataFrame:
        """Return the tuples of single records where tracking ends, without failed ones.

        `partials`: aggregates the output instead, if `operates` is True for the node.
        """
        wanted = set(wanted) or {node.schema.names[0]}
        return self._section(node, wanted, anchored=False, partials=partials).frame

    def shared_groups(self, node: TopologyNode, partials: SharedPartials) -> DataFrame:
        """Return the partial results of all consumers of a node's tuples, which are not held themselves."""
        return self._compute(node, partials.wanted, anchored=False, partials=partials).frame

    def _section(
        self,
        node: TopologyNode,
        wanted: set[str],
        *,
        anchored: bool,
        raw: bool = False,
        partials: Partials | SharedPartials | None = None,
    ) -> Tracked:
        """Return a node's tuples with at least the columns in `wanted`; `anchored` if they are judged further.

        `raw`: the tuples may be the source's own rows.
        """
        if _is_shared(self.graph, node):
            return self._share(node, wanted, anchored=anchored)
        return self._compute(node, wanted, anchored=anchored, raw=raw, partials=partials)

    def _share(self, node: TopologyNode, wanted: Iterable[str], *, anchored: bool) -> Tracked:
        """Return the tuples of a node with several consumers, which are computed once."""
        if node not in self._shared:
            # Where tracking ends with all consumers, the trees end here too.
            judged_further = any(child.tracked for child in self.graph.children(node))
            made = self._compute(node, self._read[node], anchored=judged_further)
            self._shared[node] = made.on(self.tracking.held.store(made.frame))
        shared = self._shared[node]
        if shared.producers == (SOURCE,):
            # Its columns identify the records.
            return shared
        return shared.on(shared.frame.select(*wanted, *([ANCHORS] if anchored else [])))

    def _compute(
        self,
        node: TopologyNode,
        wanted: set[str],
        *,
        anchored: bool,
        raw: bool = False,
        partials: Partials | SharedPartials | None = None,
    ) -> Tracked:
        steps, base = _operations(self.graph, node)
        start = self._start if base is node else self._base
        fields = [field for field in self.graph.columns(node) if field.name in wanted]
        if isinstance(base, SpoutNode) and ORDER in narrow_steps(steps, wanted)[1]:
            steps = [self.graph.step_of(base), *steps]
        if not steps:
            return start(base, wanted, [] if raw else fields, anchored=anchored)
        schema = StructType(fields)
        chain, needed = narrow_steps([*steps, ProjectStep(arrow_schema(schema))], wanted)
        tuples = start(base, set(needed), [], anchored=True)
        return self._operator(
            node.operation, tuples, Pipeline(chain), schema, anchored=anchored, partials=partials
        )

    def _base(
        self, node: TopologyNode, wanted: set[str], fields: Sequence[StructField], *, anchored: bool
    ) -> Tracked:
        """Return the start of a chain of operations: the spout, a grouping, a merge, or a node with several consumers.

        `fields` if there are no operations.
        """
        if _is_shared(self.graph, node):
            return self._share(node, wanted, anchored=anchored)
        return self._start(node, wanted, fields, anchored=anchored)

    def _start(
        self, node: TopologyNode, wanted: set[str], fields: Sequence[StructField], *, anchored: bool
    ) -> Tracked:
        if isinstance(node, RepartitionNode):
            needed = {*wanted, *node.move.fields}
            if anchored and node.move.copies:
                return self._copies(node, needed)
            below = self._section(node.parents[0], needed, anchored=anchored, raw=not fields)
            return below.on(repartition(below.frame, node.move, self.facts.partitions))
        if isinstance(node, MergeNode):
            return self._merge(node, wanted, anchored=anchored)
        assert isinstance(node, SpoutNode)
        if self._source is None:
            source = self.tracking.source
            if len(self.graph.children(node)) > 1:
                # Its rows are pinned: if cached ones are lost, the same are read again.
                source = self.tracking.shared(source.select(self._columns(self._read[node])))
            self._source = source
        source = self._source
        if not fields:
            return source.select(self._columns(wanted))
        if anchored or self._excluding:
            schema = StructType(list(fields))
            everything = Pipeline((ProjectStep(arrow_schema(schema)),))
            tuples = source.select(self._columns(wanted))
            return self._operator(node.operation, tuples, everything, schema, anchored=anchored)
        return source.on(source.frame.select(*wanted))

    def _merge(self, node: MergeNode, wanted: set[str], *, anchored: bool) -> Tracked:
        needed = {*wanted, *_read_for_tasks(node)}
        parts = [(parent, self._section(parent, needed, anchored=anchored)) for parent in node.parents]
        if node.move is None:
            return reduce(Tracked.union, (part for _, part in parts))
        tasks = node.move.tasks or self.facts.partitions
        placed = (part.on(add_tasks(part.frame, parent.placed, tasks)) for parent, part in parts)
        merged = reduce(Tracked.union, placed)
        return merged.on(move_to_tasks(merged.frame, tasks))

    def _copies(self, node: RepartitionNode, wanted: set[str]) -> Tracked:
        """Return the copies of tuples that are judged further, each a tuple of its own in the trees of its record."""
        given = self._section(node.parents[0], wanted, anchored=True, raw=True)
        tasks = node.move.tasks or self.facts.partitions
        fields = [field for field in self.graph.columns(node) if field.name in wanted]
        schema = StructType([*fields, StructField(TASK, IntegerType(), nullable=False)])
        self._operators += 1
        copy = PlaceRows(node.move, arrow_schema(schema), [0] * tasks)
        made = self.tracking.steps(f"{node.operation}#{self._operators}", given, (copy,), schema)
        return made.on(move_to_tasks(made.frame, tasks))

    def _columns(self, wanted: set[str]) -> list[str]:
        """Return the source's columns: those read, those that identify records, and all if failed records are kept.

        Each column has a cost in the JVM, so positions are read only if some records are excluded or kept.
        """
        wanted = wanted if ORDER not in wanted else {*wanted, *READ} - {ORDER}
        keeping = self.tracking.spool is not None
        kept = RECORD_SCHEMA.names if keeping else ()
        place = _PLACE if keeping or self._excluding else ()
        return sorted({*wanted, *_IDENTITY, *place, *kept})

    def _operator(
        self,
        operation: str,
        tuples: Tracked,
        pipeline: Pipeline,
        schema: StructType,
        *,
        anchored: bool,
        partials: Partials | SharedPartials | None = None,
    ) -> Tracked:
        tracking = self.tracking
        self._operators += 1
        name = f"{operation}#{self._operators}"
        of_source = tuples.producers == (SOURCE,)
        operator = StepOperator(
            tracking.tag(name),
            (pipeline,),
            of_source,
            anchored=anchored,
            verdict=tracking.verdict if of_source else None,
            final=tracking.final,
            spool=tracking.spool if of_source else None,
        )
        prepared = Prepared(operator, pipeline, self.facts.conf, partials)
        given = schema if partials is None else partials.fields
        return tracking.operator(name, tuples, prepared, given, anchored=anchored)

    @property
    def _excluding(self) -> bool:
        verdict = self.tracking.verdict
        return bool(verdict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tracked operator whose operations are prepared before the first tuple of a task, and cleaned up at its end."""

    operator: Operator
    pipeline: Pipeline
    conf: Mapping[str, Any]
    partials: Partials | SharedPartials | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples that succeeded, or their partial results."""
        self.pipeline.prepare(self.conf)
        try:
            succeeded = self.operator(batches)
            yield from succeeded if self.partials is None else self.partials(succeeded)
        finally:
            self.pipeline.cleanup()


def operates(graph: Graph, node: TopologyNode) -> bool:
    """Return whether operations make the tuples of a node, so a Python worker, and not a move."""
    return bool(_operations(graph, node)[0]) and not _is_shared(graph, node)


def _operations(graph: Graph, node: TopologyNode) -> tuple[list[TridentStep], TopologyNode]:
    """Return the operations that make the tuples of a node, in order, and their start."""
    steps, start = [], node
    while not isinstance(start, SpoutNode | MergeNode | RepartitionNode):
        if start is not node and _is_shared(graph, start):
            break
        if isinstance(start, RowNode):
            steps.append(graph.step_of(start))
        start = start.parents[0]
    steps.reverse()
    if checked := _find_unchecked(graph, node):
        steps.append(ReadableStep(node.operation, checked, arrow_schema(graph.columns(node))))
    return steps, start


def _find_unchecked(graph: Graph, node: TopologyNode) -> tuple[str, ...]:
    """Return the fields of a node's tuples that Python reads once they belong to no single record, and may not have.

    Then a value that it cannot have would fail the batch, each time that it comes.
    """
    read: set[str] = set()
    for child in graph.children(node) if node.tracked else ():
        # What plain DataFrame code returns is read if something comes after it.
        if not child.tracked and (graph.children(child) or not isinstance(child, TransformNode)):
            read |= _read_by(graph, child, node, set(child.schema.names))
    return tuple(name for name in node.schema.names if name in read and not _is_readable(node, name))


def _is_readable(node: TopologyNode, field: str) -> bool:
    """Return whether Python can have all values of a field: by its type, or since it has made or read them."""
    if not any(unreadable_within(field, node.schema[field].dataType)) or field in _READABLE:
        return True
    if isinstance(node, RowNode):
        step = node.step
        if isinstance(step, FunctionStep | QueryStep) and field in step.added.names:
            return True
        if isinstance(step, FunctionStep | QueryStep | FilterStep) and field in step.inputs:
            return True
        if isinstance(step, ArrowEachStep) and field in step.added.names:
            return False
    return bool(node.parents) and all(_is_readable(parent, field) for parent in node.parents)


def _is_shared(graph: Graph, node: TopologyNode) -> bool:
    """Return whether the tuples of a node are held for several consumers. Those of the source are cached instead."""
    return node.tracked and len(graph.children(node)) > 1 and not isinstance(node, SpoutNode)


def _find_read(graph: Graph) -> dict[TopologyNode, set[str]]:
    """Return the fields of each node's tuples that its consumers read, at least one; all of them without consumers."""
    found: dict[TopologyNode, set[str]] = {}
    for node in reversed(graph.nodes):
        children = graph.children(node)
        read = set().union(*(_read_by(graph, child, node, found[child]) for child in children))
        found[node] = (read or {*node.schema.names[:1]}) if children else set(node.schema.names)
    return found


def _read_by(graph: Graph, node: TopologyNode, parent: TopologyNode, read: set[str]) -> set[str]:
    """Return the fields of a parent that a node reads, of whose own tuples `read` are read."""
    if isinstance(node, AggregateNode | PersistentAggregateNode):
        return read_to_aggregate(node) or {parent.schema.names[0]}
    if isinstance(node, PersistNode):
        return set(node.inputs) or {parent.schema.names[0]}
    if not node.tracked:
        return set(graph.read_of(node, parent))
    if isinstance(node, RowNode):
        return _narrow(graph.step_of(node), read)[1]
    if isinstance(node, MergeNode):
        return {*read, *_read_for_tasks(node)}
    return {*read, *node.move.fields} if isinstance(node, RepartitionNode) else read


def _read_for_tasks(node: MergeNode) -> set[str]:
    """Return the fields that say in which task a tuple of a merge is."""
    placed = [parent.placed for parent in node.parents if node.move is not None]
    return {field for move in placed if move is not None for field in move.fields}


def shared_partials_of(graph: Graph, node: TopologyNode) -> dict[TopologyNode, Partials]:
    """Return what makes the partial results of each consumer of a node's tuples, if one pass can make all of them.

    Then the tuples need not be held: they are aggregated where they are made.
    """
    if not (_is_shared(graph, node) and _operations(graph, node)[0]):
        return {}
    found = {child: partials_of(child) for child in graph.children(node)}
    return (
        {child: one for child, one in found.items() if one is not None} if None not in found.values() else {}
    )


def narrow_steps(
    steps: Sequence[TridentStep], wanted: Iterable[str]
) -> tuple[tuple[TridentStep, ...], list[str]]:
    """Return the same steps without the columns that no later step reads.

    Args:
        steps: consecutive steps.
        wanted: the columns that are read from the last one's output; at least one.

    Returns:
        The steps, and the columns that the first one reads.
    """
    needed = set(wanted)
    kept: list[TridentStep] = []
    for step in reversed(steps):
        one, needed = _narrow(step, needed)
        kept.append(one)
    return tuple(reversed(kept)), sorted(needed)


def _narrow(step: TridentStep, wanted: set[str]) -> tuple[TridentStep, set[str]]:
    if isinstance(step, FunctionStep | ArrowEachStep | QueryStep):
        through = _only(step.kept, wanted)
        return replace(step, kept=through), {*step.inputs, *through.names}
    if isinstance(step, FilterStep | FiniteStep | ReadableStep):
        through = _only(step.schema, wanted)
        return replace(step, schema=through), {*step.inputs, *through.names}
    if isinstance(step, ProjectStep):
        through = _only(step.schema, wanted)
        return replace(step, schema=through), set(through.names)
    return step, set(step.schema.names)


def _only(schema: pa.Schema, wanted: set[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in wanted])
