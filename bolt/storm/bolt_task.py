"""One task of a bolt: runs it over the tuples of a micro-batch, and tracks their trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.steps.functions import failures, reason_of
from kinesis_trident.bolt.storm.api import BasicBolt, BasicOutputCollector, Bolt, TopologyContext, Tuple
from kinesis_trident.bolt.storm.collector import Collector
from kinesis_trident.bolt.storm.received import Given, HeldTuple
from kinesis_trident.bolt.tracking.operators import Tag, send
from kinesis_trident.bolt.tracking.place import current_place
from kinesis_trident.bolt.tracking.reports import OperatorLedger

__all__ = ["COMPONENT", "TASK", "BoltOperator", "prepare", "task_of"]

COMPONENT = "__component"
"""The column with the component that emitted a row, used if a bolt takes tuples of several components."""

TASK = "__task"
"""The column with the number of the bolt's task to which a row was sent."""


@dataclass(frozen=True, slots=True)
class BoltOperator:
    """Runs a bolt, as an operator over Arrow batches.

    `inputs`: the fields of the tuples of each component that it takes. `schema`: of the tuples that it emits.
    `renamed`: the column of each field, by component, where it is not the field's name.
    `tag` None: nothing is tracked, and acks and fails have no effect. `of_source` as in `StepOperator`. `taken` False:
    no component takes what it emits, which is only checked.
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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples that the bolt emits."""
        ledger = self.tag.ledger() if self.tag is not None else OperatorLedger(self.component, self.txid)
        given = (batch for batch in batches if batch.num_rows)
        first = next(given, None)
        if first is not None:
            yield from self._run(first, given, ledger)
        if self.tag is not None:
            send(self.tag, ledger)

    def _run(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], ledger: OperatorLedger
    ) -> Iterator[pa.RecordBatch]:
        collector = Collector(
            self.component,
            self.schema,
            ledger,
            tracked=self.tag is not None,
            of_source=self.of_source,
            taken=self.taken,
        )
        execute = _prepared(self.bolt, TopologyContext(self.component, task_of(first), self.txid), collector)
        for batch in chain([first], rest):
            for tup in self._tuples(batch, collector):
                collector.attempt(tup, execute)
                if collector.is_full:
                    yield from collector.flush()
            collector.end_batch()
        collector.clean_up(self.bolt)
        yield from collector.flush()
        collector.log_untracked_failures()

    def _tuples(self, batch: pa.RecordBatch, collector: Collector) -> Iterator[Tuple]:
        given = Given(batch, self.tag is not None)
        collector.begin_batch(given)
        several = len(self.inputs) > 1
        components = batch.column(COMPONENT).to_pylist() if several else [*self.inputs] * batch.num_rows
        whole, none = Columns(batch), dict[str, str]()
        columns = {
            component: whole.seen_as(
                {name: self.renamed.get(component, none).get(name, name) for name in fields}
            )
            for component, fields in self.inputs.items()
        }
        for row, component in enumerate(components):
            yield HeldTuple(columns[component], row, self.inputs[component], component, given)


def _prepared(bolt: Bolt | BasicBolt, context: TopologyContext, collector: Collector) -> Any:
    """Prepare a bolt, and return its function for one tuple."""
    if isinstance(bolt, Bolt):
        prepare(context, bolt.prepare, collector)
        return bolt.execute
    prepare(context, bolt.prepare)
    basic = BasicOutputCollector(collector)

    def execute(tup: Tuple) -> object:
        basic.tup = tup
        try:
            result: object = bolt.execute(tup, basic)  # type: ignore[func-returns-value]
        except failures():
            collector.drop_emitted()
            raise
        collector.ack(tup)
        return result

    return execute


def prepare(context: TopologyContext, function: Callable[..., None], *more: object) -> None:
    """Call a bolt's `prepare`.

    Raises:
        OperatorError: `prepare` raised an error.
    """
    try:
        function(context, *more)
    except failures() as error:
        msg = (
            f"bolt {context.component!r}: prepare() raised {reason_of(error)} in task {context.task}; no tuple "
            "was executed. Fix it and start the query again, which reads the batch again"
        )
        raise OperatorError(msg) from error


def task_of(batch: pa.RecordBatch) -> int:
    """Return the number of this task: that to which rows were sent, else that of its partition."""
    if TASK in batch.schema.names:
        return int(batch.column(TASK)[0].as_py())
    return current_place().partition
