"""What a bolt is made of: `Bolt` and `BasicBolt`, the tuples that they take, the collector that they emit to.

After Apache Storm's API of the same names. A bolt works on one micro-batch at a time: each of its tasks is prepared,
executes the tuples of the batch that come to it, and is cleaned up. One that no tuple comes to is not made.
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
    """Where a task of a bolt stands: its component, its number among that component's tasks, the batch's txid.

    Where tuples stay where they are made, `task` is the number of Spark's partition.
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
        """A value by its name; `default` where tuples of this component have no such field."""
        return self[field] if field in self.fields else default

    @property
    def values(self) -> list[Any]:
        """All values, in the order of `fields`."""
        return [self[name] for name in self.fields]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Tuple({self.component}: {dict(zip(self.fields, self.values, strict=True))})"


class OutputCollector(Protocol):
    """What a `Bolt` says of its tuples. Each tuple that it takes is to be acked or failed before the batch ends."""

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple of the bolt's `fields`.

        `anchors`: one tuple, or several, whose trees it joins: when it fails further down, all the records fail that
        they come from. Without, it is unanchored: what becomes of it has no effect on any record.

        Raises:
            OperatorError: not one value for each field in a list, or an anchor that is no tuple.
        """
        ...

    def ack(self, tup: Tuple) -> None:
        """The tuple is processed. A second ack or fail of a tuple has no effect."""
        ...

    def fail(self, tup: Tuple, reason: object = "FAILED") -> None:
        """Fail the tuple: the records that it comes from fail, whatever else becomes of their trees.

        `reason`: a text, or an exception, which is told with its class.
        """
        ...

    def reset_timeout(self, tup: Tuple) -> None:
        """Nothing in a micro-batch: a tuple has until its bolt's task ends. It is here for bolts that call it."""
        ...


class BasicOutputCollector:
    """What a `BasicBolt` emits to: anchored to the tuple in hand."""

    __slots__ = ("_collector", "tup")

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector
        self.tup: Tuple | None = None

    def emit(self, values: Sequence[Any]) -> None:
        """Emit a tuple of the bolt's `fields`.

        Raises:
            OperatorError: the number of values is not that of the fields.
        """
        self._collector.emit(values, () if self.tup is None else self.tup)


class Bolt:
    """A bolt that anchors, acks and fails by itself.

    `fields` are the names and types of what it emits, such as "word string, count long"; empty if it emits nothing.
    An exception from `execute` fails the tuple in hand, even one that is acked already; one from `cleanup` all
    that are
    neither acked nor failed. A bolt may keep tuples and ack them later in the batch, at the latest in `cleanup`; what
    is left then fails with the reason NOT_ACKED. It is pickled to its tasks: make connections in `prepare`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """The task begins."""

    def execute(self, tup: Tuple) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """All tuples of the batch have come: emit, ack and fail what is left."""


class BasicBolt:
    """A bolt that anchors what it emits to the tuple in hand, and acks that when `execute` returns.

    An exception, `FailedException` among them, fails the tuple. `fields` as in `Bolt`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext) -> None:
        """The task begins."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """All tuples of the batch have come. They are acked already: a failure here fails the batch."""


class ArrowBolt:
    """A vectorised bolt: takes and gives Arrow batches. What it gives is anchored to the row that it comes from.

    It gives one row for each row that it was given, in order, or says in a column `__row` from which row each comes
    (ascending numbers, from 0; a row may be named several times, or not at all: then it is done). A reason in a
    column `__failed` fails the row that it was made from. Where it raises, it is called again on halves of the batch,
    until those at fault stand alone. `fields` as in `Bolt`.
    """

    fields: ClassVar[str] = ""

    def prepare(self, context: TopologyContext) -> None:
        """The task begins."""

    def execute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Process a batch of tuples."""
        raise NotImplementedError
