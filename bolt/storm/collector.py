"""The collector of one bolt task: its emits, acks and fails, and the trees of its tuples."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from reprlib import repr as short_repr
from threading import RLock, get_ident
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, ClassVar, NoReturn

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.calls import refuse_returned
from kinesis_trident.bolt.errors import BatchFailedError, EmitError, OperatorError
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.steps.watchdog import WATCHDOG, Watch
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, BasicBolt, BasicOutputCollector, Bolt, Tuple
from kinesis_trident.bolt.storm.output import Output, Parents
from kinesis_trident.bolt.storm.received import Given, HeldTuple
from kinesis_trident.bolt.storm.redelivery import DELIVERY, Deliveries
from kinesis_trident.bolt.storm.streams import StreamOutput, columns_of
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.bolt.tagged import Tagged
from kinesis_trident.bolt.tracking.anchors import salt_of
from kinesis_trident.bolt.tracking.reports import OperatorLedger, add_failures
from kinesis_trident.common.arrow_columns import numbers
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.failure import Failure, Kind, failure_of

# A traceback has the locals of code that failed: nobody keeps a tuple there.
_CLOSED = (ModuleType, type, FrameType, TracebackType)


def find_kept_by(bolt: object, tuples: Collection[HeldTuple], but: tuple[type, ...]) -> set[int]:
    """Return the ids of those tuples that the attributes of a bolt, or the globals of its code, lead to.

    What is near is looked at first. Of the globals, which lead to all of a process (loggers, clients), only the
    containers and the objects of the bolt's own module are looked into.

    `but`: types of objects that are not looked into.
    """
    wanted = {id(tup) for tup in tuples}
    seen: set[int] = set()
    own = [bolt, *(one for kind in type(bolt).__mro__ for one in vars(kind).values())]
    found = _find_reached(own, wanted, seen, lambda one: not isinstance(one, (*_CLOSED, *but)))
    if len(found) < len(wanted):
        module = type(bolt).__module__
        given = getattr(getattr(type(bolt), "execute", None), "__globals__", {}).values()
        found |= _find_reached(
            given,
            wanted - found,
            seen,
            lambda one: isinstance(one, Mapping | Sequence | Set | deque) or type(one).__module__ == module,
        )
    return found


def _find_reached(
    roots: Iterable[Any], wanted: set[int], seen: set[int], is_open: Callable[[Any], bool]
) -> set[int]:
    """Return those of the wanted tuples that objects lead to, through those that are `is_open`."""
    todo, found = deque(roots), set[int]()
    while todo and len(found) < len(wanted):
        one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, HeldTuple):
            if id(one) in wanted:
                found.add(id(one))
        elif not is_open(one):
            continue
        elif isinstance(one, FunctionType):
            # Its globals are those of its module, which may have everything.
            todo += [one.__closure__, one.__defaults__, one.__kwdefaults__]
        elif isinstance(one, np.ndarray):
            todo += one.ravel().tolist() if one.dtype == object else []
        elif not isinstance(one, str | bytes | bytearray):
            todo += gc.get_referents(one)
    return found


log = logging.getLogger(__name__)


class TaskCollector(StormNames):
    """The collector that bolts get, and the state of their tuples. Bolts may call it from several threads.

    `ledgers`: of each stream that another component takes; the first is that of the bolt itself. If it is not
    `tracked`, acks and fails have no effect. `of_source`: its tuples are the source's rows.
    """

    _storm: ClassVar[tuple[str, ...]] = ("OutputCollector",)
    _refusal: ClassVar[type[KinesisTridentError]] = OperatorError

    def __init__(
        self,
        component: str,
        outputs: Mapping[str, StreamOutput],
        ledger: OperatorLedger,
        ledgers: Mapping[str, OperatorLedger],
        *,
        tracked: bool,
        of_source: bool,
        deliveries: Deliveries | None = None,
        watch: Watch | None = None,
        tagged: Tagged | None = None,
    ) -> None:
        self._component = component
        self._tagged = tagged
        self._watch = watch
        self._ledger = ledger
        self._ledgers = ledgers
        self._tracked = tracked
        self._of_source = of_source
        self._taken = {stream: output for stream, output in outputs.items() if output.taken}
        self._outputs = {
            stream: Output(output, self._salt(stream) if tracked else None, self._refuse_unfit, deliveries)
            for stream, output in outputs.items()
        }
        self._every = [*self._outputs.values()]
        self._lock = RLock()
        self._batch: Given | None = None
        self._pending: dict[int, HeldTuple] = {}
        self._mistake: OperatorError | None = None
        self._current: HeldTuple | None = None
        self._unfit: list[EmitError] = []
        self._untracked_failures = 0
        self._first_untold = ""
        # Failures that other threads reported; the task's own thread records them.
        self._thread = get_ident()
        self._late: list[Callable[[], None]] = []
        self._ended = False

    def _salt(self, stream: str) -> int:
        return salt_of(self._component if stream == DEFAULT_STREAM else f"{self._component}\0{stream}")

    def emit(
        self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a tuple."""
        with self._lock:
            if type(values) is not list:
                self._check_order(values, stream)
            output = self._outputs.get(stream)
            if output is None or output.stream.direct or self._ended:
                self._refuse_stream(stream, "emit")
            if type(values) is list and type(anchors) is HeldTuple and len(values) == output.width:
                # As nearly all are: a call less.
                output.add(values, anchors)
            else:
                output.add(values, self._check_emitted(output, values, anchors))

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Emit a tuple of a direct stream to a task."""
        with self._lock:
            self._check_order(values, stream)
            output = self._outputs.get(stream)
            if output is None or not output.stream.direct or self._ended:
                self._refuse_stream(stream, "emit_direct")
            parents, tasks = self._check_emitted(output, values, anchors), output.stream.tasks
            if type(task) is not int or task < 0 or (tasks is not None and task >= tasks):
                known = "a number from 0" if tasks is None else f"0 to {tasks - 1}"
                msg = (
                    f"bolt {self._component!r} emitted to task {short_repr(task)} of the stream {stream!r}. Give "
                    f"the number of a task of the bolt that takes it: {known}"
                )
                self._refuse_emitted(EmitError(msg), parents)
            output.add(values, parents, task)

    @property
    def is_full(self) -> bool:
        """True if enough is emitted for a `flush`."""
        first, *others = self._every
        return first.is_full or (bool(others) and any(output.is_full for output in others))

    def drop_emitted(self) -> None:
        """Drop what the current tuple has emitted."""
        with self._lock:
            for output in self._outputs.values():
                output.drop()

    def ack(self, tup: Tuple) -> None:
        """Ack the tuple: it is processed."""
        with self._lock:
            if type(tup) is HeldTuple and not self._ended:
                tup.answered = True
                self._pending.pop(id(tup), None)
            else:
                self._tuple(tup, "what it acked")

    def fail(self, tup: Tuple, reason: object = "FAILED") -> None:
        """Fail the tuple. `reason`: a text, or an exception, whose class may say whether and when it comes again."""
        with self._lock:
            held = self._tuple(tup, "what it failed")
            if not held.answered:
                self._fail(held, "FAILED" if reason is None else reason)

    def hold(self, tup: Tuple) -> None:
        """Hold the tuple: its records come again with the next batch. A later ack or fail counts instead."""
        self._tuple(tup, "what it held").is_held = True

    def reset_timeout(self, tup: Tuple) -> None:
        """Let the time for which the tuple may be held begin again."""
        self._tuple(tup, "that of which it reset the timeout").is_renewed = True

    def report_error(self, error: object) -> None:
        """Log an error with the bolt's name."""
        log.error("bolt %r, batch %d: %s", self._component, self._ledger.txid, reason_of(error))

    def attempt(self, tup: HeldTuple, execute: Any) -> None:
        """Execute one tuple; an exception fails it."""
        self._pending[id(tup)] = tup
        self._current = tup
        self._unfit.clear()
        for output in self._every:
            output.begin_tuple()
        try:
            if self._watch is not None:
                WATCHDOG.begin(self._watch, tup.given, (tup.row,))
            result = execute(tup)
            if result is not None:
                self._check_result(result)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, OperatorError) and not isinstance(error, EmitError):
                raise
            # Even if it was acked before: code that acks a tuple and then raises has not finished it.
            self._fail(tup, error)
        else:
            if self._unfit:
                # The bolt has caught the error, but what it emitted is lost.
                self._fail(tup, self._unfit[0])
        finally:
            if self._watch is not None:
                WATCHDOG.end()
        self._current = None
        for output in self._every:
            output.end_tuple()
        if self._late or self._mistake is not None:
            self._settle()

    def begin_batch(self, given: Given) -> None:
        """Begin an input batch."""
        self._batch = given

    def end_batch(self) -> None:
        """End the current input batch: all its tuples were executed."""
        self._settle()
        given, self._batch = self._batch, None
        if given is None or given.anchors is None:
            return
        if self._of_source:
            self._ledger.consume_records(given.anchors, given.message_ids, given.failed)
        else:
            self._ledger.consume(given.anchors)
        for ledger in self._ledgers.values():
            if ledger is not self._ledger:
                ledger.consume(given.anchors)

    def clean_up(self, bolt: Bolt | BasicBolt, tick: Callable[[], None] | None = None) -> None:
        """Clean up at the end of the input; `tick` executes a tick tuple before.

        Tuples that the bolt has neither acked nor failed after its `cleanup` are held if it holds or keeps them: nobody
        could ack one later that it no longer has. All others fail.
        """
        failure: Failure | None = None
        finish = bolt._finish if isinstance(bolt, Bolt) else bolt.cleanup
        for what, call in (("execute() of a tick tuple", tick), ("cleanup()", finish)):
            if call is None:
                continue
            try:
                call()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if isinstance(error, OperatorError | BatchFailedError) and not isinstance(error, EmitError):
                    raise
                if isinstance(bolt, BasicBolt):
                    msg = (
                        f"bolt {self._component!r}: {what} raised {reason_of(error)}. Its tuples are already "
                        "acked, so the batch fails as a whole. Fix it and start the query again, which reads the "
                        "batch again"
                    )
                    raise OperatorError(msg) from error
                failure = failure or self._judge(error)
        with self._lock:
            self._ended = True
            for output in self._outputs.values():
                output.pack()
            left = [*self._pending.values()]
            self._pending.clear()
            unsaid = [] if failure else [tup for tup in left if not tup.is_held]
            kept = find_kept_by(bolt, unsaid, (TaskCollector, BasicOutputCollector)) if unsaid else set()
            for tup in left:
                held = Failure(Kind.HELD, where=(self._component,), anew=tup.is_renewed)
                fate = held if tup.is_held or id(tup) in kept else Failure.said("NOT_ACKED", self._component)
                self._fail_row(tup.given, tup.row, failure or fate)
        self._settle()

    def call(self, execute: Any, tup: HeldTuple) -> None:
        """Execute one tuple, and check that nothing was returned.

        Raises:
            OperatorError: something was.
        """
        self._check_result(execute(tup))

    def log_untracked_failures(self) -> None:
        """Log the failures of tuples that belong to no tracked record."""
        if self._untracked_failures:
            log.warning(
                "bolt %r, batch %d: %d untracked tuples failed, so no record comes back for them; the first: %s",
                self._component,
                self._ledger.txid,
                self._untracked_failures,
                self._first_untold,
            )

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the tuples emitted since the last call; values that do not fit the fields fail their records."""
        for stream, output in self._outputs.items():
            with self._lock:
                output.pack()
            while (part := output.next_part()) is not None:
                columns = columns_of(part.rows, self._taken, stream, part.tasks, self._tagged)
                # Spark takes columns by their place: the anchors are the last.
                if part.marks is not None:
                    columns[DELIVERY] = numbers(part.marks)
                if part.anchors is not None:
                    self._ledgers[stream].produce(part.anchors)
                    columns[ANCHORS] = part.anchors.column()
                yield pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
        self._settle()

    def _answer(self, tup: HeldTuple) -> None:
        tup.answered = True
        self._pending.pop(id(tup), None)

    def _fail(self, tup: HeldTuple, reason: object) -> None:
        # The text first: a reason that cannot be converted must not leave the tuple acked.
        failure = self._judge(reason)
        self._answer(tup)
        self._record(partial(self._fail_row, tup.given, tup.row, failure))

    def _judge(self, reason: object) -> Failure:
        failure = failure_of(reason, self._component)
        return failure if self._watch is None else self._watch.judge(failure)

    def _record(self, failure: Callable[[], None]) -> None:
        """Record a failure in the task's own thread: other operators of the task share the ledgers."""
        if get_ident() == self._thread:
            failure()
        else:
            self._late.append(failure)

    def _fail_row(self, given: Given, row: int, failure: Failure) -> None:
        if self._tracked and self._of_source and given is self._batch:
            add_failures(given.failed, {row: failure})
        else:
            self._fail_roots(given.roots_at(row), failure)

    def _fail_roots(self, roots: Collection[int], failure: Failure) -> None:
        if roots:
            self._ledger.fail(roots, failure)
            return
        self._first_untold = self._first_untold or str(failure)
        self._untracked_failures += 1

    def _settle(self) -> None:
        """Record what other threads have failed, and raise a mistake that the bolt has caught."""
        while self._late:
            self._late.pop(0)()
        if self._mistake is not None:
            raise self._mistake

    def _tuple(self, given: object, what: str) -> HeldTuple:
        if not isinstance(given, HeldTuple):
            hint = ", and a stream as stream='name'" if isinstance(given, str) else ""
            self._refuse(
                f"bolt {self._component!r}: {what} is {type(given).__name__}, not a tuple. Pass the tuple that "
                f"execute() received{hint}"
            )
        if self._ended:
            self._refuse_late()
        return given

    def _check_emitted(self, output: Output, values: object, anchors: object) -> Parents:
        """Check an emitted tuple; return its anchors."""
        if isinstance(values, Tuple):
            self._refuse(
                f"bolt {self._component!r} emitted a tuple in place of values. Give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, call emit(list(tup), tup)"
            )
        parents: Parents
        if type(anchors) is HeldTuple:
            parents = anchors
        else:
            several = (
                anchors if isinstance(anchors, Iterable) and not isinstance(anchors, Tuple) else (anchors,)
            )
            parents = tuple(self._tuple(one, "an anchor") for one in several)
        if type(values) is list and len(values) == output.width:
            return parents
        in_order = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str | bytes)
        if not in_order or len(values) != output.width:  # type: ignore[arg-type]
            names = ", ".join(output.stream.schema.names)
            what = (
                f"its fields are {names}. Emit a list with one value for each field"
                if names
                else "it declares no fields. Name them in `fields`, as in fields = 'word string'"
            )
            error = EmitError(f"bolt {self._component!r} emitted {short_repr(values)}; {what}")
            self._refuse_emitted(error, parents)
        return parents

    def _check_order(self, values: object, stream: object) -> None:
        """Refuse the order of Storm's arguments: the stream, the anchors, the values."""
        if not isinstance(stream, str) or (isinstance(values, str) and values in self._outputs):
            name = values if isinstance(values, str) else "errors"
            self._refuse(
                f"bolt {self._component!r} emitted with the stream in the first place, as in Storm. Give the values "
                f"first, then the anchors, then the stream: emit([word], tup, {name!r}), and in a BasicBolt "
                f"emit([word], {name!r})"
            )

    def _refuse_emitted(self, error: EmitError, parents: Parents) -> NoReturn:
        """Fail the anchors of a tuple that cannot be emitted; the current tuple fails by the error, or after it."""
        # Of another thread, the current tuple may be the next one before the error is noticed.
        elsewhere = get_ident() != self._thread
        for parent in (parents,) if isinstance(parents, HeldTuple) else parents:
            if elsewhere or parent is not self._current:
                self._fail(parent, error)
        if not elsewhere:
            self._unfit.append(error)
        raise error

    def _refuse_unfit(self, parents: Parents, reason: str) -> None:
        """Fail the records of a tuple whose values do not fit the fields."""
        several = (parents,) if isinstance(parents, HeldTuple) else parents
        roots = dict.fromkeys(root for parent in several for root in parent.given.roots_at(parent.row))
        self._record(partial(self._fail_roots, roots, Failure.said(reason, self._component)))

    def _refuse_stream(self, stream: object, method: str) -> NoReturn:
        if self._ended:
            self._refuse_late()
        if stream not in self._outputs:
            known = ", ".join(self._outputs)
            self._refuse(
                f"bolt {self._component!r} emitted to the stream {stream!r}, which it does not declare; it declares "
                f"{known}. Declare it in declare_output_fields()"
            )
        other, kind = ("emit", "not direct") if method == "emit_direct" else ("emit_direct", "direct")
        self._refuse(f"bolt {self._component!r}: its stream {stream!r} is {kind}. Call {other}() for it")

    def _check_result(self, result: object) -> None:
        try:
            refuse_returned(f"bolt {self._component!r}: execute()", result)
        except OperatorError as error:
            self._mistake = error
            raise

    def _refuse_late(self) -> NoReturn:
        msg = (
            f"bolt {self._component!r} called its collector after the end of its task. End its threads in "
            "cleanup(), and wait for them there"
        )
        raise OperatorError(msg)

    def _refuse(self, msg: str) -> NoReturn:
        # Kept in case the bolt catches it: it is an error of the bolt, not of a tuple.
        self._mistake = OperatorError(msg)
        raise self._mistake
