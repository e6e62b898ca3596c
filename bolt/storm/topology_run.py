"""Runs a checked topology over a batch: every component becomes a DataFrame, all leaves run in one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.foreach_batch import BatchHandler
from kinesis_trident.bolt.partitions import move_to_partitions
from kinesis_trident.bolt.steps.functions import ArrowStep, Judged
from kinesis_trident.bolt.storm.addressing import BestEffortStep, Taker, add_task_numbers
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, ArrowBolt, Bolt, TopologyContext
from kinesis_trident.bolt.storm.bolt_task import TASK, BoltOperator, prepare, task_of
from kinesis_trident.bolt.storm.components import (
    BoltPart,
    Input,
    Part,
    SpoutPart,
    StreamId,
    TransformPart,
)
from kinesis_trident.bolt.storm.frames import (
    add_component,
    add_no_anchors,
    add_scheme,
    deal_out,
    rows_of_stream,
    run_together,
    select_as,
)
from kinesis_trident.bolt.storm.redelivery import DELIVERY, Deliveries, Delivery, Holds, MarkDeliveries
from kinesis_trident.bolt.storm.streams import StreamOutput, operator_of, places_of, schema_of, tagged_of
from kinesis_trident.bolt.storm.ticks import Ticks, with_ticks
from kinesis_trident.bolt.tracking.batch_run import BatchRun, BatchRuns
from kinesis_trident.bolt.tracking.carriers import Carrier
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.bolt.tracking.fusion import Operator
from kinesis_trident.bolt.tracking.held import Held
from kinesis_trident.bolt.tracking.judged_facts import JudgedFacts
from kinesis_trident.bolt.tracking.operators import StepOperator
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.bolt.tracking.tracked import Tracked
from kinesis_trident.bolt.tracking.tracking import Tracking
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.spout.reader.rows import ANCHORS


@dataclass(slots=True)
class ArrowBoltStep:
    """A vectorised bolt's step; failures and errors carry the bolt's name."""

    bolt: ArrowBolt
    schema: pa.Schema
    context: TopologyContext
    deliveries: Deliveries | None = None
    prepared: bool = False

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Judge a batch; the first batch of a task prepares the bolt. What the bolt has done is not done again."""
        if self.deliveries is None:
            return self._judge(batch)
        marks = self.deliveries.marks_in(batch)
        left = np.flatnonzero([not self.deliveries.is_done(mark) for mark in marks.tolist()])
        given = batch.drop_columns([DELIVERY]) if DELIVERY in batch.schema.names else batch
        judged = self._judge(given.take(numbers(left)))
        failed = {int(left[row]): why for row, why in judged.failed.items()}
        return replace(judged, source=left[judged.source], failed=failed)

    def _judge(self, batch: pa.RecordBatch) -> Judged:
        if not self.prepared:
            prepare(replace(self.context, task=task_of(batch)), self.bolt.prepare)
            self.prepared = True
        try:
            judged = ArrowStep(self.bolt.execute, self.schema)(batch)
        except OperatorError as error:
            msg = f"bolt {self.context.component!r}: {error}"
            raise OperatorError(msg) from error
        # The step has made each failure of what the bolt has said, or raised.
        where = (self.context.component,)
        return replace(
            judged,
            failed={row: msgspec.structs.replace(one, where=where) for row, one in judged.failed.items()},
        )


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
class TopologyRun:
    """Processes the batches of a topology; `parts` are ordered such that each comes after its inputs."""

    parts: Mapping[str, Part]
    tracked: bool
    parallelism: int
    ticks: Ticks = field(default_factory=Ticks)
    holds: Holds = field(default_factory=Holds)
    runs: BatchRuns = field(default_factory=BatchRuns)

    def __call__(self, rows: DataFrame, batch: CurrentBatch, process: BatchHandler) -> Verdict | None:
        """Run all bolts over a batch once; return the records that are not done."""
        if batch.verdict is not None:
            # All bolts ran to their end before the outcome was published: nothing remains to be done.
            return None
        run = self.runs.next(batch.txid, batch.epoch, batch.home)
        facts = StateFacts.of(run, batch, {})
        self.runs.begin()
        if not self.tracked:
            self.run_untracked(rows.drop(ANCHORS), run, facts)
            return None
        return self.run_tracked(rows, batch.facts, process.carrier, run, facts)

    def run_untracked(self, rows: DataFrame, run: BatchRun, facts: StateFacts) -> None:
        """Run all bolts over a batch."""
        with Held() as held:
            _Frames(self, run, None, Tracked(rows, ()), facts, held).run()

    def run_tracked(
        self, rows: DataFrame, batch: JudgedFacts, carrier: Carrier, run: BatchRun, facts: StateFacts
    ) -> Verdict:
        """Run all bolts over a batch; return the records that are not done."""
        tracking = Tracking(rows, batch, carrier)
        again = batch.plan.retries
        known = self.holds.known_in(run, again, self.parts.keys())
        source = tracking.source
        if known:
            schema = StructType([*source.frame.schema, StructField(DELIVERY, IntegerType())])
            source = source.through(MarkDeliveries(known), schema, source.producers, passes=True)
        with tracking.held as held:
            again_here = [delivery for delivery, _ in known]
            _Frames(self, run, tracking, source, facts, held, again_here).run()
            verdict = tracking.judge(ran=True)
        self.holds.note(run, again, verdict.not_done)
        return verdict

    def isolate(self, rows: DataFrame, batch: CurrentBatch, carrier: Carrier) -> Tracking:
        """Run the bolts to find the records that end their worker."""
        tracking = Tracking(rows, batch.facts, carrier, isolating=True)
        with tracking.held as held:
            run = self.runs.next(batch.txid, batch.epoch, batch.home)
            _Frames(self, run, tracking, tracking.source, StateFacts(isolating=True), held).run()
        return tracking

    @property
    def takers(self) -> Counter[StreamId]:
        """The number of inputs that take tuples of each stream."""
        return Counter(source for part in self.parts.values() for source in part.sources)

    @property
    def tasks(self) -> dict[str, int | None]:
        """The number of tasks of each bolt; None if tuples stay where they are made."""
        return {
            name: None if part.stays else part.parallelism or self.parallelism
            for name, part in self.parts.items()
            if isinstance(part, BoltPart)
        }

    @property
    def keyed(self) -> set[str]:
        """The bolts of which each key's tuples are in one task."""
        found: set[str] = set()
        for name, part in self.parts.items():
            if isinstance(part, BoltPart) and part.is_keyed(found):
                found.add(name)
        return found

    @property
    def outputs(self) -> dict[StreamId, tuple[str, ...]]:
        """The names of the fields of each stream."""
        return {
            (name, stream): tuple(declared.fields.fieldNames())
            for name, part in self.parts.items()
            for stream, declared in part.streams.items()
        }

    def deliveries_to(self, name: str, known: Sequence[Delivery]) -> Deliveries | None:
        """Return the deliveries of a batch beyond the first, for a bolt; None if there are none."""
        if not known:
            return None
        below = {name}
        for other, part in self.parts.items():
            if any(component in below for component, _ in part.sources):
                below.add(other)
        part = self.parts[name]
        watches = isinstance(part, BoltPart) and part.watches
        return Deliveries(known, name, frozenset(self.parts if watches else below))

    @property
    def loose(self) -> set[str]:
        """The components whose tuples may be in no tree."""
        found: set[str] = set()
        for name, part in self.parts.items():
            if (
                not self.tracked
                or (isinstance(part, BoltPart) and (isinstance(part.bolt, Bolt) or part.tick is not None))
                or (isinstance(part, TransformPart) and not part.anchored)
                or any(component in found for component, _ in part.sources)
            ):
                found.add(name)
        return found


