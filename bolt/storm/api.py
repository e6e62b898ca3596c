"""Storm's API of bolts: `Bolt` and `BasicBolt`, the tuples that they take, the collector that they emit to.

After Apache Storm's API of the same names. A bolt works on one micro-batch at a time: each of its tasks is
prepared, executes its tuples of the batch, and is cleaned up. A task without tuples is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, ClassVar, NoReturn, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import OperatorError, TopologyError
from kinesis_trident.bolt.steps.columns import Columns
from kinesis_trident.bolt.storm.named_values import NamedValues
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.common.errors import KinesisTridentError

DEFAULT_STREAM = "default"
"""The stream of tuples that are emitted without the name of one."""

SYSTEM, TICK = "__system", "__tick"
"""The component and the stream of tick tuples."""


@dataclass(frozen=True, slots=True)
class TopologyContext(StormNames):
    """The context of a bolt's task.

    Attributes:
        component: the bolt's name.
        task: the task's number among those of the bolt, from 0. If tuples stay where they are made, the number of
            Spark's partition.
        txid: the id of the micro-batch: the same when it is replayed.
        tasks: the number of the bolt's tasks; None if tuples stay where they are made, because Spark chooses it.
        configuration: that of the topology, overridden by that of the bolt.
        components: the number of tasks of each bolt, as `tasks`.
        outputs: the fields of each stream, by component and stream.
        sources: the streams that the bolt takes, each a component and a stream.
        facts: of the batch, for bolts with a state of Trident.
        keyed: a fields, global or direct grouping brings the tuples of each key to one task.
    """

    _storm: ClassVar[tuple[str, ...]] = ("TopologyContext",)
    _refusal: ClassVar[type[KinesisTridentError]] = OperatorError

    component: str
    task: int
    txid: int
    tasks: int | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    components: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    sources: tuple[tuple[str, str], ...] = ()
    facts: StateFacts = field(default_factory=StateFacts)
    keyed: bool = False

    @property
    def source_tasks(self) -> dict[str, int | None]:
        """The number of tasks of each component that the bolt takes tuples of; None if Spark chooses it."""
        return {component: self.components.get(component) for component, _ in self.sources}

    def component_output_fields(self, component: str, stream: str = DEFAULT_STREAM) -> tuple[str, ...]:
        """Return the names of the fields of a component's stream.

        Raises:
            TopologyError: there is no such stream.
        """
        fields = self.outputs.get((component, stream))
        if fields is None:
            known = ", ".join(f"{one} ({of})" for one, of in self.outputs)
            msg = (
                f"bolt {self.component!r} asks for the fields of {component!r} ({stream}): there is no such stream. "
                f"There are {known}"
            )
            raise TopologyError(msg)
        return fields

    def component_tasks(self, component: str) -> range:
        """Return the numbers of a bolt's tasks, for `emit_direct`.

        Raises:
            TopologyError: there is no such bolt, or Spark chooses the number of its tasks.
        """
        tasks = self.components.get(component)
        if tasks is None:
            known = ", ".join(name for name, count in self.components.items() if count is not None)
            msg = (
                f"bolt {self.component!r} asks for the tasks of {component!r}: that is no bolt with a number of "
                f"tasks; these are {known or 'none'}. Give it a number of tasks and a grouping that moves tuples"
            )
            raise TopologyError(msg)
        return range(tasks)


class Tuple(NamedValues, StormNames):
    """One tuple: `tup["word"]`, `tup[0]`, or `tup.get("word")`; columns become Python values when they are used."""

    __slots__ = ("_columns", "_row", "component", "fields", "stream")

    _storm: ClassVar[tuple[str, ...]] = ("ITuple", "Tuple")
    _refusal: ClassVar[type[KinesisTridentError]] = OperatorError

    def __init__(
        self,
        columns: Columns,
        row: int,
        fields: Sequence[str],
        component: str,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        self._columns = columns
        self._row = row
        self.fields = fields
        """The names of the values."""
        self.component = component
        """The name of the spout or bolt that emitted it."""
        self.stream = stream
        """The name of the stream to which it was emitted."""

    def __getitem__(self, field: str | int) -> Any:
        name = self.fields[field] if isinstance(field, int) else field
        return self._columns.values(name)[self._row]

    @property
    def values(self) -> list[Any]:
        """The values, in the order of `fields`."""
        return [self[name] for name in self.fields]

    @property
    def attempt(self) -> int:
        """The delivery of its record, from 1; a record that a bolt holds comes again without a new one."""
        return 1

    @property
    def redelivered(self) -> bool:
        """True if its record was delivered before, in an earlier attempt or because a bolt holds it.

        False for a tuple with several anchors of which some are new.
        """
        return False

    @property
    def is_tick(self) -> bool:
        """True for a tick tuple, which no component emitted."""
        return self.component == SYSTEM and self.stream == TICK

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.fields)

    def __repr__(self) -> str:
        stream = "" if self.stream == DEFAULT_STREAM else f" {self.stream}"
        return f"Tuple({self.component}{stream}: {dict(zip(self.fields, self.values, strict=True))})"


class CustomGrouping(Protocol):
    """Chooses the tasks of each tuple, for `custom_grouping`. It is pickled to the tasks of the emitting component.

    It must choose the same tasks when the same tuples come again in the same order: Spark may compute a stage twice.
    """

    def prepare(self, context: TopologyContext, component: str, stream: str, tasks: Sequence[int]) -> None:
        """Begin in a task that emits to the stream.

        `context`: of the bolt that takes the tuples, with the emitting task's number. `tasks`: those of that bolt.
        """
        ...

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Iterable[int]:
        """Return the tasks to which a tuple goes: one, several, or none, which acks it.

        `task`: the number of the emitting task. An exception fails the tuple.
        """
        ...


class OutputFieldsDeclarer(Protocol):
    """Declares the streams of a bolt, each with the names and types of its fields, such as "word string"."""

    def declare(self, fields: str) -> None:
        """Declare the fields of the default stream."""
        ...

    def declare_stream(self, stream: str, fields: str, *, direct: bool = False) -> None:
        """Declare a named stream.

        `direct`: its tuples are emitted with `emit_direct`, and taken with `direct_grouping`.
        """
        ...


class OutputCollector(Protocol):
    """Emits, acks and fails for a `Bolt`. The bolt must ack, fail or hold each of its tuples before the batch ends.

    Its methods may be called from several threads, which must end before `cleanup` returns.
    """

    def emit(
        self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a tuple of the bolt's `fields`, or of those of a named stream.

        `anchors`: one tuple, or several, whose trees it joins: if it fails downstream, all their records fail.
        Without anchors it is unanchored: its failure has no effect on any record.

        Raises:
            EmitError: `values` is not a list with one value for each field. The current tuple fails, and the
                anchors, even if the bolt catches the error.
            OperatorError: an anchor is not a tuple; the bolt does not declare the stream, or as a direct one.
        """
        ...

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit a tuple of a direct stream to one task of the bolt that takes it.

        `task`: its number, from 0 (`TopologyContext.component_tasks`). The rest is as in `emit`.

        Raises:
            EmitError: as in `emit`; or the bolt has no such task.
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

    def report_error(self, error: object) -> None:
        """Log an error, or a text, with the bolt's name in the executor's log. Nothing fails by it."""
        ...


