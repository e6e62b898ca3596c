"""One task of a bolt: runs it over the tuples of a micro-batch, and tracks their trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.storm.api import (
    DEFAULT_STREAM,
    SYSTEM,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    TopologyContext,
    Tuple,
)
from kinesis_trident.bolt.storm.collector import TaskCollector
from kinesis_trident.bolt.storm.received import Given, HeldTuple, tick_tuple
from kinesis_trident.bolt.storm.redelivery import Deliveries
from kinesis_trident.bolt.storm.streams import StreamOutput, operator_of
from kinesis_trident.bolt.tagged import Tagged
from kinesis_trident.bolt.tracking.operators import Tag, send
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.common.errors import KinesisTridentError

COMPONENT = "__component"
"""The column with the name of a row's input, used if a bolt has several, or gets tick tuples."""

TASK = "__task"
"""The column with the number of the bolt's task to which a row was sent."""


@dataclass(frozen=True, slots=True)
class BoltOperator:
    """Runs a bolt, as an operator over Arrow batches.

    `inputs`: the fields of the tuples of each component that it takes. `schema`: of the tuples that it emits.
    `renamed`: the column of each field, by component, where it is not the field's name.
    `tag` None: nothing is tracked, and acks and fails have no effect. `of_source` as in `StepOperator`. `taken` False:
    no component takes what it emits, which is only checked.

    `outputs`: all streams of the bolt, if it has others than the default one of `schema`. `streams`: the component and
    the stream of an input that has a name of its own. `context`: the bolt's, which each task completes.
    `tick`: the seconds between two tick tuples; each task executes one after its other tuples. `deliveries`: those of
    the batch beyond the first; None if there are none.
    """

    component: str
    txid: int
    bolt: Bolt | BasicBolt
    inputs: dict[str, list[str]]
    schema: pa.Schema
    tag: Tag | None
    of_source: bool = False
    taken: bool = True
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outputs: Mapping[str, StreamOutput] = field(default_factory=dict)
    streams: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    context: TopologyContext | None = None
    tick: float | None = None
    deliveries: Deliveries | None = None
    tagged: Tagged | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples that the bolt emits."""
        outputs = self.outputs or {DEFAULT_STREAM: StreamOutput(self.schema, self.taken)}
        main, ledgers = self._ledgers([stream for stream, output in outputs.items() if output.taken])
        given = (batch for batch in batches if batch.num_rows)
        first = next(given, None)
        if first is not None or self.tick is not None:
            collector = TaskCollector(
                self.component,
                outputs,
                main,
                ledgers,
                tracked=self.tag is not None,
                of_source=self.of_source,
                deliveries=self.deliveries,
                watch=self.tag.watch if self.tag is not None else None,
                tagged=self.tagged,
            )
            yield from self._run(chain([] if first is None else [first], given), task_of(first), collector)
        if self.tag is not None:
            send(self.tag, *dict.fromkeys([main, *ledgers.values()]))

    def _ledgers(self, taken: list[str]) -> tuple[OperatorLedger, dict[str, OperatorLedger]]:
        """Return the bolt's ledger, and those of the streams that are taken."""
        names = [operator_of(self.component, stream, taken) for stream in taken]
        if self.tag is None:
            made = {name: OperatorLedger(name, self.txid) for name in [self.component, *names]}
        else:
            tag = self.tag
            made = {name: replace(tag, operator=name).ledger() for name in [self.component, *names]}
        return made[self.component], {stream: made[name] for stream, name in zip(taken, names, strict=True)}

    def _run(
        self, batches: Iterable[pa.RecordBatch], task: int, collector: TaskCollector
    ) -> Iterator[pa.RecordBatch]:
        context = TopologyContext(self.component, task, self.txid)
        if self.context is not None:
            context = replace(self.context, task=task)
        execute = _prepare(self.bolt, context, collector)
        for batch in batches:
            yield from self._execute_batch(batch, collector, execute)
        tick = None
        if self.tick is not None:
            tick = partial(collector.call, execute, tick_tuple(self.tick))
        collector.clean_up(self.bolt, tick)
        if isinstance(self.bolt, Bolt):
            self.bolt._end()
        yield from collector.flush()
        collector.log_untracked_failures()

    def _execute_batch(
        self, batch: pa.RecordBatch, collector: TaskCollector, execute: Callable[[Tuple], object]
    ) -> Iterator[pa.RecordBatch]:
        # By its end the last tuple is let go: who still keeps one then is the bolt.
        for tup in self._tuples(batch, collector):
            collector.attempt(tup, execute)
            if collector.is_full:
                yield from collector.flush()
        collector.end_batch()

    def _tuples(self, batch: pa.RecordBatch, collector: TaskCollector) -> Iterator[HeldTuple]:
        given = Given(batch, self.tag is not None, self.deliveries)
        collector.begin_batch(given)
        several = COMPONENT in batch.schema.names
        names = batch.column(COMPONENT).to_pylist() if several else [*self.inputs] * batch.num_rows
        whole, none = Columns(batch), dict[str, str]()
        made = {
            name: (
                whole.rename_columns({one: self.renamed.get(name, none).get(one, one) for one in fields}),
                fields,
                *self.streams.get(name, (name, DEFAULT_STREAM)),
            )
            for name, fields in self.inputs.items()
        }
        for row, name in enumerate(names):
            # Each task with a tick tuple has a row that is no tuple (`bolt.storm.ticks`).
            # What the bolt has done for a record that another one holds is not done again.
            if name != SYSTEM and not (self.deliveries and self.deliveries.is_done(given.mark_at(row))):
                columns, fields, component, stream = made[name]
                yield HeldTuple(columns, row, fields, component, stream, given)


def _prepare(bolt: Bolt | BasicBolt, context: TopologyContext, collector: TaskCollector) -> Any:
    """Prepare a bolt, and return its function for one tuple."""
    if isinstance(bolt, Bolt):
        return prepare(context, bolt._begin, collector)
    prepare(context, bolt.prepare)
    basic = BasicOutputCollector(collector)

    def execute(tup: Tuple) -> object:
        basic.tup = tup
        try:
            result: object = bolt.execute(tup, basic)  # type: ignore[func-returns-value]
        except BaseException:
            collector.drop_emitted()
            raise
        collector.ack(tup)
        return result

    return execute


def prepare(context: TopologyContext, function: Callable[..., Any], *more: object) -> Any:
    """Call a bolt's `prepare`; return what it returns.

    Raises:
        OperatorError: `prepare` raised an error.
    """
    try:
        return function(context, *more)
    except (KinesisTridentError, KeyboardInterrupt):
        # Of a state, which says what to do.
        raise
    except BaseException as error:
        msg = (
            f"bolt {context.component!r}: prepare() raised {reason_of(error)} in task {context.task}; no tuple "
            "was executed. Fix it and start the query again, which reads the batch again"
        )
        raise OperatorError(msg) from error


def task_of(batch: pa.RecordBatch | None) -> int:
    """Return the number of this task: that to which rows were sent, else that of its partition."""
    if batch is not None and TASK in batch.schema.names:
        return int(batch.column(TASK)[0].as_py())
    return current_place().partition
