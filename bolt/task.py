"""One task of a bolt: runs it over the tuples of a micro-batch, and keeps the account of their trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from bolt.anchors import Anchors, anchors_of, child_edges, salt_of
from bolt.columns import batch_of
from bolt.errors import OperatorError
from bolt.functions import reason_of
from bolt.operator import Tag, send
from bolt.record import Columns
from bolt.reports import Ledger
from bolt.storm import BasicBolt, BasicOutputCollector, Bolt, TopologyContext, Tuple
from spout.rows import ANCHORS, MESSAGE_ID

__all__ = ["COMPONENT", "NOT_ACKED", "TASK", "BoltOperator", "named"]

COMPONENT = "__component"
"""The column that says who emitted a row, where a bolt takes tuples of several components."""

TASK = "__task"
"""The column that says to which of a bolt's tasks a row was sent."""

NOT_ACKED = "NOT_ACKED"
_FLUSH = 10_000


@dataclass(frozen=True, slots=True)
class BoltOperator:
    """Runs a bolt, as an operator over Arrow batches.

    `inputs`: the fields of the tuples of each component that it takes. `schema`: of what it emits; None where nobody
    takes that. `tag` None: nothing is tracked, and acks and fails have no effect. `of_source` as in `StepOperator`.
    """

    component: str
    txid: int
    bolt: Bolt | BasicBolt
    inputs: dict[str, list[str]]
    schema: pa.Schema | None
    tag: Tag | None
    of_source: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the bolt emits."""
        ledger = self.tag.ledger() if self.tag is not None else Ledger(self.component, self.txid)
        given = (batch for batch in batches if batch.num_rows)
        first = next(given, None)
        if first is not None:
            yield from self._run(first, given, ledger)
        if self.tag is not None:
            send(self.tag, ledger)

    def _run(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], ledger: Ledger
    ) -> Iterator[pa.RecordBatch]:
        collector = _Collector(self, ledger)
        execute = _prepared(self.bolt, TopologyContext(self.component, _task_of(first), self.txid), collector)
        for batch in chain([first], rest):
            for tup in self._tuples(batch, collector):
                collector.attempt(tup, execute)
                if len(collector.emitted) >= _FLUSH:
                    yield from collector.flush()
            collector.end_batch()
        collector.clean_up(self.bolt)
        yield from collector.flush()

    def _tuples(self, batch: pa.RecordBatch, collector: _Collector) -> Iterator[Tuple]:
        given = _Given(batch, self.tag is not None)
        collector.begin_batch(given)
        several = len(self.inputs) > 1
        components = batch.column(COMPONENT).to_pylist() if several else [*self.inputs] * batch.num_rows
        columns = Columns(batch)
        for row, component in enumerate(components):
            yield _Held(columns, row, self.inputs[component], component, given)


class _Given:
    """A batch that came in."""

    __slots__ = ("anchors", "failed", "message_ids")

    def __init__(self, batch: pa.RecordBatch, tracked: bool) -> None:
        self.anchors = anchors_of(batch) if tracked else None
        self.message_ids = batch.column(MESSAGE_ID) if MESSAGE_ID in batch.schema.names else None
        self.failed: dict[int, str] = {}

    def anchors_at(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        if self.anchors is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        offsets = self.anchors.offsets
        span = slice(row, row + 1) if offsets is None else slice(offsets[row], offsets[row + 1])
        return self.anchors.roots[span], self.anchors.edges[span]


class _Held(Tuple):
    """A tuple with its place in the trees. `children`: how many tuples were anchored to it so far."""

    __slots__ = ("answered", "children", "given")

    def __init__(
        self, columns: Columns, row: int, fields: Sequence[str], component: str, given: _Given
    ) -> None:
        super().__init__(columns, row, fields, component)
        self.given = given
        self.children = 0
        self.answered = False

    @property
    def row(self) -> int:
        return self._row


@dataclass
class _Emitted:
    """Tuples that were emitted and not yet handed on: their values, and for each its {root: edge}."""

    values: list[tuple[Any, ...]] = field(default_factory=list)
    trees: list[dict[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)


class _Collector:
    """The collector that bolts are given, and the account that it keeps."""

    def __init__(self, operator: BoltOperator, ledger: Ledger) -> None:
        self._operator = operator
        self._ledger = ledger
        self._salt = salt_of(operator.component)
        self._width = len(operator.schema) if operator.schema is not None else None
        self._batch: _Given | None = None
        self._pending: dict[int, _Held] = {}
        self.emitted = _Emitted()

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple."""
        if self._width is None:
            return
        given: object = values
        if isinstance(given, Tuple):
            msg = (
                f"bolt {self._operator.component!r} emitted a tuple as the values: give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, emit(list(tup), tup)"
            )
            raise OperatorError(msg)
        if isinstance(values, str | bytes) or len(values) != self._width:
            assert self._operator.schema is not None
            msg = (
                f"bolt {self._operator.component!r} emitted {values!r}; its fields are "
                f"{', '.join(self._operator.schema.names)}: give a list with one value for each"
            )
            raise OperatorError(msg)
        tree: dict[int, int] = {}
        for parent in (anchors,) if isinstance(anchors, Tuple) else anchors:
            self._require_tuple(parent, "an anchor")
            assert isinstance(parent, _Held)
            roots, edges = parent.given.anchors_at(parent.row)
            numbers = np.full(len(roots), parent.children)
            parent.children += 1
            children = child_edges(edges, self._salt, numbers)
            for root, edge in zip(roots.tolist(), children.tolist(), strict=True):
                tree[root] = tree.get(root, 0) ^ edge
        self.emitted.values.append(tuple(values))
        self.emitted.trees.append(tree)

    def ack(self, tup: Tuple) -> None:
        """The tuple is processed."""
        self._require_tuple(tup, "what it acked")
        assert isinstance(tup, _Held)
        tup.answered = True
        self._pending.pop(id(tup), None)

    def fail(self, tup: Tuple, reason: str = "FAILED") -> None:
        """The tuple failed."""
        self._require_tuple(tup, "what it failed")
        assert isinstance(tup, _Held)
        if tup.answered:
            return
        self.ack(tup)
        operator = self._operator
        if operator.tag is None:
            return
        reason = named(reason, operator.component)
        if operator.of_source and tup.given is self._batch:
            tup.given.failed[tup.row] = reason
        else:
            self._ledger.fail(tup.given.anchors_at(tup.row)[0].tolist(), reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Nothing: a tuple has until its task ends."""

    def attempt(self, tup: Tuple, execute: Any) -> None:
        """Execute one tuple; an exception fails it."""
        assert isinstance(tup, _Held)
        self._pending[id(tup)] = tup
        try:
            execute(tup)
        except OperatorError:
            raise
        except Exception as error:
            self.fail(tup, reason_of(error))

    def begin_batch(self, given: _Given) -> None:
        """A batch comes."""
        self._batch = given

    def end_batch(self) -> None:
        """All tuples of the batch at hand were executed: take it into the account."""
        given, self._batch = self._batch, None
        if given is None or given.anchors is None:
            return
        if self._operator.of_source:
            self._ledger.consume_records(given.anchors, given.message_ids, given.failed)
        else:
            self._ledger.consume(given.anchors)

    def clean_up(self, bolt: Bolt | BasicBolt) -> None:
        """The input is exhausted: what is neither acked nor failed after the bolt's `cleanup` fails."""
        reason = NOT_ACKED
        try:
            bolt.cleanup()
        except OperatorError:
            raise
        except Exception as error:
            if isinstance(bolt, BasicBolt):
                msg = (
                    f"bolt {self._operator.component!r}: cleanup() raised {reason_of(error)}. Its tuples are acked by "
                    "then, so the batch fails as a whole, and is read again when the query is started again"
                )
                raise OperatorError(msg) from error
            reason = reason_of(error)
        for tup in list(self._pending.values()):
            self.fail(tup, reason)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What was emitted since the last time; a tuple whose values do not fit the fields fails its records."""
        emitted, self.emitted = self.emitted, _Emitted()
        schema = self._operator.schema
        if not len(emitted) or schema is None:
            return
        trees = emitted.trees
        try:
            rows = batch_of(emitted.values, schema)
        except Exception:
            fitting: list[int] = []
            for at, value in enumerate(emitted.values):
                try:
                    batch_of([value], schema)
                except Exception as error:
                    self._unfit(trees[at], reason_of(error))
                else:
                    fitting.append(at)
            rows = batch_of([emitted.values[at] for at in fitting], schema)
            trees = [trees[at] for at in fitting]
        if self._operator.tag is None:
            yield rows
            return
        made = Anchors(
            np.array([root for tree in trees for root in tree], dtype=np.int64),
            np.array([edge for tree in trees for edge in tree.values()], dtype=np.int64),
            np.cumsum([0, *map(len, trees)]),
        )
        self._ledger.produce(made)
        yield pa.RecordBatch.from_arrays([*rows.columns, made.column()], names=[*schema.names, ANCHORS])

    def _require_tuple(self, given: object, what: str) -> None:
        if not isinstance(given, _Held):
            msg = (
                f"bolt {self._operator.component!r}: {what} is {type(given).__name__}, expected a tuple that execute "
                "was given"
            )
            raise OperatorError(msg)

    def _unfit(self, tree: dict[int, int], reason: str) -> None:
        if self._operator.tag is not None:
            self._ledger.fail(tree, named(reason, self._operator.component))


def _prepared(bolt: Bolt | BasicBolt, context: TopologyContext, collector: _Collector) -> Any:
    """Prepare a bolt: what executes one tuple."""
    try:
        if isinstance(bolt, Bolt):
            bolt.prepare(context, collector)
            return bolt.execute
        bolt.prepare(context)
    except Exception as error:
        msg = (
            f"bolt {context.component!r}: prepare() raised {reason_of(error)} in task {context.task}. No tuple was "
            "executed; the batch is read again when the query is started again"
        )
        raise OperatorError(msg) from error
    basic = BasicOutputCollector(collector)

    def execute(tup: Tuple) -> None:
        basic.tup = tup
        emitted = len(collector.emitted)
        try:
            bolt.execute(tup, basic)
        except Exception:
            # What a failed tuple has emitted so far is of no use to anybody.
            del collector.emitted.values[emitted:], collector.emitted.trees[emitted:]
            raise
        collector.ack(tup)

    return execute


def _task_of(batch: pa.RecordBatch) -> int:
    """The task that runs here: where rows were sent to, else the number of Spark's partition."""
    if TASK in batch.schema.names:
        return int(batch.column(TASK)[0].as_py())
    context = TaskContext.get()
    return int(context.partitionId()) if context is not None else 0


def named(reason: str, component: str) -> str:
    """A reason with the bolt's name, at most 256 characters."""
    suffix = f" (bolt {component})"
    return reason[: 256 - len(suffix)] + suffix
