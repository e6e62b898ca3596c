"""Runs a checked topology over a batch: every component becomes a DataFrame, all leaves run in one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.steps.functions import ArrowStep, Judged, Step
from kinesis_trident.bolt.storm.api import ArrowBolt, TopologyContext
from kinesis_trident.bolt.storm.bolt_task import TASK, BoltOperator, prepare, task_of
from kinesis_trident.bolt.storm.collector import named
from kinesis_trident.bolt.storm.components import (
    ALL,
    LOCAL,
    SHUFFLE,
    BoltPart,
    Grouping,
    Part,
    SpoutPart,
    TransformPart,
)
from kinesis_trident.bolt.storm.frames import (
    add_no_anchors,
    add_scheme,
    address,
    copy_to_all,
    label,
    run_together,
)
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.operators import StepOperator
from kinesis_trident.bolt.tracking.tracking import Operator, Tracked, Tracking
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.spout.reader.rows import ANCHORS

__all__ = ["TopologyRun", "Untracked"]


@dataclass(frozen=True, slots=True)
class Replicate:
    """A step that repeats each row for each of a bolt's tasks, with the task's number in `__task`."""

    tasks: int
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Repeat the rows of a batch: nothing fails."""
        source = np.repeat(np.arange(batch.num_rows), self.tasks)
        task = pa.array(np.tile(np.arange(self.tasks, dtype=np.int32), batch.num_rows))
        columns = {name: column.take(pa.array(source)) for name, column in _columns(batch).items()}
        return Judged(pa.RecordBatch.from_pydict(columns | {TASK: task}), source, {})


@dataclass(slots=True)
class ArrowBoltStep:
    """A vectorised bolt's step; failures and errors carry the bolt's name."""

    component: str
    txid: int
    bolt: ArrowBolt
    schema: pa.Schema
    prepared: bool = False

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Judge a batch; the first batch of a task prepares the bolt."""
        if not self.prepared:
            prepare(TopologyContext(self.component, task_of(batch), self.txid), self.bolt.prepare)
            self.prepared = True
        try:
            judged = ArrowStep(self.bolt.execute, self.schema)(batch)
        except OperatorError as error:
            msg = f"bolt {self.component!r}: {error}"
            raise OperatorError(msg) from error
        return replace(judged, failed={row: named(why, self.component) for row, why in judged.failed.items()})


@dataclass(frozen=True, slots=True)
class Sunk:
    """An operator whose output no component takes."""

    operator: Operator

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator to its end."""
        for _ in self.operator(batches):
            pass
        yield from ()