class BasicOutputCollector(StormNames):
    """Emits for a `BasicBolt`, anchored to the current tuple; only from the thread that calls `execute`."""

    __slots__ = ("_collector", "_thread", "tup")

    _storm: ClassVar[tuple[str, ...]] = ("OutputCollector",)
    _refusal: ClassVar[type[KinesisTridentError]] = OperatorError

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector
        self._thread = get_ident()
        self.tup: Tuple | None = None

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple of the bolt's `fields`, or of those of a named stream.

        Raises:
            EmitError: the number of values differs from that of the fields. The current tuple fails.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        self._collector.emit(values, () if self.tup is None else self.tup, stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple of a direct stream to one task of the bolt that takes it, by its number.

        Raises:
            EmitError: as in `emit`; or the bolt has no such task. The current tuple fails.
        """
        if get_ident() != self._thread:
            self._refuse_thread()
        self._collector.emit_direct(task, values, () if self.tup is None else self.tup, stream)

    def report_error(self, error: object) -> None:
        """Log an error, or a text, with the bolt's name in the executor's log. Nothing fails by it."""
        self._collector.report_error(error)

    def _refuse_thread(self) -> NoReturn:
        # Its current tuple may be another one by now.
        msg = (
            "a BasicBolt emitted in another thread than execute() runs in, so nobody knows for which tuple. Emit in "
            "execute(), or derive the bolt from Bolt and give the anchors"
        )
        raise OperatorError(msg)


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
    _given: ClassVar[tuple[str, ...]] = ("context", "collector")
    """The arguments of `prepare`."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the bolt; override it for named streams. By default there is one, of `fields`."""
        if self.fields:
            declarer.declare(self.fields)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """The task begins."""

    def execute(self, tup: Tuple) -> None:
        """Process one tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """End the batch, after its last tuple: emit, and ack or fail the remaining tuples."""

    def _begin(self, context: TopologyContext, collector: OutputCollector) -> Callable[[Any], object]:
        """Prepare the task; return the function that takes each tuple."""
        self.prepare(context, collector)
        return self.execute

    def check_input(self, name: str, fields: StructType) -> None:
        """Check the fields of a stream that the bolt takes, when the topology is built."""

    def check_keys(self, name: str, tasks: int | None) -> None:
        """Check that several tasks can get tuples of the same key, when the topology is built."""

    def _finish(self) -> None:
        """Take the end of the batch."""
        self.cleanup()

    def _end(self) -> None:
        """End the task, when all its tuples are decided."""


class BasicBolt:
    """A bolt that anchors its output to the current tuple, and acks that tuple when `execute` returns.

    An exception, such as `FailedException`, fails the tuple. `fields`: as in `Bolt`.
    """

    fields: ClassVar[str] = ""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the bolt; override it for named streams. By default there is one, of `fields`."""
        if self.fields:
            declarer.declare(self.fields)

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