class _Frames:
    """The components of a topology as DataFrames over one batch."""

    def __init__(
        self,
        topology: TopologyRun,
        run: BatchRun,
        tracking: Tracking | None,
        source: Tracked,
        facts: StateFacts,
        held: Held,
        again: Sequence[Delivery] = (),
    ) -> None:
        self._topology = topology
        self._batch_run = run
        self._tracking = tracking
        self._again = again
        self._facts = facts
        self._outputs = topology.outputs
        self._takers, self._tasks, self._loose = topology.takers, topology.tasks, topology.loose
        self._held = held
        self._made: dict[StreamId, Tracked] = {}
        self._ends: list[DataFrame] = []
        if sum(isinstance(part, SpoutPart) for part in topology.parts.values()) > 1:
            source = self._share(source)
        for name, part in topology.parts.items():
            if isinstance(part, SpoutPart):
                self._keep(name, _of_spout(name, part, source))
            elif isinstance(part, TransformPart):
                self._keep(name, self._transform(part))
            else:
                self._bolt(name, part)

    def run(self) -> None:
        """Run all components: one job over those whose tuples no other takes."""
        run_together(self._ends)

    def _keep(self, name: str, made: Tracked, stream: str = DEFAULT_STREAM) -> None:
        """Keep the tuples of a stream for those that take them."""
        takers = self._takers[name, stream]
        self._made[name, stream] = self._share(made) if takers > 1 else made
        if not takers:
            self._ends.append(made.frame)

    def _share(self, tuples: Tracked) -> Tracked:
        return tuples.on(self._held.cache(tuples.frame))

    def _transform(self, part: TransformPart) -> Tracked:
        tuples = self._made[part.source]
        if self._tracking is not None:
            tuples = self._tracking.for_function(tuples)
        # Nobody knows what the function makes of several deliveries: below it everything runs again.
        frame = part.function(tuples.frame.drop(DELIVERY) if self._again else tuples.frame)
        if self._tracking is not None and not part.anchored:
            frame = add_no_anchors(frame)
        return tuples.changed(frame)

    def _bolt(self, name: str, part: BoltPart) -> None:
        tracking = self._tracking
        taken = {stream: one for stream, one in part.streams.items() if self._takers[name, stream]}
        # What each task gets, it may write in each.
        copied = any(one.grouping.move.copies for one in part.inputs)
        context = TopologyContext(
            name,
            0,
            self._batch_run.txid,
            self._tasks[name],
            part.configuration,
            self._tasks,
            self._outputs,
            part.sources,
            replace(self._facts, is_first=False) if copied else self._facts,
            name in self._topology.keyed,
        )
        tick = part.tick if self._topology.ticks.is_due(name, part.tick, self._batch_run) else None
        tuples, moved = self._take_tuples(name, part, context, tick)
        # If rows of the source came through a shuffle, their neighbours are elsewhere: positions are found later.
        placed = tracking is not None and not moved and tuples.producers == tracking.source.producers
        # An ArrowBolt passes on only the deliveries that it gets.
        marked = bool(self._again) and (
            not isinstance(part.bolt, ArrowBolt) or DELIVERY in tuples.frame.columns
        )
        operator = self._operator(name, part, context, tick, of_source=placed, marked=marked)
        if not taken:
            self._ends.append(self._put(name, tuples, Sunk(operator), _NOTHING, anchored=False).frame)
            return
        schema = schema_of(taken)
        if marked:
            schema.add(DELIVERY, IntegerType())
        made = self._put(name, tuples, operator, schema, anchored=True)
        tagged = tagged_of(taken)
        if tagged is None:
            self._keep(name, made, *taken)
            return
        made = self._share(made)
        ours = {ANCHORS: ANCHORS} if tracking is not None else {}
        if marked:
            ours[DELIVERY] = DELIVERY
        for stream in taken:
            number, columns = places_of(tagged, taken, stream)
            frame = select_as(rows_of_stream(made.frame, number), columns | ours)
            kept = made.on(frame)
            if tracking is not None:
                kept = tracking.stream(operator_of(name, stream, [*taken]), name, made, frame)
            self._made[name, stream] = kept

    def _operator(
        self,
        name: str,
        part: BoltPart,
        context: TopologyContext,
        tick: float | None,
        *,
        of_source: bool,
        marked: bool,
    ) -> Operator:
        tracking = self._tracking
        tag = tracking.tag(name) if tracking is not None else None
        deliveries = self._topology.deliveries_to(name, self._again)
        outputs = {
            stream: StreamOutput.of(
                declared, taken=bool(self._takers[name, stream]), tasks=self._target_tasks(name, stream)
            )
            for stream, declared in part.streams.items()
        }
        if isinstance(part.bolt, ArrowBolt):
            output = outputs[DEFAULT_STREAM]
            step = ArrowBoltStep(part.bolt, output.schema, context, deliveries)
            if tag is None:
                return BestEffortStep(step)
            carry = (DELIVERY,) if marked and output.taken else ()
            return StepOperator(tag, (step,), of_source, carry, anchored=output.taken)
        return BoltOperator(
            name,
            self._batch_run.txid,
            part.bolt,
            {one.name: one.fields for one in part.inputs},
            next(iter(outputs.values())).schema,
            tag,
            of_source,
            renamed={one.name: one.renamed for one in part.inputs},
            outputs=outputs,
            streams={one.name: one.grouping.source for one in part.inputs},
            context=context,
            tick=tick,
            deliveries=deliveries,
            tagged=tagged_of({stream: one for stream, one in part.streams.items() if outputs[stream].taken}),
        )

    def _target_tasks(self, name: str, stream: str) -> int | None:
        """Return the number of tasks of the bolt that takes a direct stream."""
        takers = (taker for taker, part in self._topology.parts.items() if (name, stream) in part.sources)
        return self._tasks.get(next(takers, ""))

    def _put(
        self, name: str, tuples: Tracked, operator: Operator, schema: StructType, *, anchored: bool
    ) -> Tracked:
        if self._tracking is not None:
            return self._tracking.operator(name, tuples, operator, schema, anchored=anchored)
        return tuples.through(operator, schema, ())

    def _take_tuples(
        self, name: str, part: BoltPart, context: TopologyContext, tick: float | None
    ) -> tuple[Tracked, bool]:
        """Return the tuples of a bolt in its tasks' partitions, and True if they were moved there."""
        to = Taker(context)
        # Equal rows have equal hashes, and would all go to one task: Spark deals them out.
        spread = len(part.inputs) == 1 and tick is None and _is_spread(part.inputs[0], self._loose)
        taken: list[Tracked] = []
        for one in part.inputs:
            tuples = self._made[one.grouping.source]
            if not part.stays and not spread:
                # Before its columns are chosen: a step on the source's rows knows them by their message ids.
                loose = one.grouping.component in self._loose
                tuples = add_task_numbers(one, tuples, to, self._tracking, loose=loose)
            if len(part.inputs) > 1:
                frame = select_as(tuples.frame, self._columns(one, tuples.frame))
                tuples = tuples.on(add_component(frame, one.name))
            taken.append(tuples)
        tuples = reduce(Tracked.union, taken)
        if part.stays:
            return tuples, False
        if tick is not None:
            tuples = tuples.on(
                with_ticks(tuples.frame, part.inputs, to.tasks, tracked=self._tracking is not None)
            )
        if spread:
            return tuples.on(deal_out(tuples.frame, to.tasks)), True
        return tuples.on(move_to_partitions(tuples.frame, to.tasks, TASK)), True

    def _columns(self, one: Input, frame: DataFrame) -> dict[str, str]:
        """Return the columns of an input among several, with their names there."""
        ours = {ANCHORS, DELIVERY, TASK} & {*frame.columns}
        return {name: one.renamed.get(name, name) for name in [*one.fields, *sorted(ours)]}


_NOTHING = StructType([StructField("nothing", IntegerType())])


def _is_spread(one: Input, loose: set[str]) -> bool:
    """Return whether an input is shuffled, and its rows may be equal in all columns."""
    return one.grouping.move.is_spread and one.grouping.component in loose


def _of_spout(name: str, part: SpoutPart, source: Tracked) -> Tracked:
    """Return the tuples of a spout, from the rows of a batch."""
    if (tagged := tagged_of(part.spouts)) is not None:
        number, columns = places_of(tagged, part.spouts, name)
        return source.on(select_as(rows_of_stream(source.frame, number), columns))
    return source.on(add_scheme(source.frame, part.scheme)) if part.scheme else source