@dataclass(frozen=True, slots=True)
class Untracked:
    """A step whose failures are ignored."""

    step: Step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that succeeded."""
        return (self.step(batch).rows for batch in batches if batch.num_rows)


@dataclass(frozen=True, slots=True)
class TopologyRun:
    """Processes the batches of a topology; `parts` are ordered such that each comes after its inputs."""

    parts: Mapping[str, Part]
    tracked: bool
    parallelism: int

    def __call__(
        self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler
    ) -> Mapping[str, tuple[NotDone, ...]] | None:
        """Run all bolts over a batch once; return the records that are not done."""
        if batch.verdict is not None:
            # All bolts ran to their end before the outcome was published: nothing remains to be done.
            return None
        if not self.tracked:
            _Frames(self, batch, None, Tracked(rows.drop(ANCHORS), ())).run()
            return None
        tracking = Tracking(rows, batch, process.carrier)
        try:
            _Frames(self, batch, tracking, tracking.source).run()
            return tracking.not_done(ran=True)
        finally:
            tracking.release()

    @property
    def takers(self) -> Counter[str]:
        """The number of inputs that take tuples of each component."""
        taken = [part.component for part in self.parts.values() if isinstance(part, TransformPart)]
        return Counter(
            [
                *taken,
                *(
                    one.grouping.component
                    for part in self.parts.values()
                    if isinstance(part, BoltPart)
                    for one in part.inputs
                ),
            ]
        )


class _Frames:
    """The components of a topology as DataFrames over one batch."""

    def __init__(
        self, topology: TopologyRun, batch: CurrentBatch, tracking: Tracking | None, source: Tracked
    ) -> None:
        self._topology = topology
        self._batch = batch
        self._tracking = tracking
        self._takers = topology.takers
        self._kept: list[DataFrame] = []
        self._made: dict[str, Tracked] = {}
        for name, part in topology.parts.items():
            if isinstance(part, SpoutPart):
                made = source.on(add_scheme(source.frame, part.scheme))
            elif isinstance(part, TransformPart):
                made = self._transformed(part)
            else:
                made = self._bolt(name, part)
            self._made[name] = self._shared(made) if self._takers[name] > 1 else made

    def run(self) -> None:
        """Run all components: one job over those whose tuples no other takes."""
        leaves = [made.frame for name, made in self._made.items() if not self._takers[name]]
        try:
            run_together(leaves)
        finally:
            while self._kept:
                self._kept.pop().unpersist()

    def _shared(self, tuples: Tracked) -> Tracked:
        if self._tracking is not None:
            return self._tracking.shared(tuples)
        self._kept.append(tuples.frame.persist())
        return tuples.on(self._kept[-1])

    def _transformed(self, part: TransformPart) -> Tracked:
        tuples = self._made[part.component]
        if self._tracking is not None:
            tuples = self._tracking.for_function(tuples)
        frame = part.function(tuples.frame)
        if self._tracking is not None and not part.anchored:
            frame = add_no_anchors(frame)
        return tuples.changed(frame)

    def _bolt(self, name: str, part: BoltPart) -> Tracked:
        tracking, taken = self._tracking, bool(self._takers[name])
        tuples, moved = self._taken(name, part)
        # If rows of the source came through a shuffle, their neighbours are elsewhere: positions are found later.
        placed = tracking is not None and not moved and tuples.producers == tracking.source.producers
        tag = tracking.tag(name) if tracking is not None else None
        schema = to_arrow_schema(part.fields, timezone="UTC")
        operator: Operator
        if not isinstance(part.bolt, ArrowBolt):
            inputs = {one.grouping.component: one.fields for one in part.inputs}
            renamed = {one.grouping.component: one.renamed for one in part.inputs}
            operator = BoltOperator(
                name, self._batch.txid, part.bolt, inputs, schema, tag, placed, taken, renamed
            )
        else:
            step = ArrowBoltStep(name, self._batch.txid, part.bolt, schema)
            operator = Untracked(step) if tag is None else StepOperator(tag, (step,), placed, anchored=taken)
        if not taken:
            return self._put(name, tuples, Sunk(operator), _NOTHING, anchored=False)
        return self._put(name, tuples, operator, part.fields, anchored=True)

    def _put(
        self, name: str, tuples: Tracked, operator: Operator, schema: StructType, *, anchored: bool
    ) -> Tracked:
        if self._tracking is not None:
            return self._tracking.operator(name, tuples, operator, schema, anchored=anchored)
        return tuples.through(operator, schema, ())

    def _taken(self, name: str, part: BoltPart) -> tuple[Tracked, bool]:
        """Return the tuples of a bolt in its tasks' partitions, and True if they were moved there."""
        stays = all(_stays(one.grouping, part.parallelism) for one in part.inputs)
        tasks = part.parallelism or self._topology.parallelism
        several = len(part.inputs) > 1
        taken: list[Tracked] = []
        for one in part.inputs:
            tuples = self._made[one.grouping.component]
            if several:
                ours = [ANCHORS] if self._tracking is not None else []
                columns = {field: one.renamed.get(field, field) for field in one.fields}
                tuples = tuples.on(label(tuples.frame, one.grouping.component, columns, ours))
            grouping = replace(
                one.grouping, fields=tuple(one.renamed.get(field, field) for field in one.grouping.fields)
            )
            taken.append(tuples if stays else self._addressed(name, grouping, tuples, tasks))
        tuples = reduce(Tracked.union, taken)
        if stays:
            return tuples, False
        return tuples.on(tuples.frame.repartitionById(tasks, TASK)), True

    def _addressed(self, name: str, grouping: Grouping, tuples: Tracked, tasks: int) -> Tracked:
        """Add the number of each tuple's task, in `__task`."""
        frame = tuples.frame
        if grouping.kind == ALL:
            if self._tracking is None:
                return tuples.on(copy_to_all(frame, tasks))
            fields = [one for one in frame.schema.fields if one.name != ANCHORS]
            schema = StructType([*fields, StructField(TASK, IntegerType(), nullable=False)])
            return self._tracking.steps(
                f"{grouping.component} to all of {name}",
                tuples,
                (Replicate(tasks, to_arrow_schema(schema, timezone="UTC")),),
                schema,
            )
        return tuples.on(address(frame, grouping, tasks))


_NOTHING = StructType([StructField("nothing", IntegerType())])


def _stays(grouping: Grouping, parallelism: int | None) -> bool:
    """Return True if a bolt can take the tuples where they are made."""
    return grouping.kind == LOCAL or (grouping.kind == SHUFFLE and parallelism is None)


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: batch.column(name) for name in batch.schema.names if name != ANCHORS}
