"""Addresses tuples: adds the number of the bolt's task to which each goes, as its grouping has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.moves import FIRST, SECOND, Move
from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.steps.functions import Judged, Step, reason_of
from kinesis_trident.bolt.storm.api import CustomGrouping, TopologyContext
from kinesis_trident.bolt.storm.bolt_task import TASK, task_of
from kinesis_trident.bolt.storm.components import Input
from kinesis_trident.bolt.storm.frames import add_hashes, copy_to_all, deal_out
from kinesis_trident.bolt.storm.streams import TARGET
from kinesis_trident.bolt.tracking.tracked import Tracked
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.failure import Failure

_SECOND_HASH = 0x9E3779B9
"""Makes the second hash of a key differ from the first."""


@dataclass(frozen=True, slots=True)
class Taker:
    """The bolt to which tuples go, with a number of tasks."""

    context: TopologyContext

    @property
    def tasks(self) -> int:
        """The number of its tasks."""
        assert self.context.tasks is not None
        return self.context.tasks

    @property
    def name(self) -> str:
        """The bolt's name."""
        return self.context.component


@dataclass(frozen=True, slots=True)
class BestEffortStep:
    """A step whose failures are ignored."""

    step: Step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that succeeded."""
        return (self.step(batch).rows for batch in batches if batch.num_rows)


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """A step that sends each row where a move says; `loads`: the rows that each task got so far."""

    move: Move
    schema: pa.Schema
    loads: list[int]

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Place the rows of a batch: nothing fails."""
        return _sent(batch, self.schema, *self.move.place(batch, self.loads), {})


@dataclass(slots=True)
class Choose:
    """A step that sends each row to the tasks that a custom grouping chooses.

    `source`: the component and the stream of the rows. `columns`: the columns of the values that it gets.
    """

    to: Taker
    grouping: CustomGrouping
    source: tuple[str, str]
    columns: list[str]
    schema: pa.Schema
    _prepared: bool = field(default=False, init=False)

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Choose the tasks of a batch; an exception fails its row.

        Raises:
            OperatorError: the grouping's `prepare` raised an error.
        """
        task = task_of(None)
        if not self._prepared:
            self._prepare(replace(self.to.context, task=task))
        lists = [Columns(batch).values(name) for name in self.columns]
        source: list[int] = []
        tasks: list[int] = []
        failed: dict[int, Failure] = {}
        for row in range(batch.num_rows):
            try:
                chosen = [
                    self._check_task(one) for one in self.grouping.choose_tasks(task, [c[row] for c in lists])
                ]
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failed[row] = Failure.said(f"custom_grouping: {reason_of(error)}", self.to.name)
            else:
                source += [row] * len(chosen)
                tasks += chosen
        return _sent(
            batch, self.schema, np.array(source, dtype=np.int64), np.array(tasks, dtype=np.int32), failed
        )

    def _prepare(self, context: TopologyContext) -> None:
        try:
            self.grouping.prepare(context, *self.source, range(self.to.tasks))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            msg = (
                f"bolt {self.to.name!r}: prepare() of its custom_grouping for {self.source[0]!r} raised "
                f"{reason_of(error)}. Fix it and start the query again, which reads the batch again"
            )
            raise OperatorError(msg) from error
        self._prepared = True

    def _check_task(self, task: int) -> int:
        if not isinstance(task, int | np.integer) or not 0 <= task < self.to.tasks:
            msg = f"choose_tasks() returned {task!r}; the tasks are 0 to {self.to.tasks - 1}"
            raise ValueError(msg)
        return int(task)


def add_task_numbers(
    one: Input, tuples: Tracked, to: Taker, tracking: Tracking | None, *, loose: bool
) -> Tracked:
    """Add the number of each tuple's task, in `__task`. It is the same when a stage is computed again.

    `loose`: some tuples may be in no tree, so that several can be equal in all columns.
    """
    grouping, frame = one.grouping, tuples.frame
    move = grouping.move
    if move.is_direct:
        return tuples.on(frame.withColumnRenamed(TARGET, TASK))
    if move.copies and tracking is None:
        return tuples.on(copy_to_all(frame, to.tasks))
    if move.runs_code:
        fields = [field for field in frame.schema.fields if field.name != ANCHORS]
        schema = StructType([*fields, StructField(TASK, IntegerType(), nullable=False)])
        step = _step(one, to, arrow_schema(schema))
        if move.fields:
            frame = add_hashes(frame, {FIRST: None, SECOND: _SECOND_HASH}, move.fields, to.tasks)
        if tracking is None:
            return tuples.on(frame).through(BestEffortStep(step), schema, ())
        # No name has brackets, so that no two moves have one name.
        stream = f" (stream {grouping.stream})" if grouping.stream != "default" else ""
        how = "to all of" if move.copies else f"by {move.grouping.value} to"
        made = tuples if frame is tuples.frame else tuples.on(frame)
        return tracking.steps(f"{grouping.component}{stream} ({how}) {to.name}", made, (step,), schema)
    if move.is_spread and loose:
        # Equal rows have equal hashes, and would all go to one task.
        return tuples.on(deal_out(frame, to.tasks))
    return tuples.on(add_hashes(frame, {TASK: None}, move.keys(frame.schema), to.tasks))


def _step(one: Input, to: Taker, schema: pa.Schema) -> Step:
    grouping = one.grouping
    if grouping.custom is None:
        return PlaceRows(grouping.move, schema, [0] * to.tasks)
    return Choose(to, grouping.custom, grouping.source, one.fields, schema)


def _sent(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    source: np.ndarray,
    tasks: np.ndarray,
    failed: Mapping[int, Failure],
) -> Judged:
    """Return rows of a batch with their tasks."""
    columns = {name: batch.column(name) for name in schema.names if name != TASK}
    if len(source) != batch.num_rows or (source != np.arange(batch.num_rows)).any():
        rows = numbers(source)
        columns = {name: column.take(rows) for name, column in columns.items()}
    columns[TASK] = numbers(tasks)
    return Judged(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), source, failed)
