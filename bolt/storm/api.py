"""Storm's API of bolts: `Bolt` and `BasicBolt`, the tuples that they take, the collector that they emit to.

After Apache Storm's API of the same names. A bolt works on one micro-batch at a time: each of its tasks is
prepared, executes its tuples of the batch, and is cleaned up. A task without tuples is not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from kinesis_trident.bolt.steps.columns import Columns

__all__ = [
    "ArrowBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "OutputCollector",
    "TopologyContext",
    "Tuple",
]


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """The context of a bolt's task: its component, its number among that component's tasks, the batch's txid.

    If tuples stay where they are made, `task` is the number of Spark's partition.
    """

    component: str
    task: int
    txid: int


class Tuple:
    """One tuple: `tup["word"]`, `tup[0]`, or `tup.get("word")`; columns become Python values when they are used."""

    __slots__ = ("_columns", "_row", "component", "fields")

    def __init__(self, columns: Columns, row: int, fields: Sequence[str], component: str) -> None:
        self._columns = columns
        self._row = row
        self.fields = fields
        """The names of the values."""
        self.component = component
        """The name of the spout or bolt that emitted it."""

    def __getitem__(self, field: str | int) -> Any:
        name = self.fields[field] if isinstance(field, int) else field
        return self._columns.values(name)[self._row]

    def get(self, field: str, default: Any = None) -> Any:
        """Return a value by its name; `default` if tuples of this component have no such field."""
        return self[field] if field in self.fields else default

    @property
    def values(self) -> list[Any]:
        """The values, in the order of `fields`."""
        return [self[name] for name in self.fields]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Tuple({self.component}: {dict(zip(self.fields, self.values, strict=True))})"


class OutputCollector(Protocol):
    """Emits, acks and fails for a `Bolt`. The bolt must ack, fail or hold each of its tuples before the batch ends."""

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple of the bolt's `fields`.

        `anchors`: one tuple, or several, whose trees it joins: if it fails downstream, all their records fail.
        Without anchors it is unanchored: its failure has no effect on any record.

        Raises:
            EmitError: `values` is not a list with one value for each field. The current tuple fails, and the
                anchors, even if the bolt catches the error.
            OperatorError: an anchor is not a tuple.
        """
        ...

    def ack(self, tup: Tuple) -> None:
        """Ack the tuple: it is processed. A second ack or fail of a tuple has no effect."""
        ...

    def fail(self, tup: Tuple, reason: object = "FAILED") -> None:
        """Fail the tuple: its records fail, whatever happens to the rest of their trees.

        `reason`: a text, or an exception, which is stored with its class.
        """
        ...

    def hold(self, tup: Tuple) -> None:
        """Hold the tuple: its records are not done, have not failed, and come again with the next batch.

        That is for tuples which wait for others, as in a join. It goes on until the tuple is acked or failed, or for
        the option `messageTimeout`; then its records fail with the reason TIMEOUT. No retry is used up meanwhile. A
        tuple that the bolt still keeps when its task ends, and has neither acked nor failed, is held too.
        """
        ...

    def reset_timeout(self, tup: Tuple) -> None:
        """Let the `messageTimeout` of a tuple that is held in this batch begin again."""
        ...


class BasicOutputCollector:
    """Emits for a `BasicBolt`, anchored to the current tuple."""

    __slots__ = ("_collector", "tup")

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector
        self.tup: Tuple | None = None

    def emit(self, values: Sequence[Any]) -> None:
        """Emit a tuple of the bolt's `fields`.

        Raises:
            EmitError: the number of values differs from that of the fields. The current tuple fails.
        """
        self._collector.emit(values, () if self.tup is None else self.tup)


class Bolt:
    """A bolt whose code anchors, acks and fails.

    `fields` are the names and types of the fields that it emits, such as "word string, count long"; empty if it
    emits nothing. An exception from `execute` fails the current tuple, even if it is acked already; one from
    `cleanup` fails all tuples that are neither acked nor failed. A bolt may keep tuples and ack them later in the
    batch, or keep them (`OutputCollector.hold`): their records come again with the next batch, to another instance. A
    tuple that is neither acked, failed nor kept fails with the reason NOT_ACKED. The bolt is pickled to its tasks: make
    connections in `prepare`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """The task begins."""

    def execute(self, tup: Tuple) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """End the batch, after its last tuple: emit, and ack or fail the remaining tuples."""


class BasicBolt:
    """A bolt that anchors its output to the current tuple, and acks that tuple when `execute` returns.

    An exception, such as `FailedException`, fails the tuple. `fields`: as in `Bolt`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext) -> None:
        """The task begins."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """End the batch, after its last tuple. All tuples are acked already: an error here fails the batch."""


class ArrowBolt:
    """A vectorised bolt: takes and returns Arrow batches. Each returned row is anchored to its input row.

    It returns one row for each input row, in order, or adds a column `__row` with the input row of each (ascending
    numbers, from 0; an input row may occur several times, or not at all: then it is done). A reason in a column
    `__failed` fails the input row. If it raises an error, it is called again on halves of the batch, until the
    faulty rows are isolated. `fields`: as in `Bolt`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext) -> None:
        """The task begins."""

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Process a batch of tuples."""
        raise NotImplementedError
